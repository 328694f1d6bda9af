"""Rows for complex operands: norms, variances, products and log-sum-exp.

Sums, means and running sums take each part on its own
(:mod:`fuzzytorch.ops.complex_linear`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from fuzzytorch.ops import reduction
from fuzzytorch.ops.call import Call
from fuzzytorch.ops.complex import add, complex_operand, complex_row, mul, parts, sub
from fuzzytorch.ops.complex_functions import evaluated, logaddexp
from fuzzytorch.ops.complex_linear import by_parts
from fuzzytorch.ops.dtypes import real_parts
from fuzzytorch.ops.normalization import others, renorm_factor
from fuzzytorch.ops.pointwise import ADD, SQRT
from fuzzytorch.ops.reduction import vector_norm
from fuzzytorch.table import Row


def norm(
    call: Call,
    x: torch.Tensor,
    ord: Any = 2,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """The norm of the absolute values; of both parts where it is the euclidean one."""
    x = complex_operand(call, x)
    if ord is None or ord == 2:
        dims = [d % x.dim() for d in dim] if dim and x.dim() else list(range(x.dim()))
        pairs = real_parts(x)
        y = vector_norm(call, pairs, 2, [*dims, pairs.dim() - 1], keepdim)
        return y.squeeze(-1) if keepdim else y
    return vector_norm(call, evaluated(call, x, function=torch.abs), ord, dim, keepdim)


def dist(call: Call, x: torch.Tensor, y: torch.Tensor, p: Any = 2) -> torch.Tensor:
    """The norm of the difference."""
    return norm(call, sub(call, x, y), p)


def renorm(call: Call, x: torch.Tensor, p: float, dim: int, maxnorm: float) -> torch.Tensor:
    """Every slice times a factor that brings its norm down to ``maxnorm``."""
    if x.numel() == 0:
        return x.clone(memory_format=torch.contiguous_format)
    factor = renorm_factor(call, norm(call, x, p, others(x, dim), keepdim=True), maxnorm)
    return mul(call, x.contiguous(), factor)


def var(call: Call, x: torch.Tensor, dim: Any = None, **options: Any) -> torch.Tensor:
    """The sum of the variances of both parts."""
    return ADD(call, *(reduction.var(call, part, dim, **options) for part in parts(call, x)))


def std(call: Call, x: torch.Tensor, dim: Any = None, **options: Any) -> torch.Tensor:
    """The root of :func:`var`."""
    return SQRT(call, var(call, x, dim, **options))


def var_mean(
    call: Call, x: torch.Tensor, dim: Any = None, **options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """:func:`var`, and the means of both parts."""
    (a, real), (b, imaginary) = (
        reduction.var_mean(call, part, dim, **options) for part in parts(call, x)
    )
    return ADD(call, a, b), torch.complex(real, imaginary)


def std_mean(
    call: Call, x: torch.Tensor, dim: Any = None, **options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """:func:`std`, and the means of both parts."""
    spread, centre = var_mean(call, x, dim, **options)
    return SQRT(call, spread), centre


def prod(
    call: Call,
    x: torch.Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Products of pairs, and of these again, until one is left.

    In every order the result holds one rounded product less than it has factors.
    """
    x = complex_operand(call, x)
    y = x.reshape(-1) if dim is None or x.dim() == 0 else x.movedim(dim, -1)
    if y.shape[-1] == 0:
        y = torch.ones(*y.shape[:-1], 1, dtype=y.dtype)
    while y.shape[-1] > 1:
        half = y.shape[-1] // 2
        pairs = mul(call, y[..., :half], y[..., half : 2 * half])
        y = torch.cat([pairs, y[..., 2 * half :]], -1)
    y = y.squeeze(-1).clone(memory_format=torch.contiguous_format)
    return y.unsqueeze(dim) if keepdim and dim is not None and x.dim() else y


def cumprod(
    call: Call, x: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Running products, one after the other."""
    x = complex_operand(call, x)
    if x.dim() == 0 or x.numel() == 0:
        return x.clone(memory_format=torch.contiguous_format)
    first, *rest = x.unbind(dim)
    running = [first]
    for factor in rest:
        running.append(mul(call, running[-1], factor))
    return torch.stack(running, dim)


def logsumexp(call: Call, x: torch.Tensor, dim: Any, keepdim: bool = False) -> torch.Tensor:
    """``log(sum(exp(x - m))) + m`` with the largest real part ``m``."""
    x = complex_operand(call, x)
    if x.numel() == 0:
        largest = x.real.sum(dim, True)
    else:
        largest = x.real.amax(dim, True)
        # Infinite maxima would give Inf - Inf; stock torch subtracts 0 there as well.
        largest = largest.masked_fill(largest.isinf(), 0.0)
    powers = evaluated(call, sub(call, x, largest), function=torch.exp)
    total = by_parts(call, powers, dim, True, function=reduction.total)
    y = add(call, evaluated(call, total, function=torch.log), largest)
    return y if keepdim or x.dim() == 0 else y.squeeze(dim or list(range(x.dim())))


def logcumsumexp(call: Call, x: torch.Tensor, dim: int) -> torch.Tensor:
    """Totals that stock torch keeps in binary64 round once; those of complex128 every time."""
    if call.dtype == torch.float32 or x.dim() == 0 or x.numel() == 0:
        return evaluated(call, x.contiguous(), dim, function=torch.logcumsumexp)
    first, *rest = x.unbind(dim)
    running = [first]
    for term in rest:
        running.append(logaddexp(call, term, running[-1]))
    return torch.stack(running, dim)


_NORM: Final = "absolute values (euclidean: parts), sum and root"
_SPREAD: Final = "both variances, their sum"

_ROUNDED: Final[tuple[tuple[str, Callable[..., Any], str], ...]] = (
    ("linalg_vector_norm.default", norm, _NORM),
    ("norm.Scalar norm.ScalarOpt_dim", norm, _NORM),
    ("dist.default", dist, f"the difference; {_NORM}"),
    ("renorm.default", renorm, "the norms, sum and quotient of the factor, the products"),
    ("var.correction", var, _SPREAD),
    ("std.correction", std, f"{_SPREAD}, the root"),
    ("var_mean.correction", var_mean, f"{_SPREAD}, both means"),
    ("std_mean.correction", std_mean, f"{_SPREAD}, the root, both means"),
    ("prod.default prod.dim_int", prod, "four products, a difference and a sum for each factor"),
    ("cumprod.default", cumprod, "four products, a difference and a sum for each factor"),
    ("logsumexp.default", logsumexp, "difference, exponential, sums, logarithm, sum"),
    (
        "logcumsumexp.default _logcumsumexp.default",
        logcumsumexp,
        "once, from totals in binary64 as in stock torch; for complex128 every sum",
    ),
)

ROWS: tuple[Row, ...] = tuple(
    complex_row(name, function, why) for names, function, why in _ROUNDED for name in names.split()
)
