"""Normalization of 16-bit tensors."""

from __future__ import annotations

import copy

import pytest
import torch
from accumulation_calls import normal
from accumulation_cases import Case
from accumulation_laws import BACKEND, results

import fuzzytorch as ft
from fuzzytorch.fuzzy import fuzzy
from fuzzytorch.table import overload_named


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mode", ["sr", "ud"])
def test_rows_of_an_embedding_are_rounded_only_where_they_are_shrunk(
    mode: str, dtype: torch.dtype
) -> None:
    weight = torch.cat([normal(2, 9) / 100, normal(2, 9) * 100]).to(dtype)
    indices = torch.tensor([0, 2, 2])

    def shrunk() -> torch.Tensor:
        copy = weight.clone()
        torch.nn.functional.embedding(indices, copy, max_norm=1.5)
        return copy

    stock = shrunk()
    samples = []
    for seed in range(16):
        with ft.fuzzy(mode, seed=seed):
            samples.append(shrunk())
    for untouched in (0, 1, 3):
        assert all(torch.equal(y[untouched], weight[untouched]) for y in samples)
    assert bool((torch.stack(samples)[:, 2].double().std(0) > 0).any())
    # The norm, the factor and the product move by a unit or two each.
    bound = 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(samples[0], stock, rtol=bound, atol=0)
