"""Softmax and log-softmax over one dimension, and their gradients."""

from __future__ import annotations

from typing import Any

import torch

from fuzzytorch.ops.call import Call
from fuzzytorch.ops.formula import Formula, exp
from fuzzytorch.ops.pointwise import DIV, LOG
from fuzzytorch.table import Row, Verdict

EXP_OF_DIFFERENCE = Formula(lambda x, largest: exp(x - largest))
LESS_BOTH = Formula(lambda x, largest, log: x - largest - log)
SOFTMAX_GRADIENT = Formula(lambda grad, y, total: (grad - total) * y)
LOG_SOFTMAX_GRADIENT = Formula(lambda grad, y, total: grad - exp(y) * total)


def _powers(
    call: Call, x: torch.Tensor, dim: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``exp(x - max)``, its sum over ``dim``, and the maximum."""
    largest = x.amax(dim, keepdim=True)
    powers = EXP_OF_DIFFERENCE(call, x, largest)
    return powers, call.reduce("sum", powers, [dim], keepdim=True), largest


def softmax(call: Call, x: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
    x = x.contiguous()
    if x.numel() == 0:
        return torch.empty_like(x)
    powers, total, _ = _powers(call, x, dim)
    return DIV(call, powers, total, out=powers)


def log_softmax(call: Call, x: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
    x = x.contiguous()
    if x.numel() == 0:
        return torch.empty_like(x)
    powers, total, largest = _powers(call, x, dim)
    return LESS_BOTH(call, x, largest, LOG(call, total), out=powers)


def softmax_backward(
    call: Call, grad: torch.Tensor, y: torch.Tensor, dim: int, input_dtype: torch.dtype
) -> torch.Tensor:
    grad, y = grad.contiguous(), y.contiguous()
    if grad.numel() == 0:
        return torch.empty_like(grad)
    total = call.reduce("dot", grad, [dim], keepdim=True, y=y)
    return SOFTMAX_GRADIENT(call, grad, y, total)


def log_softmax_backward(
    call: Call, grad: torch.Tensor, y: torch.Tensor, dim: int, input_dtype: torch.dtype
) -> torch.Tensor:
    grad, y = grad.contiguous(), y.contiguous()
    if grad.numel() == 0:
        return torch.empty_like(grad)
    total = call.reduce("sum", grad, [dim], keepdim=True)
    return LOG_SOFTMAX_GRADIENT(call, grad, y, total)


def _row(name: str, function: Any, why: str) -> Row:
    return Row(f"aten.{name}", Verdict.ROUNDED, function, why)


ROWS: tuple[Row, ...] = (
    _row(
        "_softmax.default",
        softmax,
        "difference to the maximum, exponential (once, from binary64), sum, division",
    ),
    _row(
        "_log_softmax.default",
        log_softmax,
        "difference, exponential and logarithm (once each, from binary64), sum, two differences",
    ),
    _row(
        "_softmax_backward_data.default",
        softmax_backward,
        "every fused multiply-add of the sum, the difference, the product",
    ),
    _row(
        "_log_softmax_backward_data.default",
        log_softmax_backward,
        "the sum, the exponential (once, from binary64), the product, the difference",
    ),
)
