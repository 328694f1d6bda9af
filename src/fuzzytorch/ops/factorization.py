"""Factorizations of batches of matrices: Cholesky, LU with partial pivoting, Householder QR.

Algorithms are blocked as in LAPACK: columns of a panel one after the other, each a few
elementwise programs over the rest of the panel and the batch; the remaining matrix through
products.  Comparisons, which choose pivots, are exact.  Matrices are ``(batch, m, n)``.
"""

from __future__ import annotations

import math
from typing import Any, Final

import torch

from fuzzytorch.ops.call import Call
from fuzzytorch.ops.formula import Formula, fma
from fuzzytorch.ops.layout import measured_layouts, placed, stock_layouts
from fuzzytorch.ops.pointwise import DIV, MUL, SQRT, SUB
from fuzzytorch.table import Row, Verdict

BLOCK: Final = 8
"""Columns of a panel: the deviations of Cholesky and substitution are then those of stock torch."""

UPDATE: Final = Formula(lambda a, b, c: fma(-a, b, c))
REFLECTOR: Final = Formula(lambda alpha, beta: (beta - alpha) / beta)
COEFFICIENT: Final = Formula(lambda tau, sum: -(tau * sum))


def batch_of(a: torch.Tensor) -> torch.Tensor:
    """A tensor of matrices with one dimension for the batch."""
    return a.reshape(math.prod(a.shape[:-2]), *a.shape[-2:])


def eliminate(call: Call, a: torch.Tensor, column: torch.Tensor, row: torch.Tensor) -> None:
    """``a -= column @ row`` in place, ``(B, m, n)``, ``(B, m)``, ``(B, n)``: all ``fma``."""
    if a.numel() > 0:
        UPDATE(call, column.unsqueeze(2), row.unsqueeze(1), a, out=a)


