"""Laws of the significant digits."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import scipy.stats
import significantdigits
import torch

from fuzzytorch import digits
from fuzzytorch.digits import normal, quantiles

FREEDOMS = (1, 2, 3, 4, 5, 9, 10, 29, 58, 99, 499)
KINDS = {"numpy": np.asarray, "torch": torch.as_tensor}


def scatter(count: int, *shape: int, spread: float = 1e-4, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    centre = generator.uniform(1.0, 9.0, shape) * generator.choice([-1.0, 1.0], shape)
    return centre * (1.0 + spread * generator.standard_normal((count, *shape)))


@pytest.mark.parametrize("freedom", FREEDOMS)
@pytest.mark.parametrize("probability", [1e-9, 0.005, 0.025, 0.05, 0.5, 0.95])
def test_the_chi_square_quantile_is_that_of_scipy(probability: float, freedom: int) -> None:
    expected = scipy.stats.chi2.ppf(probability, freedom)
    assert quantiles.chi_square_quantile(probability, freedom) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("freedom", FREEDOMS)
@pytest.mark.parametrize("tail", [1e-12, 1e-9, 1e-6, 1e-3, 0.05])
def test_the_student_quantile_is_that_of_scipy(tail: float, freedom: int) -> None:
    expected = scipy.stats.t.isf(tail / 2, freedom)
    assert quantiles.student_quantile(tail, freedom) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("probability", [0.51, 0.75, 0.95, 0.975, 0.999999])
def test_the_normal_quantile_is_that_of_scipy(probability: float) -> None:
    expected = scipy.stats.norm.ppf(probability)
    assert quantiles.normal_quantile(probability) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_the_point_estimate_is_minus_log10_of_std_over_mean(kind: str) -> None:
    x = scatter(12, 5, 3)
    found = digits.significant(KINDS[kind](x))
    expected = -np.log10(x.std(0, ddof=1) / np.abs(x.mean(0)))
    np.testing.assert_allclose(np.asarray(found.digits), expected, rtol=1e-9)
    np.testing.assert_allclose(np.asarray(found.std), x.std(0, ddof=1), rtol=1e-9)
    np.testing.assert_allclose(np.asarray(found.mean), x.mean(0), rtol=1e-14)
    assert isinstance(found.digits, torch.Tensor) == (kind == "torch")


@pytest.mark.parametrize("count", [2, 3, 10, 30, 59])
@pytest.mark.parametrize(("probability", "confidence"), [(0.95, 0.95), (0.9, 0.99), (0.51, 0.9)])
def test_the_lower_bound_is_that_of_significantdigits(
    count: int, probability: float, confidence: float
) -> None:
    x = scatter(count, 40)
    found = digits.significant(x, probability=probability, confidence=confidence)
    expected = significantdigits.significant_digits(
        x,
        reference=x.mean(0),
        basis=10,
        probability=probability,
        confidence=confidence,
        method="CNH",
    )
    np.testing.assert_allclose(found.lower, np.clip(expected, 0, found.cap), atol=1e-9)


@pytest.mark.parametrize("count", [2, 3, 5, 10, 30, 100])
def test_the_bound_holds_at_least_as_often_as_its_confidence_says(count: int) -> None:
    # The bound fails when the std with divisor n, enlarged by sqrt((n-1)/chi2),
    # is below the true std; S / sigma^2 follows the chi-square law.
    probability, confidence = 0.95, 0.95
    offset = normal.bound_offset(count, probability, confidence)
    inside = scipy.stats.norm.ppf((1 + probability) / 2)
    enlargement = 10.0**offset / inside
    failing = scipy.stats.chi2.cdf((count - 1) / enlargement**2, count - 1)
    assert 0 < failing <= 1 - confidence


def test_the_bound_holds_in_simulated_ensembles() -> None:
    # 2000 ensembles of 10: the true digits exceed the bound in at least 95% of
    # them, less 4 standard errors of the binomial.
    x = 3.0 * (1.0 + 1e-5 * np.random.default_rng(1).standard_normal((10, 2000)))
    true = -math.log10(1e-5) - math.log10(scipy.stats.norm.ppf(0.975))
    held = np.mean(digits.significant(x).lower <= true)
    assert held >= 0.95 - 4 * math.sqrt(0.95 * 0.05 / 2000)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (torch.float32, 7.2),
        (torch.float64, 15.95),
        (torch.float16, 3.3),
        (torch.bfloat16, 2.4),
        (torch.complex64, 7.2),
        (torch.int64, 15.95),
    ],
)
def test_equal_samples_have_all_the_digits_of_their_dtype(
    dtype: torch.dtype, expected: float
) -> None:
    found = digits.significant(torch.full((4, 3), 3.0, dtype=dtype))
    assert bool((found.std == 0).all())
    assert bool((found.digits == found.cap).all())
    assert bool((found.lower == found.cap).all())
    assert abs(found.cap - expected) < 0.05
    assert digits.cap(torch.empty(0, dtype=dtype)) == found.cap


@pytest.mark.parametrize("value", [0.1, 1e300, 5e-324, 1 / 3])
def test_equal_binary64_samples_have_a_std_of_exactly_zero(value: float) -> None:
    assert digits.significant(np.full((7, 1), value)).std == 0


def test_no_digit_beyond_the_dtype_is_reported() -> None:
    x = scatter(10, 100, spread=1e-12)
    assert digits.significant(x).digits.min() > 11
    narrow = digits.significant(x.astype(np.float32))
    assert narrow.digits.max() <= narrow.cap
    assert digits.significant(x, cap=5.0).digits.max() == 5.0


def test_samples_that_scatter_more_than_their_mean_have_no_digit_but_a_std() -> None:
    found = digits.significant(np.array([[-100.0, 1.0], [100.0, 87.0], [56.0, -80.0]]))
    assert np.array_equal(found.digits, [0, 0])
    assert np.array_equal(found.lower, [0, 0])
    assert found.std.min() > 80


def test_a_mean_of_zero_with_scatter_has_no_digit() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = digits.significant(np.array([-1.0, 1.0]))
    assert found.mean == 0
    assert found.digits == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nan_and_inf_are_counted_and_leave_the_element_without_digits(
    kind: str, bad: float
) -> None:
    x = scatter(5, 4)
    x[1:3, 2] = bad
    found = digits.significant(KINDS[kind](x))
    assert np.asarray(found.nonfinite).tolist() == [0, 0, 2, 0]
    for result in (found.digits, found.lower, found.std):
        assert np.isnan(np.asarray(result)).tolist() == [False, False, True, False]


@pytest.mark.parametrize(
    "samples", [np.ones((1, 3)), np.ones((0, 3)), torch.ones(1), np.float32(2)]
)
def test_fewer_than_two_samples_are_refused_with_a_sentence(samples: object) -> None:
    with pytest.raises(ValueError, match="at least two samples"):
        digits.significant(samples)


@pytest.mark.parametrize("name", ["probability", "confidence"])
@pytest.mark.parametrize("value", [0.0, 1.0, -0.1, math.nan])
def test_an_impossible_probability_is_refused_with_its_name(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name}="):
        digits.significant(np.ones(3), **{name: value})


def test_complex_samples_are_measured_by_component() -> None:
    x = scatter(6, 4, 2)
    z = x[..., 0] + 1j * x[..., 1]
    for samples in (z, torch.as_tensor(z)):
        found = digits.significant(samples)
        np.testing.assert_allclose(np.asarray(found.digits), digits.significant(x).digits)


def test_a_small_scatter_on_a_large_mean_is_resolved() -> None:
    x = 1e15 + np.arange(4.0)[:, None]
    assert digits.significant(x).std == pytest.approx(np.arange(4.0).std(ddof=1))


def test_distance_counts_standard_deviations_and_knows_exact_samples() -> None:
    x = np.array([[1.0, 2.0, 2.0, math.nan], [3.0, 2.0, 2.0, 1.0]])
    z = digits.distance(np.array([2.0 + 3 * math.sqrt(2), 2.0, 2.5, 1.0]), digits.significant(x))
    assert z[:3] == pytest.approx([3.0, 0.0, math.inf])
    assert math.isnan(z[3])
