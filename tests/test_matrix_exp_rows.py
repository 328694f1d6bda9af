"""Laws of matrix exponentials: as accurate as stock torch, and centred, whatever the degree."""

from __future__ import annotations

from typing import Final

import pytest
import torch

import fuzzytorch as ft
from fuzzytorch.table import Verdict

DTYPES: Final = (torch.float32, torch.float64, torch.complex64, torch.complex128)
SCALES: Final = (1e-8, 1e-5, 1e-3, 0.03, 0.2, 0.6, 10.0)
"""Of these the degrees are 1 to 18, and the last one is squared, in some dtype."""
REPLICAS: Final = 40


def matrices(scale: float, dtype: torch.dtype) -> torch.Tensor:
    """Three matrices of numbers that are narrow enough for every dtype."""
    generator = torch.Generator().manual_seed(0)
    narrow = torch.complex64 if dtype.is_complex else torch.float32
    return (scale * torch.randn(3, 5, 5, dtype=narrow, generator=generator)).to(dtype)


def exact(a: torch.Tensor) -> torch.Tensor:
    return torch.linalg.matrix_exp(a.to(torch.promote_types(a.dtype, torch.float64)))


def deviation(y: torch.Tensor, truth: torch.Tensor) -> float:
    return ((y - truth).norm() / truth.norm()).item()


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nearest_rounding_deviates_as_stock_torch_does(dtype: torch.dtype, scale: float) -> None:
    a = matrices(scale, dtype)
    stock = torch.linalg.matrix_exp(a)
    with ft.fuzzy("rn") as mode:
        y = torch.linalg.matrix_exp(a)
    assert (y.dtype, y.shape, y.stride()) == (stock.dtype, stock.shape, stock.stride())
    assert mode.coverage.share(Verdict.ROUNDED) == 1
    # Squaring multiplies the errors of the scaled matrix, in every order alike.
    unit = torch.finfo(dtype).eps * max(1.0, scale)
    # Of binary64 nothing more exact than stock torch is known: the errors of both remain.
    allowed = 4 if exact(a).dtype != dtype else 16
    assert deviation(y, exact(a)) <= 2 * deviation(stock, exact(a)) + allowed * unit


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
def test_the_mean_in_stochastic_rounding_is_the_exponential(
    dtype: torch.dtype, scale: float
) -> None:
    a = matrices(scale, dtype)
    samples = []
    for replica in range(REPLICAS):
        with ft.fuzzy("sr", seed=0, replica=replica):
            samples.append(torch.linalg.matrix_exp(a))
    drawn = torch.stack(samples).to(torch.promote_types(dtype, torch.float64))
    scatter = drawn.std(0).norm() / exact(a).norm()
    assert 0 < scatter < 64 * torch.finfo(dtype).eps * max(1.0, scale)
    # Coefficients are rounded to the format once, at most half a unit each.
    constants = torch.finfo(dtype).eps * max(1.0, scale)
    assert deviation(drawn.mean(0), exact(a)) <= 2 * scatter / REPLICAS**0.5 + constants


def test_a_single_number_is_exponentiated() -> None:
    for dtype in DTYPES:
        a = matrices(0.5, dtype)[:, :1, :1]
        with ft.fuzzy("rn"):
            y = torch.linalg.matrix_exp(a)
        torch.testing.assert_close(y, torch.linalg.matrix_exp(a))
