"""Solutions of linear systems, inverses, determinants and least squares, by factorizations."""

from __future__ import annotations

import math
from typing import Any, Final

import torch

from fuzzytorch.ops.call import Call
from fuzzytorch.ops.coarse import rounded_once
from fuzzytorch.ops.factorization import (
    batch_of,
    householder,
    lu,
    multiply,
    permutation,
    substitute,
)
from fuzzytorch.ops.layout import placed, stock_layouts
from fuzzytorch.table import Row, Verdict


def _broadcast(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Size]:
    """Two tensors of matrices with one common dimension for the batch, and its shape."""
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    wide = (x.expand(*batch, *x.shape[-2:]) for x in (a, b))
    first, second = (batch_of(x) for x in wide)
    return first, second, batch


def solve_triangular(
    call: Call,
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    upper: bool,
    left: bool = True,
    unitriangular: bool = False,
) -> torch.Tensor:
    (layout,) = stock_layouts(
        call.overload, a, b, upper=upper, left=left, unitriangular=unitriangular
    )
    if not left:
        a, b, upper = a.mT, b.mT, not upper
    a3, b3, _ = _broadcast(a, b)
    x = substitute(call, a3, b3, upper=upper, unit=unitriangular)
    return placed((x if left else x.mT).reshape(layout[0]), layout)


