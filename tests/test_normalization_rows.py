"""Rows of softmax and of layer, group, batch and weight normalization."""

from __future__ import annotations

import copy

import pytest
import torch
from accumulation_cases import Case, normal, rows_of
from accumulation_laws import (
    BACKEND,
    counts,
    equals_stock_in_nearest_rounding,
    ignores_the_layout,
    is_centred_in_stochastic_rounding,
    noise_reaches_inexact_elements,
    results,
)

from fuzzytorch.fuzzy import fuzzy
from fuzzytorch.table import Row, overload_named

ROWS = rows_of("normalization", "batch_norm", "softmax")

BATCH = (normal(4, 3, 5), normal(3), normal(3), normal(3), normal(3).abs())
COUNTED = {
    "aten.native_layer_norm.default": (
        (normal(5, 7), [7], normal(7), normal(7), 1e-5),
        5 * (6 + 1 + 13 + 4) + 35 * (1 + 2 + 1),
    ),
    "aten.native_batch_norm.default": ((*BATCH, True, 0.1, 1e-5), 3 * (3 + 2 + 2) + 60),
    "aten._softmax.default": ((normal(5, 7), 1, False), 5 * (7 + 7 + 6 + 7)),
    "aten._log_softmax.default": ((normal(5, 7), 1, False), 5 * (7 + 7 + 6 + 1 + 14)),
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


def test_channels_last_inputs_give_the_same_bits_and_the_strides_of_stock_torch() -> None:
    tried = {row.name: ignores_the_layout(row) for row in ROWS}
    assert any(tried.values()), tried


@pytest.mark.parametrize("name", COUNTED)
def test_every_rounded_operation_is_counted(name: str) -> None:
    args, operations = COUNTED[name]
    counts(Case(overload_named(name), args, {}), operations)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("parameters", ["narrow", "float32"])
@pytest.mark.parametrize("name", ["native_batch_norm", "native_layer_norm", "native_group_norm"])
def test_statistics_of_narrow_inputs_have_the_dtypes_and_updates_of_stock_torch(
    dtype: torch.dtype, parameters: str, name: str
) -> None:
    own = dtype if parameters == "narrow" else torch.float32
    x, weight = normal(4, 6, 5).to(dtype), normal(6).to(own)
    if name == "native_batch_norm":
        running = (weight * 0.5, weight.abs())
        args = (x, weight, weight, *running, True, 0.125, 2.0**-10)
    elif name == "native_layer_norm":
        args = (x, [5], weight[:5], weight[1:], 2.0**-10)
    else:
        args = (x, weight, weight, 4, 6, 5, 2, 2.0**-10)
    stock = copy.deepcopy(args)
    ours = results(Case(overload_named(f"aten.{name}.default"), args, {}), "rn")
    expected = getattr(torch.ops.aten, name)(*stock)
    for y, z in zip(ours, expected, strict=True):
        assert y.dtype == z.dtype
        # Stock torch stores the statistics before it uses them, which costs it an error of
        # half an ulp of the narrow dtype in each of three factors.
        bound = 4 * torch.finfo(y.dtype).eps * float(z.abs().max())
        torch.testing.assert_close(y, z, atol=bound, rtol=0)
    if name == "native_batch_norm":
        with fuzzy("rn", backend=BACKEND):
            torch.ops.aten.native_batch_norm(*args)
        torch.testing.assert_close(running, stock[3:5])
