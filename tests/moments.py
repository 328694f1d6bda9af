"""Moments of roundings in closed form, and how draws are held against them.

One rounded operation takes one of two neighbouring numbers, with a probability that the
mode defines.  A chain of additions whose total stays within one binade is a sum of
independent such choices: its total is a whole number of units in the last place, so that
the fraction which an addition discards depends on its term alone.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np
from scipy import stats

Array = np.ndarray

LEVEL: Final = 1e-8
"""Probability that a right kernel fails one comparison; there are about 300."""

LIMIT: Final = float(stats.norm.isf(LEVEL / 2))


class Moments(NamedTuple):
    """Mean, variance and fourth cumulant per output element, float64."""

    mean: Array
    variance: Array
    cumulant: Array


def one_rounding(s: Array, mode: str) -> Moments:
    """Moments of the rounding of the results ``s`` to binary32."""
    nearest = s.astype(np.float32)
    away = np.copysign(np.float32(np.inf), nearest)
    if mode == "ud":
        low, high = np.nextafter(nearest, np.float32(0)), np.nextafter(nearest, away)
        low, high = (np.where(nearest == 0, nearest, y) for y in (low, high))
        p = np.full(s.shape, 0.5)
    else:
        low = np.where(np.abs(nearest) > np.abs(s), np.nextafter(nearest, np.float32(0)), nearest)
        high = np.where(low == s, low, np.nextafter(low, away))
        gap = high.astype(np.float64) - low
        fraction = np.divide(s - low, gap, out=np.zeros_like(s), where=gap != 0)
        p = fraction if mode == "sr" else np.full(s.shape, 0.5)
    gap = high.astype(np.float64) - low
    spread = p * (1 - p)
    return Moments(low + p * gap, spread * gap**2, spread * (1 - 6 * spread) * gap**4)


def chain(start: Array, terms: Array, mode: str) -> Moments:
    """Moments of ``start`` plus one term after the other; ``terms`` is ``(steps, elements)``.

    The steps are independent as long as the total stays within its binade.
    """
    total = start.astype(np.float64)
    mean, variance, cumulant = total.copy(), np.zeros(start.shape), np.zeros(start.shape)
    for term in terms:
        step = one_rounding(total + term, mode)
        mean += term + (step.mean - (total + term))
        variance += step.variance
        cumulant += step.cumulant
        total = (total + term).astype(np.float32).astype(np.float64)
    return Moments(mean, variance, cumulant)


UNIT: Final = 2.0**-23
"""The unit in the last place of [1, 2)."""


def check(samples: Array, expected: Moments, unit: Any = None) -> None:
    """Compares draws ``(replicas, elements)`` with their moments in three ways.

    ``unit``: the unit in the last place of what was rounded, where it is not that of the result.
    """
    draws = samples.shape[0]
    deviation = samples.astype(np.float64) - expected.mean
    fixed = expected.variance == 0
    assert not deviation[:, fixed].any(), "an exact result moved"
    assert not fixed.all(), "nothing is rounded here"
    mean, variance, cumulant = (m[~fixed] for m in expected)
    # In units of the last place, elements of all magnitudes weigh the same.
    unit = np.spacing(np.abs(mean).astype(np.float32)).astype(np.float64) if unit is None else unit
    deviation = deviation[:, ~fixed] / unit
    variance, fourth = variance / unit**2, cumulant / unit**4

    _compare("mean", deviation.sum(0), 0.0 * variance, draws * variance)
    squares = (deviation**2).sum(0)
    _compare("variance", squares, draws * variance, draws * (fourth + 2 * variance**2))
    scatter = draws * deviation.mean(0) ** 2
    _compare("scatter of means", scatter, variance, fourth / draws + 2 * variance**2)


def _compare(what: str, found: Array, expected: Array, variance: Array) -> None:
    """Compares sums over elements that are independent and of finite variance."""
    error, bound = found.sum() - expected.sum(), LIMIT * math.sqrt(variance.sum())
    # Half a chance has squares that never vary: then only the arithmetic of the test is inexact.
    bound += 1e-9 * expected.sum()
    assert abs(error) <= bound, (
        f"{what}: {found.sum()} instead of {expected.sum()} units, "
        f"{LIMIT * error / bound:.1f} standard errors off"
    )
