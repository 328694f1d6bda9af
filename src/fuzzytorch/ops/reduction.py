"""Sums, means, products, norms, variances, running sums, log-sum-exp.

Reductions keep the interleaved tree of chains of the ``reduce`` primitive, whose
scatter is that of stock torch's cascade.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from fuzzytorch.ops.call import Call
from fuzzytorch.ops.pointwise import ADD, DIV, LOG, SQRT, SUB
from fuzzytorch.ops.softmax import EXP_OF_DIFFERENCE
from fuzzytorch.ops.transcendental import logaddexp
from fuzzytorch.table import Row, Verdict

Dims = int | Sequence[int] | None
"""Dimensions of an aten schema; ``None`` and the empty list mean all of them."""


def _listed(dim: Dims) -> list[int] | None:
    if dim is None:
        return None
    return [dim] if isinstance(dim, int) else list(dim)


def _reduced(x: torch.Tensor, dim: Dims) -> list[int]:
    """The reduced dimensions, non-negative."""
    dims = _listed(dim)
    if x.dim() == 0:
        return []
    return sorted(d % x.dim() for d in dims) if dims else list(range(x.dim()))


def total(
    call: Call,
    x: torch.Tensor,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    return call.reduce("sum", x, _listed(dim), keepdim)


def mean(
    call: Call,
    x: torch.Tensor,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    count = math.prod(x.shape[d] for d in _reduced(x, dim))
    y = call.reduce("sum", x, _listed(dim), keepdim)
    return DIV(call, y, count, out=y)


def nansum(
    call: Call,
    x: torch.Tensor,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    return call.reduce("sum", x.masked_fill(x.isnan(), 0.0), _listed(dim), keepdim)


def prod(
    call: Call,
    x: torch.Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    return call.reduce("prod", x, _listed(dim), keepdim)


def vector_norm(
    call: Call,
    x: torch.Tensor,
    ord: float = 2,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    dims = _listed(dim)
    if ord == 2:
        y = call.reduce("sum_squares", x, dims, keepdim)
        return SQRT(call, y, out=y)
    if ord == 1:
        return call.reduce("sum_abs", x, dims, keepdim)
    if ord == 0:
        return call.reduce("sum", (x != 0).to(call.dtype), dims, keepdim)
    if math.isinf(ord):
        extreme = torch.amax if ord > 0 else torch.amin
        if x.numel() == 0 and ord > 0:
            return call.reduce("sum_abs", x, dims, keepdim)
        return extreme(x.abs(), _reduced(x, dim), keepdim)
    powers = call.via_binary64(torch.pow, x.abs(), ord)
    return call.via_binary64(torch.pow, call.reduce("sum", powers, dims, keepdim), 1.0 / ord)


def norm(
    call: Call,
    x: torch.Tensor,
    p: float | None = 2,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    return vector_norm(call, x, 2.0 if p is None else p, dim, keepdim)


def dist(call: Call, x: torch.Tensor, y: torch.Tensor, p: float = 2) -> torch.Tensor:
    return vector_norm(call, SUB(call, x, y), p)


def _variance(
    call: Call,
    x: torch.Tensor,
    dim: Dims,
    correction: float | None,
    keepdim: bool,
    root: bool,
    both: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Variance (or its root) and mean; of the mean no use is made unless ``both``."""
    correction = 1 if correction is None else correction
    if call.dtype == torch.float64:
        return _two_pass(call, x, dim, correction, keepdim, root)
    spread, centre = _wide_variance(x, dim, correction, keepdim, root)
    return call.round(spread), call.round(centre) if both else centre


