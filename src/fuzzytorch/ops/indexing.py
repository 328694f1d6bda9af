"""Rows that add into places named by an index.

Contributions to one place are added one after the other in the order of stock
torch: row-major order of the index.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from fuzzytorch.ops.call import Call
from fuzzytorch.ops.pointwise import DIV, MUL
from fuzzytorch.table import Row, Verdict


def _total(call: Call, start: torch.Tensor, *sources: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor holding ``start`` that may be added to: the target itself if it can."""
    out = call.out
    if (
        out is not None
        and out is start
        and out.is_contiguous()
        and not any(torch._C._is_alias_of(x, out) for x in sources)  # type: ignore[attr-defined]
    ):
        return out
    dtype = call.dtype.to_complex() if start.is_complex() else call.dtype
    return start.to(dtype).clone(memory_format=torch.contiguous_format)


def _strided(total: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """``total`` with the strides that a copy of ``like`` has in stock torch."""
    if like.is_contiguous():
        return total
    return torch.empty_like(like, dtype=total.dtype).copy_(total)


def _slices(x: torch.Tensor, dim: int) -> tuple[int, int, int]:
    """``(outer, size, inner)`` of a tensor cut along ``dim``."""
    if x.dim() == 0:
        return 1, 1, 1
    dim %= x.dim()
    return math.prod(x.shape[:dim]), x.shape[dim], math.prod(x.shape[dim + 1 :])


def _checked(index: torch.Tensor, size: int) -> torch.Tensor:
    """An index that kernels may follow.

    Raises:
        IndexError: a number outside ``0 .. size - 1``.
    """
    if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < size:
        raise IndexError(
            f"index out of range: it holds {int(index.min())} to {int(index.max())}, "
            f"and the dimension has size {size}."
        )
    return index.long()


def _rows_of_slices(x: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    """Which row of ``x.view(outer * size, inner)`` each slice named by ``index`` is, flat."""
    outer, size, _ = _slices(x, dim)
    index = _checked(index.reshape(-1), size)
    return (torch.arange(outer)[:, None] * size + index).view(-1)


def _places(x: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    """The flat position in ``x`` of every element of ``index``, as ``scatter`` reads it."""
    if x.dim() == 0:
        return torch.zeros(index.numel(), dtype=torch.int64)
    dim %= x.dim()
    size = x.shape[dim]
    index = index if index.dim() else index.unsqueeze(0)
    index = _checked(index, size)
    strides = [math.prod(x.shape[d + 1 :]) for d in range(x.dim())]
    place = index * strides[dim]
    for d, stride in enumerate(strides):
        if d != dim:
            shape = [-1 if e == d else 1 for e in range(x.dim())]
            place = place + torch.arange(index.shape[d]).view(shape) * stride
    return place.reshape(-1)


def _source(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """The part of the source of a ``scatter`` that its index covers, flat."""
    if x.dim() == 0 or index.dim() == 0:
        return x.reshape(-1)[: index.numel()]
    return x[tuple(slice(n) for n in index.shape)].reshape(-1)


def _add(call: Call, places: torch.Tensor, source: torch.Tensor, total: torch.Tensor) -> None:
    _add_rows(call, places, source, total, 1)


def _add_rows(
    call: Call, places: torch.Tensor, source: torch.Tensor, total: torch.Tensor, inner: int
) -> None:
    """Adds rows of ``inner`` elements of ``source`` into rows of ``total``."""
    # Without elements the number of rows cannot be inferred.
    if source.numel() > 0:
        call.accumulate(places, source.reshape(-1, inner), total.view(-1, inner))


Product = Callable[[Call, torch.Tensor, torch.Tensor], torch.Tensor]
"""How two tensors are multiplied."""


def _multiply(
    call: Call, places: torch.Tensor, source: torch.Tensor, total: torch.Tensor, product: Product
) -> None:
    """Multiplies into flat places one factor after the other, in the order of the source."""
    flat = total.view(-1)
    for chosen in _turns(places):
        at = places[chosen]
        flat[at] = product(call, flat[at], source[chosen])


def _turns(places: torch.Tensor) -> list[torch.Tensor]:
    """Positions of the first contribution to each place, of the second, and so on."""
    if places.numel() == 0:
        return []
    order = torch.argsort(places, stable=True)
    ordered = places[order]
    number = torch.arange(places.numel())
    fresh = torch.ones_like(ordered, dtype=torch.bool)
    fresh[1:] = ordered[1:] != ordered[:-1]
    turn = number - torch.cummax(torch.where(fresh, number, 0), 0).values
    by_turn = order[torch.argsort(turn, stable=True)]
    return list(by_turn.split(torch.bincount(turn).tolist()))


def index_add(
    call: Call,
    self: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    source: torch.Tensor,
    *,
    alpha: Any = 1,
) -> torch.Tensor:
    """Adds ``alpha`` times the slices of ``source``; the product by ``alpha`` is rounded too."""
    places = _rows_of_slices(self, dim, index)
    inner = _slices(self, dim)[2]
    total = _total(call, self, source)
    if self.dim() and source.dim():
        expected = [*self.shape]
        expected[dim % self.dim()] = index.numel()
        if list(source.shape) != expected:
            raise RuntimeError(
                f"index_add: source has shape {list(source.shape)}, expected {expected}."
            )
    if alpha != 1:
        source = MUL(call, source, alpha)
    _add_rows(call, places, source, total, inner)
    return total


def scatter_add(
    call: Call, self: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor
) -> torch.Tensor:
    """Adds every element of ``src`` that ``index`` covers."""
    total = _total(call, self, src)
    _add(call, _places(self, dim, index), _source(src, index), total)
    return total


def scatter_with(
    call: Call,
    self: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    src: Any,
    *,
    reduce: str,
    product: Product = MUL,
) -> torch.Tensor:
    """``scatter`` that adds or multiplies instead of copying; ``src`` may be a number."""
    if reduce not in ("add", "multiply"):
        raise RuntimeError("reduce argument must be either add or multiply.")
    if not isinstance(src, torch.Tensor):
        src = torch.full(index.shape, float(src), dtype=call.dtype)
    total = _total(call, self, src)
    places, source = _places(self, dim, index), _source(src, index)
    if reduce == "add":
        _add(call, places, source, total)
    else:
        _multiply(call, places, source, total, product)
    return total


def scatter_reduce(
    call: Call,
    self: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    src: torch.Tensor,
    reduce: str,
    *,
    include_self: bool = True,
    product: Product = MUL,
) -> torch.Tensor:
    """Sums, products and means per addition and product; ``amax`` and ``amin`` select."""
    if reduce in ("amax", "amin"):
        return torch.scatter_reduce(self, dim, index, src, reduce, include_self=include_self)
    places = _places(self, dim, index)
    return _reduce_into(call, self, places, _source(src, index), reduce, include_self, product)


def index_reduce(
    call: Call,
    self: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    source: torch.Tensor,
    reduce: str,
    *,
    include_self: bool = True,
    product: Product = MUL,
) -> torch.Tensor:
    """:func:`scatter_reduce` for whole slices."""
    if reduce in ("amax", "amin"):
        return torch.index_reduce(self, dim, index, source, reduce, include_self=include_self)
    rows, inner = _rows_of_slices(self, dim, index), _slices(self, dim)[2]
    places = (rows[:, None] * inner + torch.arange(inner)).view(-1)
    return _reduce_into(call, self, places, source.reshape(-1), reduce, include_self, product)


def _reduce_into(
    call: Call,
    start: torch.Tensor,
    places: torch.Tensor,
    source: torch.Tensor,
    reduce: str,
    include_self: bool,
    product: Product,
) -> torch.Tensor:
    if reduce not in ("sum", "prod", "mean"):
        raise RuntimeError(
            f"reduce argument must be either sum, prod, mean, amax or amin, got {reduce}."
        )
    total = _total(call, start, source)
    if not include_self:
        total.view(-1)[places] = 1.0 if reduce == "prod" else 0.0
    if reduce == "prod":
        _multiply(call, places, source, total, product)
    else:
        _add(call, places, source, total)
    if reduce == "mean":
        count = torch.full((total.numel(),), float(include_self), dtype=call.dtype)
        count.scatter_add_(0, places, torch.ones_like(source))
        total = DIV(call, total, count.clamp_(min=1.0).view(total.shape), out=total)
    return total


def index_put(
    call: Call,
    self: torch.Tensor,
    indices: Sequence[torch.Tensor | None],
    values: torch.Tensor,
    accumulate: bool = False,
    unsafe: bool = False,
) -> torch.Tensor:
    """Copies, or adds every value with ``accumulate``."""
    if not accumulate:
        return torch.ops.aten.index_put.default(self, indices, values)
    total = _total(call, self, values)
    first = indices[0] if len(indices) == 1 else None
    if first is not None and first.dtype in (torch.int64, torch.int32) and self.dim() > 0:
        size = self.shape[0]
        rows = _rows_of_slices(self, 0, torch.where(first < 0, first + size, first))
        places, shape = rows, (*first.shape, *self.shape[1:])
        inner = _slices(self, 0)[2]
    else:
        numbers = torch.arange(self.numel()).view(self.shape)
        named = torch.ops.aten.index.Tensor(numbers, indices)
        places, shape, inner = named.reshape(-1), named.shape, 1
    _add_rows(call, places, values.expand(shape), total, inner)
    return _strided(total, self)


def index_put_impl_(
    call: Call,
    self: torch.Tensor,
    indices: Sequence[torch.Tensor | None],
    values: torch.Tensor,
    accumulate: bool = False,
    unsafe: bool = False,
) -> torch.Tensor:
    """:func:`index_put` in place."""
    return self.copy_(index_put(call, self, indices, values, accumulate))


def put(
    call: Call,
    self: torch.Tensor,
    index: torch.Tensor,
    source: torch.Tensor,
    accumulate: bool = False,
) -> torch.Tensor:
    """Copies into flat positions, or adds every value with ``accumulate``."""
    if not accumulate:
        return torch.put(self, index, source)
    total = _total(call, self, source)
    places = torch.where(index < 0, index + self.numel(), index).reshape(-1)
    _add(call, _checked(places, self.numel()), source, total)
    return _strided(total, self)


def embedding_dense_backward(
    call: Call,
    grad_output: torch.Tensor,
    indices: torch.Tensor,
    num_weights: int,
    padding_idx: int,
    scale_grad_by_freq: bool,
) -> torch.Tensor:
    """Adds the gradient of every occurrence of a word; scaling by frequency is rounded too."""
    index = indices.reshape(-1).long()
    width = grad_output.shape[-1]
    grad = grad_output.reshape(index.numel(), width)
    if padding_idx >= 0:
        kept = index != padding_idx
        index, grad = index[kept], grad[kept]
    index = _checked(index, num_weights)
    if scale_grad_by_freq:
        counts = torch.bincount(index, minlength=num_weights)[index]
        grad = MUL(call, grad, DIV(call, 1.0, counts)[:, None])
    total = torch.zeros(num_weights, width, dtype=call.dtype)
    return call.accumulate(index, grad, total)


def overlapping(
    call: Call, grad: torch.Tensor, numbers: torch.Tensor, shape: Sequence[int]
) -> torch.Tensor:
    """Adds every element of a gradient to the element that its copy was taken from."""
    total = torch.zeros(shape, dtype=call.dtype)
    _add(call, numbers.reshape(-1), grad, total)
    return total


def bincount(
    call: Call, self: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0
) -> torch.Tensor:
    """Adds the weight of every occurrence; without weights it counts."""
    if weights is None or self.numel() == 0:
        # Stock torch counts nothing in integers, weighed or not.
        return torch.bincount(self, minlength=minlength)
    length = torch.bincount(self, minlength=minlength).numel()
    return overlapping(call, weights, self.long(), (length,))


_PUT = "with accumulate every addition is rounded, else values are copied"
_ROUNDED: tuple[tuple[str, Callable[..., Any], str], ...] = (
    ("index_add.default", index_add, "every addition rounded, in order; the product by alpha too"),
    ("scatter_add.default", scatter_add, "every addition rounded, in the order of the index"),
    ("scatter.reduce", scatter_with, "every addition or product rounded, in order of the index"),
    (
        "scatter.value_reduce",
        scatter_with,
        "every addition or product rounded, in order of the index",
    ),
    (
        "scatter_reduce.two",
        scatter_reduce,
        "every addition, product and division rounded; amax and amin select exactly",
    ),
    (
        "index_reduce.default",
        index_reduce,
        "every product and division rounded; amax and amin select exactly",
    ),
    ("index_put.default", index_put, _PUT),
    ("_index_put_impl.default", index_put, _PUT),
    (
        "_index_put_impl_.default",
        index_put_impl_,
        _PUT,
    ),
    ("_unsafe_index_put.default", index_put, _PUT),
    ("put.default", put, _PUT),
    (
        "embedding_dense_backward.default",
        embedding_dense_backward,
        "zero plus every occurrence in order, each addition rounded; the scaling too",
    ),
    ("bincount.default", bincount, "every addition of a weight rounded; counts are exact"),
)

ROWS: tuple[Row, ...] = tuple(
    Row(f"aten.{name}", Verdict.ROUNDED, function, why) for name, function, why in _ROUNDED
)
