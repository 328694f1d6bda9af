"""Rows of the gradients of activation functions, in the steps of stock torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from fuzzytorch.ops.activation import (
    DROPOUT,
    GELU_CUBE,
    GELU_SCALE,
    SIGMOID,
    SQRT_HALF,
    gelu_tanh,
    halves,
    known,
    logistic,
    mask,
    product,
)
from fuzzytorch.ops.call import Call, binary32
from fuzzytorch.ops.formula import Formula, erf, exp, fma, log1p, select, tanh
from fuzzytorch.ops.pointwise import MUL
from fuzzytorch.table import Row, Verdict

GAUSS_DENSITY = 1.0 / math.sqrt(2.0 * math.pi)

SIGMOID_GRAD = Formula(lambda grad, y: grad * (1.0 - y) * y)
TANH_GRAD = Formula(lambda grad, y: grad * fma(-y, y, 1.0))
SILU_GRAD = Formula(lambda grad, x: _silu_grad(grad, x, logistic(x)))
GELU_GRAD = Formula(
    lambda grad, x: (
        grad * fma(x, GAUSS_DENSITY * exp(x * x * -0.5), 0.5 * (1.0 + erf(x * SQRT_HALF)))
    )
)
GELU_TANH_GRAD = Formula(lambda grad, x, cube: _gelu_tanh_grad(grad, x, gelu_tanh(x), cube))
ELU_GRAD = Formula(
    lambda grad, x, negative, positive, inner: select(
        x, grad * positive, grad * inner * negative * exp(x * inner)
    )
)
ELU_GRAD_OF_RESULT = Formula(
    lambda grad, y, negative, positive, inner: select(
        y, grad * positive, grad * inner * (y + negative)
    )
)
LEAKY_GRAD = Formula(lambda grad, x, slope: select(x, grad, grad * slope))
PRELU_GRAD_WEIGHT = Formula(lambda grad, x: select(x, 0.0, x * grad))
SOFTPLUS_GRAD = Formula(
    lambda linear, grad, inner: select(linear, grad, _over_one_more(grad, exp(inner)))
)
MISH_GRAD = Formula(lambda grad, x: _mish_grad(grad, x, tanh(log1p(exp(x))), logistic(x)))
# Stock torch has a binary32 number for 1/6 in float64 too.
HARDSIGMOID_GRAD = Formula(lambda inside, grad: select(inside, grad * binary32(1.0 / 6.0), 0.0))
HARDSWISH_GRAD = Formula(
    lambda below, above, grad, x: select(below, 0.0, select(above, grad, grad * (x / 3.0 + 0.5)))
)
LOG_SIGMOID_GRAD = Formula(
    lambda grad, negative, z: _log_sigmoid_grad(grad, negative, z / (1.0 + z))
)
GLU_GRAD_GATE = Formula(lambda grad, a, s: (1.0 - s) * s * a * grad)
LOGIT_GRAD = Formula(lambda inside, grad, x, outside: _logit_grad(inside, grad, x, outside))


def _silu_grad(grad: Any, x: Any, s: Any) -> Any:
    return grad * s * fma(x, 1.0 - s, 1.0)


def _gelu_tanh_grad(grad: Any, x: Any, t: Any, cube: Any) -> Any:
    left, right = 0.5 * x, 1.0 + t
    slope = fma(-t, t, 1.0)
    inner = GELU_SCALE * fma(x * x, cube, 1.0)
    return grad * fma(right, 0.5, left * slope * inner)


def _over_one_more(grad: Any, z: Any) -> Any:
    return grad * z / (z + 1.0)


def _mish_grad(grad: Any, x: Any, t: Any, s: Any) -> Any:
    return grad * fma(x * s, fma(-t, t, 1.0), t)


def _log_sigmoid_grad(grad: Any, negative: Any, ratio: Any) -> Any:
    derivative = select(negative, 1.0 - ratio, ratio)
    return derivative * grad


def _logit_grad(inside: Any, grad: Any, x: Any, outside: Any) -> Any:
    return select(inside, grad / (x * (1.0 - x)), outside)


def sigmoid_backward(call: Call, grad_output: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    """``grad * (1 - y) * y``."""
    return SIGMOID_GRAD(call, grad_output, output, out=call.out)


def tanh_backward(call: Call, grad_output: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    """``grad * (1 - y * y)``, the difference fused."""
    return TANH_GRAD(call, grad_output, output, out=call.out)


def silu_backward(call: Call, grad_output: torch.Tensor, self: torch.Tensor) -> torch.Tensor:
    """``grad * s * (1 + x * (1 - s))`` with the sigmoid ``s``."""
    return SILU_GRAD(call, grad_output, self, out=call.out)


def gelu_backward(
    call: Call, grad_output: torch.Tensor, self: torch.Tensor, *, approximate: str = "none"
) -> torch.Tensor:
    """The gradient of :func:`gelu`, either form."""
    if approximate == "tanh":
        cube = 3.0 * call.number(GELU_CUBE)
        return GELU_TANH_GRAD(call, grad_output, self, cube, out=call.out)
    known(approximate)
    return GELU_GRAD(call, grad_output, self, out=call.out)


def elu_backward(
    call: Call,
    grad_output: torch.Tensor,
    alpha: Any,
    scale: Any,
    input_scale: Any,
    is_result: bool,
    self_or_result: torch.Tensor,
) -> torch.Tensor:
    """The gradient of :func:`elu`, from its argument or from its result."""
    x, negative = self_or_result, product(call, alpha, scale)
    if is_result:
        return ELU_GRAD_OF_RESULT(call, grad_output, x, negative, scale, input_scale, out=call.out)
    return ELU_GRAD(call, grad_output, x, negative, scale, input_scale, out=call.out)


def leaky_relu_backward(
    call: Call,
    grad_output: torch.Tensor,
    self: torch.Tensor,
    negative_slope: Any,
    self_is_result: bool,
) -> torch.Tensor:
    """``grad``, or ``slope * grad`` below zero."""
    return LEAKY_GRAD(call, grad_output, self, negative_slope, out=call.out)


def prelu_backward(
    call: Call, grad_output: torch.Tensor, self: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients with respect to the argument and, per element, to the slope."""
    return (
        LEAKY_GRAD(call, grad_output, self, weight),
        PRELU_GRAD_WEIGHT(call, grad_output, self),
    )


