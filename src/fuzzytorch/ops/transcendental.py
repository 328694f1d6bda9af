"""Rows of transcendental functions: evaluated in binary64, rounded once.

Binary64 leaves the discarded part of the result known to 29 bits, which is what
stochastic rounding needs; composite functions round every step of stock torch.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from fuzzytorch.ops.call import Call
from fuzzytorch.ops.formula import Formula, exp, fma, log, log1p, maximum, select
from fuzzytorch.ops.pointwise import ADD, ERF, EXP, EXPM1, LOG, LOG1P, MUL, TANH
from fuzzytorch.table import Row, Verdict

MINUS_DISTANCE = Formula(lambda a, b: -abs(a - b))
LOGADDEXP = Formula(lambda keep, a, b: _sum_of_powers(keep, a, b, exp(-abs(a - b)), 1.0))
LOGADDEXP2 = Formula(lambda keep, a, b, power, scale: _sum_of_powers(keep, a, b, power, scale))
X_LOG = Formula(lambda condition, x, y: select(condition, x * log(y), 0.0))
X_LOG1P = Formula(lambda condition, x, y: select(condition, x * log1p(y), 0.0))
MINUS_X_LOG = Formula(lambda x: -x * log(x))
LOGIT = Formula(lambda x: log(x / (1.0 - x)))
DIV_IF = Formula(lambda condition, a, b, otherwise: select(condition, a / b, otherwise))


def _sum_of_powers(keep: Any, a: Any, b: Any, power: Any, scale: Any) -> Any:
    largest = maximum(a, b)
    return select(keep, largest, fma(log1p(power), scale, largest))


def _same_infinity(call: Call, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return ((a == b) & a.isinf()).to(call.dtype)


def logaddexp(call: Call, self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """``max + log(1 + exp(-|self - other|))``: every function and every sum rounded."""
    a, b = call.operand(self), call.operand(other)
    return LOGADDEXP(call, _same_infinity(call, a, b), a, b, out=call.out)


def logaddexp2(call: Call, self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """:func:`logaddexp` to base 2; the change of base is fused with the sum."""
    a, b = call.operand(self), call.operand(other)
    power = call.via_binary64(torch.exp2, MINUS_DISTANCE(call, a, b))
    scale = 1.0 / math.log(2.0)
    return LOGADDEXP2(call, _same_infinity(call, a, b), a, b, power, scale, out=call.out)


def x_times_log(call: Call, self: Any, other: Any, formula: Formula = X_LOG) -> torch.Tensor:
    """``self * log(other)``, zero where ``self`` is."""
    x, y = call.operand(self), call.operand(other)
    y = y if isinstance(y, torch.Tensor) else torch.full((), y, dtype=x.dtype, device=x.device)
    nonzero = (torch.as_tensor(x, device=y.device) != 0) | y.isnan()
    return formula(call, nonzero.to(call.dtype), x, y, out=call.out)


def entr(call: Call, self: torch.Tensor) -> torch.Tensor:
    """``-x * log(x)`` for positive x; limits elsewhere."""
    x = call.operand(self)
    product = MINUS_X_LOG(call, x)
    return torch.where(x > 0, product, torch.where(x == 0, 0.0, torch.where(x < 0, -math.inf, x)))


def logit(call: Call, self: torch.Tensor, eps: float | None = None) -> torch.Tensor:
    """``log(x / (1 - x))``: a difference, a quotient and a logarithm."""
    x = call.operand(self)
    if eps is not None:
        low = call.number(eps)
        x = x.clamp(low, call.number(1.0 - low))
    return LOGIT(call, x, out=call.out)


def sinc(call: Call, self: torch.Tensor) -> torch.Tensor:
    """``sin(pi x) / (pi x)``: a product, a sine and a quotient."""
    x = call.operand(self)
    product = MUL(call, x, math.pi)
    sine = call.via_binary64(torch.sin, product)
    return DIV_IF(call, (x != 0).to(call.dtype), sine, product, 1.0, out=call.out)


def computed(call: Call, x: torch.Tensor, *, formula: Formula) -> torch.Tensor:
    """A function that elementwise programs evaluate, rounded once."""
    return formula(call, call.operand(x), out=call.out)


def evaluated(
    call: Call, *operands: Any, function: Callable[..., torch.Tensor], **keywords: Any
) -> torch.Tensor:
    """A function evaluated in binary64, then one rounding."""
    operands = tuple(x if type(x) is int else call.operand(x) for x in operands)
    return call.via_binary64(function, *operands, out=call.out, **keywords)


def mvlgamma(call: Call, self: torch.Tensor, p: int) -> torch.Tensor:
    """``log gamma(x - i/2)``, summed over ``0 <= i < p``, and a constant."""
    if p < 1:
        raise RuntimeError("p has to be greater than or equal to 1")
    x = call.operand(self)
    # From -(p - 1) / 2 to 0 in steps of 1/2, as stock torch makes them.
    steps = torch.arange(-p / 2 + 0.5, 0.5, 0.5, dtype=call.dtype, device=x.device)
    logarithms = call.via_binary64(torch.lgamma, ADD(call, x.unsqueeze(-1), steps))
    total = call.reduce("sum", logarithms, [-1])
    return ADD(call, total, math.log(math.pi) * (p * (p - 1)) * 0.25, out=call.out)


def polygamma_(call: Call, self: torch.Tensor, n: int) -> torch.Tensor:
    """The in-place overload has the arguments of the functional one in another order."""
    return torch.ops.aten.polygamma.out(n, self, out=self)


_EVALUATED = "evaluated in binary64, then one rounding"

EVALUATED = {
    _EVALUATED: """
        exp2 log2 log10 sin cos tan asin acos atan sinh cosh asinh acosh atanh erfc lgamma atan2
        hypot pow.Tensor_Tensor
        erfinv digamma i0 special_i0e special_i1 special_i1e special_ndtri special_log_ndtr
        special_erfcx special_modified_bessel_i0 special_modified_bessel_i1
        special_modified_bessel_k0 special_modified_bessel_k1 special_scaled_modified_bessel_k0
        special_scaled_modified_bessel_k1 special_spherical_bessel_j0 special_zeta
        special_zeta.self_scalar special_zeta.other_scalar
    """,
    _EVALUATED + "; for order 1 stock torch's approximation is inexact by up to 1e-9": """
        polygamma
    """,
    _EVALUATED + "; stock torch's approximation is inexact by up to 2e-9": "igamma igammac",
    _EVALUATED + "; stock torch's approximation is inexact by up to 3e-6": """
        special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1 special_airy_ai
    """,
}
"""Functions with one rounding each, by what is said of them.

