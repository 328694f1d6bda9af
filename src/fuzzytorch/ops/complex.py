"""Rows for complex operands: arithmetic on real and imaginary parts, which round one by one.

Sums, products and quotients follow the order of stock torch.  A real operand is a complex
one with a zero imaginary part, so that infinities and NaN spread as in stock torch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import torch

from fuzzytorch.ops.call import Call
from fuzzytorch.ops.dtypes import real_parts
from fuzzytorch.ops.formula import Formula
from fuzzytorch.ops.pointwise import ADD, DIV, MUL, SUB
from fuzzytorch.table import Row, Verdict

Parts = tuple[Any, Any]
"""Real and imaginary part: tensors, or numbers where the operand is one."""

CROSS_DIFFERENCE: Final = Formula(lambda a, b, c, d: a * c - b * d)
CROSS_SUM: Final = Formula(lambda a, b, c, d: a * d + b * c)
QUOTIENT: Final = Formula(lambda a, b, c, d, square: (a * c + b * d) / square)
QUOTIENT_IMAGINARY: Final = Formula(lambda a, b, c, d, square: (b * c - a * d) / square)
SQUARE: Final = Formula(lambda c, d: c * c + d * d)


def parts(call: Call, x: Any) -> Parts:
    """Real and imaginary part of a tensor or a number, in the dtype of the call."""
    if not isinstance(x, torch.Tensor):
        return call.number(x.real), call.number(x.imag)
    if x.is_complex():
        real, imaginary = real_parts(x).unbind(-1)
        return _narrowed(call, real), _narrowed(call, imaginary)
    real = _narrowed(call, x)
    return real, real.new_zeros(()).expand(real.shape)


def _narrowed(call: Call, x: torch.Tensor) -> torch.Tensor:
    """A part in the dtype of the call; narrowing, which ``dtype=`` asks for, is a rounding."""
    narrowing = (x.dtype, call.dtype) == (torch.float64, torch.float32) and x.dim() > 0
    converted: torch.Tensor = call.round(x) if narrowing else call.operand(x)
    return converted


def complex_operand(call: Call, x: torch.Tensor) -> torch.Tensor:
    """A tensor as a complex one in the dtype of the call; itself where it is that."""
    if x.dtype == call.dtype.to_complex():
        return x
    return torch.complex(*torch.broadcast_tensors(*parts(call, x)))


def empty(call: Call, *operands: Any) -> torch.Tensor:
    """The complex tensor that stock torch would allocate for an elementwise operation."""
    tensors = [x for x in operands if isinstance(x, torch.Tensor)]
    shape = torch.broadcast_shapes(*(x.shape for x in tensors))
    if all(x.is_contiguous() for x in tensors if x.shape == shape):
        return torch.empty(shape, dtype=call.dtype.to_complex())
    metas = [torch.empty_strided(x.shape, x.stride(), device="meta") for x in tensors]
    meta = functools.reduce(torch.add, metas) if len(metas) > 1 else torch.neg(metas[0])
    return torch.empty_strided(meta.shape, meta.stride(), dtype=call.dtype.to_complex())


def written(call: Call, *operands: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A tensor for the result, and views of its parts."""
    out = empty(call, *operands)
    real, imaginary = torch.view_as_real(out).unbind(-1)
    return out, real, imaginary


def add(call: Call, self: Any, other: Any, alpha: Any = 1) -> torch.Tensor:
    """``self + alpha * other``; the product rounds where ``alpha`` is not 1 or -1."""
    if alpha not in (1, -1):
        other, alpha = mul(call, _tensor(call, other), alpha), 1
    out, real, imaginary = written(call, self, other)
    (a, b), (c, d) = parts(call, self), _times_one(call, *parts(call, other))
    formula = ADD if alpha == 1 else SUB
    formula(call, a, c, out=real)
    formula(call, b, d, out=imaginary)
    return out


def _tensor(call: Call, x: Any) -> torch.Tensor:
    """A tensor, or a number as one."""
    if isinstance(x, torch.Tensor):
        return x
    complex_ = isinstance(x, complex)
    return torch.tensor(x, dtype=call.dtype.to_complex() if complex_ else call.dtype)


def _times_one(call: Call, c: Any, d: Any) -> Parts:
    """The product by ``1 + 0i``, which stock torch forms: NaN beside what is not finite."""
    c, d = _tensor(call, c), _tensor(call, d)
    if bool(c.isfinite().all()) and bool(d.isfinite().all()):
        return c, d
    return torch.where(d.isfinite(), c, torch.nan), torch.where(c.isfinite(), d, torch.nan)


