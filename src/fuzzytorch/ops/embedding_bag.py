"""Bags of embeddings: sums, means and maxima of rows of a table, and their gradients.

Rows are added in the order of the bag, occurrences in the order of the indices, as stock
torch does; it fuses the product with a weight and the addition, which round apart here.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from fuzzytorch.ops.call import Call
from fuzzytorch.ops.pointwise import DIV, MUL
from fuzzytorch.table import Row, Verdict

aten = torch.ops.aten

SUM, MEAN, MAX = range(3)
"""Modes of a bag."""


def embedding_bag(
    call: Call,
    weight: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = SUM,
    sparse: bool = False,
    per_sample_weights: torch.Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The bags, and what the gradient needs, which is counted and not computed."""
    options = (scale_grad_by_freq, mode, sparse, per_sample_weights)
    y, bag_of, sizes, maxima = call.overload(
        weight, indices, offsets, *options, include_last_offset, padding_idx
    )
    if mode == MAX or y.numel() == 0:
        return y, bag_of, sizes, maxima
    bags = _bags(indices, offsets)
    kept = indices != padding_idx if padding_idx >= 0 else torch.ones_like(indices).bool()
    kept &= bags >= 0
    rows = weight[indices[kept]]
    if per_sample_weights is not None:
        rows = MUL(call, rows, per_sample_weights[kept].unsqueeze(1))
    total = torch.zeros_like(y)
    call.accumulate(bags[kept], rows, total)
    if mode == MEAN:
        count = torch.bincount(bags[kept], minlength=y.shape[0]).clamp(min=1)
        total = DIV(call, total, count.to(total.dtype).unsqueeze(1), out=total)
    return total, bag_of, sizes, maxima


def _bags(indices: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """The bag of every index; what an index past the last offset belongs to is the last bag."""
    position = torch.arange(indices.numel(), dtype=offsets.dtype)
    return torch.searchsorted(offsets.contiguous(), position, right=True) - 1


def embedding_bag_backward(
    call: Call,
    grad: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    offset2bag: torch.Tensor,
    bag_size: torch.Tensor,
    maximum_indices: torch.Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: torch.Tensor | None,
    padding_idx: int = -1,
) -> torch.Tensor:
    """The gradient of the table, dense or sparse."""
    if offset2bag.numel() != indices.numel():
        offset2bag = _bags(indices, offsets)
    rest = (num_weights, scale_grad_by_freq, mode, per_sample_weights, padding_idx)
    if not sparse:
        return aten._embedding_bag_dense_backward.default(
            grad, indices, offset2bag, bag_size, maximum_indices, *rest
        )
    rows = grad.index_select(0, offset2bag)
    if mode == MEAN:
        rows = rows / bag_size.clamp(min=1).to(rows.dtype)[offset2bag].unsqueeze(1)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(1)
    return aten.embedding_backward.default(
        rows, indices, num_weights, padding_idx, scale_grad_by_freq, True
    )


def embedding_bag_dense_backward(
    call: Call,
    grad: torch.Tensor,
    indices: torch.Tensor,
    offset2bag: torch.Tensor,
    bag_size: torch.Tensor,
    maximum_indices: torch.Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: torch.Tensor | None,
    padding_idx: int = -1,
) -> torch.Tensor:
    """Adds the gradient of its bag, times the scale of an occurrence, to the row of each index."""
    width = grad.shape[1]
    total = torch.zeros(num_weights, width, dtype=grad.dtype)
    if mode == MAX:
        filled = bag_size > 0
        places = maximum_indices[filled].long() * width + torch.arange(width)
        inside = maximum_indices[filled] >= 0
        terms = grad[filled][inside].unsqueeze(1)
        call.accumulate(places[inside], terms, total.view(-1, 1))
        return total
    kept = offset2bag >= 0
    if padding_idx >= 0:
        kept &= indices != padding_idx
    index, bag = indices[kept].long(), offset2bag[kept].long()
    counts = torch.bincount(indices.long(), minlength=num_weights)
    if counts.numel() > num_weights:
        raise IndexError(
            f"the largest index is {counts.numel() - 1}, and the table has {num_weights} rows."
        )
    rows = grad[bag]
    scale = None if per_sample_weights is None else per_sample_weights[kept]
    if scale_grad_by_freq:
        scale = _divided(call, scale, _frequencies(indices.long(), counts)[index], grad.dtype)
    if mode == MEAN:
        scale = _divided(call, scale, bag_size[bag], grad.dtype)
    if scale is not None:
        rows = MUL(call, rows, scale.unsqueeze(1))
    return call.accumulate(index, rows, total)


def _frequencies(indices: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """What stock torch takes for the frequency of each row of the table.

    For the n-th smallest row it reads the count of the n-th smallest index, repetitions
    included, which is another row wherever a smaller one is repeated.
    """
    rows = counts.nonzero().squeeze(1)
    taken = torch.ones_like(counts)
    taken[rows] = counts[indices.sort().values[: rows.numel()]]
    return taken


def _divided(
    call: Call, scale: torch.Tensor | None, count: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    return DIV(call, 1.0 if scale is None else scale, count.to(dtype))


def per_sample_weights_backward(
    call: Call,
    grad: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    offset2bag: torch.Tensor,
    mode: int,
    padding_idx: int = -1,
) -> torch.Tensor:
    """The product of the gradient of the bag with the row, for each index."""
    if offset2bag.numel() != indices.numel():
        offset2bag = _bags(indices, offsets)
    kept = indices != padding_idx if padding_idx >= 0 else torch.ones_like(indices).bool()
    y = torch.zeros(indices.numel(), dtype=grad.dtype)
    rows = weight[indices[kept]]
    y[kept] = call.reduce("dot", grad[offset2bag[kept].long()], [1], y=rows)
    return y


_BAG: Final = (
    "zero plus every row of a bag in order, each addition rounded, and the product with its "
    "weight (fused with the addition in stock torch); the division of a mean; a maximum is exact"
)


def _row(name: str, function: Any, why: str, verdict: Verdict = Verdict.ROUNDED) -> Row:
    return Row(f"aten.{name}.default", verdict, function, why)


ROWS: tuple[Row, ...] = (
    _row("_embedding_bag", embedding_bag, _BAG),
    _row("_embedding_bag_forward_only", embedding_bag, _BAG),
    _row(
        "_embedding_bag_backward",
        embedding_bag_backward,
        "the dense gradient, or for a sparse one the products of every occurrence",
        Verdict.LOWERED,
    ),
    _row(
        "_embedding_bag_dense_backward",
        embedding_bag_dense_backward,
        "quotients of the scales, products with the gradient, zero plus every occurrence in order "
        "(product and addition fused in stock torch)",
    ),
    _row(
        "_embedding_bag_per_sample_weights_backward",
        per_sample_weights_backward,
        "every fused multiply-add and every sum of partial results",
    ),
)
