"""Steps of algorithms on matrices, the same for real and complex ones.

An algorithm that is written over them serves both.  Complex steps round every operation on
the real and imaginary parts, in the order of :mod:`fuzzytorch.ops.complex`.  Those that work in
place write the memory of their first tensor, which is a view without a pending conjugation.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Final

import torch

from fuzzytorch.ops import complex, complex_functions
from fuzzytorch.ops.call import Call
from fuzzytorch.ops.dtypes import real_parts
from fuzzytorch.ops.formula import Formula, fma
from fuzzytorch.ops.pointwise import ADD, DIV, MUL, SUB
from fuzzytorch.table import Row, Verdict

UPDATE: Final = Formula(lambda a, b, c: fma(-a, b, c))
UPDATE_REAL: Final = Formula(lambda a, b, c, d, x: fma(b, d, fma(-a, c, x)))
UPDATE_IMAGINARY: Final = Formula(lambda a, b, c, d, x: fma(-b, c, fma(-a, d, x)))
SQUARE: Final = Formula(lambda c, d: fma(c, c, d * d))
QUOTIENT_REAL: Final = Formula(lambda a, b, c, d, square: fma(a, c, b * d) / square)
QUOTIENT_IMAGINARY: Final = Formula(lambda a, b, c, d, square: fma(b, c, -(a * d)) / square)


def batch_of(a: torch.Tensor) -> torch.Tensor:
    """A tensor of matrices with one dimension for the batch."""
    return a.reshape(math.prod(a.shape[:-2]), *a.shape[-2:])


def broadcast(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Size]:
    """Two tensors of matrices with one common dimension for the batch, and its shape."""
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    wide = (x.expand(*batch, *x.shape[-2:]) for x in (a, b))
    first, second = (batch_of(x) for x in wide)
    return first, second, batch


def components(x: torch.Tensor) -> torch.Tensor:
    """A view with the real numbers of each element in a new last dimension: one, or two."""
    return torch.view_as_real(x) if x.is_complex() else x.unsqueeze(-1)


def copied(x: torch.Tensor) -> torch.Tensor:
    """A contiguous copy to work in, without a pending conjugation or negation."""
    return torch.empty(x.shape, dtype=x.dtype).copy_(x)


def widened(x: torch.Tensor) -> torch.Tensor:
    """The same numbers in float64 or complex128."""
    return x.to(torch.promote_types(x.dtype, torch.float64))


def make_real(a: torch.Tensor) -> None:
    """Takes the diagonals of a batch of matrices for real, in place, as LAPACK does."""
    for part in components(a.diagonal(dim1=-2, dim2=-1)).unbind(-1)[1:]:
        part.zero_()


def sizes(x: torch.Tensor) -> torch.Tensor:
    """What the comparisons of LAPACK take for the size of an element: ``|re| + |im|``.

    Nothing is perturbed; the sum of the two is the nearest number.
    """
    return components(x).abs().sum(-1) if x.is_complex() else x.abs()


def eliminate(call: Call, a: torch.Tensor, column: torch.Tensor, row: torch.Tensor) -> None:
    """``a -= column @ row`` in place, ``(B, m, n)``, ``(B, m)``, ``(B, n)``: all ``fma``."""
    if a.numel() == 0:
        return
    column, row = column.unsqueeze(2), row.unsqueeze(1)
    if not a.is_complex():
        UPDATE(call, column, row, a, out=a)
        return
    factors = (*complex.parts(call, column), *complex.parts(call, row))
    real, imaginary = torch.view_as_real(a).unbind(-1)
    UPDATE_REAL(call, *factors, real, out=real)
    UPDATE_IMAGINARY(call, *factors, imaginary, out=imaginary)


def product(call: Call, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``a @ b`` of two batches of matrices."""
    if not a.is_complex():
        return call.gemm(a, b)
    if a.shape[-1] == 0:
        return a.new_zeros(*a.shape[:-1], b.shape[-1])
    return complex.mm(call, a, b)


def add_product(call: Call, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
    """``a += b @ c`` in place: the product is accumulated from zero."""
    _combine(call, ADD, a, b, c)


def subtract_product(call: Call, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
    """``a -= b @ c`` in place: the product is accumulated from zero."""
    _combine(call, SUB, a, b, c)


def _combine(
    call: Call, formula: Formula, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor
) -> None:
    if a.numel() > 0 and b.shape[-1] > 0:
        y = product(call, b, c)
        if a.is_complex():
            a, y = torch.view_as_real(a), torch.view_as_real(y)
        formula(call, a, y, out=a)


def scaled(call: Call, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``a * b``, element by element."""
    return complex.mul(call, a, b) if a.is_complex() else MUL(call, a, b)


def divide(call: Call, a: torch.Tensor, b: torch.Tensor) -> None:
    """``a /= b`` in place, element by element; ``b`` is broadcast, and may be real."""
    if not a.is_complex():
        DIV(call, a, b, out=a)
    elif b.is_complex():
        _divide(call, a, b)
    else:
        values = torch.view_as_real(a)
        DIV(call, values, b.unsqueeze(-1), out=values)


def _divide(call: Call, a: torch.Tensor, b: torch.Tensor) -> None:
    """``a conj(b) / |b|^2``, both scaled by a power of two, which is exact."""
    values = torch.view_as_real(a)
    divisor = real_parts(b)
    exponent = torch.frexp(divisor.abs().amax(-1, keepdim=True)).exponent.clamp(-125, 125)
    scale = torch.ldexp(torch.ones_like(divisor[..., :1]), -exponent)
    c, d = (divisor * scale).unbind(-1)
    scaled = values * scale
    square = SQUARE(call, c, d)
    x, y = scaled.unbind(-1)
    real, imaginary = values.unbind(-1)
    QUOTIENT_REAL(call, x, y, c, d, square, out=real)
    QUOTIENT_IMAGINARY(call, x, y, c, d, square, out=imaginary)


def squares(call: Call, x: torch.Tensor) -> torch.Tensor:
    """The sums of the squared absolute values over dimension 1."""
    if x.is_complex():
        return call.reduce("sum_squares", torch.view_as_real(x), [1, x.dim()])
    return call.reduce("sum_squares", x, [1])


def multiplied(call: Call, x: torch.Tensor) -> torch.Tensor:
    """The products over the last dimension, one factor after the other."""
    if not x.is_complex():
        return call.reduce("prod", x, [-1])
    if x.shape[-1] == 0:
        return x.new_ones(x.shape[:-1])
    return functools.reduce(functools.partial(complex.mul, call), x.unbind(-1))


def directions(call: Call, x: torch.Tensor) -> torch.Tensor:
    """The products over the last dimension of ``x / |x|``; exact for real numbers."""
    if not x.is_complex():
        return x.sign().prod(-1)
    return multiplied(call, complex_functions.evaluated(call, x, function=torch.sgn))


def logarithms(call: Call, x: torch.Tensor) -> torch.Tensor:
    """The logarithms of the absolute values, evaluated in binary64."""
    return complex_functions.evaluated(call, x, function=lambda y: y.abs().log())


def conjugate_transpose(x: torch.Tensor) -> torch.Tensor:
    """The conjugate transposes of a batch of matrices, without a pending conjugation."""
    return x.mH.resolve_conj()


def rows(name: str, function: Callable[..., Any], why: str) -> tuple[Row, Row]:
    """The rows of an overload whose function takes real and complex operands."""
    full = f"aten.{name}.default"
    return (
        Row(full, Verdict.ROUNDED, function, why),
        Row(full, Verdict.ROUNDED, function, f"complex: {why}", operands="complex"),
    )
