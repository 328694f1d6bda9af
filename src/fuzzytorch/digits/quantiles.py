"""Quantiles of the normal, chi-square and Student laws, without scipy.

The two probabilities come from series of positive terms, which lose nothing to
cancellation, and are inverted by bisection.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable


def normal_quantile(probability: float) -> float:
    """The ``x`` with ``P(N(0, 1) <= x) = probability``, for ``0 < probability < 1``."""
    return statistics.NormalDist().inv_cdf(probability)


@functools.lru_cache(maxsize=256)
def chi_square_quantile(probability: float, freedom: int) -> float:
    """The ``x`` with ``P(chi2_freedom <= x) = probability``, for ``0 < probability < 1``."""
    return _bisect(lambda x: _lower_gamma(freedom / 2, x / 2), probability)


@functools.lru_cache(maxsize=256)
def student_quantile(tail: float, freedom: int) -> float:
    """The ``t`` with ``P(|T_freedom| > t) = tail``, for ``0 < tail < 1``; meant for small tails."""
    # The exceeded probability falls with t: the bisection wants a growing function.
    return _bisect(lambda t: -_student_tail(t, freedom), -tail)


def _lower_gamma(a: float, x: float) -> float:
    """The regularised lower incomplete gamma function P(a, x) (DLMF 8.7.1)."""
    term = total = 1.0
    n = 0
    while term > total * 1e-17:
        n += 1
        term *= x / (a + n)
        total += term
    return min(1.0, math.exp(a * math.log(x) - x - math.lgamma(a + 1) + math.log(total)))


def _student_tail(t: float, freedom: int) -> float:
    """``P(|T| > t)``: the regularised incomplete beta function I_x(v/2, 1/2), x = v/(v + t^2).

    Expanded in positive terms (Abramowitz and Stegun 26.5.4), so that far tails
    keep their relative accuracy.
    """
    a, b = freedom / 2, 0.5
    x, rest = freedom / (freedom + t * t), t * t / (freedom + t * t)
    term = total = 1.0
    n = 0
    while term > total * rest * 1e-17:
        term *= x * (a + b + n) / (a + 1 + n)
        total += term
        n += 1
    beta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    return min(1.0, total / a * math.exp(a * math.log(x) + b * math.log(rest) - beta))


def _bisect(function: Callable[[float], float], target: float) -> float:
    """The ``x > 0`` where a growing function reaches ``target``."""
    low, high = 1.0, 1.0
    while function(low) > target:
        low /= 2
    while function(high) < target:
        high *= 2
    while high - low > 1e-14 * high:
        middle = (low + high) / 2
        if function(middle) < target:
            low = middle
        else:
            high = middle
    return (low + high) / 2
