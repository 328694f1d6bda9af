"""Rows of activation functions.

The steps are those of the vector kernels of stock torch, fused multiply-adds
included.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from fuzzytorch.ops.call import Call
from fuzzytorch.ops.formula import (
    Formula,
    erf,
    exp,
    expm1,
    fma,
    log1p,
    maximum,
    minimum,
    select,
    tanh,
)
from fuzzytorch.ops.pointwise import MUL
from fuzzytorch.table import Row, Verdict

SQRT_HALF = math.sqrt(0.5)

GELU_SCALE, GELU_CUBE = math.sqrt(2.0 / math.pi), 0.044715


def logistic(x: Any) -> Any:
    """``1 / (1 + exp(-x))`` in a formula."""
    return 1.0 / (1.0 + exp(-x))


def gelu_tanh(x: Any) -> Any:
    """The hyperbolic tangent in the approximate form of GELU, in a formula."""
    return tanh(GELU_SCALE * fma(x * x * x, GELU_CUBE, x))


SIGMOID = Formula(logistic)
SILU = Formula(lambda x: x / (1.0 + exp(-x)))
GELU = Formula(lambda x: x * 0.5 * (1.0 + erf(x * SQRT_HALF)))
GELU_TANH = Formula(lambda x: 0.5 * x * (1.0 + gelu_tanh(x)))
ELU = Formula(
    lambda x, negative, positive, inner: select(x, x * positive, expm1(x * inner) * negative)
)
LEAKY = Formula(lambda x, slope: select(x, x, x * slope))
SOFTPLUS = Formula(lambda linear, x, inner, beta: select(linear, x, log1p(exp(inner)) / beta))
MISH = Formula(lambda x: x * tanh(log1p(exp(x))))
HARDSIGMOID = Formula(lambda x: minimum(maximum(x + 3.0, 0.0), 6.0) / 6.0)
HARDSWISH = Formula(lambda x: x * minimum(maximum(x + 3.0, 0.0), 6.0) / 6.0)
EXP_OF_MINUS_SIZE = Formula(lambda x: exp(-abs(x)))
LOG_SIGMOID = Formula(lambda x, z: minimum(x, 0.0) - log1p(z))
GLU = Formula(lambda a, x: a * logistic(x))
SHRINK = Formula(lambda above, below, x, bound: _shrink(above, below, x - bound, x + bound))
DROPOUT = Formula(lambda x, mask, scale: x * mask * scale)


def _shrink(above: Any, below: Any, lowered: Any, raised: Any) -> Any:
    return select(above, lowered, select(below, raised, 0.0))


def mask(call: Call, condition: torch.Tensor) -> torch.Tensor:
    return condition.to(call.dtype)


def sigmoid(call: Call, self: torch.Tensor) -> torch.Tensor:
    """``1 / (1 + exp(-x))``: exponential, sum and quotient rounded."""
    return SIGMOID(call, self, out=call.out)


def silu(call: Call, self: torch.Tensor) -> torch.Tensor:
    """``x / (1 + exp(-x))``."""
    return SILU(call, self, out=call.out)


def gelu(call: Call, self: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    """``x * 0.5 * (1 + erf(x * sqrt(0.5)))``, or the same with a tanh."""
    if approximate == "tanh":
        return GELU_TANH(call, self, out=call.out)
    known(approximate)
    return GELU(call, self, out=call.out)


def known(approximate: str) -> None:
    if approximate != "none":
        raise RuntimeError("approximate argument must be either none or tanh.")


def elu(
    call: Call, self: torch.Tensor, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1
) -> torch.Tensor:
    """``scale * x``, or ``alpha * scale * expm1(input_scale * x)`` for ``x <= 0``."""
    return ELU(call, self, product(call, alpha, scale), scale, input_scale, out=call.out)


def celu(call: Call, self: torch.Tensor, alpha: Any = 1.0) -> torch.Tensor:
    """:func:`elu` with the slope 1 at zero."""
    return elu(call, self, alpha, 1.0, 1.0 / alpha)


def selu(call: Call, self: torch.Tensor) -> torch.Tensor:
    """:func:`elu` with the constants of self-normalising networks."""
    return elu(call, self, 1.6732632423543772, 1.0507009873554805, 1.0)


def product(call: Call, alpha: Any, scale: Any) -> float:
    return call.number(call.number(alpha) * call.number(scale))


def leaky_relu(call: Call, self: torch.Tensor, negative_slope: Any = 0.01) -> torch.Tensor:
    """``x``, or ``slope * x`` below zero."""
    return LEAKY(call, self, negative_slope, out=call.out)


def prelu(call: Call, self: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """:func:`leaky_relu` with a slope per element."""
    return LEAKY(call, self, weight, out=call.out)


def rrelu_with_noise(
    call: Call,
    self: torch.Tensor,
    noise: torch.Tensor,
    lower: Any = 0.125,
    upper: Any = 0.3333333333333333,
    training: bool = False,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    """:func:`leaky_relu` with the slopes that stock torch draws into ``noise``."""
    if not training:
        return leaky_relu(call, self, (lower + upper) / 2.0)
    stock = torch.ops.aten.rrelu_with_noise.default
    stock(self, noise, lower, upper, training, generator)
    return LEAKY(call, self, noise, out=call.out)


def rrelu_with_noise_(call: Call, self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """:func:`rrelu_with_noise` in place."""
    return self.copy_(rrelu_with_noise(call, self, *args, **kwargs))


def softplus(call: Call, self: torch.Tensor, beta: Any = 1, threshold: Any = 20) -> torch.Tensor:
    """``log1p(exp(beta * x)) / beta``, or ``x`` above the threshold."""
    inner = MUL(call, self, beta)
    linear = mask(call, inner > call.number(threshold))
    return SOFTPLUS(call, linear, self, inner, beta, out=call.out)


def mish(call: Call, self: torch.Tensor) -> torch.Tensor:
    """``x * tanh(log1p(exp(x)))``."""
    return MISH(call, self, out=call.out)


def hardsigmoid(call: Call, self: torch.Tensor) -> torch.Tensor:
    """``min(max(x + 3, 0), 6) / 6``."""
    return HARDSIGMOID(call, self, out=call.out)


def hardswish(call: Call, self: torch.Tensor) -> torch.Tensor:
    """``x * min(max(x + 3, 0), 6) / 6``."""
    return HARDSWISH(call, self, out=call.out)


def log_sigmoid_forward(call: Call, self: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``min(x, 0) - log1p(z)`` and ``z = exp(-|x|)``."""
    z = EXP_OF_MINUS_SIZE(call, self)
    return LOG_SIGMOID(call, self, z, out=call.out), z


