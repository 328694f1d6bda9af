"""Gradients of the margin losses of several classes; the losses reach the table as their parts."""

from __future__ import annotations

from typing import Any

import torch

from fuzzytorch.ops.call import Call
from fuzzytorch.ops.formula import Formula
from fuzzytorch.ops.loss import MEAN
from fuzzytorch.ops.pointwise import MUL, quotient
from fuzzytorch.table import Row, Verdict

VIOLATION = Formula(lambda x, right, margin: margin - right + x)
TWICE = Formula(lambda g, z: 2.0 * g * z)


def _share(call: Call, x: torch.Tensor, reduction: int) -> torch.Tensor:
    """What one violated margin contributes: 1 over the classes, over the samples for a mean."""
    count = x.numel() if reduction == MEAN else x.shape[-1]
    return quotient(call, 1.0, count, x.device)


def _times(call: Call, out: torch.Tensor, grad: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The product with the incoming gradient, one number or one for each sample."""
    grad = grad.reshape(-1, 1) if grad.dim() else grad
    return MUL(call, out, grad, out=out).view(like.shape)


def multi_margin_loss_backward(
    call: Call,
    grad: torch.Tensor,
    x: torch.Tensor,
    target: torch.Tensor,
    p: Any,
    margin: Any,
    weight: torch.Tensor | None = None,
    reduction: int = MEAN,
) -> torch.Tensor:
    """Classes closer to the right one than the margin, whose terms are subtracted in order."""
    if x.numel() == 0:
        return torch.empty_like(x, memory_format=torch.contiguous_format)
    scores = x.reshape(-1, x.shape[-1] if x.dim() else 1)
    place = target.reshape(-1, 1)
    violation = VIOLATION(call, scores, scores.gather(1, place), margin)
    violated = (violation > 0).scatter(1, place, False)
    sample, other = violated.nonzero().unbind(1)
    terms = _share(call, scores, reduction).expand(sample.shape)
    if p == 2:
        terms = TWICE(call, terms, violation[sample, other])
    if weight is not None:
        terms = MUL(call, terms, weight[place[sample, 0]])
    totals = torch.zeros_like(place, dtype=call.dtype)
    call.accumulate(sample, terms.neg().unsqueeze(1), totals)
    out = torch.zeros_like(scores, memory_format=torch.contiguous_format)
    out[sample, other] = terms
    return _times(call, out.scatter_(1, place, totals), grad, x)


def multilabel_margin_loss_backward(
    call: Call,
    grad: torch.Tensor,
    x: torch.Tensor,
    target: torch.Tensor,
    reduction: int,
    is_target: torch.Tensor,
) -> torch.Tensor:
    """For every pair closer than the margin a share is moved from one score to the other."""
    if x.numel() == 0:
        return torch.zeros_like(x, memory_format=torch.contiguous_format)
    scores = x.reshape(-1, x.shape[-1] if x.dim() else 1)
    targets = target.reshape(scores.shape)
    # Targets end at the first negative one.
    listed = (targets >= 0).long().cumprod(1).bool()
    targets = targets.clamp(min=0)
    right = scores.gather(1, targets).unsqueeze(2)
    violated = VIOLATION(call, scores.unsqueeze(1), right, 1.0) > 0
    violated &= listed.unsqueeze(2) & (is_target.reshape(scores.shape) == 0).unsqueeze(1)
    sample, label, other = violated.nonzero().unbind(1)
    share = _share(call, scores, reduction)
    places = torch.stack([targets[sample, label], other], 1) + sample.unsqueeze(1) * scores.shape[1]
    moved = torch.stack([-share, share]).repeat(sample.shape[0]).unsqueeze(1)
    out = torch.zeros(scores.numel(), 1, dtype=call.dtype)
    call.accumulate(places.reshape(-1), moved, out)
    return _times(call, out.view(scores.shape), grad, x)


ROWS: tuple[Row, ...] = (
    Row(
        "aten.multi_margin_loss_backward.default",
        Verdict.ROUNDED,
        multi_margin_loss_backward,
        "the margins, 1 over the count, the terms and every subtraction, the product with the "
        "gradient",
    ),
    Row(
        "aten.multilabel_margin_loss_backward.default",
        Verdict.ROUNDED,
        multilabel_margin_loss_backward,
        "the margins, 1 over the count, every addition and subtraction of it, the product with "
        "the gradient",
    ),
)
