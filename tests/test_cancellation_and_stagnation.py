"""Published complaints about cancellation and stagnation, each with its expected outcome."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Final

import numpy as np
import pytest
import torch
from moments import LEVEL, LIMIT, one_rounding
from scipy import stats

import fuzzytorch as ft
from fuzzytorch.backends import EXTENSION

pytest.importorskip(EXTENSION, reason="the native kernels were not built")

CHAINS: Final = 200
"""Independent realisations of a sequential sum."""

PUBLISHED_LEVEL: Final = 1e-3
"""Probability, on each side, that a published estimate lies where it does."""


# The distance between 512695 and 512804 is 109.
NEAR, FAR = torch.tensor([[512695.0]]), torch.tensor([[512804.0]])


def distance_by_product() -> torch.Tensor:
    return (NEAR * NEAR + FAR * FAR - 2.0 * (NEAR @ FAR.T)).clamp_min(0).sqrt()


def _neighbours(x: Fraction) -> list[tuple[Fraction, Fraction]]:
    """The binary32 numbers that stochastic rounding takes, with their probabilities."""
    low = Fraction(float(np.float32(float(x))))
    if low > x:
        low = Fraction(float(np.nextafter(np.float32(float(x)), np.float32(0))))
    high = Fraction(float(np.nextafter(np.float32(float(low)), np.float32(np.inf))))
    f = (x - low) / (high - low)
    return [(low, 1 - f), (high, f)] if f else [(low, Fraction(1))]


def test_a_distance_by_the_product_formula_has_no_digit_where_ieee_prints_zero() -> None:
    a, b = (Fraction(int(x)) for x in (NEAR, FAR))
    outcomes: dict[float, Fraction] = {}
    for (aa, p), (bb, q), (ab, r) in itertools.product(
        _neighbours(a * a), _neighbours(b * b), _neighbours(a * b)
    ):
        for total, s in _neighbours(aa + bb):
            # Twice the product is exact; so is the difference of numbers this near.
            square = float(max(total - 2 * ab, Fraction(0)))
            outcomes[square] = outcomes.get(square, Fraction(0)) + p * q * r * s
    mean = sum(square**0.5 * float(p) for square, p in outcomes.items())
    std = sum((square**0.5 - mean) ** 2 * float(p) for square, p in outcomes.items()) ** 0.5
    check_published(56, 87, mean, std)

    assert distance_by_product().item() == 0.0
    samples = ft.sample(distance_by_product, n=1000, mode="sr", seed=0)
    values = samples.values.double().square().round(decimals=-3)
    for square, p in outcomes.items():
        count = int((values == round(square, -3)).sum())
        assert stats.binomtest(count, 1000, float(p)).pvalue > LEVEL, (square, float(p), count)
    assert abs(samples.mean.item() - mean) < LIMIT * std / 1000**0.5
    assert samples.digits.item() == 0.0
    assert samples.leaves[0].outliers == 0


def test_the_product_formula_inside_cdist_has_no_digit_either() -> None:
    def run() -> torch.Tensor:
        return torch.cdist(NEAR, FAR, compute_mode="use_mm_for_euclid_dist")

    samples = ft.sample(run, n=100, mode="sr", seed=0)
    assert samples.digits.item() < 0.5
    assert samples.std.item() > 50


def test_a_distance_by_the_direct_formula_is_exact() -> None:
    samples = ft.sample(lambda: torch.cdist(NEAR, FAR), n=30, mode="sr", seed=0)
    assert set(samples.values.flatten().tolist()) == {109.0}
    assert samples.std.item() == 0.0


def check_published(mean: float | None, published: float, expected: float, std: float) -> None:
    """Published means and standard deviations are of 200 samples themselves."""
    n = CHAINS - 1
    low, high = (stats.chi2.ppf(q, n) / n for q in (PUBLISHED_LEVEL, 1 - PUBLISHED_LEVEL))
    assert low < (published / std) ** 2 < high, (published, std)
    if mean is not None:
        limit = stats.norm.isf(PUBLISHED_LEVEL) * std / CHAINS**0.5
        assert abs(mean - expected) < limit, (mean, expected)


def sequential(terms: torch.Tensor, mode: str, chains: int = CHAINS) -> np.ndarray:
    """The last element of running sums, one binary32 addition after the other: ``(chains,)``."""
    with ft.fuzzy(mode, seed=0):
        return terms.expand(chains, -1).cumsum(1)[:, -1].double().numpy()


def chain_std(terms: torch.Tensor, mode: str) -> float:
    """The standard deviation of such a sum, from the fraction that every addition discards."""
    before = np.add.accumulate(terms.double().numpy())
    steps = before[:-1].astype(np.float32).astype(np.float64) + terms.double().numpy()[1:]
    return float(np.sqrt(one_rounding(steps, mode).variance.sum()))


def check_std(values: np.ndarray, expected: float) -> None:
    n = len(values) - 1
    ratio = n * values.var(ddof=1) / expected**2
    assert stats.chi2.ppf(LEVEL / 2, n) < ratio < stats.chi2.isf(LEVEL / 2, n), ratio / n


def check_mean(values: np.ndarray, expected: float, std: float, known: float = 0.0) -> None:
    """``known``: how far the expected value itself may be off."""
    assert abs(values.mean() - expected) < LIMIT * std / len(values) ** 0.5 + known


def test_ten_thousand_tenths() -> None:
    tenths = torch.full((10_000,), 0.1)
    nearest = sequential(tenths, "rn", 1)
    assert nearest[0] == np.add.accumulate(tenths.numpy())[-1]
    assert nearest[0] == pytest.approx(999.9029, abs=5e-5)

    stochastic, std = sequential(tenths, "sr"), chain_std(tenths, "sr")
    check_published(1000.0, 0.0022, 1000.0000149, std)
    check_std(stochastic, std)
    check_mean(stochastic, 1000.0000149, std)
    assert abs(nearest[0] - 1000.0000149) / std == pytest.approx(44, abs=0.5)

    updown, std = sequential(tenths, "ud"), chain_std(tenths, "ud")
    check_published(999.9029, 0.0045, 999.9029, std)
    check_std(updown, std)
    check_mean(updown, 999.9029, std, known=5e-5)


def test_the_ieee_sum_of_tenths_is_reported_outside_the_samples_of_sr_and_not_of_ud() -> None:
    def run() -> torch.Tensor:
        total, tenth = torch.zeros(()), torch.tensor(0.1)
        for _ in range(10_000):
            total = total + tenth
        return total

    summary = ft.sample(run, n=4, mode="sr", seed=0).summary()
    assert "IEEE value lies outside the samples" in summary
    summary = ft.sample(run, n=2, mode="ud", seed=0).summary()
    assert "not how accurate" in summary
    assert "outside the samples" not in summary


def harmonic(n: int) -> torch.Tensor:
    return 1.0 / torch.arange(1, n + 1, dtype=torch.float32)


def test_ten_thousand_terms_of_the_harmonic_series() -> None:
    terms = harmonic(10_000)
    assert sequential(terms, "rn", 1)[0] == pytest.approx(9.7876129, abs=5e-8)

    stochastic, std = sequential(terms, "sr"), chain_std(terms, "sr")
    check_published(9.7876074, 3.5e-5, 9.7876060, std)
    check_std(stochastic, std)
    check_mean(stochastic, 9.7876060, std, known=1e-7)

    updown, std = sequential(terms, "ud"), chain_std(terms, "ud")
    check_published(None, 9.3e-5, 0.0, std)
    check_std(updown, std)


def test_ten_million_terms_of_the_harmonic_series_stagnate_in_every_mode_but_sr() -> None:
    terms = harmonic(10_000_000)
    assert sequential(terms, "rn", 1)[0] == pytest.approx(15.4037, abs=5e-5)
    for mode, published in (("sr", 16.6951), ("ud", 15.4030), ("cestac", 21.57)):
        std = chain_std(terms, mode)
        # One value each, printed with as many digits.
        rounded = 0.5 * 10.0 ** -len(str(published).split(".")[1])
        check_mean(sequential(terms, mode, 1), published, std * 2**0.5, known=rounded)
        if mode == "sr":
            check_mean(sequential(terms, mode, 1), 16.6953, std, known=5e-5)


def test_a_running_sum_scatters_as_the_power_three_halves_of_its_length() -> None:
    terms = torch.rand(4096, generator=torch.Generator().manual_seed(1))
    with ft.fuzzy("sr", seed=0):
        sums = terms.expand(CHAINS, -1).cumsum(1).double().numpy()
    lengths = (512, 1024, 2048, 4096)
    stds = [chain_std(terms[:n], "sr") for n in lengths]
    for n, std in zip(lengths, stds, strict=True):
        check_std(sums[:, n - 1], std)
        check_mean(sums[:, n - 1], terms[:n].double().sum().item(), std)
    check_published(None, 2.4e-3, 0.0, stds[-1])
    # The unit in the last place grows in steps, a factor of two at each power of two.
    slopes = np.diff(np.log(stds)) / np.log(2)
    assert slopes.mean() == pytest.approx(1.5, abs=0.1)
    assert (slopes > 1.2).all() and (slopes < 1.8).all()


def test_the_one_pass_variance_has_no_digit_and_the_two_pass_one_more_than_four() -> None:
    x = 151 + 0.1 * torch.randn(5000, generator=torch.Generator().manual_seed(0))

    def run() -> tuple[torch.Tensor, torch.Tensor]:
        return (x * x).mean() - x.mean() ** 2, (x - x.mean()).square().mean()

    samples = ft.sample(run, n=30, mode="sr", seed=0)
    assert samples.digits[0].item() < 1.0
    assert samples.digits[1].item() > 4.0
