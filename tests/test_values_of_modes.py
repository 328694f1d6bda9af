"""Published complaints about single values under a mode, each with its expected outcome."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import pytest
import torch
from moments import LEVEL
from scipy import stats

import fuzzytorch as ft
from fuzzytorch.backends import EXTENSION

pytest.importorskip(EXTENSION, reason="the native kernels were not built")


@pytest.mark.parametrize("mode", ["rn", "sr", "ud", "cestac"])
def test_the_grid_of_a_floored_range_is_bit_identical(mode: str) -> None:
    expected = torch.arange(-5, 5, 1.4, dtype=torch.float64).floor()
    with ft.fuzzy(mode, seed=0):
        assert torch.equal(torch.arange(-5, 5, 1.4, dtype=torch.float64).floor(), expected)


def test_adding_and_subtracting_is_exact_in_sr_and_scatters_in_ud() -> None:
    x = torch.full((10_000,), 0.7)
    with ft.fuzzy("sr", seed=0):
        assert bool((x + 0.3 - 0.3 == x).all())
    with ft.fuzzy("ud", seed=0):
        y = (x + 0.3 - 0.3).double()
    y -= x.double()
    # 1 becomes 1 + 2^-23 or 1 - 2^-24; the difference, exact again, moves by 2^-24.
    values, counts = torch.unique(y * 2.0**24, return_counts=True)
    assert values.tolist() == [-2.0, 0.0, 1.0, 3.0]
    assert stats.chisquare(counts.numpy()).pvalue > LEVEL
    assert (y.std() / 1.1e-7).item() == pytest.approx(1.0, abs=0.05)


FRACTIONS: Final = (1 / 1024, 0.25, 0.5, 0.999)


LOWER: Final = {
    "one": 1.0,
    "minus one": -1.0,
    "a number": 1.2345678,
    "its opposite": -1.2345678,
    "a power of two": 2.0**40,
    "below a power of two": 1.0 - 2.0**-24,
    "a subnormal": 5 * 2.0**-149,
    "a negative subnormal": -(2.0**-149),
    "below the smallest normal": 2.0**-126 - 2.0**-149,
    "zero": 0.0,
}
"""Numbers of binary32 (once converted); the one next to it is farther from zero."""


@pytest.mark.parametrize("f", FRACTIONS)
@pytest.mark.parametrize("name", LOWER)
def test_sr_takes_the_two_neighbours_only_and_their_mean_is_the_value(name: str, f: float) -> None:
    low = np.float32(LOWER[name])
    high = np.nextafter(low, np.copysign(np.float32(np.inf), low))
    x = float(low) + f * (float(high) - float(low))
    with ft.fuzzy("sr", seed=0):
        y = torch.full((100_000,), x, dtype=torch.float64).float()
    assert set(y.unique().tolist()) == {float(low), float(high)}
    # Four standard errors of a binomial count.
    error = abs((y == float(high)).double().mean().item() - f)
    assert error < 4 * (f * (1 - f) / 100_000) ** 0.5


@pytest.mark.parametrize("x", [torch.inf, -torch.inf, torch.nan])
def test_sr_leaves_infinities_and_nan_alone(x: float) -> None:
    with ft.fuzzy("sr", seed=0):
        y = torch.full((1000,), x, dtype=torch.float64).float()
        z = torch.full((1000,), x) * 1.5
    assert torch.equal(y.nan_to_num(), z.nan_to_num())
    assert bool(((y == x) | y.isnan()).all()) and bool((y.isnan() == (x != x)).all())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_nearest_rounding_to_16_bits_is_the_cast_of_torch_everywhere(
    dtype: torch.dtype,
) -> None:
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).short().view(dtype).float()
    every = every[every.isfinite()].sort().values
    middle = ((every[1:].double() + every[:-1].double()) / 2).float()
    infinity = torch.tensor(torch.inf)
    x = torch.cat([every, middle, middle.nextafter(infinity), middle.nextafter(-infinity)])
    stock = x.to(dtype)
    with ft.fuzzy("rn"):
        assert torch.equal(x.to(dtype).view(torch.int16), stock.view(torch.int16))
    with ft.fuzzy("rn", format=str(dtype).removeprefix("torch.")):
        assert torch.equal(x * 1.0, stock.float())


def half_of_the_time(chosen: torch.Tensor) -> bool:
    return stats.binomtest(int(chosen.sum()), chosen.numel()).pvalue > LEVEL


def test_ud_takes_the_ends_of_the_range_to_infinity_and_zero_half_of_the_time() -> None:
    largest, smallest = torch.finfo(torch.float32).max, 2.0**-149
    with ft.fuzzy("ud", seed=0):
        up, down = torch.full((10_000,), largest) * 1.0, torch.full((10_000,), smallest) * 1.0
    below = np.nextafter(np.float32(largest), np.float32(0))
    assert set(up.unique().tolist()) == {float(below), torch.inf}
    assert set(down.unique().tolist()) == {0.0, 2 * smallest}
    assert half_of_the_time(up.isinf())
    assert half_of_the_time(down == 0)


def test_the_dot_product_of_the_first_hundred_integers_is_exact_in_sr() -> None:
    x, ones = torch.arange(1.0, 101.0), torch.ones(100)
    with ft.fuzzy("sr", seed=0):
        for _ in range(100):
            assert torch.dot(x, ones).item() == 5050.0
            assert (x @ ones).item() == x.sum().item() == 5050.0


@pytest.mark.parametrize("name", ["tf32", "bfloat16", "float16"])
def test_ties_go_to_even_in_the_narrow_formats(name: str) -> None:
    unit = 2.0 ** (1 - ft.Rounding.of("rn", name).precision)
    ties = torch.tensor([1 + 0.5 * unit, 1 + 1.5 * unit, -1 - 0.5 * unit, -1 - 1.5 * unit])
    with ft.fuzzy("rn", format=name):
        rounded = ties * 1.0
    assert rounded.tolist() == [1.0, 1 + 2 * unit, -1.0, -1 - 2 * unit]


def test_the_page_on_formats_names_the_tie_rule_of_tf32() -> None:
    page = Path(__file__).parents[1] / "docs" / "modes.md"
    (line,) = (x for x in page.read_text("utf-8").splitlines() if x.startswith("| `tf32` |"))
    assert "ties to even" in line


@pytest.mark.parametrize("mode", ["rn", "sr"])
def test_a_product_in_tf32_keeps_about_three_digits(mode: str) -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.rand(128, 128, generator=generator) for _ in range(2))
    exact = a.double() @ b.double()
    samples = ft.sample(lambda: a @ b, n=10, mode=mode, format="tf32", seed=0)
    errors = (samples.values.double() - exact).norm(dim=(1, 2)) / exact.norm()
    assert -errors.log10().max() > 2.5 and -errors.log10().min() < 3.5
    if mode == "sr":
        assert 2.5 < samples.leaves[0].moments.overall < 3.5
