"""Transcendental functions of binary64 as sequences of operations that IEEE 754 defines.

The algorithms are part of the specification: additions, multiplications, divisions, bit
operations and table lookups in the order written here, each rounded to nearest and none fused,
so that every machine computes the same bits.  ``native/functions.h`` has the same sequences.
The constants are those of ``tools/function_coefficients.py``.

Errors in units in the last place of the result, the largest seen over 10^5 arguments:
exp 1.00, expm1 1.18, log 0.77, log1p 0.77, tanh 1.27, erf 0.93.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import torch

from fuzzytorch.backends.function_constants import (
    ERF,
    ERF_SCALE,
    EXP,
    LN2,
    LOG,
    LOG2_E,
    TANH_P,
    TANH_Q,
)

_SHIFT: Final = 1.5 * 2.0**52
"""Added to a small number, leaves its nearest integer in the last bits."""

_SHIFT_BITS: Final = 0x4338 << 48
_SQRT_HALF_BITS: Final = 0x3FE6A09E667F3BCD
_EXPONENT: Final = 1 << 52
_MANTISSA: Final = _EXPONENT - 1
_ERF_INTERVALS: Final = 16
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


EVALUATE: Final[dict[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "exp": exp,
    "expm1": expm1,
    "log": log,
    "log1p": log1p,
    "tanh": tanh,
    "erf": erf,
}
"""The functions of :data:`fuzzytorch.program.FUNCTIONS`: float64 to float64, same shape."""
