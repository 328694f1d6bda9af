"""Products and sums with sparse operands, stored as points (COO) or compressed (CSR, CSC).

Stock torch says which elements a sparse result stores; their values are computed here.
Stored elements are taken in their order: each is a product, then an addition to its target.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import torch

from fuzzytorch.ops.call import Call
from fuzzytorch.ops.pointwise import ADD, DIV, MUL
from fuzzytorch.table import Row, Verdict

PRODUCTS: Final = 2**22
"""Products of stored elements with rows that are held at a time."""


def _is_sparse(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.layout is not torch.strided


def _points(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices ``(sparse dimensions, n)`` and values ``(n, ...)`` in the order of storage."""
    points = x if x.layout is torch.sparse_coo else x.to_sparse_coo()
    return points._indices(), points._values()


def _keys(indices: torch.Tensor, shape: Any) -> torch.Tensor:
    """Positions in row-major order over the sparse dimensions."""
    keys = torch.zeros(indices.shape[1], dtype=torch.int64)
    for index, size in zip(indices, shape, strict=False):
        keys = keys * size + index
    return keys


def _filled(pattern: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """A sparse tensor with the stored elements of another and values of its own."""
    if pattern.layout is torch.sparse_coo:
        return torch.ops.aten._sparse_coo_tensor_unsafe(
            pattern._indices(),
            values.view(pattern._values().shape),
            pattern.shape,
            is_coalesced=pattern.is_coalesced(),
        )
    columns = pattern.layout is torch.sparse_csc
    return torch.sparse_compressed_tensor(
        pattern.ccol_indices() if columns else pattern.crow_indices(),
        pattern.row_indices() if columns else pattern.col_indices(),
        values.view(pattern.values().shape),
        pattern.shape,
        layout=pattern.layout,
        check_invariants=False,
    )


class _Targets:
    """The stored elements of a result that terms are added to, one after the other."""

    def __init__(self, call: Call, pattern: torch.Tensor) -> None:
        indices, values = _points(pattern)
        self._call = call
        self._pattern = pattern
        self._order: torch.Tensor
        self._sorted, self._order = _keys(indices, pattern.shape).sort()
        self._values = torch.zeros(values.shape[0], math.prod(values.shape[1:]), dtype=values.dtype)

    def add(self, keys: torch.Tensor, terms: torch.Tensor) -> None:
        place = self._order[torch.searchsorted(self._sorted, keys)]
        self._call.accumulate(place, terms.reshape(self._values[place].shape), self._values)

    def filled(self) -> torch.Tensor:
        return _filled(self._pattern, self._values)


def _scaled(call: Call, x: torch.Tensor, factor: Any) -> torch.Tensor:
    return x if factor == 1 else MUL(call, x, factor)


def _onto(
    call: Call, out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, alpha: Any = 1
) -> torch.Tensor:
    """``out += alpha * a @ b`` in place, ``a`` sparse, all ``(m, k)`` or ``(batch, m, k)``."""
    indices, values = _points(a)
    values = _scaled(call, values, alpha).unsqueeze(1)
    rows, columns = _keys(indices[:-1], a.shape), indices[-1]
    if a.dim() == 3:
        columns = indices[0] * b.shape[1] + columns
    flat = out.view(math.prod(out.shape[:-1]), out.shape[-1])
    source = b.reshape(math.prod(b.shape[:-1]), b.shape[-1])
    step = max(1, PRODUCTS // max(1, b.shape[-1]))
    for start in range(0, values.shape[0], step):
        part = slice(start, start + step)
        products = MUL(call, values[part], source[columns[part]])
        call.accumulate(rows[part], products, flat)
    return out


def _pairs(
    call: Call, a: torch.Tensor, b: torch.Tensor, alpha: Any = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of the terms of ``alpha * a @ b`` for two sparse matrices."""
    (rows, inner), values = _points(a)
    (starts, columns), others = _points(b)
    starts, order = starts.sort(stable=True)
    columns, others = columns[order], others[order]
    first = torch.searchsorted(starts, inner)
    count = torch.searchsorted(starts, inner, right=True) - first
    left = torch.arange(values.shape[0]).repeat_interleave(count)
    offset = torch.arange(left.shape[0]) - (count.cumsum(0) - count).repeat_interleave(count)
    right = first[left] + offset
    keys = rows[left] * b.shape[1] + columns[right]
    return keys, MUL(call, _scaled(call, values, alpha)[left], others[right])


def mm(call: Call, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``a @ b`` where one or both are sparse."""
    if _is_sparse(a) and _is_sparse(b):
        targets = _Targets(call, call.overload(a, b))
        targets.add(*_pairs(call, a, b))
        return targets.filled()
    if _is_sparse(a):
        return _onto(call, b.new_zeros(*a.shape[:-1], b.shape[-1]), a, b)
    turned = _onto(call, a.new_zeros(b.shape[1], a.shape[0]), _transposed(b), a.mT)
    # Stock torch returns the transpose for points, a copy for rows.
    return turned.mT if b.layout is torch.sparse_coo else turned.mT.contiguous()


def _transposed(x: torch.Tensor) -> torch.Tensor:
    indices, values = _points(x)
    return torch.ops.aten._sparse_coo_tensor_unsafe(
        indices.flip(0), values, (x.shape[1], x.shape[0])
    )


def mv(call: Call, a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return mm(call, a, x.unsqueeze(1)).squeeze(1)


def addmm(
    call: Call,
    summand: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    beta: Any = 1,
    alpha: Any = 1,
) -> torch.Tensor:
    """``beta * summand + alpha * a @ b``: products are added to the scaled summand in turn."""
    if _is_sparse(summand):
        if summand.layout is not torch.sparse_csr:
            # Of other layouts stock torch returns tensors whose indices do not fit its values.
            return NotImplemented
        targets = _Targets(call, call.overload(summand, a, b, beta=beta, alpha=alpha))
        if beta != 0:
            indices, values = _points(summand)
            targets.add(_keys(indices, summand.shape), _scaled(call, values, beta))
        targets.add(*_pairs(call, a, b, alpha))
        return targets.filled()
    out = a.new_zeros(a.shape[0], b.shape[1], layout=torch.strided, dtype=summand.dtype)
    if beta != 0:
        out.copy_(_scaled(call, summand, beta))
    if _is_sparse(a):
        return _onto(call, out, a, b, alpha)
    turned = out.mT.contiguous()
    return _onto(call, turned, _transposed(b), a.mT, alpha).mT.contiguous()


def addmv(
    call: Call,
    summand: torch.Tensor,
    a: torch.Tensor,
    x: torch.Tensor,
    *,
    beta: Any = 1,
    alpha: Any = 1,
) -> torch.Tensor:
    column = summand.expand(a.shape[0]).unsqueeze(1)
    return addmm(call, column, a, x.unsqueeze(1), beta=beta, alpha=alpha).squeeze(1)


def sampled_addmm(
    call: Call,
    pattern: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    beta: Any = 1,
    alpha: Any = 1,
) -> torch.Tensor:
    """``beta * pattern + alpha * (a @ b)`` at the stored elements: one dot product for each."""
    indices, values = _points(pattern)
    *batch, rows, columns = indices
    left = torch.ops.aten.index(a, [*batch, rows])
    right = torch.ops.aten.index(b.mT, [*batch, columns])
    products = _scaled(call, call.reduce("dot", left, [1], y=right), alpha)
    if beta != 0:
        products = ADD(call, _scaled(call, values, beta), products)
    return _filled(pattern, products)


def add(call: Call, x: Any, y: Any, *, alpha: Any = 1) -> torch.Tensor:
    """``x + alpha * y``; elements that only one of them stores are copied.

    Where stock torch would store some positions of the sum twice, it is coalesced here.

    Stock torch multiplies the sparse one of two by ``alpha``, whichever comes first.
    """
    if not _is_sparse(x) or not _is_sparse(y):
        dense, sparse = (y, x) if _is_sparse(x) else (x, y)
        out = dense.clone(memory_format=torch.contiguous_format)
        indices, values = _points(sparse)
        keys, inner = _keys(indices, sparse.shape), math.prod(values.shape[1:])
        terms = _scaled(call, values, alpha).reshape(-1, inner)
        call.accumulate(keys, terms, out.view(-1, inner))
        return out
    pattern = call.overload(x, y, alpha=alpha)
    (left, a), (right, b) = _points(x), _points(y)
    b = _scaled(call, b, alpha)
    if pattern.layout is torch.sparse_coo and not pattern.is_coalesced():
        if torch.equal(left, right) and pattern._nnz() == a.shape[0]:
            return _filled(pattern, ADD(call, a, b))
        if pattern._nnz() == a.shape[0] + b.shape[0]:
            return _filled(pattern, torch.cat([a, b]))
        pattern = torch.ops.aten._coalesce(pattern)
    targets = _Targets(call, pattern)
    targets.add(_keys(left, x.shape), a)
    targets.add(_keys(right, y.shape), b)
    return targets.filled()


def sub(call: Call, x: Any, y: Any, *, alpha: Any = 1) -> torch.Tensor:
    return _with(call, torch.ops.aten.add.Tensor, add, x, y, alpha=-alpha)


def _with(
    call: Call, overload: Any, function: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """A row that asks stock torch for the result of another overload."""
    inner = Call(overload, call.run_rounding, call.backend, call._next_stream, dtype=call.dtype)
    result = function(inner, *args, **kwargs)
    call.operations += inner.operations
    return result


def _values_at(call: Call, x: Any, indices: torch.Tensor, shape: Any) -> Any:
    """The values of an operand at indices."""
    if not isinstance(x, torch.Tensor) or x.dim() == 0:
        return x
    if not _is_sparse(x):
        return x.expand(shape)[tuple(indices)]
    own, values = _points(x)
    if torch.equal(own, indices):
        return values
    if x.layout is torch.sparse_coo and not x.is_coalesced():
        own, values = _points(coalesce(call, x))
    if own.shape[1] == 0:
        return values.new_zeros(indices.shape[1])
    keys, order = _keys(own, x.shape).sort()
    wanted = _keys(indices, shape)
    place = torch.searchsorted(keys, wanted).clamp_(max=keys.shape[0] - 1)
    # What an operand does not store is zero.
    return values[order[place]] * (keys[place] == wanted)


def mul(call: Call, x: Any, y: Any) -> torch.Tensor:
    """The products at the elements that the result stores."""
    pattern = call.overload(x, y)
    indices, _ = _points(pattern)
    # Of two operands that hold positions twice stock torch sums the second one first.
    if all(_is_sparse(z) and z.layout is torch.sparse_coo for z in (x, y)):
        y = y if y.is_coalesced() or x.is_coalesced() else coalesce(call, y)
    a, b = (_values_at(call, z, indices, pattern.shape) for z in (x, y))
    return _filled(pattern, MUL(call, a, b))


def div(call: Call, x: torch.Tensor, y: Any) -> torch.Tensor:
    """The stored elements divided by a number."""
    pattern = call.overload(x, y)
    return _filled(pattern, DIV(call, _points(x)[1], y))


def coalesce(call: Call, x: torch.Tensor) -> torch.Tensor:
    """The sums of the elements that are stored for one position."""
    pattern = torch.ops.aten._coalesce(x)
    indices, values = _points(x)
    targets = _Targets(call, pattern)
    targets.add(_keys(indices, x.shape), values)
    return targets.filled()


def mm_reduce(
    call: Call, a: torch.Tensor, b: torch.Tensor, reduce: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """``a @ b`` with a sum, a mean or an extreme of the products of a row of ``a``.

    The second result says which stored element gave an extreme; of none their number.
    """
    if reduce in ("sum", "mean"):
        arguments = call.overload(a, b, reduce)[1]
        out = mm(call, a, b)
        if reduce == "mean":
            out = DIV(call, out, a.crow_indices().diff().clamp(min=1).unsqueeze(1))
        return out, arguments
    (rows, columns), values = _points(a)
    products = MUL(call, values.unsqueeze(1), b[columns])
    place = rows.unsqueeze(1).expand(products.shape)
    out = b.new_zeros(a.shape[0], b.shape[1])
    out = out.scatter_reduce(0, place, products, reduce, include_self=False)
    stored = torch.arange(values.shape[0]).unsqueeze(1).expand(products.shape)
    stored = stored.masked_fill(products != out[rows], values.shape[0])
    none = torch.full(out.shape, values.shape[0], dtype=torch.int64)
    return out, none.scatter_reduce(0, place, stored, "amin")


def total(call: Call, x: torch.Tensor, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    return call.reduce("sum", _points(x)[1])


def _row(name: str, function: Callable[..., Any], why: str) -> Row:
    return Row(f"aten.{name}", Verdict.ROUNDED, function, f"sparse: {why}", operands="sparse")


_PRODUCT: Final = "every product of a stored element, every addition in their order"

ROWS: tuple[Row, ...] = (
    _row("mm.default", mm, _PRODUCT),
    _row("bmm.default", mm, _PRODUCT),
    _row("mv.default", mv, _PRODUCT),
    _row("_sparse_sparse_matmul.default", mm, _PRODUCT),
    _row("addmm.default", addmm, f"{_PRODUCT}, products with alpha and beta"),
    _row("_sparse_addmm.default", addmm, f"{_PRODUCT}, products with alpha and beta"),
    _row("addmv.default", addmv, f"{_PRODUCT}, products with alpha and beta"),
    _row("sparse_sampled_addmm.default", sampled_addmm, "every multiply-add of the dot products"),
    _row(
        "_sparse_mm_reduce_impl.default",
        mm_reduce,
        "every product and, but for an extreme, every addition; the quotient of a mean",
    ),
    _row("add.Tensor", add, "the product by alpha, the sums of elements that both store"),
    _row("sub.Tensor", sub, "the product by alpha, the sums of elements that both store"),
    _row("mul.Tensor", mul, "one product per stored element"),
    _row("mul.Scalar", mul, "one product per stored element"),
    _row("div.Tensor", div, "one quotient per stored element"),
    _row("div.Scalar", div, "one quotient per stored element"),
    _row("_coalesce.default", coalesce, "every addition of elements stored for one position"),
    _row("sum.default", total, "every addition of stored elements"),
)
