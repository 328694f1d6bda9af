"""Rows of matrix products and distances."""

from __future__ import annotations

import pytest
from accumulation_cases import Case, normal, rows_of
from accumulation_laws import (
    counts,
    equals_stock_in_nearest_rounding,
    is_centred_in_stochastic_rounding,
    keeps_integers,
    noise_reaches_inexact_elements,
)

from fuzzytorch.table import Row, overload_named

ROWS = rows_of("linear_algebra")

INTEGERS = frozenset(
    [
        "aten.mm.default",
        "aten.bmm.default",
        "aten.addmm.default",
        "aten.baddbmm.default",
        "aten.addbmm.default",
        "aten.mv.default",
        "aten.addmv.default",
        "aten.dot.default",
        "aten.vdot.default",
        "aten.addr.default",
        "aten.trace.default",
    ]
)
"""Rows whose operations on small integers give small integers."""

COUNTED = {
    "aten.mm.default": ((normal(3, 300), normal(300, 5)), 2 * 3 * 5 * 300),
    "aten.bmm.default": ((normal(2, 3, 4), normal(2, 4, 5)), 2 * 2 * 3 * 5 * 4),
    "aten.addmm.default": ((normal(5), normal(3, 4), normal(4, 5)), 2 * 3 * 5 * 4 + 15),
    "aten.baddbmm.default": ((normal(5), normal(2, 3, 4), normal(2, 4, 5)), 2 * 2 * 3 * 5 * 4 + 30),
    "aten.addbmm.default": ((normal(5), normal(2, 3, 4), normal(2, 4, 5)), 2 * 2 * 3 * 5 * 4 + 30),
    "aten.mv.default": ((normal(3, 4), normal(4)), 2 * 3 * 4),
    "aten.addmv.default": ((normal(3), normal(3, 4), normal(4)), 2 * 3 * 4 + 3),
    "aten.dot.default": ((normal(9), normal(9)), 2 * 9 - 1),
    "aten.addr.default": ((normal(3, 4), normal(3), normal(4)), 2 * 12),
    "aten.trace.default": ((normal(4, 4),), 3),
}
"""Arguments and scalar operations by row."""


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_nearest_rounding_gives_what_stock_torch_gives(row: Row) -> None:
    equals_stock_in_nearest_rounding(row)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_mean_in_stochastic_rounding_is_the_binary64_result(row: Row) -> None:
    is_centred_in_stochastic_rounding(row)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_noise_reaches_every_inexact_element(row: Row) -> None:
    noise_reaches_inexact_elements(row)


@pytest.mark.parametrize("row", [row for row in ROWS if row.name in INTEGERS], ids=lambda r: r.name)
def test_integers_stay_exact(row: Row) -> None:
    keeps_integers(row)


@pytest.mark.parametrize("name", COUNTED)
def test_every_rounded_operation_is_counted(name: str) -> None:
    args, operations = COUNTED[name]
    counts(Case(overload_named(name), args, {}), operations)
