"""Rows for complex operands: arithmetic on real and imaginary parts, which round one by one.

Sums, products and quotients follow the order of stock torch.  A real operand is a complex
one with a zero imaginary part, so that infinities and NaN spread as in stock torch.
Transcendental functions are evaluated in binary64 and round once per part.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from fuzzytorch.ops.call import Call
from fuzzytorch.ops.dtypes import real_parts
from fuzzytorch.ops.formula import Formula
from fuzzytorch.ops.pointwise import ADD, DIV, MUL, SUB
from fuzzytorch.ops.reduction import vector_norm
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
        return call.operand(real), call.operand(imaginary)
    real = call.operand(x)
    return real, real.new_zeros(()).expand(real.shape)


def joined(real: torch.Tensor, imaginary: torch.Tensor) -> torch.Tensor:
    """A contiguous complex tensor of two parts, copied."""
    return torch.view_as_complex(torch.stack([real, imaginary], -1))


def _empty(call: Call, *operands: Any) -> torch.Tensor:
    """The complex tensor that stock torch would allocate for an elementwise operation."""
    tensors = [x for x in operands if isinstance(x, torch.Tensor)]
    shape = torch.broadcast_shapes(*(x.shape for x in tensors))
    if all(x.is_contiguous() for x in tensors if x.shape == shape):
        return torch.empty(shape, dtype=call.dtype.to_complex())
    metas = [torch.empty_strided(x.shape, x.stride(), device="meta") for x in tensors]
    meta = functools.reduce(torch.add, metas) if len(metas) > 1 else torch.neg(metas[0])
    return torch.empty_strided(meta.shape, meta.stride(), dtype=call.dtype.to_complex())


def _written(call: Call, *operands: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A tensor for the result, and views of its parts."""
    out = _empty(call, *operands)
    real, imaginary = torch.view_as_real(out).unbind(-1)
    return out, real, imaginary


def add(call: Call, self: Any, other: Any, alpha: Any = 1) -> torch.Tensor:
    """``self + alpha * other``; the product rounds where ``alpha`` is not 1 or -1."""
    if alpha not in (1, -1):
        other, alpha = mul(call, _tensor(call, other), alpha), 1
    out, real, imaginary = _written(call, self, other)
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
    out, real, imaginary = _written(call, self, other)
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
    out, real, imaginary = _written(call, self, other)
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


def power(call: Call, self: torch.Tensor, exponent: Any) -> torch.Tensor:
    """Products and a reciprocal where stock torch uses them, else one rounding per part."""
    if exponent == 2:
        return square(call, self)
    if exponent == 3:
        return mul(call, square(call, self), self)
    if exponent == -1:
        return reciprocal(call, self)
    return evaluated(call, self, exponent, function=torch.pow)


def evaluated(call: Call, *operands: Any, function: Callable[..., torch.Tensor]) -> torch.Tensor:
    """A function evaluated in binary64 on contiguous tensors; each part rounds once."""
    tensors = [x for x in operands if isinstance(x, torch.Tensor)]
    y = function(*(_wide(x) if isinstance(x, torch.Tensor) else x for x in operands))
    like = _empty(call, *tensors)
    if y.is_complex():
        stored = torch.view_as_complex(call.round(real_parts(y)))
    else:
        stored, like = call.round(y), torch.empty_like(like, dtype=call.dtype)
    return stored if like.is_contiguous() else like.copy_(stored)


def _wide(x: torch.Tensor) -> torch.Tensor:
    dtype = torch.complex128 if x.is_complex() else torch.float64
    return x.resolve_conj().to(dtype, memory_format=torch.contiguous_format)


