"""Sums over the batch of every channel: statistics, running ones, and those of a gradient.

As in stock torch, sums over a batch of float32 values are binary64 and rounded once when
stored; running statistics are updated in binary64 and rounded once, too.  On float64 tensors
every step of all this is rounded.
"""

from __future__ import annotations

import math

import torch

from fuzzytorch.ops.call import Call
from fuzzytorch.ops.formula import Formula, sqrt
from fuzzytorch.ops.pointwise import SUB

RECIPROCAL_ROOT = Formula(lambda variance, eps: 1.0 / sqrt(variance + eps))
QUOTIENT = Formula(lambda total, count: total / count)
MOVED = Formula(lambda batch, running, momentum, rest: momentum * batch + rest * running)

Optional = torch.Tensor | None


def channelwise(x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """One value per channel, to be broadcast against ``x``."""
    return values.view(1, -1, *[1] * (x.dim() - 2))


def _rows(x: torch.Tensor) -> torch.Tensor:
    """The values of every channel, float64 ``(C, values)``, in an order without layout."""
    rows = x.transpose(0, 1).reshape(x.shape[1], -1)
    return rows.to(torch.float64, memory_format=torch.contiguous_format)


def _sums(rows: torch.Tensor) -> torch.Tensor:
    """The sums of rows, float64 ``(C,)``, in an order that does not depend on threads."""
    # Torch cuts a reduction to one number into as many parts as it has threads.
    return rows.sum(1) if len(rows) > 1 else rows.expand(2, -1).sum(1)[:1]


def _statistics(
    call: Call, x: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Mean and reciprocal deviation as stored; the sum of squares, float64."""
    if call.dtype == torch.float64:
        return _rounded_statistics(call, x, eps)
    rows = _rows(x)
    count = rows.shape[1]
    mean = _sums(rows) / count
    # Stock torch keeps this sum in binary32 between its two passes.
    squares = call.round(_sums(rows.sub_(mean.unsqueeze(1)).square_())).double()
    invstd = 1.0 / torch.sqrt(squares / count + eps)
    if eps == 0:
        invstd = invstd.masked_fill(squares == 0, 0.0)
    return call.round(mean), call.round(invstd), squares


def _rounded_statistics(
    call: Call, x: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rows = x.transpose(0, 1).reshape(x.shape[1], -1)
    count = rows.shape[1]
    mean = QUOTIENT(call, call.reduce("sum", rows, [1]), count)
    squares = call.reduce("sum_squares", SUB(call, rows, mean.unsqueeze(1)), [1])
    invstd = RECIPROCAL_ROOT(call, QUOTIENT(call, squares, count), eps)
    if eps == 0:
        invstd = invstd.masked_fill(squares == 0, 0.0)
    return mean, invstd, squares


def _moved(call: Call, running: torch.Tensor, batch: torch.Tensor, momentum: float) -> torch.Tensor:
    if call.dtype == torch.float64:
        return MOVED(call, batch, running, momentum, 1.0 - momentum)
    return call.round(momentum * batch + (1.0 - momentum) * running.double())


def trained(
    call: Call,
    x: torch.Tensor,
    running_mean: Optional,
    running_var: Optional,
    momentum: float,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, Optional, Optional]:
    """Saved mean and reciprocal deviation, and the new running statistics."""
    mean, invstd, squares = _statistics(call, x, eps)
    count = x.numel() // x.shape[1]
    if running_mean is not None:
        running_mean = _moved(call, running_mean, mean.double(), momentum)
    if running_var is not None:
        # A single value per channel has no unbiased variance: NaN, as in stock torch.
        if count == 1:
            unbiased = squares * math.nan
        elif call.dtype == torch.float64:
            unbiased = QUOTIENT(call, squares, count - 1)
        else:
            unbiased = squares / (count - 1)
        running_var = _moved(call, running_var, unbiased, momentum)
    return mean, invstd, running_mean, running_var


def gradient_sums(
    call: Call, grad: torch.Tensor, x: torch.Tensor, mean: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums over the batch of the gradient, and of its products with the deviations of ``x``."""
    if call.dtype == torch.float64:
        deviations = SUB(call, x, channelwise(x, mean))
        others = [0, *range(2, x.dim())]
        return call.reduce("sum", grad, others), call.reduce("dot", grad, others, y=deviations)
    rows = _rows(grad)
    total = call.round(_sums(rows))
    deviations = _rows(x).sub_(mean.double().unsqueeze(1))
    return total, call.round(_sums(rows.mul_(deviations)))
