"""Exact results of scalar operations, as a binary64 number that rounding can read.

Operands are binary32 values held in float64 tensors, or binary64 values.  The exact
result of an operation on them rarely fits binary64, so it is handed over in one of two forms:

* *nearest*: IEEE 754 binary64, ties to even;
* *odd*: the exact result if it fits, otherwise that one of its two binary64
  neighbours whose last bit is 1.  The odd last bit is sticky: it says "and some
  more", so that any later rounding to at most 51 bits, in any direction, equals
  the rounding of the exact result itself.

The side on which the exact result lies comes from error-free transformations
(TwoSum of Knuth, TwoProd of Veltkamp and Dekker).  No intermediate over- or
underflows: results reach from 2^-298 to 2^257.

A sum of two opposite numbers is +0 here; when rounding down IEEE 754 wants -0
(:func:`cancels` tells where).
"""

from __future__ import annotations

from typing import Final

import torch

_SPLITTER: Final = 2.0**27 + 1.0


def result(operation: str, operands: tuple[torch.Tensor, ...], odd: bool) -> torch.Tensor:
    """The result of one rounded operation before it is rounded to its format.

    Args:
        operation: one of :data:`fuzzytorch.program.ROUNDED`.
        operands: float64 tensors of one shape.
        odd: the odd form if true, else the nearest one.

    Returns:
        float64 of the same shape; zeros, Inf and NaN as IEEE 754 has them.

    Raises:
        ValueError: an operation that is not a rounded one.
    """
    error: torch.Tensor | None
    match operation, operands:
        case "add", (a, b):
            nearest, error = _two_sum(a, b)
        case "sub", (a, b):
            nearest, error = _two_sum(a, -b)
        case "mul", (a, b):
            nearest, error = two_product(a, b)
        case "fma", (a, b, c):
            nearest, error = _fused(a, b, c)
        case "div", (a, b):
            nearest = a / b
            error = _residual(a, nearest, b) * b.sign()
        case "sqrt", (a,):
            nearest = _root(a)
            error = _residual(a, nearest, nearest)
        case "round", (a,):
            nearest, error = a, None
        case _:
            raise ValueError(
                f"{operation!r} of {len(operands)} operands is not a rounded operation: "
                "see fuzzytorch.program.ROUNDED and ARITY."
            )
    return _to_odd(nearest, error) if odd and error is not None else nearest


