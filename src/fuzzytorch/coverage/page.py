"""The documentation page of the table: every verdict, counted and listed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch

from fuzzytorch.coverage.known_gaps import BEYOND, GAPS
from fuzzytorch.lookup import resolve, table
from fuzzytorch.ops import FAMILIES
from fuzzytorch.table import Row, Verdict, dispatched

_HEAD = """\
# Coverage

This page is generated from the table of operations by `make docs`; it is true of torch {torch}.

Every operation of torch that reaches a mode has one verdict:

| verdict | what is claimed | overloads |
|---|---|---:|
{verdicts}

They are the {total} overloads of the namespace `aten`. {written} of them have a row of their own;
{derived} in-place and `out=` overloads are derived from the row of the operation that computes
the same values; the rest follow from their schema or from the decompositions of torch.
What a program really ran is in `fuzzytorch.coverage()`, weighted by floating-point operations.

A `ROUNDED` row computes on float32 and on float64 tensors, and rounds in their own format. float16
and bfloat16 operands are widened to float32, the arithmetic is rounded in binary32, and the store
is one more rounding. Where a line says "from binary64", a float64 result is known to about one
unit in the last place, and moved by about as much; so is every float64 result of a `COARSE`
operation, that of torch in float64. Rows marked *complex* stand for calls with complex64 and
complex128 operands, whose parts round one by one; what has none is computed in complex128, and both
parts are rounded: `COARSE`. Rows marked *sparse* stand for calls with COO, CSR and CSC operands. On
quantized and other sparse tensors an operation runs unperturbed, is counted as `UNCOVERED`, and is
warned about by name. An operation that reads and returns no floating-point tensor is exact.
"""


def page() -> str:
    """The page as Markdown: totals over the aten overloads, then the rows of every family."""
    rows = [resolve(overload) for overload in aten_overloads()]
    counts = Counter(row.verdict for row in rows)
    lines = _HEAD.format(
        torch=torch.__version__.partition("+")[0],
        verdicts="\n".join(
            f"| `{v.name}` | {v.value} | {counts[v]} |" for v in Verdict if counts[v]
        ),
        total=len(rows),
        written=len({row.name for row in table() if row.name.startswith("aten.")}),
        derived=sum(row.variant is not None for row in rows),
    )
    sections = [*_families(), *_remaining(rows), *_gaps()]
    return "\n".join([lines, *sections])


def aten_overloads() -> list[Any]:
    """Every overload of the namespace ``aten`` that reaches a dispatch mode, by name."""
    aten = torch.ops.aten
    names = {
        name.removeprefix("aten::").partition(".")[0]
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("aten::")
    }
    packets = [getattr(aten, name) for name in sorted(names) if hasattr(aten, name)]
    return [getattr(packet, overload) for packet in packets for overload in dispatched(packet)]


def _gaps() -> Iterator[str]:
    yield "## Known gaps\n"
    if GAPS:
        yield "What PyTorch's own database of operations meets that runs unperturbed:\n"
        yield "| operation | why |\n|---|---|"
        yield from (f"| `{g.operation.removeprefix('aten.')}` | {g.why} |" for g in GAPS)
    else:
        yield "Of what PyTorch's own database of operations meets, nothing runs unperturbed."
    yield "\nBeyond that database these run unperturbed, are counted and warned about by name:\n"
    yield from (f"- {what}" for what in BEYOND)
    yield ""


def _families() -> Iterator[str]:
    """One section per family; operations with the same verdict and reason share a line."""
    for family in FAMILIES:
        groups: dict[tuple[Verdict, str], list[str]] = {}
        for row in table():
            if table().family(row) == family:
                groups.setdefault((row.verdict, row.why), []).append(row.name)
        yield f"## {family.replace('_', ' ').capitalize()}\n"
        yield "| operations | verdict | why |\n|---|---|---|"
        for (verdict, why), names in groups.items():
            yield f"| {_operations(names)} | `{verdict.name}` | {why} |"
        yield ""


def _operations(names: list[str]) -> str:
    """Overload names without the namespace, or the operation where it stands for several."""
    operations: dict[str, list[str]] = {}
    for name in names:
        namespace, operation, overload = name.split(".")
        short = operation if namespace == "aten" else f"{namespace}.{operation}"
        operations.setdefault(short, []).append(overload)
    return ", ".join(
        f"`{operation}`" if len(overloads) > 1 or overloads == ["default"]
        else f"`{operation}.{overloads[0]}`"
        for operation, overloads in sorted(operations.items())
    )  # fmt: skip


def _remaining(rows: list[Row]) -> Iterator[str]:
    """What has the two weakest claims without a row of its own."""
    for verdict, title in (
        (Verdict.COARSE, "Coarse for want of a row or a decomposition"),
        (Verdict.UNCOVERED, "Uncovered"),
    ):
        names = [
            row.name
            for row in rows
            if row.verdict is verdict and row.variant is None and table().get(row.name) is None
        ]
        yield f"## {title}\n\n{_operations(names)}.\n"
