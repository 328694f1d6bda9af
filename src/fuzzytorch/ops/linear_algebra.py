"""Matrix products, their sums with a scaled input, and distances between rows.

The order of a product is that of ``gemm`` (:mod:`fuzzytorch.backends.protocol`): fused
multiply-adds along K in blocks of 192.  ``alpha`` and ``beta`` cost a rounding only
where they are not 1, and an input with ``beta = 0`` is not read, as in stock torch.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from fuzzytorch.ops.call import Call
from fuzzytorch.ops.formula import Formula
from fuzzytorch.ops.pointwise import ADD, MUL, SQRT, SUB
from fuzzytorch.table import Row, Verdict

Number = float | int
"""A scalar of an aten schema."""

PAIRWISE_BY_PRODUCT = 25
"""Rows above which stock torch computes euclidean distances through a matrix product."""


SCALED_PRODUCT = Formula(lambda product, summand, alpha: summand + alpha * product)
SCALED_SUMMAND = Formula(lambda product, summand, beta: beta * summand + product)
SCALED_BOTH = Formula(lambda product, summand, beta, alpha: beta * summand + alpha * product)
QUOTIENT_OF_PRODUCT = Formula(lambda x, grad, distance: x * grad / distance)


def _combined(
    call: Call, product: torch.Tensor, summand: torch.Tensor, beta: Number, alpha: Number
) -> torch.Tensor:
    """``beta * summand + alpha * product`` into the output of the call or onto the product."""
    out = product if call.out is None else call.out
    if beta == 0:
        return product if alpha == 1 else MUL(call, product, alpha, out=out)
    if beta == 1:
        return _plus(call, product, summand, alpha, out)
    if alpha == 1:
        return SCALED_SUMMAND(call, product, summand, beta, out=out)
    return SCALED_BOTH(call, product, summand, beta, alpha, out=out)


def _plus(
    call: Call, product: torch.Tensor, summand: torch.Tensor, alpha: Number, out: torch.Tensor
) -> torch.Tensor:
    if alpha == 1:
        return ADD(call, summand, product, out=out)
    return SCALED_PRODUCT(call, product, summand, alpha, out=out)


def mm(call: Call, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return call.gemm(a, b)


def addmm(
    call: Call,
    summand: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    beta: Number = 1,
    alpha: Number = 1,
) -> torch.Tensor:
    return _combined(call, call.gemm(a, b), summand, beta, alpha)


def addmm_activation(
    call: Call,
    summand: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    beta: Number = 1,
    alpha: Number = 1,
    use_gelu: bool = False,
) -> torch.Tensor:
    y = _combined(call, call.gemm(a, b), summand, beta, alpha)
    if use_gelu:
        return call.via_binary64(torch.nn.functional.gelu, y)
    return y.relu()


def addbmm(
    call: Call,
    summand: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    beta: Number = 1,
    alpha: Number = 1,
) -> torch.Tensor:
    if a.shape[0] == 0:
        nothing = a.new_zeros(a.shape[1], b.shape[2])
        return _combined(call, nothing, summand, beta, 1)
    products = call.gemm(a, b)
    total = _combined(call, products[0], summand, beta, alpha)
    for product in products[1:]:
        total = _plus(call, product, total, alpha, total)
    return total


def mv(call: Call, a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return call.gemm(a, x.unsqueeze(1)).squeeze(1)


def addmv(
    call: Call,
    summand: torch.Tensor,
    a: torch.Tensor,
    x: torch.Tensor,
    *,
    beta: Number = 1,
    alpha: Number = 1,
) -> torch.Tensor:
    return _combined(call, mv(call, a, x), summand, beta, alpha)


def dot(call: Call, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return call.reduce("dot", x, y=y)


def addr(
    call: Call,
    summand: torch.Tensor,
    x: torch.Tensor,
    y: torch.Tensor,
    *,
    beta: Number = 1,
    alpha: Number = 1,
) -> torch.Tensor:
    if alpha != 1:
        x = MUL(call, x, alpha)
    product = MUL(call, x.unsqueeze(1), y.unsqueeze(0))
    return _combined(call, product, summand, beta, 1)


def trace(call: Call, x: torch.Tensor) -> torch.Tensor:
    return call.reduce("sum", x.diagonal())


def euclidean_dist(call: Call, x1: torch.Tensor, x2: torch.Tensor) -> torch.Tensor:
    """``sqrt(max(0, |x1|^2 + |x2|^2 - 2 x1 x2))`` through one product of augmented matrices."""
    n1 = call.reduce("sum", MUL(call, x1, x1), [-1], keepdim=True)
    n2 = call.reduce("sum", MUL(call, x2, x2), [-1], keepdim=True)
    scaled = MUL(call, x1, -2.0)
    a = torch.cat([scaled, n1, torch.ones_like(n1)], -1)
    b = torch.cat([x2, torch.ones_like(n2), n2], -1)
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    count = math.prod(batch)
    a3 = a.expand(*batch, *a.shape[-2:]).reshape(count, *a.shape[-2:])
    b3 = b.expand(*batch, *b.shape[-2:]).reshape(count, *b.shape[-2:])
    squares = call.gemm(a3, b3.mT).clamp_(min=0.0)
    y = SQRT(call, squares, out=squares)
    return y.view(*batch, a.shape[-2], b.shape[-2])


def _length(call: Call, difference: torch.Tensor, p: float) -> torch.Tensor:
    """The p-norm over the last dimension, as the distance kernels accumulate it."""
    if p == 0:
        return (difference != 0).sum(-1, dtype=call.dtype)
    if p == 1:
        return call.reduce("sum_abs", difference, [-1])
    if p == 2:
        return SQRT(call, call.reduce("sum_squares", difference, [-1]))
    if math.isinf(p):
        return difference.abs().amax(-1)
    powers = call.via_binary64(torch.pow, difference.abs(), p)
    return call.via_binary64(torch.pow, call.reduce("sum", powers, [-1]), 1.0 / p)


def cdist_forward(
    call: Call, x1: torch.Tensor, x2: torch.Tensor, p: float, compute_mode: int | None
) -> torch.Tensor:
    rows1, rows2 = x1.shape[-2], x2.shape[-2]
    batch = torch.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
    shape = (*batch, rows1, rows2)
    if math.prod(shape) == 0 or x1.shape[-1] == 0:
        return x1.new_zeros(shape)
    large = rows1 > PAIRWISE_BY_PRODUCT or rows2 > PAIRWISE_BY_PRODUCT
    if p == 2 and (compute_mode == 1 or ((compute_mode or 0) == 0 and large)):
        return euclidean_dist(call, x1, x2)
    difference = SUB(call, x1.unsqueeze(-2), x2.unsqueeze(-3))
    return _length(call, difference, p)


def cdist_backward(
    call: Call,
    grad: torch.Tensor,
    x1: torch.Tensor,
    x2: torch.Tensor,
    p: float,
    cdist: torch.Tensor,
) -> torch.Tensor:
    batch = torch.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
    shape = (*batch, *x1.shape[-2:])
    if math.prod(shape) == 0 or x2.shape[-2] == 0 or p == 0:
        return x1.new_zeros(shape)
    difference = SUB(call, x1.unsqueeze(-2), x2.unsqueeze(-3))
    terms = _distance_terms(call, difference, grad.unsqueeze(-1), cdist.unsqueeze(-1), p)
    return call.reduce("sum", terms, [-2])


def _distance_terms(
    call: Call, difference: torch.Tensor, grad: torch.Tensor, distance: torch.Tensor, p: float
) -> torch.Tensor:
    """Gradient of each distance times ``grad``: zero where the distance is, as in stock torch."""
    if p == 1:
        return MUL(call, difference.sign(), grad)
    if math.isinf(p):
        # The distance was rounded on its own, so that comparing with it could find no maximum.
        sizes = difference.abs()
        attained = difference.sign() * (sizes == sizes.amax(-1, keepdim=True))
        return MUL(call, attained, grad)
    if p == 2:
        terms = QUOTIENT_OF_PRODUCT(call, difference, grad, distance)
    else:
        powers = call.via_binary64(torch.pow, difference.abs(), p - 1.0)
        # A vanishing component has no direction, also where its power is infinite.
        powers = torch.where(difference == 0, 0.0, powers.copysign(difference))
        scale = call.via_binary64(torch.pow, distance, p - 1.0)
        terms = QUOTIENT_OF_PRODUCT(call, powers, grad, scale)
    return terms.masked_fill(distance == 0, 0.0)


def pdist_forward(call: Call, x: torch.Tensor, p: float = 2) -> torch.Tensor:
    first, second = torch.triu_indices(x.shape[0], x.shape[0], 1, device=x.device)
    if first.numel() == 0 or x.shape[1] == 0:
        return x.new_zeros(first.numel())
    return _length(call, SUB(call, x[first], x[second]), p)


def pdist_backward(
    call: Call, grad: torch.Tensor, x: torch.Tensor, p: float, pdist: torch.Tensor
) -> torch.Tensor:
    total = torch.zeros_like(x, memory_format=torch.contiguous_format)
    first, second = torch.triu_indices(x.shape[0], x.shape[0], 1, device=x.device)
    if first.numel() == 0 or x.shape[1] == 0 or p == 0:
        return total
    difference = SUB(call, x[first], x[second])
    terms = _distance_terms(call, difference, grad.unsqueeze(-1), pdist.unsqueeze(-1), p)
    call.accumulate(first, terms, total)
    return call.accumulate(second, terms.neg(), total)


def _row(name: str, function: Any, why: str) -> Row:
    return Row(f"aten.{name}", Verdict.ROUNDED, function, why)


_PRODUCT = "every fused multiply-add of the product is rounded"
_AFFINE = _PRODUCT + ", then the products with alpha and beta that are not 1, and the sum"

ROWS: tuple[Row, ...] = (
    _row("mm.default", mm, _PRODUCT),
    _row("bmm.default", mm, _PRODUCT),
    _row("addmm.default", addmm, _AFFINE),
    _row(
        "_addmm_activation.default",
        addmm_activation,
        _AFFINE + "; gelu once, from binary64; relu is exact",
    ),
    _row("baddbmm.default", addmm, _AFFINE),
    _row("addbmm.default", addbmm, _AFFINE + ", one product of the batch after the other"),
    _row("mv.default", mv, _PRODUCT),
    _row("addmv.default", addmv, _AFFINE),
    _row("dot.default", dot, "every fused multiply-add and every sum of partial results"),
    _row("vdot.default", dot, "every fused multiply-add and every sum of partial results"),
    _row("addr.default", addr, "the outer product, the products with alpha and beta, the sum"),
    _row("trace.default", trace, "every addition"),
    _row(
        "_euclidean_dist.default",
        euclidean_dist,
        "squares, their sums, the product of the augmented matrices, the square root",
    ),
    _row(
        "_cdist_forward.default",
        cdist_forward,
        "differences, accumulation and root; powers other than 1 and 2 once, from binary64; "
        "through a matrix product where stock torch does so",
    ),
    _row(
        "_cdist_backward.default",
        cdist_backward,
        "differences, products, quotients and the sum; powers once, from binary64",
    ),
    _row(
        "_pdist_forward.default",
        pdist_forward,
        "differences, accumulation and root; powers other than 1 and 2 once, from binary64",
    ),
    _row(
        "_pdist_backward.default",
        pdist_backward,
        "differences, products, quotients and each addition; powers once, from binary64",
    ),
)
