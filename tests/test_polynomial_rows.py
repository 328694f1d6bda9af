"""Rows of orthogonal polynomials, at degrees that climb, that do not, and at the ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from row_laws import BACKEND

from fuzzytorch.fuzzy import fuzzy
from fuzzytorch.ops.polynomial import KINDS
from fuzzytorch.table import Verdict

REALISATIONS = 2048

DEGREES = torch.tensor([-2.0, -0.5, 0.0, 1.9, *range(2, 12), 60.0, 129.0, 600.0, torch.nan])
ENDS = torch.tensor([-1.0, 0.0, 1.0, torch.nan, torch.inf, -torch.inf, 1 - 2.0**-24, 2.0**-24 - 1])
POINTS = torch.cat([torch.linspace(-3, 3, 101), ENDS]).unsqueeze(1)


def function(name: str) -> Callable[..., torch.Tensor]:
    found: Callable[..., torch.Tensor] = getattr(torch.special, name)
    return found


def beyond(name: str, x: torch.Tensor) -> torch.Tensor:
    """Where all degrees are climbed to: not between the ends of the interval of an angle."""
    kind = KINDS[name]
    if kind.between is None:
        return torch.ones_like(x, dtype=torch.bool)
    return (2 * x - 1 if kind.shifted else x).abs() >= 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"),
    reason="other vector kernels of stock torch fuse other products and sums",
)
def test_recurrences_and_ends_are_those_of_stock_torch_bit_for_bit(
    name: str, dtype: torch.dtype
) -> None:
    x, n = POINTS.to(dtype), DEGREES.to(dtype)
    expected = function(name)(x, n)
    with fuzzy("rn", seed=0, backend=BACKEND):
        actual = function(name)(x, n)
    # NaN is no degree and no end, but has the same value under both.
    climbed = beyond(name, x) | (n <= KINDS[name].climbed) | x.isnan()
    same = (actual == expected) | (actual.isnan() & expected.isnan())
    assert bool((same | ~climbed).all())


@pytest.mark.parametrize("name", [name for name in KINDS if KINDS[name].between is not None])
def test_angles_give_the_polynomial_in_binary64(name: str) -> None:
    x, n = POINTS.double(), DEGREES.double()
    expected = function(name)(x, n)
    with fuzzy("rn", seed=0, backend=BACKEND):
        actual = function(name)(x, n)
    torch.testing.assert_close(actual, expected, equal_nan=True)


@pytest.mark.parametrize("name", KINDS)
def test_the_mean_over_many_draws_is_the_polynomial_in_binary64(name: str) -> None:
    # Stages of a recurrence that are rarely rounded the other way move the result by many ulps:
    # a mean of a few draws says little, and elements of one tensor draw on their own.
    x = torch.randn(24, 1, generator=torch.Generator().manual_seed(4))
    n = torch.arange(12.0)
    truth = function(name)(x.double(), n.double())
    with fuzzy("sr", seed=1, backend=BACKEND):
        drawn = function(name)(x.expand(REALISATIONS, 24, 1), n).double()
    ulp = torch.ldexp(torch.ones_like(truth), torch.frexp(truth).exponent - 24)
    bound = 5 * drawn.std(0) / REALISATIONS**0.5 + 0.1 * ulp
    assert bool(((drawn.mean(0) - truth).abs() <= bound).all())
    assert bool((drawn.std(0) > 0).any())


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("mode", ["sr", "cestac"])
def test_polynomials_of_small_integers_are_exact(name: str, mode: str) -> None:
    # Laguerre polynomials of the degrees 0 and 1 alone have integer coefficients.
    n = torch.arange(2.0 if name.startswith("laguerre") else 5.0)
    x = torch.tensor([[-2.0], [-1.0], [0.0], [1.0], [2.0]])
    expected = function(name)(x, n)
    if name.startswith("legendre"):
        x, n = x[[0, 2, 4]], n[:3]
        expected = function(name)(x, n)
    with fuzzy(mode, seed=0, backend=BACKEND):
        assert torch.equal(function(name)(x, n), expected)


def test_only_elements_whose_degree_is_not_reached_are_counted() -> None:
    x, n = torch.full((5,), 0.3), torch.tensor([0.0, 1.0, 2.0, 5.0, 3.0])
    with fuzzy("sr", seed=0, backend=BACKEND) as mode:
        torch.special.hermite_polynomial_he(x, n)
    # One product and one fused multiply-add for each degree above the first.
    assert [r.operations for r in mode.coverage.records] == [2 * (1 + 4 + 2)]


def test_a_number_stands_for_either_operand() -> None:
    x, n = torch.tensor([0.3, 2.5]), torch.tensor([3, 12])
    calls: list[Callable[[], Any]] = [
        lambda: torch.special.legendre_polynomial_p(x, 7),
        lambda: torch.special.legendre_polynomial_p(0.3, n),
        lambda: torch.special.legendre_polynomial_p(x.double(), n),
    ]
    for call in calls:
        expected = call()
        with fuzzy("rn", seed=0, backend=BACKEND) as mode:
            actual = call()
        torch.testing.assert_close(actual, expected)
        verdicts = {r.verdict for r in mode.coverage.records if "legendre" in r.name}
        assert verdicts == {Verdict.ROUNDED}