def rrelu_with_noise_backward(
    call: Call,
    grad_output: torch.Tensor,
    self: torch.Tensor,
    noise: torch.Tensor,
    lower: Any,
    upper: Any,
    training: bool,
    self_is_result: bool,
) -> torch.Tensor:
    """``grad`` times the slope that was drawn, or the mean slope below zero."""
    if training and upper - lower > 1e-6:
        return MUL(call, noise, grad_output, out=call.out)
    return LEAKY_GRAD(call, grad_output, self, (lower + upper) / 2.0, out=call.out)


def softplus_backward(
    call: Call, grad_output: torch.Tensor, self: torch.Tensor, beta: Any, threshold: Any
) -> torch.Tensor:
    """``grad * z / (z + 1)`` with ``z = exp(beta * x)``, or ``grad`` above the threshold."""
    inner = MUL(call, self, beta)
    linear = mask(call, inner > call.number(threshold))
    return SOFTPLUS_GRAD(call, linear, grad_output, inner, out=call.out)


def mish_backward(call: Call, grad_output: torch.Tensor, self: torch.Tensor) -> torch.Tensor:
    """``grad * (t + x * s * (1 - t * t))`` with the sigmoid ``s`` and ``t`` of :func:`mish`."""
    return MISH_GRAD(call, grad_output, self, out=call.out)


