"""Symmetric and Hermitian indefinite matrices: the factorization of Bunch and Kaufman, its use.

Column by column as in LAPACK's unblocked ``sytf2`` and ``hetf2`` for lower triangles, with pivots
of one or two columns.  The choice of a pivot depends on the numbers, so that the matrices of a
batch follow one another.  Comparisons are not perturbed.
"""

from __future__ import annotations

import math
from typing import Final

import torch

from fuzzytorch.ops.call import Call
from fuzzytorch.ops.layout import placed, stock_layouts
from fuzzytorch.ops.matrix_steps import (
    batch_of,
    broadcast,
    copied,
    divide,
    eliminate,
    make_real,
    rows,
    sizes,
    subtract_product,
)
from fuzzytorch.table import Row

_ALPHA: Final = (1 + math.sqrt(17)) / 8
"""How small a pivot may be beside the other elements: the growth of one and two steps agrees."""


def _pivot(a: torch.Tensor, k: int) -> tuple[int, int]:
    """The row to exchange and the columns to eliminate; 0 where the column is zero or NaN.

    Args:
        a: the lower triangle ``(n, n)`` of what is left of the matrix from column ``k`` on.
    """
    size = sizes(a[k:, k])
    diagonal = size[0].item()
    below = size[1:].max().item() if len(size) > 1 else 0.0
    if max(diagonal, below) == 0 or math.isnan(diagonal):
        return k, 0
    if diagonal >= _ALPHA * below:
        return k, 1
    row = k + 1 + int(size[1:].argmax())
    others = torch.cat([sizes(a[row, k:row]), sizes(a[row + 1 :, row])]).max().item()
    if diagonal >= _ALPHA * below * (below / others):
        return k, 1
    return (row, 1) if sizes(a[row, row]).item() >= _ALPHA * others else (row, 2)


def _exchange(a: torch.Tensor, k: int, steps: int, row: int, hermitian: bool) -> None:
    """Exchanges two rows and columns of what is left, in the lower triangle."""
    last = k + steps - 1
    if row == last:
        return
    _swap(a[row + 1 :, last], a[row + 1 :, row])
    _swap(a[last + 1 : row, last], a[row, last + 1 : row])
    _swap(a[last, last], a[row, row])
    if steps == 2:
        _swap(a[last, k], a[row, k])
    if hermitian:
        for turned in (a[last + 1 : row, last], a[row, last + 1 : row], a[row, last]):
            turned.copy_(turned.conj().resolve_conj())


def _swap(x: torch.Tensor, y: torch.Tensor) -> None:
    kept = x.clone()
    x.copy_(y)
    y.copy_(kept)


def _solve_pair(
    call: Call, block: torch.Tensor, x: torch.Tensor, y: torch.Tensor, hermitian: bool
) -> None:
    """Solves ``[[a, s'], [s, c]] [x, y] = [x, y]`` in place, ``(1, k)``; only ``s`` is stored.

    Everything is divided by ``s`` first, which exceeds ``a`` and ``c``: the determinant
    ``1 - ac / s s'`` does not cancel.
    """
    s = block[1:, 0]
    turned = s.conj().resolve_conj() if hermitian else s
    p, q = block[1:, 1].clone(), block[:1, 0].clone()
    for value, divisor in ((x, turned), (y, s), (p, s), (q, turned)):
        divide(call, value, divisor)
    one = torch.ones_like(p).view(1, 1, 1)
    eliminate(call, one, p.unsqueeze(0), q.unsqueeze(0))
    first = y.clone()
    eliminate(call, first.unsqueeze(2), x, p.unsqueeze(0))
    eliminate(call, x.unsqueeze(2), y, q.unsqueeze(0))
    divide(call, first, one[0])
    divide(call, x, one[0])
    y.copy_(x)
    x.copy_(first)


