"""Rows of convolutions and their gradients."""

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

ROWS = rows_of("convolution")

INTEGERS = frozenset(
    [
        "aten.convolution.default",
        "aten._convolution.default",
        "aten.conv_tbc.default",
        "aten.convolution_backward.default",
    ]
)
"""Rows whose operations on small integers give small integers."""

GEOMETRY = ([1], [0], [1], False, [0], 1)
COUNTED = {
    "aten.convolution.default": (
        (normal(2, 3, 9), normal(4, 3, 3), normal(4), *GEOMETRY),
        2 * 56 * 9 + 56,
    ),
    "aten.convolution_backward.default": (
        (normal(2, 4, 7), normal(2, 3, 9), normal(4, 3, 3), [4], *GEOMETRY, [True, True, True]),
        2 * 56 * 9 + 2 * 36 * 14 + 4 * 13,
    ),
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
