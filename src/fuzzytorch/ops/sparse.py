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
from fuzzytorch.ops.stored import (
    Targets,
    accumulate,
    dots,
    filled,
    is_sparse,
    plus,
    points,
    positions,
    product,
    quotient,
    scaled,
    sparse_row,
    sum_of,
)
from fuzzytorch.table import Row

PRODUCTS: Final = 2**22
"""Products of stored elements with rows that are held at a time."""


def _onto(
    call: Call, out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, alpha: Any = 1
) -> torch.Tensor:
    """``out += alpha * a @ b`` in place, ``a`` sparse, all ``(m, k)`` or ``(batch, m, k)``."""
    indices, values = points(a)
    values = scaled(call, values, alpha).unsqueeze(1)
    rows, columns = positions(indices[:-1], a.shape), indices[-1]
    if a.dim() == 3:
        columns = indices[0] * b.shape[1] + columns
    flat = out.view(math.prod(out.shape[:-1]), out.shape[-1])
    source = b.reshape(math.prod(b.shape[:-1]), b.shape[-1])
    step = max(1, PRODUCTS // max(1, b.shape[-1]))
    for start in range(0, values.shape[0], step):
        part = slice(start, start + step)
        products = product(call, values[part], source[columns[part]])
        accumulate(call, rows[part], products, flat)
    return out


def _pairs(
    call: Call, a: torch.Tensor, b: torch.Tensor, alpha: Any = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of the terms of ``alpha * a @ b`` for two sparse matrices."""
    (rows, inner), values = points(a)
    (starts, columns), others = points(b)
    starts, order = starts.sort(stable=True)
    columns, others = columns[order], others[order]
    first = torch.searchsorted(starts, inner)
    count = torch.searchsorted(starts, inner, right=True) - first
    left = torch.arange(values.shape[0]).repeat_interleave(count)
    offset = torch.arange(left.shape[0]) - (count.cumsum(0) - count).repeat_interleave(count)
    right = first[left] + offset
    keys = rows[left] * b.shape[1] + columns[right]
    return keys, product(call, scaled(call, values, alpha)[left], others[right])


def mm(call: Call, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``a @ b`` where one or both are sparse."""
    if is_sparse(a) and is_sparse(b):
        targets = Targets(call, call.overload(a, b))
        targets.add(*_pairs(call, a, b))
        return targets.filled()
    if is_sparse(a):
        return _onto(call, b.new_zeros(*a.shape[:-1], b.shape[-1]), a, b)
    turned = _onto(call, a.new_zeros(b.shape[1], a.shape[0]), _transposed(b), a.mT)
    # Stock torch returns the transpose for points, a copy for rows.
    return turned.mT if b.layout is torch.sparse_coo else turned.mT.contiguous()


def _transposed(x: torch.Tensor) -> torch.Tensor:
    indices, values = points(x)
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
    if is_sparse(summand):
        if summand.layout is not torch.sparse_csr:
            # Of other layouts stock torch returns tensors whose indices do not fit its values.
            return NotImplemented
        targets = Targets(call, call.overload(summand, a, b, beta=beta, alpha=alpha))
        if beta != 0:
            indices, values = points(summand)
            targets.add(positions(indices, summand.shape), scaled(call, values, beta))
        targets.add(*_pairs(call, a, b, alpha))
        return targets.filled()
    out = a.new_zeros(a.shape[0], b.shape[1], layout=torch.strided, dtype=summand.dtype)
    if beta != 0:
        out.copy_(scaled(call, summand, beta))
    if is_sparse(a):
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
    indices, values = points(pattern)
    *batch, rows, columns = indices
    left = torch.ops.aten.index(a, [*batch, rows])
    right = torch.ops.aten.index(b.mT, [*batch, columns])
    products = scaled(call, dots(call, left, right), alpha)
    if beta != 0:
        products = plus(call, scaled(call, values, beta), products)
    return filled(pattern, products)


def add(call: Call, x: Any, y: Any, *, alpha: Any = 1) -> torch.Tensor:
    """``x + alpha * y``; elements that only one of them stores are copied.

    Where stock torch would store some positions of the sum twice, it is coalesced here.

    Stock torch multiplies the sparse one of two by ``alpha``, whichever comes first.
    """
    if not is_sparse(x) or not is_sparse(y):
        dense, sparse = (y, x) if is_sparse(x) else (x, y)
        out = dense.clone(memory_format=torch.contiguous_format)
        indices, values = points(sparse)
        keys, inner = positions(indices, sparse.shape), math.prod(values.shape[1:])
        terms = scaled(call, values, alpha).reshape(-1, inner)
        accumulate(call, keys, terms, out.view(-1, inner))
        return out
    pattern = call.overload(x, y, alpha=alpha)
    (left, a), (right, b) = points(x), points(y)
    b = scaled(call, b, alpha)
    if pattern.layout is torch.sparse_coo and not pattern.is_coalesced():
        if torch.equal(left, right) and pattern._nnz() == a.shape[0]:
            return filled(pattern, plus(call, a, b))
        if pattern._nnz() == a.shape[0] + b.shape[0]:
            return filled(pattern, torch.cat([a, b]))
        pattern = torch.ops.aten._coalesce(pattern)
    targets = Targets(call, pattern)
    targets.add(positions(left, x.shape), a)
    targets.add(positions(right, y.shape), b)
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


def values_at(call: Call, x: Any, indices: torch.Tensor, shape: Any) -> Any:
    """The values of an operand at indices."""
    if not isinstance(x, torch.Tensor) or x.dim() == 0:
        return x
    if not is_sparse(x):
        return x.expand(shape)[tuple(indices)]
    own, values = points(x)
    if torch.equal(own, indices):
        return values
    if x.layout is torch.sparse_coo and not x.is_coalesced():
        own, values = points(coalesce(call, x))
    if own.shape[1] == 0:
        return values.new_zeros(indices.shape[1])
    keys, order = positions(own, x.shape).sort()
    wanted = positions(indices, shape)
    place = torch.searchsorted(keys, wanted).clamp_(max=keys.shape[0] - 1)
    # What an operand does not store is zero.
    return values[order[place]] * (keys[place] == wanted)


def mul(call: Call, x: Any, y: Any) -> torch.Tensor:
    """The products at the elements that the result stores."""
    pattern = call.overload(x, y)
    indices, _ = points(pattern)
    # Of two operands that hold positions twice stock torch sums the second one first.
    if all(is_sparse(z) and z.layout is torch.sparse_coo for z in (x, y)):
        y = y if y.is_coalesced() or x.is_coalesced() else coalesce(call, y)
    a, b = (values_at(call, z, indices, pattern.shape) for z in (x, y))
    return filled(pattern, product(call, a, b))


def div(call: Call, x: torch.Tensor, y: Any) -> torch.Tensor:
    """The stored elements divided by a number."""
    pattern = call.overload(x, y)
    return filled(pattern, quotient(call, points(x)[1], y))


def coalesce(call: Call, x: torch.Tensor) -> torch.Tensor:
    """The sums of the elements that are stored for one position."""
    pattern = torch.ops.aten._coalesce(x)
    indices, values = points(x)
    targets = Targets(call, pattern)
    targets.add(positions(indices, x.shape), values)
    return targets.filled()


def total(call: Call, x: torch.Tensor, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    return sum_of(call, points(x)[1])


_PRODUCT: Final = "every product of a stored element, every addition in their order"

ROWS: tuple[Row, ...] = (
    sparse_row("mm.default", mm, _PRODUCT),
    sparse_row("bmm.default", mm, _PRODUCT),
    sparse_row("mv.default", mv, _PRODUCT),
    sparse_row("_sparse_sparse_matmul.default", mm, _PRODUCT),
    sparse_row("addmm.default", addmm, f"{_PRODUCT}, products with alpha and beta"),
    sparse_row("_sparse_addmm.default", addmm, f"{_PRODUCT}, products with alpha and beta"),
    sparse_row("addmv.default", addmv, f"{_PRODUCT}, products with alpha and beta"),
    sparse_row(
        "sparse_sampled_addmm.default", sampled_addmm, "every multiply-add of the dot products"
    ),
    sparse_row("add.Tensor", add, "the product by alpha, the sums of elements that both store"),
    sparse_row("sub.Tensor", sub, "the product by alpha, the sums of elements that both store"),
    sparse_row("mul.Tensor", mul, "one product per stored element"),
    sparse_row("mul.Scalar", mul, "one product per stored element"),
    sparse_row("div.Tensor", div, "one quotient per stored element"),
    sparse_row("div.Scalar", div, "one quotient per stored element"),
    sparse_row("_coalesce.default", coalesce, "every addition of elements stored for one position"),
    sparse_row("sum.default", total, "every addition of stored elements"),
)
