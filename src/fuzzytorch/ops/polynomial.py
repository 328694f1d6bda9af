"""Rows of orthogonal polynomials: three-term recurrences, step by step as stock torch takes them.

The degree is an operand like the argument, one per element: truncated toward zero, and a
polynomial of negative, infinite or NaN degree is 0.  Degree 0, and the ends ``x = -1`` and
``x = 1`` (0 and 1 for shifted Chebyshev polynomials), have integer values and round nothing.
Chebyshev polynomials of higher degree are quotients of sines and cosines between the ends.
All others climb from degree to degree by a product and a fused multiply-add, as the vector
kernels of stock torch do; elements whose degree is reached take no part in further steps.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from fuzzytorch.ops.call import Call
from fuzzytorch.ops.formula import Formula, fma
from fuzzytorch.ops.pointwise import ADD, DIV, MUL, SUB
from fuzzytorch.table import Row, Verdict

SHIFTED = Formula(lambda x: x + x - 1.0)
HALF_DEGREES = Formula(lambda n, angle: (n + 0.5) * angle)
CHEBYSHEV = Formula(lambda d, p, q: fma(d, q, -p))
HERMITE = Formula(lambda x, p, q, k: fma(x, q, -(k * p)))
LAGUERRE = Formula(lambda c, p, q, k: fma(2.0 * k + c, q, -(k * p)) / (k + 1.0))
LEGENDRE = Formula(lambda x, p, q, k: fma((2.0 * k + 1.0) * x, q, -(k * p)) / (k + 1.0))

HERMITE_LIMIT: Final = {torch.float32: 128, torch.float64: 512}
"""Degrees above which Hermite polynomials are NaN."""

First = tuple[torch.Tensor, torch.Tensor]
"""What every step multiplies by, and the polynomial of degree 1."""


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """One sequence of polynomials.

    Attributes:
        first: ``first(call, x)`` gives :data:`First`.
        step: ``step(call, factor, p, q, k)`` gives degree ``k + 1`` from the degrees
            ``k - 1`` and ``k``.
        at_end: ``at_end(sign, side, n)``, the values at the ends of the interval: ``side`` is 1
            at the upper one, ``sign`` 1 there and ``(-1)^n`` at the lower one.
        between: ``between(call, x, n)``, the values inside the interval, ``None`` where they
            are climbed to as well.
        climbed: the highest degree that is climbed to inside the interval.
        shifted: whether the interval is that of 0 and 1.
        limits: the highest degree by dtype, if there is one.
    """

    first: Callable[[Call, torch.Tensor], First]
    step: Callable[..., torch.Tensor]
    at_end: Callable[..., torch.Tensor] | None = None
    between: Callable[[Call, torch.Tensor, torch.Tensor], torch.Tensor] | None = None
    climbed: int = 0
    shifted: bool = False
    limits: Mapping[torch.dtype, int] = dataclasses.field(default_factory=dict)


def polynomial(call: Call, x: Any, n: Any, *, kind: Kind) -> torch.Tensor:
    """The polynomials of degrees ``n`` at ``x``, broadcast."""
    x, n = _tensor(call, x, n), _tensor(call, n, x)
    # Exact, and allocated as stock torch allocates the result of two operands.
    out = torch.maximum(x, n)
    x, n = (y.expand(out.shape).reshape(-1) for y in (x, n))
    return out.copy_(_evaluated(call, x, n, kind).view(out.shape))


def _tensor(call: Call, x: Any, other: Any) -> torch.Tensor:
    x = call.operand(x)
    if isinstance(x, torch.Tensor):
        return x
    return torch.full((), x, dtype=call.dtype, device=other.device)


def _evaluated(call: Call, x: torch.Tensor, n: torch.Tensor, kind: Kind) -> torch.Tensor:
    # The degree becomes an integer of 64 bits; what is none becomes a negative one.
    degree = torch.where((n > -1) & (n < 2.0**63), n, -1.0).to(torch.int64)
    known = degree <= 0
    value = (degree == 0).to(call.dtype)
    if kind.at_end is not None:
        side = _side(x, kind)
        sign = torch.where((side > 0) | (degree % 2 == 0), 1, -1)
        ends = kind.at_end(sign, side, degree).to(call.dtype)
        value = torch.where((side != 0) & (degree >= 0), ends, value)
        known |= side != 0
    limit = kind.limits.get(call.dtype)
    if limit is not None:
        value = value.masked_fill(degree > limit, torch.nan)
        known |= degree > limit
    unknown = (~known).nonzero().squeeze(1)
    x, degree = x[unknown], degree[unknown]
    if kind.shifted:
        x = SHIFTED(call, x)
    inside = torch.zeros_like(degree, dtype=torch.bool)
    if kind.between is not None:
        inside = (degree > kind.climbed) & (x.abs() < 1.0)
        value[unknown[inside]] = kind.between(call, x[inside], degree[inside])
    value[unknown[~inside]] = _climbed(call, x[~inside], degree[~inside], kind)
    return value


def _side(x: torch.Tensor, kind: Kind) -> torch.Tensor:
    """1 at the upper end of the interval, -1 at the lower end, 0 elsewhere."""
    lower = 0.0 if kind.shifted else -1.0
    return (x == 1.0).to(torch.int64) - (x == lower).to(torch.int64)


def _climbed(call: Call, x: torch.Tensor, degree: torch.Tensor, kind: Kind) -> torch.Tensor:
    """The polynomials of positive degrees by their recurrence."""
    if x.numel() == 0:
        return x
    # With falling degrees, those that a step still concerns come first.
    falling, order = degree.sort(descending=True, stable=True)
    factor, value = kind.first(call, x[order])
    p, q = torch.ones_like(value), value
    value = value.clone()
    for k in range(1, int(falling[0])):
        count = int((falling > k).sum())
        p, q = q[:count], kind.step(call, factor[:count], p[:count], q[:count], k)
        value[:count] = q
        if bool(q.isnan().all()):
            # So are all further degrees: stock torch stops there, too.
            break
    return torch.empty_like(value).index_copy_(0, order, value)


def _angle(call: Call, x: torch.Tensor) -> torch.Tensor:
    return call.via_binary64(torch.acos, x)


def _cosine(call: Call, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    """``cos(n acos x)``."""
    angle = _angle(call, x)
    return call.via_binary64(torch.cos, MUL(call, n, angle))


def _sines(call: Call, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    """``sin((n + 1) acos x) / sin(acos x)``; no number between the ends has a sine of 0."""
    angle = _angle(call, x)
    sine = call.via_binary64(torch.sin, MUL(call, n + 1, angle))
    return DIV(call, sine, call.via_binary64(torch.sin, angle))


def _half_angles(
    call: Call,
    x: torch.Tensor,
    n: torch.Tensor,
    *,
    function: Callable[..., torch.Tensor],
    other: Callable[..., torch.Tensor],
    limit: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """``f((n + 1/2) a) / f(a / 2)`` with ``a = acos x``, or its limit where ``f(a / 2)`` is lost.

    Stock torch takes the limit where the other function of ``a / 2`` has been rounded to 1.
    """
    angle = _angle(call, x)
    half = DIV(call, angle, 2.0)
    numerator = call.via_binary64(function, HALF_DEGREES(call, n, angle))
    quotient = DIV(call, numerator, call.via_binary64(function, half))
    lost = call.via_binary64(other, half) == 1.0
    return torch.where(lost, limit(x, n).to(call.dtype), quotient)


def _alternating(n: torch.Tensor) -> torch.Tensor:
    return torch.where(n % 2 == 0, 1, -1)


def _doubled(call: Call, x: torch.Tensor) -> First:
    d = ADD(call, x, x)
    return d, d


CHEBYSHEV_T = Kind(
    first=lambda call, x: (ADD(call, x, x), x),
    step=lambda call, d, p, q, k: CHEBYSHEV(call, d, p, q),
    at_end=lambda sign, side, n: sign,
    between=_cosine,
    climbed=6,
)
CHEBYSHEV_U = dataclasses.replace(
    CHEBYSHEV_T,
    first=_doubled,
    at_end=lambda sign, side, n: sign * (n + 1),
    between=_sines,
    climbed=8,
)
CHEBYSHEV_V = dataclasses.replace(
    CHEBYSHEV_U,
    first=lambda call, x: (d := ADD(call, x, x), SUB(call, d, 1.0)),
    at_end=lambda sign, side, n: torch.where(side > 0, 1, sign * (2 * n + 1)),
    between=functools.partial(
        _half_angles,
        function=torch.cos,
        other=torch.sin,
        limit=lambda x, n: _alternating(n) * (2 * n + 1),
    ),
)
CHEBYSHEV_W = dataclasses.replace(
    CHEBYSHEV_U,
    first=lambda call, x: (d := ADD(call, x, x), ADD(call, d, 1.0)),
    at_end=lambda sign, side, n: torch.where(side > 0, 2 * n + 1, sign),
    between=functools.partial(
        _half_angles, function=torch.sin, other=torch.cos, limit=lambda x, n: 2 * n + 1
    ),
)
HERMITE_HE = Kind(
    first=lambda call, x: (x, x),
    step=HERMITE,
    limits=HERMITE_LIMIT,
)
LEGENDRE_P = Kind(
    first=lambda call, x: (x, x),
    step=LEGENDRE,
    at_end=lambda sign, side, n: sign,
)


def _from_one(call: Call, x: torch.Tensor) -> First:
    c = SUB(call, 1.0, x)
    return c, c


KINDS: Final[Mapping[str, Kind]] = {
    "chebyshev_polynomial_t": CHEBYSHEV_T,
    "chebyshev_polynomial_u": CHEBYSHEV_U,
    "chebyshev_polynomial_v": CHEBYSHEV_V,
    "chebyshev_polynomial_w": CHEBYSHEV_W,
    "shifted_chebyshev_polynomial_t": dataclasses.replace(CHEBYSHEV_T, shifted=True),
    "shifted_chebyshev_polynomial_u": dataclasses.replace(CHEBYSHEV_U, shifted=True, climbed=6),
    "shifted_chebyshev_polynomial_v": dataclasses.replace(CHEBYSHEV_V, shifted=True, climbed=6),
    # Near the upper end stock torch takes the limit of the lower one.
    "shifted_chebyshev_polynomial_w": dataclasses.replace(
        CHEBYSHEV_W,
        shifted=True,
        climbed=4,
        between=functools.partial(
            _half_angles,
            function=torch.sin,
            other=torch.cos,
            limit=lambda x, n: _alternating(n),
        ),
    ),
    "hermite_polynomial_h": dataclasses.replace(
        HERMITE_HE,
        first=_doubled,
        step=lambda call, d, p, q, k: HERMITE(call, d, p, q, 2 * k),
    ),
    "hermite_polynomial_he": HERMITE_HE,
    "laguerre_polynomial_l": Kind(first=_from_one, step=LAGUERRE),
    "legendre_polynomial_p": LEGENDRE_P,
}

_CLIMB: Final = "every product, fused multiply-add and quotient of the recurrence"

ROWS: tuple[Row, ...] = tuple(
    Row(
        f"aten.special_{name}.{overload}",
        Verdict.ROUNDED,
        functools.partial(polynomial, kind=kind),
        _CLIMB
        if kind.between is None
        else f"{_CLIMB}; inside the interval, above degree {kind.climbed}, the angle, the products "
        "with it, sines, cosines and their quotient",
    )
    for name, kind in KINDS.items()
    for overload in ("default", "x_scalar", "n_scalar")
)
