"""Factorizations of batches of matrices: Cholesky, LU with partial pivoting, Householder QR.

Algorithms are blocked as in LAPACK: columns of a panel one after the other, each a few
elementwise programs over the rest of the panel and the batch; the remaining matrix through
products.  Comparisons, which choose pivots, are not perturbed.  Matrices are ``(batch, m, n)``,
real or complex.
"""

from __future__ import annotations

import math
from typing import Final

import torch

from fuzzytorch.ops.call import Call
from fuzzytorch.ops.formula import Formula
from fuzzytorch.ops.layout import measured_layouts, placed, stock_layouts
from fuzzytorch.ops.matrix_steps import (
    batch_of,
    components,
    conjugate_transpose,
    copied,
    divide,
    eliminate,
    product,
    rows,
    scaled,
    sizes,
    squares,
    subtract_product,
    widened,
)
from fuzzytorch.ops.pointwise import DIV, SQRT, SUB
from fuzzytorch.table import Row

REFLECTOR: Final = Formula(lambda alpha, beta: (beta - alpha) / beta)

BLOCK: Final = 8
"""Columns of a panel: the deviations of Cholesky and substitution are then those of stock torch."""


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
        subtract_product(call, panel, done[:, start:], done[:, start:stop].mH)
        for j in range(start, stop):
            pivot, *imaginary = components(work[:, j, j]).unbind(-1)
            _first(info, ~(pivot > 0), j)
            SQRT(call, pivot, out=pivot)
            for part in imaginary:
                part.zero_()
            if j + 1 < n:
                column = work[:, j + 1 :, j]
                divide(call, column, pivot.unsqueeze(1))
                row = column[:, : stop - j - 1].conj()
                eliminate(call, work[:, j + 1 :, j + 1 : stop], column, row)
    return work.tril_(), info


def substitute(
    call: Call, a: torch.Tensor, b: torch.Tensor, *, upper: bool, unit: bool = False
) -> torch.Tensor:
    """Solves with the lower (or upper) triangles of ``a`` ``(B, n, n)`` for ``b`` ``(B, n, k)``."""
    if upper:
        flipped = substitute(call, a.flip(-2, -1), b.flip(-2), upper=False, unit=unit)
        return flipped.flip(-2)
    x = copied(b)
    _substitute(call, a, x, unit)
    return x


def _substitute(call: Call, a: torch.Tensor, x: torch.Tensor, unit: bool) -> None:
    for start, stop in blocks(a.shape[-1]):
        subtract_product(call, x[:, start:stop], a[:, start:stop, :start], x[:, :start])
        for j in range(start, stop):
            row = x[:, j]
            if not unit:
                divide(call, row, a[:, j, j].unsqueeze(1))
            eliminate(call, x[:, j + 1 : stop], a[:, j + 1 : stop, j], row)


