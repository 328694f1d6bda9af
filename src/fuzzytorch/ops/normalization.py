"""Layer, group and weight normalization and their gradients; ``renorm``.

The steps and the fused multiply-adds are those of the vector kernels of stock
torch, except that variances are two-pass: stock updates a running mean and sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from fuzzytorch.ops.call import Call
from fuzzytorch.ops.formula import Formula, fma, sqrt
from fuzzytorch.ops.pointwise import DIV, MUL, SQRT, SUB, quotient
from fuzzytorch.ops.reduction import vector_norm
from fuzzytorch.table import Row, Verdict

RECIPROCAL_DEVIATION = Formula(lambda squares, n, eps: 1.0 / sqrt(squares / n + eps))
NORMALIZED = Formula(lambda x, mean, rstd: (x - mean) * rstd)
SCALED = Formula(lambda x, mean, rstd, gamma: (x - mean) * rstd * gamma)
SHIFTED = Formula(lambda x, mean, rstd, beta: (x - mean) * rstd + beta)
AFFINE = Formula(lambda x, mean, rstd, gamma, beta: fma((x - mean) * rstd, gamma, beta))
FMA = Formula(lambda x, scale, shift: fma(x, scale, shift))

SLOPE = Formula(lambda ds, db, mean, rstd, scale: (db * mean - ds) * rstd * rstd * rstd * scale)
"""Factor of ``x`` in the gradient of a normalized row."""
OFFSET = Formula(lambda slope, mean, db, rstd, scale: -slope * mean - db * rstd * scale)
"""The constant of the gradient of a normalized row."""
LAYER_GRADIENT = Formula(lambda g, x, rstd, slope, offset: rstd * g + slope * x + offset)
GROUP_GRADIENT = Formula(lambda g, x, scale, slope, offset: scale * g + slope * x + offset)
STANDARDIZED = Formula(lambda x, rstd, shift: rstd * x + shift)
GAMMA_TERM = Formula(lambda ds, db, mean, rstd: (ds - db * mean) * rstd)
RENORM_FACTOR = Formula(lambda norm, maxnorm, eps: maxnorm / (norm + eps))
WEIGHT_SLOPE = Formula(lambda ratio, grad_g, norm: ratio * grad_g / norm)
WEIGHT_GRADIENT = Formula(lambda ratio, grad, slope, v: ratio * grad - slope * v)


def _moments(call: Call, rows: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and reciprocal standard deviation of every row, ``(rows, 1)`` each."""
    count = rows.shape[1]
    mean = DIV(call, call.reduce("sum", rows, [1], keepdim=True), count)
    squares = call.reduce("sum_squares", SUB(call, rows, mean), [1], keepdim=True)
    return mean, RECIPROCAL_DEVIATION(call, squares, count, eps)


