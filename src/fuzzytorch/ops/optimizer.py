"""Fused optimizer steps, written as the operations of their kernels.

Single-tensor optimizers reach the mode as elementwise operations and need no rows.
``add`` with ``alpha``, ``addcmul`` and ``lerp`` round where the vector code of the
fused kernels does, fused multiply-adds included.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from fuzzytorch.ops.call import Call
from fuzzytorch.table import Row, Verdict


def _skips(found_inf: torch.Tensor | None) -> bool:
    return found_inf is not None and found_inf.item() == 1.0


def _direction(grad: torch.Tensor, grad_scale: torch.Tensor | None, maximize: bool) -> torch.Tensor:
    """The gradient, unscaled in place as the fused kernels do, with its sign."""
    if grad_scale is not None:
        grad.div_(grad_scale)
    return -grad if maximize else grad


def fused_sgd_(
    call: Call,
    self: Sequence[torch.Tensor],
    grads: Sequence[torch.Tensor],
    momentum_buffer_list: Sequence[torch.Tensor],
    *,
    weight_decay: float,
    momentum: float,
    lr: float | torch.Tensor,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: torch.Tensor | None = None,
    found_inf: torch.Tensor | None = None,
) -> None:
    """One step of stochastic gradient descent; writes parameters and momentum buffers."""
    if _skips(found_inf):
        return
    for i, (param, raw) in enumerate(zip(self, grads, strict=True)):
        grad = _direction(raw, grad_scale, maximize)
        if weight_decay != 0:
            grad = grad.add(param, alpha=weight_decay)
        if momentum != 0:
            buffer = momentum_buffer_list[i]
            if is_first_step:
                buffer.copy_(grad)
            else:
                buffer.mul_(momentum).add_(grad, alpha=1 - dampening)
            grad = grad.add(buffer, alpha=momentum) if nesterov else buffer
        param.add_(grad, alpha=-float(lr))


def fused_adam_(
    call: Call,
    self: Sequence[torch.Tensor],
    grads: Sequence[torch.Tensor],
    exp_avgs: Sequence[torch.Tensor],
    exp_avg_sqs: Sequence[torch.Tensor],
    max_exp_avg_sqs: Sequence[torch.Tensor],
    state_steps: Sequence[torch.Tensor],
    *,
    lr: float | torch.Tensor,
    beta1: float,
    beta2: float,
    weight_decay: float,
    eps: float,
    amsgrad: bool,
    maximize: bool,
    grad_scale: torch.Tensor | None = None,
    found_inf: torch.Tensor | None = None,
    decoupled: bool = False,
) -> None:
    """One step of Adam, or with ``decoupled`` weight decay of AdamW; writes all state but steps."""
    if _skips(found_inf):
        return
    rate = float(lr)
    for i, (param, raw) in enumerate(zip(self, grads, strict=True)):
        grad = _direction(raw, grad_scale, maximize)
        if weight_decay != 0 and decoupled:
            param.mul_(1 - rate * weight_decay)
        elif weight_decay != 0:
            grad = grad.add(param, alpha=weight_decay)
        exp_avgs[i].lerp_(grad, 1 - beta1)
        second = exp_avg_sqs[i].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        if amsgrad:
            second = torch.maximum(max_exp_avg_sqs[i], second, out=max_exp_avg_sqs[i])
        step = state_steps[i].item()
        denominator = second.sqrt().div_((1 - beta2**step) ** 0.5).add_(eps)
        param.addcdiv_(exp_avgs[i], denominator, value=-rate / (1 - beta1**step))


def fused_adagrad_(
    call: Call,
    self: Sequence[torch.Tensor],
    grads: Sequence[torch.Tensor],
    state_sums: Sequence[torch.Tensor],
    state_steps: Sequence[torch.Tensor],
    *,
    lr: float | torch.Tensor,
    lr_decay: float,
    weight_decay: float,
    eps: float,
    maximize: bool,
    grad_scale: torch.Tensor | None = None,
    found_inf: torch.Tensor | None = None,
) -> None:
    """One step of Adagrad; writes parameters and sums of squares."""
    if _skips(found_inf):
        return
    for i, (param, raw) in enumerate(zip(self, grads, strict=True)):
        grad = _direction(raw, grad_scale, maximize)
        if weight_decay != 0:
            grad = grad.add(param, alpha=weight_decay)
        deviation = state_sums[i].addcmul_(grad, grad).sqrt().add_(eps)
        rate = float(lr) / (1 + (state_steps[i].item() - 1) * lr_decay)
        param.addcdiv_(grad, deviation, value=-rate)


_FUSED: tuple[tuple[str, Callable[..., Any]], ...] = (
    ("_fused_sgd_", fused_sgd_),
    ("_fused_adam_", fused_adam_),
    ("_fused_adamw_", functools.partial(fused_adam_, decoupled=True)),
    ("_fused_adagrad_", fused_adagrad_),
)

ROWS: tuple[Row, ...] = tuple(
    Row(
        f"aten.{name}.{overload}",
        Verdict.LOWERED,
        function,
        "the elementwise operations of the fused kernel, one after the other",
    )
    for name, function in _FUSED
    for overload in ("default", "tensor_lr")
)