def lu(
    call: Call, a: torch.Tensor, pivot: bool = True
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Both factors in one matrix, the rows exchanged (from one), the first zero pivot (else 0)."""
    work = copied(a)
    batch, m, n = work.shape
    k = min(m, n)
    pivots = torch.arange(1, k + 1, dtype=torch.int32).repeat(batch, 1)
    info = torch.zeros(batch, dtype=torch.int32)
    every = torch.arange(batch)
    for start, stop in blocks(k):
        for j in range(start, stop):
            if pivot:
                _exchange(work, pivots, every, j)
            largest = work[:, j, j]
            _first(info, largest == 0, j)
            if j + 1 < m:
                divisor = torch.where(largest == 0, 1.0, largest).unsqueeze(1)
                column = work[:, j + 1 :, j]
                divide(call, column, divisor)
                eliminate(call, work[:, j + 1 :, j + 1 : stop], column, work[:, j, j + 1 : stop])
        if stop < n:
            _substitute(call, work[:, start:stop, start:stop], work[:, start:stop, stop:], True)
            left, right = work[:, stop:, start:stop], work[:, start:stop, stop:]
            subtract_product(call, work[:, stop:, stop:], left, right)
    return work, pivots, info


def _exchange(work: torch.Tensor, pivots: torch.Tensor, every: torch.Tensor, j: int) -> None:
    """Brings the row with the largest element of column ``j`` to row ``j`` of every matrix."""
    chosen = sizes(work[:, j:, j]).argmax(1) + j
    pivots[:, j] = chosen + 1
    row = work[:, j].clone()
    work[:, j] = work[every, chosen]
    work[every, chosen] = row


def permutation(pivots: torch.Tensor, m: int) -> torch.Tensor:
    """The order of rows ``(B, m)`` after the exchanges ``(B, k)``: row ``i`` was row ``p[i]``."""
    orders = []
    for exchanges in pivots.tolist():
        order = list(range(m))
        for j, chosen in enumerate(exchanges):
            order[j], order[chosen - 1] = order[chosen - 1], order[j]
        orders.append(order)
    return torch.tensor(orders, dtype=torch.int64).view(pivots.shape[0], m)


def householder(call: Call, a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """R in the upper triangle and reflectors below it, and their factors ``(B, min(m, n))``.

    The diagonal of R is real, as LAPACK has it.  MKL leaves the last element complex in large
    complex matrices that are not tall; that row of R then differs from stock torch by a phase.
    """
    work = copied(a)
    batch, m, n = work.shape
    tau = work.new_zeros(batch, min(m, n))
    for start, stop in blocks(min(m, n)):
        for j in range(start, stop):
            _triangularize(call, work, tau, j, stop)
        if stop < n:
            rest = work[:, start:, stop:]
            v = reflectors(work, start, stop)
            _apply_block(call, v, triangle(call, v, tau[:, start:stop]).mH, rest)
    return work, tau


def pivoted_householder(
    call: Call, a: torch.Tensor, columns: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The first columns of R and their reflectors, the largest remaining column first.

    Norms of columns, which choose it, are computed in binary64 and not perturbed.

    Args:
        a: one matrix ``(1, m, n)``.

    Returns:
        R and reflectors; their factors ``(1, columns)``; the order of the columns ``(n,)``.
    """
    work = copied(a)
    tau = work.new_zeros(1, columns)
    order = torch.arange(a.shape[-1])
    for j in range(columns):
        rest = work[0, j:, j:]
        chosen = j + int(torch.linalg.vector_norm(widened(rest), dim=0).argmax())
        exchanged = torch.tensor([j, chosen]), torch.tensor([chosen, j])
        work[..., exchanged[0]] = work[..., exchanged[1]]
        order[exchanged[0]] = order[exchanged[1]]
        _triangularize(call, work, tau, j, a.shape[-1])
    return work, tau, order


def _triangularize(call: Call, work: torch.Tensor, tau: torch.Tensor, j: int, stop: int) -> None:
    """Chooses the reflector of column ``j`` and applies it to the columns up to ``stop``."""
    v = _reflect(call, work, tau, j)
    rest = work[:, j:, j + 1 : stop]
    if rest.numel() > 0:
        sums = product(call, v.conj().unsqueeze(1), rest)[:, 0]
        eliminate(call, rest, v, scaled(call, sums, tau[:, j : j + 1].conj()))


def _reflect(call: Call, work: torch.Tensor, tau: torch.Tensor, j: int) -> torch.Tensor:
    """Chooses the reflector of column ``j``, stores it there, and returns it with its 1.

    Its adjoint makes the first element real and the others zero; where they are, it is 1.
    """
    column = work[:, j:, j]
    below, alpha = column[:, 1:], column[:, 0].clone()
    real, *imaginary = components(alpha).unbind(-1)
    if below.shape[1] > 0 or imaginary:
        nothing = (components(column).flatten(1)[:, 1:] == 0).all(1)
        length = SQRT(call, squares(call, column))
        beta = torch.where(nothing, real, -length.copysign(real))
        factor, *others = components(tau[:, j]).unbind(-1)
        factor.copy_(torch.where(nothing, 0.0, REFLECTOR(call, real, beta)))
        for part, y in zip(imaginary, others, strict=True):
            y.copy_(torch.where(nothing, 0.0, -DIV(call, part, beta)))
        SUB(call, real, beta, out=real)
        divide(call, below, torch.where(nothing, 1.0, alpha).unsqueeze(1))
        column[:, 0] = beta
    return torch.cat([torch.ones_like(alpha).unsqueeze(1), below], 1)


def reflectors(a: torch.Tensor, start: int, stop: int) -> torch.Tensor:
    """Columns ``start`` to ``stop`` from row ``start`` on, with the ones and zeros above."""
    v = a[:, start:, start:stop].tril(-1)
    v.diagonal(dim1=-2, dim2=-1).fill_(1.0)
    return v


def triangle(call: Call, v: torch.Tensor, tau: torch.Tensor) -> torch.Tensor:
    """The upper triangle T with ``I - V T V^H`` = the product of the reflectors."""
    k = v.shape[-1]
    t = torch.diag_embed(tau)
    products = product(call, v.mH, v) if k > 1 else None
    for i in range(1, k):
        assert products is not None
        sums = product(call, t[:, :i, :i], products[:, :i, i : i + 1])[..., 0]
        t[:, :i, i] = -scaled(call, sums, tau[:, i : i + 1])
    return t


def _apply_block(call: Call, v: torch.Tensor, t: torch.Tensor, c: torch.Tensor) -> None:
    """``c -= V T V^H c`` in place."""
    if c.numel() > 0:
        subtract_product(call, c, v, product(call, t, product(call, v.mH, c)))


def multiply(
    call: Call, a: torch.Tensor, tau: torch.Tensor, c: torch.Tensor, transpose: bool
) -> torch.Tensor:
    """``Q c``, or ``Q^H c``, for the reflectors in ``a`` and ``c`` ``(B, m, k)``."""
    c = copied(c)
    order = blocks(tau.shape[-1])
    for start, stop in order if transpose else reversed(order):
        v = reflectors(a, start, stop)
        t = triangle(call, v, tau[:, start:stop])
        _apply_block(call, v, t.mH if transpose else t, c[:, start:])
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
    factor, info = cholesky(call, batch_of(conjugate_transpose(a) if upper else a))
    info = info.view(a.shape[:-2])
    if check_errors:
        torch._linalg_check_errors(info, "torch.linalg.cholesky_ex", is_matrix=a.dim() == 2)
    factor = (conjugate_transpose(factor) if upper else factor).reshape(a.shape)
    return placed(factor, layouts[0]), placed(info, layouts[1])


def cholesky_plain(call: Call, a: torch.Tensor, upper: bool = False) -> torch.Tensor:
    factor, info = cholesky(call, batch_of(conjugate_transpose(a) if upper else a))
    info = info.view(a.shape[:-2])
    torch._linalg_check_errors(info, "cholesky", is_matrix=a.dim() == 2)
    factor = (conjugate_transpose(factor) if upper else factor).reshape(a.shape)
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
    c = batch_of(other if left else conjugate_transpose(other))
    y = multiply(call, batch_of(a), factors, c, transpose if left else not transpose)
    return placed((y if left else conjugate_transpose(y)).reshape(other.shape), layout)


_CHOLESKY: Final = "every root, quotient and multiply-add; a pivot that is not positive is reported"
_LU: Final = "every quotient and multiply-add; sizes of pivots are compared unperturbed"
_QR: Final = "every norm, quotient and multiply-add of the reflectors and their products"

ROWS: tuple[Row, ...] = (
    *rows("linalg_cholesky_ex", cholesky_ex, _CHOLESKY),
    *rows("cholesky", cholesky_plain, _CHOLESKY),
    *rows("linalg_lu_factor_ex", lu_factor_ex, _LU),
    *rows("linalg_lu", linalg_lu, _LU),
    *rows("linalg_qr", qr, _QR),
    *rows("geqrf", geqrf, _QR),
    *rows("linalg_householder_product", householder_product, _QR),
    *rows("ormqr", ormqr, _QR),
)
