"""From an overload to its row: written, derived, decomposed, or the weakest claim that holds."""

from __future__ import annotations

import dataclasses
import functools
import importlib
from typing import Any, NamedTuple

import torch

from fuzzytorch.ops import FAMILIES, admission, coarse, exact, lowered, variants
from fuzzytorch.table import OPERANDS, Row, Table, Verdict


@functools.cache
def table() -> Table:
    """The table of all families, built on first use."""
    return Table(
        {name: importlib.import_module(f"fuzzytorch.ops.{name}").ROWS for name in FAMILIES}
    )


@functools.cache
def resolve(overload: Any) -> Row:
    """The row of any overload, in this order.

    1. the row written for it;
    2. the row of its functional base, for an in-place or ``out=`` variant;
    3. ``EXACT`` for views, and for questions that return no tensor;
    4. ``LOWERED`` where torch has a decomposition, of it or of its functional base;
    5. ``COARSE`` for functional aten overloads and variants derived from them;
    6. ``UNCOVERED``.
    """
    written = table().get(str(overload))
    if written is not None:
        return written
    variant = variants.variant_of(overload)
    if variant is not None:
        base = table().get(str(variant.base))
        if base is not None:
            return variants.derived(overload, variant, base)
    found = exact.schema_row(overload) or lowered.lowered_row(overload)
    if found is not None:
        return found
    if variant is not None:
        base = resolve(variant.base)
        if base.function is not None:
            return variants.derived(overload, variant, base)
    return unlowered(overload)


@functools.cache
def other_row(overload: Any, operands: str) -> Row | None:
    """The row of an overload for complex or sparse operands, or ``None`` where it has none.

    Complex operands without a row of their own are computed in binary64, the components
    rounded once.
    """
    row = table().get(str(overload), operands)
    if row is not None:
        return row
    variant = variants.variant_of(overload)
    base = None if variant is None else table().get(str(variant.base), operands)
    if variant is None or base is None:
        if operands != "complex" or resolve(overload).verdict is Verdict.EXACT:
            return None
        base = coarse.coarse_row(overload if variant is None else variant.base)
        base = None if base is None else dataclasses.replace(base, operands=operands)
        if variant is None or base is None:
            return base
    return variants.derived(overload, variant, base)


def has_other_rows(overload: Any) -> bool:
    """Whether calls with complex or sparse operands have a row that others do not."""
    variant = variants.variant_of(overload)
    names = [str(overload)] if variant is None else [str(overload), str(variant.base)]
    return any(table().get(n, o) is not None for n in names for o in OPERANDS if o != "real")


def unlowered(overload: Any) -> Row:
    """The row of an overload that is neither written, derived nor decomposed."""
    return coarse.coarse_row(overload) or Row(
        str(overload),
        Verdict.UNCOVERED,
        None,
        "no row, no decomposition, and not a plain function of its tensors",
    )


class Entry(NamedTuple):
    """What a mode keeps of an overload that it met.

    Attributes:
        overload: kept alive, so that its id stands for it.
        row: that of its calls with dense real operands.
        admission: whether its calls are to be admitted by stock torch.
        others: whether its operands must be looked at first, because the row would take
            those too that have another one.
    """

    overload: Any
    row: Row
    admission: bool
    others: bool


def entry(func: Any) -> Entry:
    """The entry of what a dispatch mode is handed."""
    if not isinstance(func, torch._ops.OpOverload):
        why = "it is not an operation of the dispatcher"
        return Entry(func, Row(str(func), Verdict.UNCOVERED, None, why), False, False)
    row = resolve(func)
    others = (row.function is None or row.any_dtype) and has_other_rows(func)
    return Entry(func, row, admission.needs_admission(row, source(row, func)), others)


@functools.cache
def other_entry(func: Any, operands: str) -> Entry | None:
    """The entry of an overload for complex or sparse operands, ``None`` where it has none."""
    row = other_row(func, operands)
    if row is None:
        return None
    return Entry(func, row, admission.needs_admission(row, source(row, func)), False)


def source(row: Row, func: Any) -> Any:
    """The functional overload whose function a row runs."""
    return func if row.variant is None else row.variant.base


def without_decomposition(row: Row, func: Any) -> Row:
    """The row of an overload whose decomposition does not apply to its operands."""
    if row.variant is None:
        return unlowered(func)
    return variants.derived(func, row.variant, unlowered(row.variant.base))