Where the approximation of stock torch is further from the function than binary64 is from
either, as near the roots of Bessel functions, its error is the same without the mode: it is no
error of rounding and is not perturbed.
"""


def _overload(name: str) -> str:
    return f"aten.{name}" if "." in name else f"aten.{name}.default"


def _evaluated(name: str) -> Callable[..., Any]:
    packet, overload = _overload(name).split(".")[1:]
    function = getattr(torch, name, None) or getattr(getattr(torch.ops.aten, packet), overload)
    return functools.partial(evaluated, function=function)


_FUNCTIONS = {"exp": EXP, "expm1": EXPM1, "log": LOG, "log1p": LOG1P, "tanh": TANH, "erf": ERF}

_COMPOSITE: tuple[tuple[str, Callable[..., Any], str], ...] = (
    ("logaddexp.default", logaddexp, "difference, exponential, logarithm and sum are rounded"),
    (
        "logaddexp2.default",
        logaddexp2,
        "difference, power of two, logarithm and fused multiply-add are rounded",
    ),
    (
        "xlogy.Tensor xlogy.Scalar_Self xlogy.Scalar_Other",
        x_times_log,
        "the logarithm and the product are rounded",
    ),
    (
        "special_xlog1py.default special_xlog1py.self_scalar special_xlog1py.other_scalar",
        functools.partial(x_times_log, formula=X_LOG1P),
        "the logarithm and the product are rounded",
    ),
    ("special_entr.default", entr, "the logarithm and the product are rounded"),
    ("logit.default", logit, "difference, quotient and logarithm are rounded"),
    ("sinc.default", sinc, "product, sine and quotient are rounded"),
    (
        "mvlgamma.default",
        mvlgamma,
        "the differences, the logarithms of gamma, their sum and that with a constant are rounded",
    ),
)

ROWS: tuple[Row, ...] = (
    *(
        Row(_overload(name), Verdict.ROUNDED, function, why)
        for names, function, why in _COMPOSITE
        for name in names.split()
    ),
    *(
        Row(
            _overload(name),
            Verdict.ROUNDED,
            functools.partial(computed, formula=formula),
            _EVALUATED,
        )
        for name, formula in _FUNCTIONS.items()
    ),
    *(
        Row(_overload(name), Verdict.ROUNDED, _evaluated(name), why)
        for why, names in EVALUATED.items()
        for name in names.split()
    ),
    Row(
        "aten.polygamma_.default",
        Verdict.LOWERED,
        polygamma_,
        "the functional overload, which has its arguments in another order",
        any_dtype=True,
    ),
)
