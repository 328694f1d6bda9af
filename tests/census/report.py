"""The census as a table, and whether all of its laws hold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

import torch

from census.entries import DTYPES
from census.survey import Survey
from fuzzytorch.coverage.known_gaps import GAPS
from fuzzytorch.table import Verdict

LEAST: Final = 0.95
"""Share of the entries with floating-point arithmetic that are rounded operation by operation."""

_HEAD = """\
# Census

{which} PyTorch's own database of operations (torch {torch}) that runs on a CPU, forward and
backward, functional, in place and with `out=`: {samples} samples. {command}
A choice of the samples is part of `make test`.

* In `rn` results agree with stock torch within the tolerance of PyTorch's own tests, elements that
  are *reordered* within what another order of additions explains; dtypes, shapes, strides,
  aliasing, mutation, random numbers, errors and their messages are those of stock torch.
* In `sr`, in 20 realisations, inexact results scatter, and their *means* agree with those of
  binary64; what is exact stays that of stock torch bit for bit.

An entry is *rounded* if every scalar operation of it is. The known gaps are listed
[here](coverage.md#known-gaps).

"""

_COLUMNS = (
    "| dtype | entries | with arithmetic | rounded | elements | reordered | means |\n"
    "|---|---:|---:|---:|---:|---:|---:|"
)


def table(surveys: Sequence[Survey]) -> str:
    """One line per dtype, as Markdown."""
    return "\n".join([_COLUMNS, *(_line(name, rows) for name, rows in _by_dtype(surveys))])


def _line(name: str, rows: list[Survey]) -> str:
    computing = [s for s in rows if s.computes]
    rounded = f"{_share(rows):.1%}" if computing else ""
    compared, reordered, means = (
        sum(getattr(s, a) for s in rows) for a in ("compared", "reordered", "means")
    )
    return (
        f"| {name} | {len(rows)} | {len(computing)} | {rounded} | {compared:.2g} "
        f"| {reordered / max(compared, 1):.2%} | {means:.2g} |"
    )


def _share(rows: list[Survey]) -> float:
    computing = [s for s in rows if s.computes]
    return sum(not s.weak for s in computing) / len(computing) if computing else 1.0


def others(surveys: Sequence[Survey]) -> str:
    """The entries that are not rounded operation by operation, by verdict, as Markdown."""
    found: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for s in surveys:
        for name, verdict in s.weak.items():
            found[verdict.name, name, s.entry.name].append(s.entry.dtype_name)
    lines: dict[tuple[str, str, tuple[str, ...]], list[str]] = defaultdict(list)
    for (verdict, operation, entry), dtypes in sorted(found.items()):
        lines[verdict, operation, tuple(dict.fromkeys(dtypes))].append(entry)
    rows = [
        f"| `{verdict}` | `{operation.removeprefix('aten.')}` | {', '.join(dtypes)} "
        f"| {', '.join(entries)} |"
        for (verdict, operation, dtypes), entries in lines.items()
    ]
    return "\n".join(["| verdict | operation | dtypes | entries |", "|---|---|---|---|", *rows])


def page(surveys: Sequence[Survey], wanted: int | None) -> str:
    """The page of the documentation.

    Args:
        wanted: how many samples of each entry were run at most; ``None`` for all.
    """
    few = wanted is not None
    head = _HEAD.format(
        torch=torch.__version__.partition("+")[0],
        samples=sum(s.samples for s in surveys),
        which=f"Up to {wanted} samples of each entry of" if few else "Every sample of",
        command=f"`make census ARGS='--samples {wanted}'` runs them, `make census` all there are."
        if few
        else "`make census` runs it.",
    )
    title = "\n\n## Entries that are not rounded operation by operation\n\n"
    return head + table(surveys) + title + others(surveys) + "\n"


def complaints(surveys: Sequence[Survey], complete: bool) -> Iterator[str]:
    """Sentences about what does not hold.

    Args:
        surveys: of the entries that were run.
        complete: whether that was all of them, so that every known gap must have been met.
    """
    for s in surveys:
        for f in s.findings:
            yield f"{s.entry}, {f.law}, sample {f.sample}: {f.what}"
    known, met = {gap.operation for gap in GAPS}, set()
    for s in surveys:
        for name, verdict in s.weak.items():
            if verdict is not Verdict.UNCOVERED:
                continue
            met.add(name)
            if name not in known:
                yield f"{s.entry} runs {name} unperturbed, which is no known gap"
    if complete:
        for name in sorted(known - met):
            yield f"the known gap {name} was not met: remove it from coverage/known_gaps.py"
        for dtype, rows in _by_dtype(surveys):
            if _share(rows) < LEAST:
                yield f"{_share(rows):.1%} of the entries in {dtype} are rounded, not {LEAST:.0%}"


def _by_dtype(surveys: Sequence[Survey]) -> list[tuple[str, list[Survey]]]:
    rows = {name: [s for s in surveys if s.entry.dtype_name == name] for name in DTYPES}
    return [(name, found) for name, found in rows.items() if found]
