"""Rows for complex operands: powers, transcendental functions and what is made of them.

Functions are evaluated in binary64 and round once per part; functions made of several
round every step of stock torch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import torch

from fuzzytorch.ops.call import Call
from fuzzytorch.ops.complex import (
    add,
    complex_operand,
    complex_row,
    div,
    empty,
    mul,
    reciprocal,
    rsub,
    square,
    sub,
    written,
)
from fuzzytorch.ops.dtypes import real_parts
from fuzzytorch.ops.pointwise import MUL
from fuzzytorch.table import Row, Verdict


def evaluated(call: Call, *operands: Any, function: Callable[..., torch.Tensor]) -> torch.Tensor:
    """A function evaluated in binary64 on contiguous tensors; each part rounds once."""
    tensors = [x for x in operands if isinstance(x, torch.Tensor)]
    y = function(*(_wide(x) if isinstance(x, torch.Tensor) else x for x in operands))
    like = empty(call, *tensors)
    if y.is_complex():
        stored = torch.view_as_complex(call.round(real_parts(y)))
    else:
        stored, like = call.round(y), torch.empty_like(like, dtype=call.dtype)
    return stored if like.is_contiguous() else like.copy_(stored)


def _wide(x: torch.Tensor) -> torch.Tensor:
    dtype = torch.complex128 if x.is_complex() else torch.float64
    return x.resolve_conj().to(dtype, memory_format=torch.contiguous_format)


def power(call: Call, self: torch.Tensor, exponent: Any) -> torch.Tensor:
    """Products and a reciprocal where stock torch uses them, else one rounding per part."""
    if exponent == 2:
        return square(call, self)
    if exponent == 3:
        return mul(call, square(call, self), self)
    if exponent == -1:
        return reciprocal(call, self)
    return evaluated(call, self, exponent, function=torch.pow)


def polar(call: Call, size: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    """``size * cos(angle)`` and ``size * sin(angle)``."""
    out, real, imaginary = written(call, size, angle)
    MUL(call, size, call.via_binary64(torch.cos, angle), out=real)
    MUL(call, size, call.via_binary64(torch.sin, angle), out=imaginary)
    return out


def logaddexp(call: Call, self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """``log1p(exp(a - b)) + b`` for the operand ``b`` of the larger real part."""
    x, y = torch.broadcast_tensors(complex_operand(call, self), complex_operand(call, other))
    less = x.real < y.real
    a, b = torch.where(less, x, y), torch.where(less, y, x)
    power = evaluated(call, sub(call, a, b), function=torch.exp)
    result = add(call, evaluated(call, power, function=torch.log1p), b)
    # What is not finite adds nothing that rounds.
    finite = a.isfinite() & b.isfinite()
    return result if bool(finite.all()) else torch.where(finite, result, torch.logaddexp(x, y))


def _odds(call: Call, self: torch.Tensor) -> torch.Tensor:
    """``1 + exp(-x)``."""
    return add(call, evaluated(call, -self, function=torch.exp), 1)


def silu(call: Call, self: torch.Tensor) -> torch.Tensor:
    """``x / (1 + exp(-x))``."""
    return div(call, self, _odds(call, self))


def silu_backward(call: Call, grad_output: torch.Tensor, self: torch.Tensor) -> torch.Tensor:
    """``grad * s * (1 + x * (1 - s))`` with the sigmoid ``s``."""
    sigmoid = reciprocal(call, _odds(call, self))
    slope = add(call, mul(call, self, rsub(call, sigmoid, 1)), 1)
    return mul(call, mul(call, grad_output, sigmoid), slope)


def sigmoid_backward(call: Call, grad_output: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    """``grad * conj((1 - y) * y)``."""
    return mul(call, grad_output, mul(call, rsub(call, output, 1), output).conj())


def tanh_backward(call: Call, grad_output: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    """``grad * conj(1 - y * y)``."""
    return mul(call, grad_output, rsub(call, square(call, output), 1).conj())


def ldexp(call: Call, self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """``self * 2 ** other``."""
    return self * torch.pow(2.0, other)


TRANSCENDENTAL: Final = (
    "abs angle sgn exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh "
    "asinh acosh atanh sqrt rsqrt sigmoid sinc"
)
"""Functions evaluated in binary64, one rounding per part."""

_ONCE: Final = "evaluated in binary64, then one rounding per part"

_COMPOSED: Final[tuple[tuple[str, Callable[..., Any], str], ...]] = (
    ("pow.Tensor_Scalar", power, "products and reciprocals for 2, 3 and -1, else one rounding"),
    ("logaddexp.default", logaddexp, "difference, exponential, logarithm and sum"),
    ("silu.default", silu, "exponential, sum and quotient"),
    ("silu_backward.default", silu_backward, "every step of the formula, the sigmoid included"),
    ("sigmoid_backward.default", sigmoid_backward, "difference and both products"),
    ("tanh_backward.default", tanh_backward, "square, difference and product"),
)

ROWS: tuple[Row, ...] = (
    Row(
        "aten.polar.default",
        Verdict.ROUNDED,
        polar,
        "cosine and sine (once each, from binary64), and the products",
    ),
    Row(
        "aten.ldexp.Tensor",
        Verdict.LOWERED,
        ldexp,
        "complex: the power of two and the product",
        operands="complex",
    ),
    *(complex_row(name, function, why) for name, function, why in _COMPOSED),
    *(
        complex_row(
            f"{name}.default", functools.partial(evaluated, function=getattr(torch, name)), _ONCE
        )
        for name in TRANSCENDENTAL.split()
    ),
    *(
        complex_row(f"pow.{name}", functools.partial(evaluated, function=torch.pow), _ONCE)
        for name in ("Tensor_Tensor", "Scalar")
    ),
)
