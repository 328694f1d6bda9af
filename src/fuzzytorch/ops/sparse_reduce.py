"""Products of a compressed matrix whose terms are summed, averaged or selected, and the gradient.

Stored elements are taken in their order: each is a product, then an addition to its target.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fuzzytorch.ops.call import Call
from fuzzytorch.ops.sparse import mm
from fuzzytorch.ops.stored import accumulate, dots, filled, points, product, quotient, sparse_row
from fuzzytorch.table import Row


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
            out = quotient(call, out, a.crow_indices().diff().clamp(min=1).unsqueeze(1))
        return out, arguments
    (rows, columns), values = points(a)
    products = product(call, values.unsqueeze(1), b[columns])
    place = rows.unsqueeze(1).expand(products.shape)
    out = b.new_zeros(a.shape[0], b.shape[1])
    out = out.scatter_reduce(0, place, products, reduce, include_self=False)
    stored = torch.arange(values.shape[0]).unsqueeze(1).expand(products.shape)
    stored = stored.masked_fill(products != out[rows], values.shape[0])
    none = torch.full(out.shape, values.shape[0], dtype=torch.int64)
    return out, none.scatter_reduce(0, place, stored, "amin")


def mm_reduce_backward(
    call: Call,
    a: torch.Tensor,
    grad: torch.Tensor,
    b: torch.Tensor,
    reduce: str,
    arguments: torch.Tensor,
    output_mask: Sequence[bool],
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Gradients of the stored elements of ``a`` and of ``b``."""
    (rows, columns), values = points(a)
    if reduce in ("sum", "mean"):
        counts = a.crow_indices().diff()[rows] if reduce == "mean" else None
        return (
            filled(a, _of_stored(call, grad[rows], b[columns], counts)) if output_mask[0] else None,
            _of_dense(call, values, columns, grad[rows], b, counts) if output_mask[1] else None,
        )
    # A row without stored elements has an argument beyond them.
    row, k = (arguments < values.shape[0]).nonzero().unbind(1)
    element, share = arguments[row, k], grad[row, k]
    column = columns[element]
    of_stored = of_dense = None
    if output_mask[0]:
        of_stored = torch.zeros(values.shape[0], 1, dtype=values.dtype)
        accumulate(call, element, product(call, share, b[column, k]).unsqueeze(1), of_stored)
        of_stored = filled(a, of_stored)
    if output_mask[1]:
        of_dense = torch.zeros(b.shape, dtype=values.dtype)
        products = product(call, values[element], share).unsqueeze(1)
        accumulate(call, column * b.shape[1] + k, products, of_dense.view(-1, 1))
    return of_stored, of_dense


def _of_stored(
    call: Call, grads: torch.Tensor, others: torch.Tensor, counts: torch.Tensor | None
) -> torch.Tensor:
    """One dot product per stored element, divided by the length of its row for a mean."""
    products = dots(call, grads, others)
    return products if counts is None else quotient(call, products, counts)


def _of_dense(
    call: Call,
    values: torch.Tensor,
    columns: torch.Tensor,
    grads: torch.Tensor,
    b: torch.Tensor,
    counts: torch.Tensor | None,
) -> torch.Tensor:
    """Stored elements, divided by the length of their row for a mean, times gradients, summed."""
    if counts is not None:
        values = quotient(call, values, counts)
    out = torch.zeros(b.shape, dtype=values.dtype)
    return accumulate(call, columns, product(call, values.unsqueeze(1), grads), out)


ROWS: tuple[Row, ...] = (
    sparse_row(
        "_sparse_mm_reduce_impl.default",
        mm_reduce,
        "every product and, but for an extreme, every addition; the quotient of a mean",
    ),
    sparse_row(
        "_sparse_mm_reduce_impl_backward.default",
        mm_reduce_backward,
        "every product and every addition; the quotients of a mean",
    ),
)