def hardsigmoid_backward(call: Call, grad_output: torch.Tensor, self: torch.Tensor) -> torch.Tensor:
    """``grad / 6`` (a product by the reciprocal) inside (-3, 3)."""
    inside = mask(call, (self > -3.0) & (self < 3.0))
    return HARDSIGMOID_GRAD(call, inside, grad_output, out=call.out)


def hardswish_backward(call: Call, grad_output: torch.Tensor, self: torch.Tensor) -> torch.Tensor:
    """``grad * (x / 3 + 0.5)`` inside [-3, 3], 0 below and ``grad`` above."""
    below, above = mask(call, self <= -3.0), mask(call, self >= 3.0)
    return HARDSWISH_GRAD(call, below, above, grad_output, self, out=call.out)


def log_sigmoid_backward(
    call: Call, grad_output: torch.Tensor, self: torch.Tensor, buffer: torch.Tensor
) -> torch.Tensor:
    """``grad`` times ``z / (1 + z)``, or times one minus it below zero."""
    return LOG_SIGMOID_GRAD(call, grad_output, mask(call, self < 0), buffer, out=call.out)


def glu_backward(
    call: Call, grad_output: torch.Tensor, self: torch.Tensor, dim: int
) -> torch.Tensor:
    """``s * grad`` and ``(1 - s) * s * first * grad`` with the sigmoid ``s`` of the second."""
    first, second = halves(self, dim)
    s = SIGMOID(call, second)
    return torch.cat([MUL(call, s, grad_output), GLU_GRAD_GATE(call, grad_output, first, s)], dim)


def logit_backward(
    call: Call, grad_output: torch.Tensor, self: torch.Tensor, eps: float | None = None
) -> torch.Tensor:
    """``grad / (x * (1 - x))`` inside ``[eps, 1 - eps]``; outside 0, or NaN without ``eps``."""
    low = call.number(0.0 if eps is None else eps)
    inside = mask(call, (self >= low) & (self <= call.number(1.0 - low)))
    outside = math.nan if eps is None else 0.0
    return LOGIT_GRAD(call, inside, grad_output, self, outside, out=call.out)


def native_dropout_backward(
    call: Call, grad_output: torch.Tensor, mask: torch.Tensor, scale: float
) -> torch.Tensor:
    """``grad * mask * scale``."""
    return DROPOUT(call, grad_output, mask, scale, out=call.out)


_EACH = "every step of the formula is rounded, "
_ROUNDED: tuple[tuple[str, Callable[..., Any], str], ...] = (
    ("sigmoid_backward", sigmoid_backward, "difference and both products are rounded"),
    ("tanh_backward", tanh_backward, "the fused multiply-add and the product are rounded"),
    ("silu_backward", silu_backward, _EACH + "the sigmoid included"),
    ("gelu_backward", gelu_backward, _EACH + "erf, exponential or tanh once from binary64"),
    ("elu_backward", elu_backward, "products and exponential, or sum, are rounded"),
    ("leaky_relu_backward", leaky_relu_backward, "one rounding of the product where it is taken"),
    ("_prelu_kernel_backward", prelu_backward, "one rounding of each product"),
    ("rrelu_with_noise_backward", rrelu_with_noise_backward, "one rounding of the product"),
    ("softplus_backward", softplus_backward, _EACH + "the exponential once from binary64"),
    ("mish_backward", mish_backward, _EACH + "sigmoid and tanh included"),
    ("hardsigmoid_backward", hardsigmoid_backward, "one rounding of the product by 1/6"),
    ("hardswish_backward", hardswish_backward, "quotient, sum and product are rounded"),
    ("log_sigmoid_backward", log_sigmoid_backward, "sum, quotient, difference, product rounded"),
    ("glu_backward", glu_backward, _EACH + "the sigmoid included"),
    ("logit_backward", logit_backward, "difference, product and quotient are rounded"),
    ("native_dropout_backward", native_dropout_backward, "both products are rounded"),
)

ROWS: tuple[Row, ...] = tuple(
    Row(f"aten.{name}.default", Verdict.ROUNDED, function, why) for name, function, why in _ROUNDED
)