def glu(call: Call, self: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """The first half times the sigmoid of the second."""
    first, second = halves(self, dim)
    return GLU(call, first, second, out=call.out)


def halves(x: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    size = x.shape[dim]
    if size % 2:
        raise RuntimeError(f"Halving dimension must be even, but dimension {dim} is size {size}")
    return x.narrow(dim, 0, size // 2), x.narrow(dim, size // 2, size // 2)


def softshrink(call: Call, self: torch.Tensor, lambd: Any = 0.5) -> torch.Tensor:
    """``x`` moved towards zero by ``lambd``, zero within it."""
    bound = call.number(lambd)
    above, below = mask(call, ~(self <= bound)), mask(call, self < -bound)
    return SHRINK(call, above, below, self, bound, out=call.out)


def native_dropout(
    call: Call, input: torch.Tensor, p: float, train: bool | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """``input * mask * (1 / (1 - p))`` with the mask that stock torch draws."""
    _, mask = torch.ops.aten.native_dropout.default(input, p, train)
    if train is False:
        return input.clone(), mask
    scale = 0.0 if p == 1.0 else 1.0 / (1.0 - p)
    return DROPOUT(call, input, mask, scale), mask


_EACH = "every step of the formula is rounded, "
_ROUNDED: tuple[tuple[str, Callable[..., Any], str], ...] = (
    ("sigmoid", sigmoid, "exponential, sum and quotient are rounded"),
    ("silu", silu, "exponential, sum and quotient are rounded"),
    ("gelu", gelu, _EACH + "the erf or tanh once from binary64"),
    ("elu", elu, "scaling of the argument, expm1 and product are rounded"),
    ("celu", celu, "scaling of the argument, expm1 and product are rounded"),
    ("selu", selu, "scaling of the argument, expm1 and product are rounded"),
    ("leaky_relu", leaky_relu, "one rounding of the product where it is taken"),
    ("_prelu_kernel", prelu, "one rounding of the product where it is taken"),
    ("rrelu_with_noise", rrelu_with_noise, "the slopes are given; the product is rounded"),
    ("rrelu_with_noise_", rrelu_with_noise_, "the slopes are given; the product is rounded"),
    ("softplus", softplus, "product, exponential, log1p and quotient are rounded"),
    ("mish", mish, "exponential, log1p, tanh and product are rounded"),
    ("hardsigmoid", hardsigmoid, "sum and quotient are rounded; the clamp is exact"),
    ("hardswish", hardswish, "sum, product and quotient are rounded; the clamp is exact"),
    ("log_sigmoid_forward", log_sigmoid_forward, "exponential, log1p and difference are rounded"),
    ("glu", glu, "exponential, sum, quotient and product are rounded"),
    ("softshrink", softshrink, "one rounding of the difference or sum"),
    ("native_dropout", native_dropout, "the mask is given; both products are rounded"),
)

ROWS: tuple[Row, ...] = tuple(
    Row(f"aten.{name}.default", Verdict.ROUNDED, function, why) for name, function, why in _ROUNDED
)
