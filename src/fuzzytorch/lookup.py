"""From an overload to its row: written, derived, decomposed, or the weakest claim that holds."""

from __future__ import annotations

import functools
import importlib
from typing import Any

from fuzzytorch.ops import FAMILIES, coarse, exact, lowered, variants
from fuzzytorch.table import Row, Table, Verdict


@functools.cache
def table() -> Table:
    """The table of all families, built on first use."""
    return Table(
        {name: importlib.import_module(f"fuzzytorch.ops.{name}").ROWS for name in FAMILIES}
    )


def own_row(own: Table, overload: Any) -> Row | None:
    """The row that a mode has of its own for an overload, or for its functional base."""
    if len(own) == 0:
        return None
    written = own.get(str(overload))
    variant = variants.variant_of(overload)
    if written is not None or variant is None:
        return written
    base = own.get(str(variant.base))
    return None if base is None else variants.derived(overload, variant, base)


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


def unlowered(overload: Any) -> Row:
    """The row of an overload that is neither written, derived nor decomposed."""
    return coarse.coarse_row(overload) or Row(
        str(overload),
        Verdict.UNCOVERED,
        None,
        "no row, no decomposition, and not a plain function of its tensors",
    )