def split(operation: str, operands: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """The nearest binary64 result of an operation on binary64 operands, and what it lacks.

    The second is exact for sums, products and fused multiply-adds, and the residual
    over the divisor or over twice the root otherwise, rounded to binary64.

    Returns:
        Two float64 tensors.  Where the first is Inf, the second is infinite in the other
        direction if finite terms overflowed, else NaN.
    """
    match operation, operands:
        case "add", (a, b):
            return _overflowing(operands, *_two_sum(a, b))
        case "sub", (a, b):
            return _overflowing(operands, *_two_sum(a, -b))
        case "mul", (a, b):
            return _overflowing(operands, *two_product(a, b))
        case "fma", (a, b, c):
            return _overflowing(operands, *_fused(a, b, c))
        case "div", (a, b):
            nearest = a / b
            return nearest, _residual(a, nearest, b) / b
        case "sqrt", (a,):
            nearest = _root(a)
            return nearest, _residual(a, nearest, nearest) / (nearest + nearest)
    raise ValueError(f"{operation!r} of {len(operands)} operands has no exact error.")


def _overflowing(
    operands: tuple[torch.Tensor, ...], s: torch.Tensor, error: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    overflows = torch.isinf(s)
    for x in operands:
        overflows = overflows & torch.isfinite(x)
    return s, torch.where(overflows, -s, error)


def fused_nearest(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """``a*b + c`` with one rounding to nearest.

    The sum of the small terms is rounded to odd, which makes the last addition round as
    if it knew them exactly (Boldo and Melquiond 2008).
    """
    product, product_error = two_product(a, b)
    total, total_error = _two_sum(product, c)
    lacking = _to_odd(*_two_sum(product_error, total_error))
    return torch.where((lacking < 0) | (lacking > 0), total + lacking, total)


def two_product(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The binary64 product, and exactly what it lacks, for any magnitudes."""
    (x, x_exponent), (y, y_exponent) = torch.frexp(a), torch.frexp(b)
    x_high, x_low = _split(x)
    y_high, y_low = _split(y)
    rest = x_high * y_high - x * y + x_high * y_low + x_low * y_high + x_low * y_low
    # In two steps, because the power of two alone may leave the range of binary64.
    exponent = x_exponent.long() + y_exponent.long()
    half = exponent >> 1
    error = rest * _power_of_two(half) * _power_of_two(exponent - half)
    product = a * b
    return product, torch.where(torch.isfinite(product), error, torch.nan)


def _power_of_two(exponent: torch.Tensor) -> torch.Tensor:
    return ((exponent.clamp(-1022, 1023) + 1023) << 52).view(torch.float64)


def _fused(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    product, product_error = two_product(a, b)
    total, total_error = _two_sum(product, c)
    lacking = product_error + total_error
    nearest, error = _two_sum(total, lacking)
    # Inf, beside which the errors are NaN, and -0, which a sum with +0 would not keep.
    stays = ~((lacking < 0) | (lacking > 0))
    return torch.where(stays, total, nearest), error


def cancels(operation: str, operands: tuple[torch.Tensor, ...]) -> torch.Tensor | None:
    """Where a sum is zero by cancellation: -0 when rounding down (IEEE 754, 6.3).

    Returns:
        bool of the shape of the operands, or ``None`` for operations that are not sums.
    """
    match operation, operands:
        case "add", (a, b):
            x, y = a, b
        case "sub", (a, b):
            x, y = a, -b
        case "fma", (a, b, c):
            x, product_error = two_product(a, b)
            y = torch.where(product_error == 0, c, torch.nan)
        case _:
            return None
    unlike = (x != 0) | torch.signbit(x) | torch.signbit(y)
    return (x + y == 0) & unlike


def _to_odd(nearest: torch.Tensor, error: torch.Tensor) -> torch.Tensor:
    """Makes the last bit of ``nearest`` odd where ``error`` (exact minus nearest) is not 0."""
    # Inf and NaN leave a NaN error, for which both comparisons are false.
    inexact = (error > 0) | (error < 0)
    grows = (error > 0) == (nearest > 0)
    pattern = nearest.view(torch.int64)
    move = inexact & ((pattern & 1) == 0)
    step = torch.where(grows, 1, -1)
    return torch.where(move, pattern + step, pattern).view(torch.float64)


def _two_sum(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The binary64 sum, and exactly what it misses."""
    s = a + b
    b_part = s - a
    return s, (a - (s - b_part)) + (b - b_part)


def _root(a: torch.Tensor) -> torch.Tensor:
    """The root, correctly rounded to binary64."""
    # The vector mathematics library that torch may call misses the nearest number
    # by one unit in the last place now and then.  As multiples of unit^2, both
    # a - x^2 and x*unit are integers, so that the next number is nearer exactly if
    # a - x^2 > x*unit.  On the other side equality would count too, but the root
    # of a 24-bit number is never that close to a midpoint.
    x = a.sqrt()
    unit = (x.view(torch.int64) + 1).view(torch.float64) - x
    remainder = _residual(a, x, x)
    step = (remainder > x * unit).long() - (remainder < -x * unit).long()
    return (x.view(torch.int64) + step).view(torch.float64)


def _residual(a: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """``a - x*y``, for a quotient or root ``x``: exact if ``x`` is correctly rounded."""
    product = x * y
    x_high, x_low = _split(x)
    y_high, y_low = _split(y)
    rest = x_high * y_high - product + x_high * y_low + x_low * y_high + x_low * y_low
    return (a - product) - rest


def _split(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Two halves of at most 26 bits whose sum is ``x``."""
    scaled = x * _SPLITTER
    high = scaled - (scaled - x)
    return high, x - high
