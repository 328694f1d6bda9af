"""Squared error, cross entropy of probabilities, negative log-likelihood, and their gradients.

Other losses reach the table as their parts, through PyTorch's decompositions.  So does the
cross-entropy of a linear layer that PyTorch computes in chunks of the batch: its operators are
written in Python.
"""

from __future__ import annotations

import functools
from typing import Any, Final

import torch
from torch.nn.modules import linear_cross_entropy as chunked

from fuzzytorch.ops.call import Call
from fuzzytorch.ops.formula import Formula, log, log1p, maximum
from fuzzytorch.ops.pointwise import DIV, MUL, quotient
from fuzzytorch.table import Row, Verdict

NONE: Final = 0
MEAN: Final = 1
"""Values of ``reduction`` in aten schemas; 2 is the sum."""


def _squared(x: Any, target: Any) -> Any:
    difference = x - target
    return difference * difference


SQUARED_ERROR = Formula(_squared)
SQUARED_ERROR_GRADIENT = Formula(lambda x, target, grad, scale: scale * (x - target) * grad)


def mse_loss(
    call: Call, x: torch.Tensor, target: torch.Tensor, reduction: int = MEAN
) -> torch.Tensor:
    return _reduced(call, SQUARED_ERROR(call, x, target), reduction)


def _reduced(call: Call, losses: torch.Tensor, reduction: int) -> torch.Tensor:
    if reduction == NONE:
        return losses
    total = call.reduce("sum", losses)
    return DIV(call, total, losses.numel(), out=total) if reduction == MEAN else total


def mse_loss_backward(
    call: Call, grad: torch.Tensor, x: torch.Tensor, target: torch.Tensor, reduction: int
) -> torch.Tensor:
    scale: float | torch.Tensor = 2.0
    if reduction == MEAN and x.numel():
        scale = quotient(call, 2.0, x.numel(), x.device)
    return SQUARED_ERROR_GRADIENT(call, x, target, grad, scale)


def _entropy(x: Any, target: Any) -> Any:
    # Stock torch lets no logarithm fall below -100, so that losses stay finite.
    log_of_rest = maximum(log1p(-x), -100.0)
    return (target - 1.0) * log_of_rest - target * maximum(log(x), -100.0)


def _entropy_gradient(x: Any, target: Any, grad: Any) -> Any:
    return grad * (x - target) / maximum((1.0 - x) * x, 1e-12)


ENTROPY = Formula(_entropy)
ENTROPY_GRADIENT = Formula(_entropy_gradient)


def _probabilities(x: torch.Tensor, name: str) -> None:
    if not bool(((x >= 0.0) & (x <= 1.0)).all()):
        raise RuntimeError(f"all elements of {name} should be between 0 and 1")


def binary_cross_entropy(
    call: Call,
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    reduction: int = MEAN,
) -> torch.Tensor:
    _probabilities(x, "input")
    _probabilities(target, "target")
    losses = ENTROPY(call, x, target)
    if weight is not None:
        losses = MUL(call, losses, weight, out=losses)
    return _reduced(call, losses, reduction)


def binary_cross_entropy_backward(
    call: Call,
    grad: torch.Tensor,
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    reduction: int = MEAN,
) -> torch.Tensor:
    out = ENTROPY_GRADIENT(call, x, target, grad)
    if weight is not None:
        out = MUL(call, out, weight, out=out)
    return DIV(call, out, x.numel(), out=out) if reduction == MEAN else out


def _classes(x: torch.Tensor) -> int:
    """The dimension of the classes."""
    return 0 if x.dim() == 1 else 1


def _weights(
    call: Call, target: torch.Tensor, kept: torch.Tensor, weight: torch.Tensor | None
) -> torch.Tensor:
    """The weight of every sample: 0 where it is ignored."""
    if weight is None:
        return kept.to(call.dtype)
    return weight[target] * kept


def nll_loss(
    call: Call,
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    reduction: int,
    ignore_index: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    dim = _classes(x)
    kept = target != ignore_index
    index = torch.where(kept, target, 0)
    losses = x.gather(dim, index.unsqueeze(dim)).squeeze(dim).neg()
    if weight is not None:
        losses = MUL(call, losses, weight[index])
    losses = losses.masked_fill(~kept, 0.0)
    if reduction == NONE and x.dim() > 1:
        return losses.contiguous(), x.new_zeros(())
    weights = _weights(call, index, kept, weight)
    total_weight = weights.sum() if weight is None else call.reduce("sum", weights)
    total = call.reduce("sum", losses)
    if reduction == MEAN:
        total = DIV(call, total, total_weight)
    return total, total_weight


def nll_loss_backward(
    call: Call,
    grad: torch.Tensor,
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: torch.Tensor,
) -> torch.Tensor:
    dim = _classes(x)
    kept = target != ignore_index
    index = torch.where(kept, target, 0)
    share = grad.neg()
    if reduction == MEAN:
        share = DIV(call, share, total_weight)
    if weight is not None:
        share = MUL(call, weight[index], share)
    share = torch.where(kept, share, 0.0).unsqueeze(dim)
    out = torch.zeros_like(x, memory_format=torch.contiguous_format)
    return out.scatter_(dim, index.unsqueeze(dim), share)


def _parts(call: Call, *args: Any, function: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


def _in_chunks(operator: Any) -> Row:
    """The row of an operator that PyTorch defines by a function in Python."""
    return Row(
        f"{operator._namespace}.{operator._name}.default",
        Verdict.LOWERED,
        functools.partial(_parts, function=operator._init_fn),
        "torch composes it of other operations, one chunk of the batch after the other",
        any_dtype=True,
    )


def _row(name: str, function: Any, why: str) -> Row:
    return Row(f"aten.{name}", Verdict.ROUNDED, function, why)


_NLL = "the products with the weights, the sum of the losses and of the weights, the division"
_ENTROPY = (
    "the logarithms through binary64; every difference and product, the product with the "
    "weights, the sum, the division by the count"
)
_NLL_BACKWARD = "the division by the total weight and the products with the weights"

ROWS: tuple[Row, ...] = (
    _row("mse_loss.default", mse_loss, "difference, square, sum, division by the count"),
    _row("mse_loss_backward.default", mse_loss_backward, "difference and two products"),
    _row("binary_cross_entropy.default", binary_cross_entropy, _ENTROPY),
    _row(
        "binary_cross_entropy_backward.default",
        binary_cross_entropy_backward,
        "every difference, product and quotient",
    ),
    _row("nll_loss_forward.default", nll_loss, _NLL),
    _row("nll_loss2d_forward.default", nll_loss, _NLL),
    _row("nll_loss_backward.default", nll_loss_backward, _NLL_BACKWARD),
    _row("nll_loss2d_backward.default", nll_loss_backward, _NLL_BACKWARD),
    _in_chunks(chunked._linear_cross_entropy_batch_chunked),
    _in_chunks(chunked._linear_cross_entropy_batch_chunked_no_reduction),
)