def _two_pass(
    call: Call, x: torch.Tensor, dim: Dims, correction: float, keepdim: bool, root: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """As :func:`_variance` where no wider type can hold the sums: every step is rounded."""
    dims = _reduced(x, dim)
    count = math.prod(x.shape[d] for d in dims)
    centre = DIV(call, call.reduce("sum", x, dims, True), count)
    squares = call.reduce("sum_squares", SUB(call, x, centre), dims, True)
    spread = DIV(call, squares, max(count - correction, 0.0))
    spread = SQRT(call, spread) if root else spread
    return (spread, centre) if keepdim else (spread.squeeze(dims), centre.squeeze(dims))


def _wide_variance(
    x: torch.Tensor, dim: Dims, correction: float, keepdim: bool, root: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Variance (or its root) and mean of float32 values, float64, not yet rounded."""
    wide = x.to(torch.float64, memory_format=torch.contiguous_format)
    moments = torch.std_mean if root else torch.var_mean
    reduced = _reduced(x, dim)
    kept = [n for d, n in enumerate(x.shape) if d not in reduced]
    if x.numel() > 1 and math.prod(kept) == 1:
        # Torch cuts a reduction to one number into as many parts as it has threads, and
        # one to two numbers never: its bits do not depend on the threads.
        pair = moments(wide.reshape(1, -1).expand(2, -1), 1, correction=correction)
        spread, mean = (m[0].view([1] * (x.dim() if keepdim else len(kept))) for m in pair)
        return spread, mean
    return moments(wide, _listed(dim), correction=correction, keepdim=keepdim)


def var(
    call: Call,
    x: torch.Tensor,
    dim: Dims = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> torch.Tensor:
    return _variance(call, x, dim, correction, keepdim, False)[0]


def std(
    call: Call,
    x: torch.Tensor,
    dim: Dims = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> torch.Tensor:
    return _variance(call, x, dim, correction, keepdim, True)[0]


def var_mean(
    call: Call,
    x: torch.Tensor,
    dim: Dims = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    return _variance(call, x, dim, correction, keepdim, False, both=True)


def std_mean(
    call: Call,
    x: torch.Tensor,
    dim: Dims = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    return _variance(call, x, dim, correction, keepdim, True, both=True)


def cumsum(
    call: Call, x: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None
) -> torch.Tensor:
    return call.scan("sum", call.operand(x), dim).contiguous()


def cumprod(
    call: Call, x: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None
) -> torch.Tensor:
    return call.scan("prod", call.operand(x), dim).contiguous()


def logcumsumexp(call: Call, x: torch.Tensor, dim: int) -> torch.Tensor:
    if call.dtype == torch.float32 or x.dim() == 0 or x.numel() == 0:
        return call.round(torch.logcumsumexp(x.double().contiguous(), dim))
    # No wider type can hold the chain: every step is rounded.
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    terms, sums = x.movedim(dim, 0), out.movedim(dim, 0)
    total = sums[0].copy_(terms[0])
    for term, target in zip(terms[1:], sums[1:], strict=True):
        total = target.copy_(logaddexp(call, term, total))
    return out


def logsumexp(call: Call, x: torch.Tensor, dim: Dims, keepdim: bool = False) -> torch.Tensor:
    x = call.operand(x)
    dims = _reduced(x, dim)
    if x.numel() == 0:
        y = call.reduce("sum", x, dims, True)
        y = y.log()
    else:
        largest = x.amax(dims, keepdim=True)
        # Infinite maxima would give Inf - Inf; stock torch subtracts 0 there as well.
        largest = largest.masked_fill(largest.isinf(), 0.0)
        powers = EXP_OF_DIFFERENCE(call, x, largest)
        logs = LOG(call, call.reduce("sum", powers, dims, True))
        y = ADD(call, logs, largest)
    return y if keepdim else y.squeeze(dims)


def _row(name: str, function: Any, why: str) -> Row:
    return Row(f"aten.{name}", Verdict.ROUNDED, function, why)


_SUM = "every addition is rounded"
_MEAN = "every addition, then the division by the count"
_PROD = "every multiplication is rounded"
_NORM = "squares fused with their sum, then the root; other powers once, from binary64"
_VAR = (
    "one rounding of the binary64 result, which stock torch accumulates in binary64 too; for "
    "float64 every step of the mean and of the two-pass sum of squares"
)
_LOGCUMSUMEXP = (
    "one rounding of the binary64 result, which stock torch accumulates in binary64 too; for "
    "float64 the difference, exponential, logarithm and sum of every step of the chain"
)

ROWS: tuple[Row, ...] = (
    _row("sum.default", total, _SUM),
    _row("sum.dim_IntList", total, _SUM),
    _row("nansum.default", nansum, _SUM),
    _row("mean.default", mean, _MEAN),
    _row("mean.dim", mean, _MEAN),
    _row("prod.default", prod, _PROD),
    _row("prod.dim_int", prod, _PROD),
    _row("linalg_vector_norm.default", vector_norm, _NORM),
    _row("norm.Scalar", norm, _NORM),
    _row("norm.ScalarOpt_dtype", norm, _NORM),
    _row("norm.ScalarOpt_dim", norm, _NORM),
    _row("norm.ScalarOpt_dim_dtype", norm, _NORM),
    _row("dist.default", dist, "the difference; " + _NORM),
    _row("var.correction", var, _VAR),
    _row("std.correction", std, _VAR),
    _row("var_mean.correction", var_mean, _VAR),
    _row("std_mean.correction", std_mean, _VAR),
    _row(
        "cumsum.default",
        cumsum,
        "every addition of one chain (for float32 stock torch keeps a binary64 total)",
    ),
    _row(
        "cumprod.default",
        cumprod,
        "every multiplication of one chain (for float32 stock torch keeps a binary64 product)",
    ),
    _row(
        "logsumexp.default",
        logsumexp,
        "difference, exponential, sum, logarithm, sum; exp and log once each, from binary64",
    ),
    _row("logcumsumexp.default", logcumsumexp, _LOGCUMSUMEXP),
    _row("_logcumsumexp.default", logcumsumexp, _LOGCUMSUMEXP),
)