def _factor(call: Call, a: torch.Tensor, hermitian: bool) -> tuple[list[int], int]:
    """Factorizes the lower triangle ``(n, n)`` in place: exchanges, and where it failed first."""
    n = a.shape[-1]
    pivots: list[int] = []
    info = 0
    while (k := len(pivots)) < n:
        row, steps = _pivot(a, k)
        if steps == 0:
            info = info or k + 1
            pivots.append(k + 1)
            continue
        _exchange(a, k, steps, row, hermitian)
        pivots += [row + 1] if steps == 1 else [-row - 1] * 2
        columns = a[k + steps :, k : k + steps].mT.unsqueeze(1)
        divided = columns.clone()
        if steps == 1:
            divide(call, divided, a[k, k].view(1, 1, 1))
        else:
            block = a[k : k + 2, k : k + 2]
            # A row times the inverse of the block is the inverse of its transpose times a column.
            turned = block.mH.mT.resolve_conj() if hermitian else block
            x, y = divided
            _solve_pair(call, turned, x, y, hermitian)
        rest = a[k + steps :, k + steps :].unsqueeze(0)
        for column, factor in zip(columns, divided, strict=True):
            eliminate(call, rest, column, factor.conj() if hermitian else factor)
        if hermitian:
            make_real(rest)
        columns.copy_(divided)
    return pivots, info


def factor_ex(
    call: Call, a: torch.Tensor, *, hermitian: bool = False, check_errors: bool = False
) -> tuple[torch.Tensor, ...]:
    """The factors in a lower triangle, exchanges as LAPACK writes them, zero pivots."""
    layouts = stock_layouts(call.overload, a, hermitian=hermitian)
    hermitian = hermitian and a.is_complex()
    work = batch_of(a).tril()
    if hermitian:
        make_real(work)
    found = [_factor(call, matrix, hermitian) for matrix in work]
    pivots = torch.tensor([p for p, _ in found], dtype=torch.int32).view(a.shape[:-1])
    info = torch.tensor([i for _, i in found], dtype=torch.int32).view(a.shape[:-2])
    if check_errors:
        torch._linalg_check_errors(info, "torch.linalg.ldl_factor_ex", is_matrix=a.dim() == 2)
    results = (work.tril_().view(a.shape), pivots, info)
    return tuple(placed(y, layout) for y, layout in zip(results, layouts, strict=True))


def _solve(
    call: Call, a: torch.Tensor, pivots: list[int], x: torch.Tensor, hermitian: bool
) -> None:
    """Solves for the right-hand sides ``(n, k)`` in place."""
    n = a.shape[-1]
    starts = []
    k = 0
    while k < n:
        starts.append(k)
        last = k if pivots[k] > 0 else k + 1
        _swap_rows(x, last, abs(pivots[k]) - 1)
        for j in range(k, last + 1):
            eliminate(call, x[None, last + 1 :], a[None, last + 1 :, j], x[None, j])
        if last == k:
            divide(call, x[k], a[k, k])
        else:
            _solve_pair(call, a[k : k + 2, k : k + 2], x[k : k + 1], x[k + 1 : k + 2], hermitian)
        k = last + 1
    for k in reversed(starts):
        last = k if pivots[k] > 0 else k + 1
        left = a[last + 1 :, k : last + 1]
        subtract_product(
            call,
            x[None, k : last + 1],
            (left.mH if hermitian else left.mT).unsqueeze(0),
            x[None, last + 1 :],
        )
        _swap_rows(x, last, abs(pivots[k]) - 1)


def _swap_rows(x: torch.Tensor, i: int, j: int) -> None:
    if i != j:
        _swap(x[i], x[j])


def solve(
    call: Call,
    factors: torch.Tensor,
    pivots: torch.Tensor,
    b: torch.Tensor,
    *,
    hermitian: bool = False,
) -> torch.Tensor:
    (layout,) = stock_layouts(call.overload, factors, pivots, b, hermitian=hermitian)
    hermitian = hermitian and factors.is_complex()
    a3, x, batch = broadcast(factors.resolve_conj(), b)
    x = copied(x)
    exchanges = pivots.expand(*batch, pivots.shape[-1]).reshape(len(x), pivots.shape[-1])
    for matrix, order, right in zip(a3, exchanges.tolist(), x, strict=True):
        _solve(call, matrix, order, right, hermitian)
    return placed(x.view(layout[0]), layout)


_WHY: Final = "every quotient and multiply-add; sizes of pivots are compared unperturbed"

ROWS: tuple[Row, ...] = (
    *rows("linalg_ldl_factor_ex", factor_ex, _WHY),
    *rows("linalg_ldl_solve", solve, "both substitutions and the blocks of one or two pivots"),
)
