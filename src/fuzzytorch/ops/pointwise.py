"""Rows of elementwise arithmetic: sums, products, quotients, roots and powers."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from fuzzytorch.ops.call import Call
from fuzzytorch.ops.formula import Formula, erf, exp, expm1, fma, log, log1p, select, sqrt, tanh
from fuzzytorch.table import Row, Verdict

ADD = Formula(lambda a, b: a + b)
SUB = Formula(lambda a, b: a - b)
MUL = Formula(lambda a, b: a * b)
DIV = Formula(lambda a, b: a / b)
FMA = Formula(lambda a, b, c: fma(a, b, c))
SQRT = Formula(lambda x: sqrt(x))
RSQRT = Formula(lambda x: 1.0 / sqrt(x))
EXP = Formula(lambda x: exp(x))
EXPM1 = Formula(lambda x: expm1(x))
LOG = Formula(lambda x: log(x))
LOG1P = Formula(lambda x: log1p(x))
TANH = Formula(lambda x: tanh(x))
ERF = Formula(lambda x: erf(x))
CUBE = Formula(lambda x: x * x * x)
RECIPROCAL_SQUARE = Formula(lambda x: 1.0 / (x * x))
ADDCMUL = Formula(lambda x, a, b, value: fma(value * a, b, x))
ADDCDIV = Formula(lambda x, a, b, value: x + value * a / b)
LERP_NEAR_START = Formula(lambda start, end, w: fma(end - start, w, start))
LERP_NEAR_END = Formula(lambda start, end, w: fma(end - start, w - 1.0, end))
LERP = Formula(
    lambda start, end, w, small: fma(
        end - start, select(small, w, w - 1.0), select(small, start, end)
    )
)
REMAINDER = Formula(lambda mod, b, opposite: select(opposite, mod + b, mod))
FLOOR_QUOTIENT = Formula(lambda a, mod, b, opposite: _less_one((a - mod) / b, opposite))
CROSS = Formula(lambda a1, b2, a2, b1: fma(a1, b2, -(a2 * b1)))


def _less_one(quotient: Any, opposite: Any) -> Any:
    return select(opposite, quotient - 1.0, quotient)


def add(call: Call, self: Any, other: Any, alpha: Any = 1) -> torch.Tensor:
    """``self + alpha * other``: the vector kernel of stock torch is one fused multiply-add."""
    if alpha == 1:
        return ADD(call, self, other, out=call.out)
    if alpha == -1:
        return SUB(call, self, other, out=call.out)
    return FMA(call, other, alpha, self, out=call.out)


def sub(call: Call, self: Any, other: Any, alpha: Any = 1) -> torch.Tensor:
    """``self - alpha * other``."""
    return add(call, self, other, -alpha)


def rsub(call: Call, self: Any, other: Any, alpha: Any = 1) -> torch.Tensor:
    """``other - alpha * self``."""
    return add(call, other, self, -alpha)


def mul(call: Call, self: Any, other: Any) -> torch.Tensor:
    """``self * other``."""
    return MUL(call, self, other, out=call.out)


def div(call: Call, self: Any, other: Any, rounding_mode: str | None = None) -> torch.Tensor:
    """The quotient, its truncation or its floor, in the steps of stock torch."""
    if rounding_mode is None:
        return DIV(call, self, other, out=call.out)
    if rounding_mode == "trunc":
        return DIV(call, self, other).trunc_()
    if rounding_mode == "floor":
        return floor_divide(call, self, other)
    raise RuntimeError(
        f"div expected rounding_mode to be one of None, 'trunc', or 'floor' but found "
        f"{rounding_mode!r}"
    )


def floor_divide(call: Call, self: Any, other: Any) -> torch.Tensor:
    """``(self - fmod) / other``, one less for opposite signs, moved to the nearest integer."""
    a, b = call.operand(self), call.operand(other)
    mod = torch.fmod(_tensor(a, b), b)
    quotient = FLOOR_QUOTIENT(call, a, mod, b, _opposite(call, mod, b))
    floor = quotient.floor()
    floor = torch.where(quotient - floor > 0.5, floor + 1.0, floor)
    # Of the plain quotient stock torch takes the sign of a zero and division by zero only.
    plain = torch.div(a, b)
    floor = torch.where(quotient == 0, torch.copysign(torch.zeros_like(plain), plain), floor)
    return torch.where(torch.as_tensor(b) == 0, plain, floor)


def remainder(call: Call, self: Any, other: Any) -> torch.Tensor:
    """``fmod`` (exact), plus ``other`` where the signs differ."""
    a, b = call.operand(self), call.operand(other)
    mod = torch.fmod(_tensor(a, b), b)
    return REMAINDER(call, mod, b, _opposite(call, mod, b), out=call.out)


def _tensor(a: Any, like: Any) -> torch.Tensor:
    return (
        a
        if isinstance(a, torch.Tensor)
        else torch.full((), a, dtype=like.dtype, device=like.device)
    )


def _opposite(call: Call, mod: torch.Tensor, b: Any) -> torch.Tensor:
    return ((mod != 0) & ((mod < 0) != (b < 0))).to(call.dtype)


def reciprocal(call: Call, self: torch.Tensor) -> torch.Tensor:
    """``1 / self``."""
    return DIV(call, 1.0, self, out=call.out)


def quotient(call: Call, a: float, b: int, device: torch.device) -> torch.Tensor:
    """``a / b`` as one rounded number that all elements share."""
    return DIV(call, torch.full((), a, dtype=call.dtype, device=device), b)


def root(call: Call, self: torch.Tensor) -> torch.Tensor:
    """The square root."""
    return SQRT(call, self, out=call.out)


def rsqrt(call: Call, self: torch.Tensor) -> torch.Tensor:
    """``1 / sqrt(self)``, two roundings."""
    return RSQRT(call, self, out=call.out)


def square(call: Call, self: torch.Tensor) -> torch.Tensor:
    """``self * self``."""
    return MUL(call, self, self, out=call.out)


def pow_scalar(call: Call, self: torch.Tensor, exponent: Any) -> torch.Tensor:
    """A power: multiplications, roots and reciprocals where stock torch uses them."""
    if exponent == 0:
        return torch.ones_like(self, dtype=call.dtype)
    if exponent == 1:
        return call.operand(self).clone()
    if exponent == 2:
        return square(call, self)
    if exponent == -1:
        return reciprocal(call, self)
    special = {3: CUBE, 0.5: SQRT, -0.5: RSQRT, -2: RECIPROCAL_SQUARE}.get(exponent)
    if special is not None:
        return special(call, self, out=call.out)
    return call.via_binary64(torch.pow, call.operand(self), call.number(exponent), out=call.out)


def pow_base(call: Call, self: Any, exponent: torch.Tensor) -> torch.Tensor:
    """A number to the power of a tensor, contiguous; 1 to any power is exact."""
    contiguous = torch.contiguous_format
    if self == 1:
        return torch.ones_like(exponent, dtype=call.dtype, memory_format=contiguous)
    out = call.out
    if out is None:
        out = torch.empty_like(exponent, dtype=call.dtype, memory_format=contiguous)
    return call.via_binary64(torch.pow, call.number(self), call.operand(exponent), out=out)


def addcmul(call: Call, self: Any, tensor1: Any, tensor2: Any, value: Any = 1) -> torch.Tensor:
    """``self + (value * tensor1) * tensor2``, the last product and the sum fused."""
    return ADDCMUL(call, self, tensor1, tensor2, value, out=call.out)


def addcdiv(call: Call, self: Any, tensor1: Any, tensor2: Any, value: Any = 1) -> torch.Tensor:
    """``self + (value * tensor1) / tensor2``, three roundings."""
    return ADDCDIV(call, self, tensor1, tensor2, value, out=call.out)


def lerp_scalar(call: Call, self: torch.Tensor, end: torch.Tensor, weight: Any) -> torch.Tensor:
    """Interpolation from the nearer end: a difference and a fused multiply-add."""
    formula = LERP_NEAR_START if abs(call.number(weight)) < 0.5 else LERP_NEAR_END
    return formula(call, self, end, weight, out=call.out)


def lerp(call: Call, self: torch.Tensor, end: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """:func:`lerp_scalar` with a weight per element."""
    small = (weight.abs() < 0.5).to(call.dtype)
    return LERP(call, self, end, weight, small, out=call.out)


def round_decimals(call: Call, self: torch.Tensor, *, decimals: int) -> torch.Tensor:
    """Scaling by a power of ten, an exact rounding to integers, scaling back."""
    ten = call.number(10.0 ** abs(decimals))
    if decimals == 0:
        return self.round()
    scale, back = (MUL, DIV) if decimals > 0 else (DIV, MUL)
    return back(call, scale(call, self, ten).round_(), ten, out=call.out)


def linalg_cross(
    call: Call, self: torch.Tensor, other: torch.Tensor, *, dim: int = -1
) -> torch.Tensor:
    """Products of two components and their difference."""
    a, b = torch.broadcast_tensors(self, other)
    following, preceding = torch.tensor([1, 2, 0]), torch.tensor([2, 0, 1])
    a1, b1 = (x.index_select(dim, following) for x in (a, b))
    a2, b2 = (x.index_select(dim, preceding) for x in (a, b))
    return CROSS(call, a1, b2, a2, b1, out=_apart(call.out, self, other))


def _apart(out: torch.Tensor | None, *inputs: torch.Tensor) -> torch.Tensor | None:
    return None if any(out is x for x in inputs) else out


def scaled(call: Call, self: torch.Tensor, factor: float) -> torch.Tensor:
    """``self * factor``."""
    return MUL(call, self, factor, out=call.out)


_ARITHMETIC: tuple[tuple[str, Callable[..., Any], str], ...] = (
    (
        "add.Tensor add.Scalar",
        add,
        "one rounding of the sum or fused multiply-add",
    ),
    ("sub.Tensor sub.Scalar", sub, "one rounding of the difference or fused multiply-add"),
    ("rsub.Tensor rsub.Scalar", rsub, "one rounding of the difference or fused multiply-add"),
    ("mul.Tensor mul.Scalar", mul, "one rounding of the product"),
    ("div.Tensor div.Scalar", div, "one rounding of the quotient"),
    (
        "div.Tensor_mode div.Scalar_mode",
        div,
        "trunc: the quotient is rounded, its truncation is exact; floor: see floor_divide",
    ),
    (
        "floor_divide.default floor_divide.Scalar",
        floor_divide,
        "dividend minus fmod, quotient and correction are rounded; fmod and floor are exact",
    ),
    (
        "remainder.Tensor remainder.Scalar remainder.Scalar_Tensor",
        remainder,
        "fmod is exact; the addition of the divisor for opposite signs is rounded",
    ),
    ("reciprocal.default", reciprocal, "one rounding of the quotient"),
    ("sqrt.default", root, "one rounding of the square root"),
    ("rsqrt.default", rsqrt, "the square root and its reciprocal are rounded"),
    ("square.default", square, "one rounding of the product"),
    (
        "pow.Tensor_Scalar",
        pow_scalar,
        "products, roots and reciprocals for 2, 3, 0.5 and -0.5, -1, -2, else one rounding",
    ),
    ("pow.Scalar", pow_base, "evaluated in binary64, then one rounding"),
    ("addcmul.default", addcmul, "the product by value and the fused multiply-add are rounded"),
    ("addcdiv.default", addcdiv, "a product, a quotient and a sum, each rounded"),
    ("lerp.Scalar", lerp_scalar, "the difference and the fused multiply-add are rounded"),
    ("lerp.Tensor", lerp, "the difference, weight - 1 and the fused multiply-add are rounded"),
    ("round.decimals", round_decimals, "both scalings by a power of ten are rounded"),
    ("linalg_cross.default", linalg_cross, "a product and a fused multiply-add, each rounded"),
    (
        "deg2rad.default",
        functools.partial(scaled, factor=math.pi / 180.0),
        "one rounding of the product",
    ),
    (
        "rad2deg.default",
        functools.partial(scaled, factor=180.0 / math.pi),
        "one rounding of the product",
    ),
)

ROWS: tuple[Row, ...] = tuple(
    Row(f"aten.{name}", Verdict.ROUNDED, function, why)
    for names, function, why in _ARITHMETIC
    for name in names.split()
)