def subtract_product(call: Call, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
    """``a -= b @ c`` in place: the product is accumulated from zero."""
    if a.numel() > 0 and b.shape[-1] > 0:
        SUB(call, a, call.gemm(b, c), out=a)


def blocks(n: int) -> list[tuple[int, int]]:
    """Where the panels of ``n`` columns begin and end."""
    return [(j, min(j + BLOCK, n)) for j in range(0, n, BLOCK)]


def _first(info: torch.Tensor, failed: torch.Tensor, j: int) -> None:
    """Records column ``j`` (counted from one) where none failed before."""
    info.masked_fill_(failed & (info == 0), j + 1)


def cholesky(call: Call, a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The lower factor of the lower triangles, and where it failed first (else 0).

    A failed matrix holds NaN from there on.
    """
    work = a.tril()
    n = work.shape[-1]
    info = torch.zeros(work.shape[0], dtype=torch.int32)
    for start, stop in blocks(n):
        panel, done = work[:, start:, start:stop], work[:, :, :start]
        subtract_product(call, panel, done[:, start:], done[:, start:stop].mT)
        for j in range(start, stop):
            pivot = work[:, j, j]
            _first(info, ~(pivot > 0), j)
            SQRT(call, pivot, out=pivot)
            if j + 1 < n:
                column = work[:, j + 1 :, j]
                DIV(call, column, pivot.unsqueeze(1), out=column)
                eliminate(call, work[:, j + 1 :, j + 1 : stop], column, column[:, : stop - j - 1])
    return work.tril_(), info


def substitute(
    call: Call, a: torch.Tensor, b: torch.Tensor, *, upper: bool, unit: bool = False
) -> torch.Tensor:
    """Solves with the lower (or upper) triangles of ``a`` ``(B, n, n)`` for ``b`` ``(B, n, k)``."""
    if upper:
        flipped = substitute(call, a.flip(-2, -1), b.flip(-2), upper=False, unit=unit)
        return flipped.flip(-2)
    x = b.clone(memory_format=torch.contiguous_format)
    _substitute(call, a, x, unit)
    return x


def _substitute(call: Call, a: torch.Tensor, x: torch.Tensor, unit: bool) -> None:
    for start, stop in blocks(a.shape[-1]):
        subtract_product(call, x[:, start:stop], a[:, start:stop, :start], x[:, :start])
        for j in range(start, stop):
            row = x[:, j]
            if not unit:
                DIV(call, row, a[:, j, j].unsqueeze(1), out=row)
            eliminate(call, x[:, j + 1 : stop], a[:, j + 1 : stop, j], row)


def lu(
    call: Call, a: torch.Tensor, pivot: bool = True
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Both factors in one matrix, the rows exchanged (from one), the first zero pivot (else 0)."""
    work = a.clone(memory_format=torch.contiguous_format)
    batch, m, n = work.shape
    k = min(m, n)
    pivots = torch.arange(1, k + 1, dtype=torch.int32).repeat(batch, 1)
    info = torch.zeros(batch, dtype=torch.int32)
    for start, stop in blocks(k):
        for j in range(start, stop):
            if pivot:
                _exchange(work, pivots, j)
            largest = work[:, j, j]
            _first(info, largest == 0, j)
            if j + 1 < m:
                divisor = torch.where(largest == 0, 1.0, largest).unsqueeze(1)
                column = work[:, j + 1 :, j]
                DIV(call, column, divisor, out=column)
                eliminate(call, work[:, j + 1 :, j + 1 : stop], column, work[:, j, j + 1 : stop])
        if stop < n:
            _substitute(call, work[:, start:stop, start:stop], work[:, start:stop, stop:], True)
            left, right = work[:, stop:, start:stop], work[:, start:stop, stop:]
            subtract_product(call, work[:, stop:, stop:], left, right)
    return work, pivots, info


def _exchange(work: torch.Tensor, pivots: torch.Tensor, j: int) -> None:
    """Brings the row with the largest element of column ``j`` to row ``j``."""
    chosen = work[:, j:, j].abs().argmax(1) + j
    pivots[:, j] = chosen + 1
    every = torch.arange(work.shape[0])
    row = work[:, j].clone()
    work[:, j] = work[every, chosen]
    work[every, chosen] = row


def permutation(pivots: torch.Tensor, m: int) -> torch.Tensor:
    """The order of rows ``(B, m)`` after the exchanges ``(B, k)``: row ``i`` was row ``p[i]``."""
    order = torch.arange(m).repeat(pivots.shape[0], 1)
    every = torch.arange(pivots.shape[0])
    for j in range(pivots.shape[1]):
        chosen = pivots[:, j].long() - 1
        row = order[:, j].clone()
        order[:, j] = order[every, chosen]
        order[every, chosen] = row
    return order


def householder(call: Call, a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """R in the upper triangle and reflectors below it, and their factors ``(B, min(m, n))``."""
    work = a.clone(memory_format=torch.contiguous_format)
    batch, m, n = work.shape
    tau = work.new_zeros(batch, min(m, n))
    for start, stop in blocks(min(m, n)):
        for j in range(start, min(stop, m - 1)):
            v = _reflect(call, work, tau, j)
            rest = work[:, j:, j + 1 : stop]
            if rest.numel() > 0:
                sums = MUL(call, call.gemm(v.unsqueeze(1), rest)[:, 0], tau[:, j : j + 1])
                eliminate(call, rest, v, sums)
        if stop < n:
            rest = work[:, start:, stop:]
            v = reflectors(work, start, stop)
            _apply_block(call, v, triangle(call, v, tau[:, start:stop]).mT, rest)
    return work, tau


def _reflect(call: Call, work: torch.Tensor, tau: torch.Tensor, j: int) -> torch.Tensor:
    """Chooses the reflector of column ``j``, stores it there, and returns it with its 1."""
    column = work[:, j:, j]
    below, alpha = column[:, 1:], column[:, 0].clone()
    nothing = (below == 0).all(1)
    length = SQRT(call, call.reduce("sum_squares", column, [1]))
    beta = torch.where(nothing, alpha, -length.copysign(alpha))
    scale = torch.where(nothing, 1.0, SUB(call, alpha, beta))
    tau[:, j] = torch.where(nothing, 0.0, REFLECTOR(call, alpha, beta))
    DIV(call, below, scale.unsqueeze(1), out=below)
    column[:, 0] = beta
    return torch.cat([torch.ones_like(beta).unsqueeze(1), below], 1)


def reflectors(a: torch.Tensor, start: int, stop: int) -> torch.Tensor:
    """Columns ``start`` to ``stop`` from row ``start`` on, with the ones and zeros above."""
    v = a[:, start:, start:stop].tril(-1)
    v.diagonal(dim1=-2, dim2=-1).fill_(1.0)
    return v


def triangle(call: Call, v: torch.Tensor, tau: torch.Tensor) -> torch.Tensor:
    """The upper triangle T with ``I - V T V^T`` = the product of the reflectors."""
    k = v.shape[-1]
    t = torch.diag_embed(tau)
    products = call.gemm(v.mT, v) if k > 1 else None
    for i in range(1, k):
        assert products is not None
        sums = call.gemm(t[:, :i, :i], products[:, :i, i : i + 1])[..., 0]
        t[:, :i, i] = COEFFICIENT(call, tau[:, i : i + 1], sums)
    return t


def _apply_block(call: Call, v: torch.Tensor, t: torch.Tensor, c: torch.Tensor) -> None:
    """``c -= V T V^T c`` in place."""
    if c.numel() > 0:
        subtract_product(call, c, v, call.gemm(t, call.gemm(v.mT, c)))


def multiply(
    call: Call, a: torch.Tensor, tau: torch.Tensor, c: torch.Tensor, transpose: bool
) -> torch.Tensor:
    """``Q c``, or ``Q^T c``, for the reflectors in ``a`` and ``c`` ``(B, m, k)``."""
    c = c.clone(memory_format=torch.contiguous_format)
    order = blocks(tau.shape[-1])
    for start, stop in order if transpose else reversed(order):
        v = reflectors(a, start, stop)
        t = triangle(call, v, tau[:, start:stop])
        _apply_block(call, v, t.mT if transpose else t, c[:, start:])
    return c


def orthogonal(call: Call, a: torch.Tensor, tau: torch.Tensor, columns: int) -> torch.Tensor:
    """The first columns of Q ``(B, m, columns)``; those before a block are still unit vectors."""
    batch, m, _ = a.shape
    q = torch.eye(m, columns, dtype=a.dtype).repeat(batch, 1, 1)
    for start, stop in reversed(blocks(tau.shape[-1])):
        v = reflectors(a, start, stop)
        _apply_block(call, v, triangle(call, v, tau[:, start:stop]), q[:, start:, start:])
    return q


def cholesky_ex(
    call: Call, a: torch.Tensor, *, upper: bool = False, check_errors: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    layouts = stock_layouts(call.overload, a, upper=upper)
    factor, info = cholesky(call, batch_of(a.mT if upper else a))
    info = info.view(a.shape[:-2])
    if check_errors:
        torch._linalg_check_errors(info, "torch.linalg.cholesky_ex", is_matrix=a.dim() == 2)
    factor = (factor.mT if upper else factor).reshape(a.shape)
    return placed(factor, layouts[0]), placed(info, layouts[1])


def cholesky_plain(call: Call, a: torch.Tensor, upper: bool = False) -> torch.Tensor:
    factor, info = cholesky(call, batch_of(a.mT if upper else a))
    info = info.view(a.shape[:-2])
    torch._linalg_check_errors(info, "cholesky", is_matrix=a.dim() == 2)
    factor = (factor.mT if upper else factor).reshape(a.shape)
    return placed(factor, stock_layouts(call.overload, a, upper)[0])


def lu_factor_ex(
    call: Call, a: torch.Tensor, *, pivot: bool = True, check_errors: bool = False
) -> tuple[torch.Tensor, ...]:
    layouts = stock_layouts(call.overload, a, pivot=pivot)
    factors, pivots, info = lu(call, batch_of(a), pivot)
    info = info.view(a.shape[:-2])
    if check_errors:
        torch._linalg_check_errors(info, "torch.linalg.lu_factor_ex", is_matrix=a.dim() == 2)
    results = (factors.view(a.shape), pivots.view(*a.shape[:-2], min(a.shape[-2:])), info)
    return tuple(placed(y, layout) for y, layout in zip(results, layouts, strict=True))


def linalg_lu(call: Call, a: torch.Tensor, *, pivot: bool = True) -> tuple[torch.Tensor, ...]:
    layouts = stock_layouts(call.overload, a, pivot=pivot)
    factors, pivots, _ = lu(call, batch_of(a), pivot)
    results = torch.ops.aten.lu_unpack(
        factors.view(a.shape), pivots.view(*a.shape[:-2], min(a.shape[-2:])), True, pivot
    )
    return tuple(placed(y, layout) for y, layout in zip(results, layouts, strict=True))


def geqrf(call: Call, a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    layouts = measured_layouts(call.overload, a)
    work, tau = householder(call, batch_of(a))
    return (
        placed(work.view(a.shape), layouts[0]),
        placed(tau.view(layouts[1][0]), layouts[1]),
    )


def qr(call: Call, a: torch.Tensor, mode: str = "reduced") -> tuple[torch.Tensor, torch.Tensor]:
    layouts = stock_layouts(call.overload, a, mode)
    work, tau = householder(call, batch_of(a))
    m = a.shape[-2]
    columns = m if mode == "complete" else tau.shape[-1]
    r = work[:, :columns].triu().view(layouts[1][0])
    q = a.new_empty(0) if mode == "r" else orthogonal(call, work, tau, columns)
    return placed(q.view(layouts[0][0]), layouts[0]), placed(r, layouts[1])


def householder_product(call: Call, a: torch.Tensor, tau: torch.Tensor) -> torch.Tensor:
    (layout,) = stock_layouts(call.overload, a, tau)
    factors = tau.reshape(math.prod(a.shape[:-2]), tau.shape[-1])
    q = orthogonal(call, batch_of(a), factors, a.shape[-1])
    return placed(q.view(a.shape), layout)


def ormqr(
    call: Call,
    a: torch.Tensor,
    tau: torch.Tensor,
    other: torch.Tensor,
    left: bool = True,
    transpose: bool = False,
) -> torch.Tensor:
    (layout,) = stock_layouts(call.overload, a, tau, other, left, transpose)
    factors = tau.reshape(math.prod(a.shape[:-2]), tau.shape[-1])
    c = batch_of(other if left else other.mT)
    y = multiply(call, batch_of(a), factors, c, transpose if left else not transpose)
    return placed((y if left else y.mT).reshape(other.shape), layout)


def _row(name: str, function: Any, why: str) -> Row:
    return Row(f"aten.{name}.default", Verdict.ROUNDED, function, why)


_CHOLESKY: Final = "every root, quotient and multiply-add; a pivot that is not positive is reported"
_LU: Final = "every quotient and multiply-add; pivots are compared exactly"
_QR: Final = "every norm, quotient and multiply-add of the reflectors and their products"

ROWS: tuple[Row, ...] = (
    _row("linalg_cholesky_ex", cholesky_ex, _CHOLESKY),
    _row("cholesky", cholesky_plain, _CHOLESKY),
    _row("linalg_lu_factor_ex", lu_factor_ex, _LU),
    _row("linalg_lu", linalg_lu, _LU),
    _row("linalg_qr", qr, _QR),
    _row("geqrf", geqrf, _QR),
    _row("linalg_householder_product", householder_product, _QR),
    _row("ormqr", ormqr, _QR),
)