def total(
    call: Call,
    x: torch.Tensor,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """The sums of both parts."""
    real, imaginary = (call.reduce("sum", part, dim, keepdim) for part in parts(call, x))
    return joined(real, imaginary)


def mean(
    call: Call,
    x: torch.Tensor,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """The sums of both parts, divided by the number of terms."""
    y = total(call, x, dim, keepdim)
    terms = x.numel() / max(y.numel(), 1)
    real, imaginary = (DIV(call, part, terms) for part in parts(call, y))
    return joined(real, imaginary)


def cumsum(
    call: Call, x: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Running sums of both parts."""
    real, imaginary = (call.scan("sum", part, dim) for part in parts(call, x))
    return joined(real, imaginary)


def norm(
    call: Call,
    x: torch.Tensor,
    ord: Any = 2,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """The norm of the absolute values; of both parts where it is the euclidean one."""
    if ord == 2:
        dims = [d % x.dim() for d in dim] if dim and x.dim() else list(range(x.dim()))
        pairs = real_parts(x)
        y = vector_norm(call, pairs, 2, [*dims, pairs.dim() - 1], keepdim)
        return y.squeeze(-1) if keepdim else y
    return vector_norm(call, evaluated(call, x, function=torch.abs), ord, dim, keepdim)


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
    return joined(real, imaginary)


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
    if alpha != 1:
        y = mul(call, y, alpha)
    if beta == 0:
        return y
    return add(call, summand if beta == 1 else mul(call, summand, beta), y)


def polar(call: Call, size: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    """``size * cos(angle)`` and ``size * sin(angle)``."""
    out, real, imaginary = _written(call, size, angle)
    MUL(call, size, call.via_binary64(torch.cos, angle), out=real)
    MUL(call, size, call.via_binary64(torch.sin, angle), out=imaginary)
    return out


TRANSCENDENTAL: Final = (
    "abs angle sgn exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh "
    "asinh acosh atanh sqrt rsqrt sigmoid sinc"
)
"""Functions evaluated in binary64, one rounding per part."""

_PRODUCT: Final = "every fused multiply-add of the parts"
_ONCE: Final = "complex: evaluated in binary64, then one rounding per part"

_ARITHMETIC: Final[tuple[tuple[str, Callable[..., Any], str], ...]] = (
    ("add.Tensor add.Scalar", add, "one rounding per part; a product by alpha first"),
    ("sub.Tensor sub.Scalar", sub, "one rounding per part; a product by alpha first"),
    ("rsub.Tensor rsub.Scalar", rsub, "one rounding per part; a product by alpha first"),
    ("mul.Tensor mul.Scalar", mul, "four products, a difference and a sum"),
    ("div.Tensor div.Scalar", div, "scaling by the divisor, products, sums and quotients"),
    ("reciprocal.default", reciprocal, "scaling by the divisor, products, sums and quotients"),
    ("square.default", square, "four products, a difference and a sum"),
    ("addcmul.default", addcmul, "the products and the sum, part by part"),
    ("addcdiv.default", addcdiv, "the product, the quotient and the sum, part by part"),
    ("pow.Tensor_Scalar", power, "products and reciprocals for 2, 3 and -1, else one rounding"),
    ("sum.default sum.dim_IntList", total, "every addition of both parts"),
    ("mean.default mean.dim", mean, "every addition of both parts, and the quotients"),
    ("cumsum.default", cumsum, "every addition of both parts"),
    ("linalg_vector_norm.default", norm, "absolute values (euclidean: parts), sum and root"),
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
)

ROWS: tuple[Row, ...] = (
    Row(
        "aten.polar.default",
        Verdict.ROUNDED,
        polar,
        "cosine and sine (once each, from binary64), and the products",
    ),
    *(
        Row(f"aten.{name}", Verdict.ROUNDED, function, f"complex: {why}", operands="complex")
        for names, function, why in _ARITHMETIC
        for name in names.split()
    ),
    *(
        Row(
            f"aten.{name}.default",
            Verdict.ROUNDED,
            functools.partial(evaluated, function=getattr(torch, name)),
            _ONCE,
            operands="complex",
        )
        for name in TRANSCENDENTAL.split()
    ),
    *(
        Row(
            f"aten.pow.{name}",
            Verdict.ROUNDED,
            functools.partial(evaluated, function=torch.pow),
            _ONCE,
            operands="complex",
        )
        for name in ("Tensor_Tensor", "Scalar")
    ),
)
