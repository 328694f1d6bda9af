"""Rows of attention, bags of embeddings, resampling and grid sampling."""

from __future__ import annotations

import pytest
import torch
from accumulation_calls import normal
from accumulation_cases import rows_of
from accumulation_laws import (
    equals_stock_in_nearest_rounding,
    ignores_the_layout,
    is_centred_in_stochastic_rounding,
    noise_reaches_inexact_elements,
)
from torch.nn import functional as F

import fuzzytorch as ft
from fuzzytorch.table import Row, Verdict

FAMILIES = ("attention", "embedding_bag", "interpolation", "grid_sampling")

# Stock torch has no binary64 kernel for it.
ELSEWHERE = "aten._grid_sampler_2d_cpu_fallback.default"
ROWS = [
    row for row in rows_of(*FAMILIES) if row.verdict is Verdict.ROUNDED and row.name != ELSEWHERE
]
RESAMPLING = [row for row in ROWS if "sample_" not in row.name and "sample" in row.name]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_nearest_rounding_gives_what_stock_torch_gives(row: Row) -> None:
    equals_stock_in_nearest_rounding(row)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_mean_in_stochastic_rounding_is_the_binary64_result(row: Row) -> None:
    is_centred_in_stochastic_rounding(row)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_noise_reaches_every_inexact_element(row: Row) -> None:
    noise_reaches_inexact_elements(row)


@pytest.mark.parametrize("row", RESAMPLING, ids=lambda row: row.name)
def test_channels_last_inputs_give_the_same_bits_and_the_strides_of_stock_torch(row: Row) -> None:
    assert ignores_the_layout(row) or row.name.startswith("aten.upsample_linear1d")


def test_inference_mode_gives_the_same_bits() -> None:
    images = {"linear": (7,), "bilinear": (5, 4), "bicubic": (5, 4), "trilinear": (3, 4, 5)}
    calls = [(mode, sizes, False) for mode, sizes in images.items()]
    calls += [("bilinear", (5, 4), True), ("bicubic", (5, 4), True)]
    for mode, sizes, antialias in calls:
        x, results = normal(2, 3, *sizes), []
        for context in (torch.no_grad, torch.inference_mode):
            with context(), ft.fuzzy("sr", seed=0) as active:
                y = F.interpolate(x, scale_factor=1.7, mode=mode, antialias=antialias)
            results.append(y.clone())
            assert active.coverage.share(Verdict.ROUNDED) == 1
        assert torch.equal(*results), mode


def test_the_fallback_of_the_grid_sampler_gives_the_same_bits() -> None:
    args = (normal(2, 3, 5, 4), normal(2, 4, 3, 2) * 0.7, 0, 0, True)
    results = []
    for name in ("grid_sampler_2d", "_grid_sampler_2d_cpu_fallback"):
        with ft.fuzzy("sr", seed=0):
            results.append(getattr(torch.ops.aten, name)(*args))
    assert torch.equal(*results)


def test_a_dimension_that_keeps_its_size_is_copied() -> None:
    x = normal(2, 3, 6, 5)
    for mode in ("bilinear", "bicubic"):
        with ft.fuzzy("sr", seed=0):
            assert torch.equal(F.interpolate(x, size=(6, 5), mode=mode), x)


def test_the_nearest_samples_of_a_grid_are_copies() -> None:
    x, grid = normal(1, 1, 4, 4), F.affine_grid(torch.eye(2, 3)[None], [1, 1, 4, 4], False)
    with ft.fuzzy("sr", seed=0):
        assert torch.equal(F.grid_sample(x, grid, "nearest", align_corners=False), x)


def test_a_constant_image_stays_near_its_constant_however_it_is_resampled() -> None:
    # Weights sum to one up to one rounding each: an output moves by a few units in the last place.
    x = torch.full((1, 1, 9, 7), 0.7)
    for mode, antialias in [("bilinear", False), ("bicubic", True), ("bilinear", True)]:
        with ft.fuzzy("sr", seed=0):
            y = F.interpolate(x, size=(5, 12), mode=mode, antialias=antialias)
        assert float((y / 0.7 - 1).abs().max()) < 32 * 2.0**-23


def test_gradients_of_a_table_may_be_sparse() -> None:
    table = torch.nn.EmbeddingBag(9, 5, mode="mean", sparse=True)
    index = torch.randint(9, (4, 3), generator=torch.Generator().manual_seed(0))

    def gradient() -> torch.Tensor:
        table.zero_grad()
        (table(index) * normal(4, 5)).sum().backward()
        assert table.weight.grad is not None and table.weight.grad.is_sparse
        return table.weight.grad.to_dense()

    stock = gradient()
    with ft.fuzzy("rn", seed=0):
        torch.testing.assert_close(gradient(), stock)