def sub(call: Call, self: Any, other: Any, alpha: Any = 1) -> torch.Tensor:
    """``self - alpha * other``."""
    return add(call, self, other, -alpha)


def rsub(call: Call, self: Any, other: Any, alpha: Any = 1) -> torch.Tensor:
    """``other - alpha * self``."""
    return add(call, other, self, -alpha)


def mul(call: Call, self: Any, other: Any) -> torch.Tensor:
    """Four products, a difference and a sum."""
    out, real, imaginary = written(call, self, other)
    (a, b), (c, d) = parts(call, self), parts(call, other)
    CROSS_DIFFERENCE(call, a, b, c, d, out=real)
    CROSS_SUM(call, a, b, c, d, out=imaginary)
    return out


def div(call: Call, self: Any, other: Any) -> torch.Tensor:
    """The quotient of both operands scaled by the larger part of the divisor."""
    (a, b), (c, d) = parts(call, self), parts(call, other)
    size = torch.maximum(_tensor(call, c).abs(), _tensor(call, d).abs())
    scale = DIV(call, 1.0, size)
    a, b, c, d = (MUL(call, x, scale) for x in (a, b, c, d))
    square = SQUARE(call, c, d)
    out, real, imaginary = written(call, self, other)
    QUOTIENT(call, a, b, c, d, square, out=real)
    QUOTIENT_IMAGINARY(call, a, b, c, d, square, out=imaginary)
    return out


def reciprocal(call: Call, self: torch.Tensor) -> torch.Tensor:
    """``1 / self``."""
    return div(call, 1.0, self)


def square(call: Call, self: torch.Tensor) -> torch.Tensor:
    """``self * self``."""
    return mul(call, self, self)


def addcmul(call: Call, self: Any, tensor1: Any, tensor2: Any, value: Any = 1) -> torch.Tensor:
    """``self + value * tensor1 * tensor2``."""
    product = tensor1 if value == 1 else mul(call, tensor1, value)
    return add(call, self, mul(call, product, tensor2))


def addcdiv(call: Call, self: Any, tensor1: Any, tensor2: Any, value: Any = 1) -> torch.Tensor:
    """``self + value * tensor1 / tensor2``."""
    product = tensor1 if value == 1 else mul(call, tensor1, value)
    return add(call, self, div(call, product, tensor2))


def div_mode(
    call: Call, self: Any, other: Any, *, rounding_mode: str | None = None
) -> torch.Tensor:
    """:func:`div`; stock torch refuses complex operands where it is to be rounded."""
    return NotImplemented if rounding_mode else div(call, self, other)


def lerp(call: Call, self: torch.Tensor, end: torch.Tensor, weight: Any) -> torch.Tensor:
    """Interpolation from the nearer end: two differences at most, a product and a sum."""
    difference = sub(call, end, self)
    if not isinstance(weight, torch.Tensor):
        near = abs(complex(call.number(weight.real), call.number(weight.imag))) < 0.5
        factor = weight if near else sub(call, _tensor(call, weight), 1)
        return add(call, self if near else end, mul(call, difference, factor))
    real, imaginary = real_parts(complex_operand(call, weight)).double().unbind(-1)
    small = real * real + imaginary * imaginary < 0.25
    factor = torch.where(small, weight, sub(call, weight, 1))
    return add(call, torch.where(small, self, end), mul(call, difference, factor))


def cross(call: Call, self: torch.Tensor, other: torch.Tensor, *, dim: int = -1) -> torch.Tensor:
    """Products of two components and their difference."""
    a, b = torch.broadcast_tensors(self, other)
    following, preceding = torch.tensor([1, 2, 0]), torch.tensor([2, 0, 1])
    a1, b1 = (x.index_select(dim, following) for x in (a, b))
    a2, b2 = (x.index_select(dim, preceding) for x in (a, b))
    return sub(call, mul(call, a1, b2), mul(call, a2, b1))


