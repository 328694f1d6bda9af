"""Rows of pooling, nearest upsampling and losses."""

from __future__ import annotations

import math

import pytest
import torch
from accumulation_cases import Case, normal, rows_of
from accumulation_laws import (
    BACKEND,
    counts,
    equals_stock_in_nearest_rounding,
    ignores_the_layout,
    is_centred_in_stochastic_rounding,
    keeps_integers,
    noise_reaches_inexact_elements,
)

from fuzzytorch.fuzzy import fuzzy
from fuzzytorch.table import Row, overload_named

ROWS = rows_of("pooling", "loss")

INTEGERS = frozenset(
    [
        "aten.max_pool2d_with_indices_backward.default",
        "aten.max_pool3d_with_indices_backward.default",
        "aten.adaptive_max_pool2d_backward.default",
        "aten.upsample_nearest2d_backward.default",
    ]
)
"""Rows whose operations on small integers give small integers."""

COUNTED = {
    "aten.avg_pool2d.default": ((normal(2, 3, 8, 8), [2]), 96 * (3 + 1)),
    "aten.avg_pool3d.default": ((normal(2, 8, 8, 8), [2, 2, 3], [2, 2, 1]), 192 * (11 + 1)),
    "aten._adaptive_avg_pool2d.default": ((normal(2, 3, 8, 8), [4, 4]), 96 * (3 + 2)),
    "aten.mse_loss.default": ((normal(5, 7), normal(5, 7)), 2 * 35 + 34 + 1),
    "aten.mse_loss_backward.default": ((normal(), normal(5, 7), normal(5, 7), 1), 1 + 3 * 35),
    "aten.binary_cross_entropy.default": (
        (normal(5, 7).sigmoid(), normal(5, 7).sigmoid(), normal(5, 7)),
        35 * (2 + 4 + 1) + 34 + 1,
    ),
    "aten.binary_cross_entropy_backward.default": (
        (normal(), normal(5, 7).sigmoid(), normal(5, 7).sigmoid(), normal(5, 7)),
        35 * (5 + 1 + 1),
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


@pytest.mark.parametrize("argument", ["input", "target"])
@pytest.mark.parametrize("wrong", [1.5, -0.25, math.nan])
def test_cross_entropy_of_what_is_no_probability_is_refused_as_by_stock_torch(
    argument: str, wrong: float
) -> None:
    right, broken = torch.tensor([0.25, 1.0]), torch.tensor([0.25, wrong])
    operands = (broken, right) if argument == "input" else (right, broken)
    sentence = f"all elements of {argument} should be between 0 and 1"
    with pytest.raises(RuntimeError, match=sentence):
        torch.nn.functional.binary_cross_entropy(*operands)
    with fuzzy("sr", seed=0, backend=BACKEND):
        torch.nn.functional.binary_cross_entropy(right, right)
        with pytest.raises(RuntimeError, match=sentence):
            torch.nn.functional.binary_cross_entropy(*operands)


def test_channels_last_inputs_give_the_same_bits_and_the_strides_of_stock_torch() -> None:
    # Stock torch refuses such an input to the gradient of the two-dimensional loss.
    tried = {row.name: ignores_the_layout(row) for row in rows_of("pooling")}
    assert any(tried.values()), tried


@pytest.mark.parametrize("name", COUNTED)
def test_every_rounded_operation_is_counted(name: str) -> None:
    args, operations = COUNTED[name]
    counts(Case(overload_named(name), args, {}), operations)
