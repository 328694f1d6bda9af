"""Rows of sums, means, norms, variances and running sums."""

from __future__ import annotations

import pytest
from accumulation_cases import Case, normal, rows_of
from accumulation_laws import (
    counts,
    equals_stock_in_nearest_rounding,
    ignores_the_layout,
    is_centred_in_stochastic_rounding,
    keeps_integers,
    noise_reaches_inexact_elements,
)

from fuzzytorch.table import Row, overload_named

ROWS = rows_of("reduction")

INTEGERS = frozenset(
    [
        "aten.sum.default",
        "aten.sum.dim_IntList",
        "aten.nansum.default",
        "aten.prod.default",
        "aten.prod.dim_int",
        "aten.cumsum.default",
        "aten.cumprod.default",
    ]
)
"""Rows whose operations on small integers give small integers."""

COUNTED = {
    "aten.sum.default": ((normal(5, 7),), 34),
    "aten.sum.dim_IntList": ((normal(5, 7), [1]), 5 * 6),
    "aten.mean.dim": ((normal(5, 7), [1]), 5 * 7),
    "aten.prod.default": ((normal(9),), 8),
    "aten.linalg_vector_norm.default": ((normal(9),), 2 * 9 - 1 + 1),
    "aten.var.correction": ((normal(5, 7), [1]), 5),
    "aten.cumsum.default": ((normal(5, 7), 1), 5 * 6),
    "aten.logsumexp.default": ((normal(5, 7), [1]), 5 * (7 + 7 + 6 + 1 + 1)),
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


def test_channels_last_inputs_give_the_same_bits_and_the_strides_of_stock_torch() -> None:
    tried = {row.name: ignores_the_layout(row) for row in ROWS}
    assert any(tried.values()), tried


@pytest.mark.parametrize("name", COUNTED)
def test_every_rounded_operation_is_counted(name: str) -> None:
    args, operations = COUNTED[name]
    counts(Case(overload_named(name), args, {}), operations)