def mm(call: Call, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """One real product in which both terms of each complex product follow one another.

    ``(a + ib)(c + id)`` contributes ``a * c`` and then ``b * -d`` to the real part.
    """
    left = torch.stack(parts(call, a), -1).flatten(-2)
    c, d = parts(call, b)
    right = torch.stack([torch.stack([c, d], -1), torch.stack([-d, c], -1)], -3)
    right = right.flatten(-4, -3).flatten(-2)
    product = call.gemm(left, right)
    return torch.view_as_complex(product.unflatten(-1, (-1, 2)))


def mv(call: Call, a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return mm(call, a, x.unsqueeze(1)).squeeze(1)


def dot(call: Call, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    a, b = parts(call, x)
    c, d = parts(call, y)
    pairs = torch.stack([a, b], -1).flatten()
    real = call.reduce("dot", pairs, y=torch.stack([c, -d], -1).flatten())
    imaginary = call.reduce("dot", pairs, y=torch.stack([d, c], -1).flatten())
    return torch.complex(real, imaginary)


def vdot(call: Call, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return dot(call, x.conj(), y)


def addmm(
    call: Call,
    summand: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    beta: Any = 1,
    alpha: Any = 1,
    product: Callable[..., torch.Tensor] = mm,
) -> torch.Tensor:
    """``beta * summand + alpha * (a @ b)``; factors of 1 cost nothing, of 0 read nothing."""
    y = product(call, a, b)
    # Stock torch writes a contiguous result, whichever strides the summand has.
    y = y if alpha == 1 else mul(call, y, alpha)
    return _onto(call, summand.contiguous(), y, beta)


def addbmm(
    call: Call,
    summand: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    beta: Any = 1,
    alpha: Any = 1,
) -> torch.Tensor:
    """:func:`addmm` with one product of the batch after the other."""
    if a.shape[0] == 0:
        nothing = torch.zeros(a.shape[1], b.shape[2], dtype=call.dtype.to_complex())
        return nothing if beta == 0 else add(call, mul(call, summand, beta), nothing)
    total = summand.contiguous()
    for i, product in enumerate(mm(call, a, b)):
        scaled = product if alpha == 1 else mul(call, product, alpha)
        total = _onto(call, total, scaled, 1 if i else beta)
    return total


def _onto(call: Call, summand: torch.Tensor, term: torch.Tensor, beta: Any) -> torch.Tensor:
    """``beta * summand + term``; factors of 1 cost nothing, of 0 read nothing."""
    if beta == 0:
        return term
    return add(call, summand if beta == 1 else mul(call, summand, beta), term)


def addr(
    call: Call,
    summand: torch.Tensor,
    x: torch.Tensor,
    y: torch.Tensor,
    *,
    beta: Any = 1,
    alpha: Any = 1,
) -> torch.Tensor:
    """``beta * summand + (alpha * x) * y`` with the outer product of two vectors."""
    x = x if alpha == 1 else mul(call, x, alpha)
    return _onto(call, summand, mul(call, x.unsqueeze(1), y.unsqueeze(0)), beta)


def complex_row(name: str, function: Callable[..., Any], why: str) -> Row:
    """The row of an overload for complex operands."""
    return Row(f"aten.{name}", Verdict.ROUNDED, function, f"complex: {why}", operands="complex")


_PRODUCT: Final = "every fused multiply-add of the parts"
_SUM: Final = "one rounding per part; a product by alpha first"
_QUOTIENT: Final = "scaling by the divisor, products, sums and quotients"

_ARITHMETIC: Final[tuple[tuple[str, Callable[..., Any], str], ...]] = (
    ("add.Tensor add.Scalar", add, _SUM),
    ("sub.Tensor sub.Scalar", sub, _SUM),
    ("rsub.Tensor rsub.Scalar", rsub, _SUM),
    ("mul.Tensor mul.Scalar", mul, "four products, a difference and a sum"),
    ("div.Tensor div.Scalar", div, _QUOTIENT),
    ("div.Tensor_mode div.Scalar_mode", div_mode, _QUOTIENT),
    ("reciprocal.default", reciprocal, _QUOTIENT),
    ("square.default", square, "four products, a difference and a sum"),
    ("addcmul.default", addcmul, "the products and the sum, part by part"),
    ("addcdiv.default", addcdiv, "the product, the quotient and the sum, part by part"),
    ("lerp.Scalar lerp.Tensor", lerp, "the differences, the product and the sum, part by part"),
    ("linalg_cross.default", cross, "two products and their difference, part by part"),
    ("mm.default bmm.default", mm, _PRODUCT),
    ("mv.default", mv, _PRODUCT),
    ("dot.default", dot, _PRODUCT),
    ("vdot.default", vdot, _PRODUCT),
    ("addmm.default baddbmm.default", addmm, f"{_PRODUCT}, products with alpha and beta, the sum"),
    (
        "addmv.default",
        functools.partial(addmm, product=mv),
        f"{_PRODUCT}, products with alpha and beta, the sum",
    ),
    ("addbmm.default", addbmm, f"{_PRODUCT}, products with alpha and beta, every sum"),
    ("addr.default", addr, "the products, and the sum, part by part"),
)

ROWS: tuple[Row, ...] = tuple(
    complex_row(name, function, why)
    for names, function, why in _ARITHMETIC
    for name in names.split()
)
