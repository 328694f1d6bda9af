"""Transcendental functions of binary64 as sequences of operations that IEEE 754 defines.

The algorithms are part of the specification: additions, multiplications, divisions, bit
operations and table lookups in the order written here, each rounded to nearest and none fused,
so that every machine computes the same bits.  ``native/functions.h`` and
``native/short_functions.h`` have the same sequences.  The constants are those of
``tools/function_coefficients.py``.

Where the value is going to be rounded to binary32 or a narrower format, some functions have a
short form: the relative error stays below 2^-45, or 2^-21 units in the last place of binary32,
which is by how much a probability of stochastic rounding can be wrong.  What is exact stays so.

Errors in units in the last place of the result, the largest seen over 10^5 arguments:
exp 1.00, expm1 1.18, log 0.77, log1p 0.77, tanh 1.27, erf 0.93.  Relative errors of the short
forms over as many: exp 2^-45.1, tanh 2^-50.4, erf 2^-49.5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import torch

from fuzzytorch.backends.function_constants import (
    ERF,
    ERF_SCALE,
    EXP,
    EXP_SHORT,
    LN2,
    LN2_NEAREST,
    LOG,
    LOG2_E,
    TANH_P,
    TANH_Q,
    TWO_OVER_ROOT_PI,
)

_SHIFT: Final = 1.5 * 2.0**52
"""Added to a small number, leaves its nearest integer in the last bits."""

_SHIFT_BITS: Final = 0x4338 << 48
_SQRT_HALF_BITS: Final = 0x3FE6A09E667F3BCD
_EXPONENT: Final = 1 << 52
_MANTISSA: Final = _EXPONENT - 1
_ERF_INTERVALS: Final = 16
_POINTS: Final = 4096
_SPACING: Final = 2.0**-7
_TANH_SMALL: Final = 0.625


def _bits(x: torch.Tensor) -> torch.Tensor:
    return x.view(torch.int64)


def _power_of_two(k: torch.Tensor) -> torch.Tensor:
    return ((k + 1023) << 52).view(torch.float64)


def _polynomial(x: torch.Tensor, terms: Sequence[float | torch.Tensor]) -> torch.Tensor:
    """Pairs of terms, pairs of pairs, and so on (Estrin): short chains of operations."""
    level = [torch.as_tensor(t, dtype=x.dtype, device=x.device) for t in terms]
    while len(level) > 1:
        pairs = zip(level[::2], level[1::2], strict=False)
        level = [a + b * x for a, b in pairs] + level[len(level) & ~1 :]
        x = x * x
    return level[0]


def _reduced(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """``x = k ln 2 + r + rest`` with an integer k.

    Returns:
        k as an integer; r; ``r^2`` times the polynomial of exp; the rest.
    """
    shifted = x * LOG2_E + _SHIFT
    k = shifted - _SHIFT
    high = x - k * LN2[0]
    low = k * LN2[1]
    r = high - low
    square = r * r
    return _bits(shifted) - _SHIFT_BITS, r, square * _polynomial(r, EXP), (high - r) - low


def _scaled(y: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """``y * 2^k`` in two steps, since the power may leave the range of binary64."""
    half = ((k + 2048) >> 1) - 1024
    return y * _power_of_two(half) * _power_of_two(k - half)


def exp(x: torch.Tensor) -> torch.Tensor:
    """``2^k (1 + (r + r^2 q))``."""
    k, r, tail, _ = _reduced(x.clamp(-746.0, 710.0))
    return _scaled(1.0 + (r + tail), k)


def expm1(x: torch.Tensor) -> torch.Tensor:
    """``2^k ((1 - 2^-k) + r + r^2 q)``; the sum of the first two keeps its error."""
    k, r, tail, rest = _reduced(x.clamp(-40.0, 710.0))
    one = 1.0 - _power_of_two(-(k.clamp(max=62)))
    total = one + r
    part = total - one
    error = (one - (total - part)) + (r - part)
    return torch.copysign(_scaled(total + (tail + (error + rest)), k), x)


def tanh(x: torch.Tensor) -> torch.Tensor:
    """A quotient of polynomials below 0.625, ``1 - 2 / (1 + exp(2 |x|))`` above."""
    a = x.abs().clamp(max=20.0)
    k, r, tail, _ = _reduced(a + a)
    power = (_bits(1.0 + (r + tail)) + (k << 52)).view(torch.float64)
    z = a * a
    numerator = a * (z * (TANH_P[0] + z * (TANH_P[1] + z * TANH_P[2])))
    denominator = TANH_Q[0] + z * (TANH_Q[1] + z * (TANH_Q[2] + z))
    small = a < _TANH_SMALL
    quotient = torch.where(small, numerator, -2.0) / torch.where(small, denominator, power + 1.0)
    y = torch.where(small, a, 1.0) + quotient
    return torch.copysign(y, x)


def erf(x: torch.Tensor) -> torch.Tensor:
    """A polynomial around the nearest of sixteen points."""
    a = x.abs().clamp(max=6.0)
    interval = _bits(a * ERF_SCALE + _SHIFT) & (_ERF_INTERVALS - 1)
    table = torch.tensor(ERF, dtype=torch.float64, device=x.device).view(-1, _ERF_INTERVALS)
    point, value, *terms = (row[interval] for row in table)
    d = a - point
    return torch.copysign(value + (d + d * _polynomial(d, terms)), x)


def _logarithm(u: torch.Tensor, correction: torch.Tensor, exponent: int) -> torch.Tensor:
    """``log(u) - exponent * ln 2 + correction`` for normal u.

    With ``u = 2^k (1 + f)`` and ``s = f / (2 + f)``: ``log(1 + f) = f - f^2/2 + s (f^2/2 + R)``.
    """
    lifted = _bits(u) - _SQRT_HALF_BITS + (1023 << 52)
    exponents = (lifted >> 52) + (_SHIFT_BITS - 1023 - exponent)
    k = exponents.view(torch.float64) - _SHIFT
    f = ((lifted & _MANTISSA) + _SQRT_HALF_BITS).view(torch.float64) - 1.0
    s = f / (f + 2.0)
    z = s * s
    half = (f * f) * 0.5
    tail = s * (half + z * _polynomial(z, LOG)) + (k * LN2[1] + correction)
    return k * LN2[0] - ((half - tail) - f)


def log(x: torch.Tensor) -> torch.Tensor:
    """The logarithm of 1 + f and of the power of two."""
    subnormal = x < 2.0**-1022
    zero = torch.zeros_like(x)
    y = torch.where(subnormal, _logarithm(x * 2.0**54, zero, 54), _logarithm(x, zero, 0))
    y = torch.where(x > 0, y, torch.where(x == 0, -torch.inf, torch.nan))
    return torch.where(x == torch.inf, x, y)


def log1p(x: torch.Tensor) -> torch.Tensor:
    """The logarithm of ``u = 1 + x``, and over u what the sum has lost."""
    u = x + 1.0
    part = u - 1.0
    lost = (1.0 - (u - part)) + (x - part)
    y = torch.copysign(_logarithm(u, lost / u, 0), x)
    y = torch.where(x > -1, y, torch.where(x == -1, -torch.inf, torch.nan))
    return torch.where(x == torch.inf, x, y)


def short_exp(x: torch.Tensor) -> torch.Tensor:
    """:func:`exp` for binary32, with ln 2 in one part and fewer terms.

    The error is below 2^-45 where the result is a number of binary32 without being subnormal.
    At the bounds r is zero, and the last addition gives the bits of Inf and of zero.
    """
    x = x.clamp(-1023 * LN2_NEAREST, 1024 * LN2_NEAREST)
    shifted = x * LOG2_E + _SHIFT
    r = x - (shifted - _SHIFT) * LN2_NEAREST
    y = 1.0 + (r + (r * r) * _polynomial(r, EXP_SHORT))
    return (_bits(y) + (_bits(shifted) << 52)).view(torch.float64)


def _nearest_point(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """For ``0 <= a``, the nearest multiple of 1/128: its number as an index; it; ``a`` less it."""
    shifted = a + _SHIFT * _SPACING
    point = shifted - _SHIFT * _SPACING
    return _bits(shifted) & (_POINTS - 1), point, a - point


def _points(x: torch.Tensor) -> torch.Tensor:
    return torch.arange(_POINTS, dtype=torch.float64, device=x.device) * _SPACING


def short_erf(x: torch.Tensor) -> torch.Tensor:
    """:func:`erf` for binary32, around the nearest multiple p of 1/128.

    There erf and its derivative s are known, and with ``d = |x| - p``, ``w = p d``, ``e = d^2``
    and ``h = w^2 - 3/2 e`` the series in d is
    ``erf(p + d) = erf(p) + s d (1 - w + 2/3 e - 1/5 e^2 + h (2/3 - 1/3 w + 2/15 h))``
    with an error below d^6.
    """
    points = _points(x)
    value, slope = erf(points), TWO_OVER_ROOT_PI * exp(-(points * points))
    row, p, d = _nearest_point(x.abs().clamp(max=6.0))
    w, e = p * d, d * d
    h = w * w - 1.5 * e
    even = (1.0 - w) + e * (2 / 3 - 0.2 * e)
    q = even + h * ((2 / 3 - w * (1 / 3)) + h * (2 / 15))
    return torch.copysign(value[row] + slope[row] * (d * q), x)


def short_tanh(x: torch.Tensor) -> torch.Tensor:
    """:func:`tanh` for binary32, around the nearest multiple p of 1/128.

    With ``t = tanh(p)``, ``u = tanh(|x| - p)`` and ``v = t u``,
    ``tanh(|x|) = t + (1 - t^2) u / (1 + v)``, the quotient as ``(1 - v) (1 + v^2) + v^4``.
    """
    value = tanh(_points(x))
    slope = 1.0 - value * value
    row, _, d = _nearest_point(x.abs().clamp(max=20.0))
    e = d * d
    u = d * (1.0 - e * (1 / 3 - e * (2 / 15)))
    v = value[row] * u
    square = v * v
    q = (1.0 - v) * (1.0 + square) + square * square
    return torch.copysign(value[row] + (slope[row] * u) * q, x)


Function = Callable[[torch.Tensor], torch.Tensor]

_BINARY64: Final[dict[str, Function]] = {
    "exp": exp,
    "expm1": expm1,
    "log": log,
    "log1p": log1p,
    "tanh": tanh,
    "erf": erf,
}
_BINARY32: Final[dict[str, Function]] = _BINARY64 | {
    "exp": short_exp,
    "tanh": short_tanh,
    "erf": short_erf,
}


def evaluate(name: str, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A function of :data:`fuzzytorch.program.FUNCTIONS`.

    Args:
        name: its name.
        x: float64, any shape; numbers of ``dtype``.
        dtype: float32 or float64, in which the rounded value is going to be stored: float32 has
            the short forms.

    Returns:
        Float64 values in the shape of x.
    """
    functions = _BINARY32 if dtype == torch.float32 else _BINARY64
    return functions[name](x)