def triangular_solve(
    call: Call,
    b: torch.Tensor,
    a: torch.Tensor,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    layouts = stock_layouts(call.overload, b, a, upper, transpose, unitriangular)
    a3, b3, _ = _broadcast(a, b)
    triangle = a3.mT if transpose else a3
    x = substitute(call, triangle, b3, upper=upper != transpose, unit=unitriangular)
    return placed(x.view(layouts[0][0]), layouts[0]), placed(a3.view(layouts[1][0]), layouts[1])


def solve_lu(
    call: Call, factors: torch.Tensor, pivots: torch.Tensor, b: torch.Tensor, adjoint: bool
) -> torch.Tensor:
    """``A x = b``, or ``A^T x = b``, by the factors of ``A`` and the exchanges ``(B, n)``."""
    order = permutation(pivots, factors.shape[-1]).unsqueeze(2).expand(-1, -1, b.shape[-1])
    if not adjoint:
        y = substitute(call, factors, b.gather(1, order), upper=False, unit=True)
        return substitute(call, factors, y, upper=True)
    y = substitute(call, factors.mT, b, upper=False)
    y = substitute(call, factors.mT, y, upper=True, unit=True)
    return torch.empty_like(y).scatter_(1, order, y)


def lu_solve(
    call: Call,
    factors: torch.Tensor,
    pivots: torch.Tensor,
    b: torch.Tensor,
    *,
    left: bool = True,
    adjoint: bool = False,
) -> torch.Tensor:
    (layout,) = stock_layouts(call.overload, factors, pivots, b, left=left, adjoint=adjoint)
    if not left:
        b, adjoint = b.mT, not adjoint
    a3, b3, batch = _broadcast(factors, b)
    rows = pivots.expand(*batch, pivots.shape[-1]).reshape(math.prod(batch), pivots.shape[-1])
    x = solve_lu(call, a3, rows, b3, adjoint)
    return placed((x if left else x.mT).reshape(layout[0]), layout)


def _turned(a: torch.Tensor) -> bool:
    """Whether stock torch factorizes the transpose, which lies in memory as LAPACK wants it."""
    return a.is_contiguous()


def _solve(
    call: Call, a: torch.Tensor, b: torch.Tensor, left: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    factors, pivots, info = lu(call, batch_of(a))
    batch, n = a.shape[:-2], a.shape[-1]
    a3, b3, common = _broadcast(factors.view(a.shape), b if left else b.mT)
    rows = pivots.view(*batch, n).expand(*common, n).reshape(math.prod(common), n)
    x = solve_lu(call, a3, rows, b3, not left)
    x = x.view(*common, *b3.shape[-2:])
    return (
        x if left else x.mT,
        factors.view(a.shape),
        pivots.view(*batch, a.shape[-1]),
        info.view(batch),
    )


def solve_ex(
    call: Call,
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    left: bool = True,
    check_errors: bool = False,
) -> tuple[torch.Tensor, ...]:
    layouts = stock_layouts(call.overload, a, b, left=left)
    vector = b.dim() == 1 or (a.dim() - 1 == b.dim() and b.shape == a.shape[:-1])
    x, factors, pivots, info = _solve(call, a, b.unsqueeze(-1) if vector else b, left)
    if check_errors:
        torch._linalg_check_errors(info, "torch.linalg.solve_ex", is_matrix=a.dim() == 2)
    results = (x.squeeze(-1) if vector else x, factors, pivots, info)
    return tuple(placed(y, layout) for y, layout in zip(results, layouts, strict=True))


def inv_ex(
    call: Call, a: torch.Tensor, *, check_errors: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    layouts = stock_layouts(call.overload, a)
    identity = torch.eye(a.shape[-1], dtype=a.dtype).expand(a.shape)
    x, _, _, info = _solve(call, a, identity, True)
    if check_errors:
        torch._linalg_check_errors(info, "torch.linalg.inv_ex", is_matrix=a.dim() == 2)
    return placed(x, layouts[0]), placed(info, layouts[1])


def _signs(pivots: torch.Tensor) -> torch.Tensor:
    """1 for an even number of exchanges, else -1."""
    exchanged = pivots != torch.arange(1, pivots.shape[-1] + 1)
    return 1 - 2 * (exchanged.sum(-1) % 2)


def _triangle(call: Call, a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The factors that stock torch returns with a determinant, its exchanges, its pivots."""
    factors, pivots, _ = lu(call, batch_of(a.mT if _turned(a) else a))
    return factors, pivots, factors.diagonal(dim1=-2, dim2=-1)


def det(call: Call, a: torch.Tensor) -> tuple[torch.Tensor, ...]:
    layouts = stock_layouts(call.overload, a)
    factors, pivots, diagonal = _triangle(call, a)
    value = call.reduce("prod", diagonal, [1]) * _signs(pivots)
    results = (value.view(layouts[0][0]), factors.view(a.shape), pivots.view(layouts[2][0]))
    return tuple(placed(y, layout) for y, layout in zip(results, layouts, strict=True))


def slogdet(call: Call, a: torch.Tensor) -> tuple[torch.Tensor, ...]:
    layouts = stock_layouts(call.overload, a)
    factors, pivots, diagonal = _triangle(call, a)
    sign = diagonal.sign().prod(-1) * _signs(pivots)
    logarithm = call.reduce("sum", call.via_binary64(torch.log, diagonal.abs()), [1])
    results = (
        sign.view(layouts[0][0]),
        logarithm.view(layouts[1][0]),
        factors.view(a.shape),
        pivots.view(layouts[3][0]),
    )
    return tuple(placed(y, layout) for y, layout in zip(results, layouts, strict=True))


def cholesky_solve(
    call: Call, b: torch.Tensor, factor: torch.Tensor, upper: bool = False
) -> torch.Tensor:
    (layout,) = stock_layouts(call.overload, b, factor, upper)
    lower, b3, _ = _broadcast(factor.mT if upper else factor, b)
    y = substitute(call, lower, b3, upper=False)
    return placed(substitute(call, lower.mT, y, upper=True).view(layout[0]), layout)


def cholesky_inverse(call: Call, factor: torch.Tensor, upper: bool = False) -> torch.Tensor:
    (layout,) = stock_layouts(call.overload, factor, upper)
    lower = batch_of(factor.mT if upper else factor)
    identity = torch.eye(lower.shape[-1], dtype=factor.dtype).expand(lower.shape)
    inverse = substitute(call, lower, identity, upper=False)
    half = substitute(call, lower.mT, inverse, upper=True).tril()
    return placed((half + half.tril(-1).mT).view(factor.shape), layout)


def lstsq(
    call: Call,
    a: torch.Tensor,
    b: torch.Tensor,
    rcond: float | None = None,
    *,
    driver: str | None = None,
) -> tuple[torch.Tensor, ...]:
    """Householder QR where the rank is full; else, and with singular values, from binary64."""
    stock = call.overload(a, b, rcond, driver=driver)
    m, n = a.shape[-2:]
    full = driver in (None, "gelsy", "gels") and bool((stock[2] == min(m, n)).all())
    if not full or 0 in (m, n):
        call.coarse = True
        tolerance = torch.finfo(a.dtype).eps * max(m, n) if rcond is None else rcond
        exact = call.overload(a.double(), b.double(), tolerance, driver=driver)
        pairs = zip(exact, stock, strict=True)
        return tuple(placed(rounded_once(call, y, z.dtype), _layout(z)) for y, z in pairs)
    vector = a.dim() - 1 == b.dim() and b.shape == a.shape[:-1]
    a3, b3, batch = _broadcast(a, b.unsqueeze(-1) if vector else b)
    x, rest = _least_squares(call, a3, b3)
    x = x.view(*batch, *x.shape[-2:])
    residuals = stock[1]
    if residuals.numel() > 0:
        residuals = call.reduce("sum_squares", rest, [1]).view(residuals.shape)
    return placed(x.squeeze(-1) if vector else x, _layout(stock[0])), residuals, *stock[2:]


def _layout(x: torch.Tensor) -> Any:
    return x.shape, x.stride(), x.dtype


def _least_squares(
    call: Call, a: torch.Tensor, b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The solution, and the components of ``b`` outside the range of ``a``."""
    m, n = a.shape[-2:]
    if m >= n:
        work, tau = householder(call, a)
        turned = multiply(call, work, tau, b, transpose=True)
        return substitute(call, work[:, :n], turned[:, :n], upper=True), turned[:, n:]
    work, tau = householder(call, a.mT)
    y = substitute(call, work[:, :m].mT, b, upper=False)
    y = torch.cat([y, y.new_zeros(y.shape[0], n - m, y.shape[-1])], 1)
    return multiply(call, work, tau, y, transpose=False), y[:, :0]


def pinv(
    call: Call,
    a: torch.Tensor,
    *,
    atol: torch.Tensor | None = None,
    rtol: torch.Tensor | None = None,
    hermitian: bool = False,
) -> torch.Tensor:
    """The composition of stock torch, with the tolerance of the dtype of ``a``."""
    m, n = a.shape[-2:]
    if a.numel() == 0:
        return a.new_empty(*a.shape[:-2], n, m)
    if hermitian:
        values, left = torch.linalg.eigh(a)
        right = left
        sizes = values.abs()
    else:
        left, values, adjoint = torch.linalg.svd(a, full_matrices=False)
        right, sizes = adjoint.mH, values
    default = 0.0 if atol is not None and bool((atol > 0).any()) else max(m, n)
    absolute = a.new_zeros(()) if atol is None else atol
    relative = a.new_tensor(default * torch.finfo(a.dtype).eps) if rtol is None else rtol
    largest = sizes.amax(-1, keepdim=True)
    tolerance = torch.maximum(absolute.unsqueeze(-1), relative.unsqueeze(-1) * largest)
    inverses = torch.where(sizes > tolerance, values.reciprocal(), 0.0).to(a.dtype)
    return right * inverses.unsqueeze(-2) @ left.mH


def _row(name: str, function: Any, why: str) -> Row:
    return Row(f"aten.{name}.default", Verdict.ROUNDED, function, why)


_SUBSTITUTION: Final = "every quotient and multiply-add of the substitution"
_SOLVE: Final = "the LU factorization with partial pivoting and both substitutions"
_DET: Final = "the LU factorization with partial pivoting and the product of its pivots"

ROWS: tuple[Row, ...] = (
    _row("linalg_solve_triangular", solve_triangular, _SUBSTITUTION),
    _row("triangular_solve", triangular_solve, _SUBSTITUTION),
    _row("linalg_lu_solve", lu_solve, "both substitutions; rows are exchanged exactly"),
    _row("_linalg_solve_ex", solve_ex, _SOLVE),
    _row("linalg_inv_ex", inv_ex, _SOLVE),
    _row("_linalg_det", det, _DET),
    _row(
        "_linalg_slogdet",
        slogdet,
        "the LU factorization, the logarithms of its pivots (once each, from binary64), their sum",
    ),
    _row("cholesky_solve", cholesky_solve, _SUBSTITUTION + ", twice"),
    _row("_cholesky_solve_helper", cholesky_solve, _SUBSTITUTION + ", twice"),
    _row("cholesky_inverse", cholesky_inverse, "the inverse of the factor and its product"),
    _row(
        "linalg_lstsq",
        lstsq,
        "gels and gelsy at full rank: Householder reflections and a substitution; else one "
        "rounding of the binary64 result",
    ),
    Row(
        "aten.linalg_pinv.atol_rtol_tensor",
        Verdict.LOWERED,
        pinv,
        "torch composes it of a singular value decomposition and products",
    ),
)