def layer_norm(
    call: Call,
    x: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    leading = x.dim() - len(normalized_shape)
    statistics = [*x.shape[:leading], *[1] * len(normalized_shape)]
    if x.numel() == 0:
        empty = x.new_zeros(statistics)
        return x.new_empty(x.shape), empty, empty.clone()
    rows = x.reshape(-1, math.prod(normalized_shape))
    mean, rstd = _moments(call, rows, eps)
    gamma = None if weight is None else weight.reshape(1, -1)
    beta = None if bias is None else bias.reshape(1, -1)
    if gamma is None and beta is None:
        y = NORMALIZED(call, rows, mean, rstd)
    elif beta is None:
        y = SCALED(call, rows, mean, rstd, gamma)
    elif gamma is None:
        y = SHIFTED(call, rows, mean, rstd, beta)
    else:
        y = AFFINE(call, rows, mean, rstd, gamma, beta)
    return y.contiguous().view(x.shape), mean.view(statistics), rstd.view(statistics)


def layer_norm_backward(
    call: Call,
    grad: torch.Tensor,
    x: torch.Tensor,
    normalized_shape: Sequence[int],
    mean: torch.Tensor,
    rstd: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    output_mask: Sequence[bool],
) -> tuple[torch.Tensor | None, ...]:
    count = math.prod(normalized_shape)
    if x.numel() == 0:
        zeros = [x.new_zeros(x.shape), *[x.new_zeros(tuple(normalized_shape)) for _ in range(2)]]
        return tuple(z if wanted else None for z, wanted in zip(zeros, output_mask, strict=True))
    g, rows = grad.reshape(-1, count), x.reshape(-1, count)
    mean, rstd = mean.reshape(-1, 1), rstd.reshape(-1, 1)
    grad_x = grad_weight = grad_bias = None
    if output_mask[0]:
        gamma = None if weight is None else weight.reshape(1, -1)
        weighted = g if gamma is None else MUL(call, g, gamma)
        ds = call.reduce("dot", weighted, [1], keepdim=True, y=rows)
        db = call.reduce("sum", weighted, [1], keepdim=True)
        scale = quotient(call, 1.0, count, x.device)
        slope = SLOPE(call, ds, db, mean, rstd, scale)
        offset = OFFSET(call, slope, mean, db, rstd, scale)
        grad_x = LAYER_GRADIENT(call, weighted, rows, rstd, slope, offset)
        grad_x = grad_x.contiguous().view(x.shape)
    if output_mask[1]:
        shift = MUL(call, rstd.neg(), mean)
        standardized = STANDARDIZED(call, rows, rstd, shift)
        grad_weight = call.reduce("dot", g, [0], y=standardized).view(tuple(normalized_shape))
    if output_mask[2]:
        grad_bias = call.reduce("sum", g, [0]).view(tuple(normalized_shape))
    return grad_x, grad_weight, grad_bias


def group_norm(
    call: Call,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    if x.numel() == 0:
        nothing = x.new_zeros(N, group)
        return torch.empty_like(x), nothing, nothing.clone()
    mean, rstd = _moments(call, x.reshape(N * group, -1), eps)
    centre, scale = mean.view(N, group, 1), rstd.view(N, group, 1).expand(N, group, C // group)
    if weight is not None:
        scale = MUL(call, scale, weight.reshape(1, group, -1))
    if bias is None:
        shift = MUL(call, scale.neg(), centre)
    else:
        shift = FMA(call, scale.neg(), centre, bias.reshape(1, group, -1))
    channels = (N, C, *[1] * (x.dim() - 2))
    y = FMA(call, x, scale.reshape(channels), shift.reshape(channels))
    return y, mean.view(N, group), rstd.view(N, group)


def group_norm_backward(
    call: Call,
    grad: torch.Tensor,
    x: torch.Tensor,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    weight: torch.Tensor | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    output_mask: Sequence[bool],
) -> tuple[torch.Tensor | None, ...]:
    if x.numel() == 0:
        zeros = (torch.zeros_like(x), x.new_zeros(C), x.new_zeros(C))
        return tuple(z if wanted else None for z, wanted in zip(zeros, output_mask, strict=True))
    per_channel = (N, group, C // group, HxW)
    centre, deviation = mean.reshape(N, group, 1), rstd.reshape(N, group, 1)
    ds = call.reduce("dot", grad.reshape(per_channel), [3], y=x.reshape(per_channel))
    db = call.reduce("sum", grad.reshape(per_channel), [3])
    grad_x = grad_weight = grad_bias = None
    if output_mask[0]:
        share = quotient(call, 1.0, HxW * (C // group), x.device)
        scale = deviation.expand(N, group, C // group)
        if weight is None:
            ds_sum = call.reduce("sum", ds, [2], keepdim=True)
            db_sum = call.reduce("sum", db, [2], keepdim=True)
        else:
            gamma = weight.reshape(1, group, -1)
            scale = MUL(call, scale, gamma)
            ds_sum = call.reduce("dot", ds, [2], keepdim=True, y=gamma)
            db_sum = call.reduce("dot", db, [2], keepdim=True, y=gamma)
        slope = SLOPE(call, ds_sum, db_sum, centre, deviation, share)
        offset = OFFSET(call, slope, centre, db_sum, deviation, share)
        channels = (N, C, *[1] * (x.dim() - 2))
        slope, offset, scale = (
            t.expand(N, group, C // group).reshape(channels) for t in (slope, offset, scale)
        )
        grad_x = GROUP_GRADIENT(call, grad, x, scale, slope, offset, out=torch.empty_like(x))
    if output_mask[1]:
        terms = GAMMA_TERM(call, ds, db, centre, deviation)
        grad_weight = call.reduce("sum", terms, [0]).view(C)
    if output_mask[2]:
        grad_bias = call.reduce("sum", db, [0]).view(C)
    return grad_x, grad_weight, grad_bias


def others(x: torch.Tensor, dim: int) -> list[int]:
    return [d for d in range(x.dim()) if d != dim % x.dim()]


def weight_norm(
    call: Call, v: torch.Tensor, g: torch.Tensor, dim: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    squares = call.reduce("sum_squares", v, others(v, dim), keepdim=True)
    norms = SQRT(call, squares, out=squares)
    return MUL(call, v, DIV(call, g, norms)), norms


def weight_norm_backward(
    call: Call, grad: torch.Tensor, v: torch.Tensor, g: torch.Tensor, norms: torch.Tensor, dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    norms = norms.view_as(g)
    dots = call.reduce("dot", grad, others(v, dim), keepdim=True, y=v).view_as(g)
    grad_g = DIV(call, dots, norms)
    ratio = DIV(call, g, norms)
    slope = WEIGHT_SLOPE(call, ratio, grad_g, norms)
    return WEIGHT_GRADIENT(call, ratio, grad, slope, v), grad_g


def renorm_factor(call: Call, norms: torch.Tensor, maxnorm: float) -> torch.Tensor:
    """What slices are multiplied by: 1 where their norm is at most ``maxnorm``."""
    factor = RENORM_FACTOR(call, norms, maxnorm, 1e-7)
    return torch.where(norms > maxnorm, factor, torch.ones_like(factor))


def renorm(call: Call, x: torch.Tensor, p: float, dim: int, maxnorm: float) -> torch.Tensor:
    contiguous = torch.contiguous_format
    if x.numel() == 0:
        return x.clone(memory_format=contiguous)
    norms = vector_norm(call, x, p, others(x, dim), keepdim=True)
    factor = renorm_factor(call, norms, maxnorm)
    out = torch.empty_like(x, memory_format=contiguous) if call.out is None else call.out
    return MUL(call, x, factor, out=out)


def embedding_renorm(
    call: Call, weight: torch.Tensor, indices: torch.Tensor, max_norm: float, norm_type: float
) -> torch.Tensor:
    """Shrinks the rows that are named and too long; the others are not touched."""
    rows = indices.unique()
    norms = torch.linalg.vector_norm(weight[rows], norm_type, dim=1)
    large = norms > max_norm
    rows = rows[large]
    wide = torch.promote_types(weight.dtype, torch.float32)
    # Stock torch divides in binary64 whatever the dtype.
    factors = (max_norm / (norms[large].double() + 1e-7)).to(wide)
    shrunk = weight[rows].to(wide) * factors.unsqueeze(1)
    return weight.index_copy(0, rows, shrunk.to(weight.dtype))


def _row(name: str, function: Any, why: str) -> Row:
    return Row(f"aten.{name}", Verdict.ROUNDED, function, why)


_STATISTICS = "mean and two-pass variance (stock torch: running ones), reciprocal root"

ROWS: tuple[Row, ...] = (
    _row(
        "native_layer_norm.default",
        layer_norm,
        _STATISTICS + ", difference, product, fused multiply-add",
    ),
    _row(
        "native_layer_norm_backward.default",
        layer_norm_backward,
        "both sums of every row, the coefficients, products and sums, the sums over rows",
    ),
    _row(
        "native_group_norm.default",
        group_norm,
        _STATISTICS + ", scale and shift of every channel, one fused multiply-add",
    ),
    _row(
        "native_group_norm_backward.default",
        group_norm_backward,
        "both sums of every channel and group, the coefficients, products and sums",
    ),
    _row(
        "_weight_norm_interface.default",
        weight_norm,
        "squares fused with their sum, root, quotient, product",
    ),
    _row(
        "_weight_norm_interface_backward.default",
        weight_norm_backward,
        "the fused sums, three quotients, products and difference",
    ),
    Row(
        "aten.embedding_renorm.default",
        Verdict.LOWERED,
        embedding_renorm,
        "the norms of the rows that are named, quotients, products, as in stock torch",
        any_dtype=True,
    ),
    _row("renorm.default", renorm, "the norms, sum and quotient of the factor, the product"),
)
