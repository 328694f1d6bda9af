"""Batch normalization in its many overloads, and its gradient.

Sums over the batch are those of :mod:`fuzzytorch.ops.channel_statistics`; what is applied to the
elements is rounded operation by operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._prims_common import suggest_memory_format

from fuzzytorch.ops.call import Call
from fuzzytorch.ops.channel_statistics import (
    QUOTIENT,
    RECIPROCAL_ROOT,
    Optional,
    channelwise,
    gradient_sums,
    trained,
)
from fuzzytorch.ops.formula import Formula, fma
from fuzzytorch.ops.pointwise import MUL
from fuzzytorch.ops.variants import write
from fuzzytorch.table import Row, Verdict

FMA = Formula(lambda x, scale, shift: fma(x, scale, shift))
SLOPE = Formula(lambda dots, invstd, count: dots * invstd * invstd / count)
TRAINED = Formula(
    lambda grad, x, mean, slope, centre, invstd: (grad - centre - (x - mean) * slope) * invstd
)
TRAINED_SCALED = Formula(
    lambda grad, x, mean, slope, centre, invstd, weight: (
        (grad - centre - (x - mean) * slope) * invstd * weight
    )
)
FROZEN = Formula(lambda grad, invstd, weight: grad * invstd * weight)

Triple = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _dense(x: torch.Tensor) -> torch.Tensor:
    """An output as stock torch allocates it: contiguous or channels-last, never else permuted."""
    return torch.empty_like(x, memory_format=suggest_memory_format(x))


def _applied(
    call: Call,
    x: torch.Tensor,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    weight: Optional,
    bias: Optional,
) -> torch.Tensor:
    scale = invstd if weight is None else MUL(call, invstd, weight)
    opposite = mean.neg()
    shift = MUL(call, opposite, scale) if bias is None else FMA(call, opposite, scale, bias)
    return FMA(call, x, channelwise(x, scale), channelwise(x, shift), out=_dense(x))


def _frozen(
    call: Call,
    x: torch.Tensor,
    weight: Optional,
    bias: Optional,
    running_mean: torch.Tensor,
    running_var: torch.Tensor,
    eps: float,
) -> Triple:
    y = _applied(call, x, running_mean, RECIPROCAL_ROOT(call, running_var, eps), weight, bias)
    return y, x.new_empty(0), x.new_empty(0)


Results = tuple[torch.Tensor, torch.Tensor, torch.Tensor, Optional, Optional]
"""Output, saved mean and reciprocal deviation, new running mean and variance."""


def _computed(
    call: Call,
    x: torch.Tensor,
    weight: Optional,
    bias: Optional,
    running_mean: Optional,
    running_var: Optional,
    training: bool,
    momentum: float,
    eps: float,
) -> Results:
    """Everything a batch normalization yields; running statistics that stay are passed on."""
    if x.numel() == 0:
        size = x.shape[1] if training else 0
        return _dense(x), x.new_zeros(size), x.new_zeros(size), running_mean, running_var
    if not training:
        known = _defined(running_mean), _defined(running_var)
        return (*_frozen(call, x, weight, bias, *known, eps), running_mean, running_var)
    mean, invstd, new_mean, new_var = trained(call, x, running_mean, running_var, momentum, eps)
    return _applied(call, x, mean, invstd, weight, bias), mean, invstd, new_mean, new_var


def _defined(statistic: Optional) -> torch.Tensor:
    if statistic is None:
        raise RuntimeError(
            "batch normalization needs its statistics here and got None: give running_mean and "
            "running_var, or train, and for a gradient the saved mean and deviation."
        )
    return statistic


def functional(
    call: Call,
    x: torch.Tensor,
    weight: Optional,
    bias: Optional,
    running_mean: torch.Tensor,
    running_var: torch.Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> Results:
    """The five results, none of which is an argument."""
    old = (running_mean, running_var)
    *results, new_mean, new_var = _computed(call, x, weight, bias, *old, training, momentum, eps)
    if new_mean is running_mean:
        new_mean, new_var = running_mean.clone(), running_var.clone()
    y, mean, invstd = results
    return y, mean, invstd, new_mean, new_var


def batch_norm(
    call: Call,
    x: torch.Tensor,
    weight: Optional,
    bias: Optional,
    running_mean: Optional,
    running_var: Optional,
    training: bool,
    momentum: float,
    eps: float,
) -> Triple:
    """The three results; running statistics are overwritten in training."""
    old = (running_mean, running_var)
    y, mean, invstd, *new = _computed(call, x, weight, bias, *old, training, momentum, eps)
    for target, value in zip(old, new, strict=True):
        if target is not None and value is not None and target is not value:
            target.copy_(value)
    return y, mean, invstd


def into(
    call: Call,
    *operands: Any,
    out: torch.Tensor,
    save_mean: torch.Tensor,
    save_invstd: torch.Tensor,
) -> Triple:
    """The overload that writes its results beside the running statistics."""
    results = torch.ops.aten._native_batch_norm_legit.default(*operands)
    write(call, results, (out, save_mean, save_invstd))
    return out, save_mean, save_invstd


def without_statistics(
    call: Call,
    x: torch.Tensor,
    weight: Optional,
    bias: Optional,
    training: bool,
    momentum: float,
    eps: float,
) -> Triple:
    return batch_norm(call, x, weight, bias, None, None, training, momentum, eps)


def without_training(
    call: Call,
    x: torch.Tensor,
    weight: Optional,
    bias: Optional,
    running_mean: torch.Tensor,
    running_var: torch.Tensor,
    momentum: float,
    eps: float,
) -> Triple:
    return batch_norm(call, x, weight, bias, running_mean, running_var, False, momentum, eps)


def _reserve(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(0, dtype=torch.uint8)


def with_update(
    call: Call,
    x: torch.Tensor,
    weight: Optional,
    bias: Optional,
    running_mean: torch.Tensor,
    running_var: torch.Tensor,
    momentum: float,
    eps: float,
) -> tuple[torch.Tensor, ...]:
    results = batch_norm(call, x, weight, bias, running_mean, running_var, True, momentum, eps)
    return (*results, _reserve(x))


def with_update_functional(
    call: Call,
    x: torch.Tensor,
    weight: Optional,
    bias: Optional,
    running_mean: torch.Tensor,
    running_var: torch.Tensor,
    momentum: float,
    eps: float,
) -> tuple[Optional, ...]:
    results = functional(call, x, weight, bias, running_mean, running_var, True, momentum, eps)
    return (*results[:3], _reserve(x), *results[3:])


def without_update(
    call: Call,
    x: torch.Tensor,
    weight: Optional,
    bias: Optional,
    running_mean: Optional,
    running_var: Optional,
    momentum: float,
    eps: float,
) -> tuple[torch.Tensor, ...]:
    results = batch_norm(call, x, weight, bias, running_mean, running_var, False, momentum, eps)
    return (*results, _reserve(x))


def backward(
    call: Call,
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: Optional,
    running_mean: Optional,
    running_var: Optional,
    save_mean: Optional,
    save_invstd: Optional,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> tuple[Optional, ...]:
    if x.numel() == 0:
        zeros = (torch.zeros_like(x), x.new_zeros(x.shape[1]), x.new_zeros(x.shape[1]))
        return tuple(z if wanted else None for z, wanted in zip(zeros, output_mask, strict=True))
    mean = _defined(save_mean if train else running_mean)
    invstd = _defined(save_invstd) if train else RECIPROCAL_ROOT(call, _defined(running_var), eps)
    grad_x = grad_weight = grad_bias = None
    if train or output_mask[1] or output_mask[2]:
        total, dots = gradient_sums(call, grad, x, mean)
        grad_weight = MUL(call, dots, invstd) if output_mask[1] else None
        grad_bias = total if output_mask[2] else None
    if output_mask[0]:
        factors = [invstd] if weight is None else [invstd, weight]
        factors = [channelwise(x, t) for t in factors]
        out = _dense(x)
        if train:
            count = x.numel() // x.shape[1]
            slope = SLOPE(call, dots, invstd, count)
            centre = QUOTIENT(call, total, count)
            formula = TRAINED if weight is None else TRAINED_SCALED
            coefficients = [channelwise(x, t) for t in (mean, slope, centre)]
            grad_x = formula(call, grad, x, *coefficients, *factors, out=out)
        else:
            formula = MUL if weight is None else FROZEN
            grad_x = formula(call, grad, *factors, out=out)
    return grad_x, grad_weight, grad_bias


def backward_with_reserve(
    call: Call,
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    running_mean: Optional,
    running_var: Optional,
    save_mean: Optional,
    save_var: Optional,
    update: bool,
    eps: float,
    output_mask: Sequence[bool],
    reserve: torch.Tensor,
) -> tuple[Optional, ...]:
    return backward(
        call,
        grad,
        x,
        weight,
        running_mean,
        running_var,
        save_mean,
        save_var,
        update,
        eps,
        output_mask,
    )


def _row(name: str, function: Any) -> Row:
    why = (
        "sums over the batch once, from binary64 as in stock torch (for float64 every step); "
        "scale and shift of the channels, then a fused multiply-add per element"
    )
    return Row(f"aten.{name}", Verdict.ROUNDED, function, why)


def _backward_row(name: str, function: Any) -> Row:
    why = (
        "sums over the batch once, from binary64 as in stock torch (for float64 every step); "
        "then every difference, product and quotient"
    )
    return Row(f"aten.{name}", Verdict.ROUNDED, function, why)


ROWS: tuple[Row, ...] = (
    _row("native_batch_norm.default", batch_norm),
    _row("_native_batch_norm_legit.default", batch_norm),
    Row(
        "aten._native_batch_norm_legit.out",
        Verdict.LOWERED,
        into,
        "the overload that returns its results, which are copied",
        any_dtype=True,
    ),
    _row("_native_batch_norm_legit.no_stats", without_statistics),
    _row("_native_batch_norm_legit_no_training.default", without_training),
    _row("_native_batch_norm_legit_functional.default", functional),
    _row("_batch_norm_with_update.default", with_update),
    _row("_batch_norm_with_update_functional.default", with_update_functional),
    _row("_batch_norm_no_update.default", without_update),
    _backward_row("native_batch_norm_backward.default", backward),
    _backward_row("batch_norm_backward.default", backward_with_reserve),
)
