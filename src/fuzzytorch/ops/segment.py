"""Rows of reductions over segments, the pieces into which lengths or offsets cut a dimension.

Elements of a segment are taken in their order, as one chain from the initial value.  Extremes
are selections and round nothing.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Final

import torch

from fuzzytorch.ops.call import Call
from fuzzytorch.ops.pointwise import DIV, MUL
from fuzzytorch.table import Row, Verdict

EXTREMES: Final = ("max", "min")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """How a dimension is cut, for all places of the dimensions before it.

    Attributes:
        positions: places of the elements that lie in a segment, ``(n,)``, rising; in ``(outer *
            size, inner)`` matrices.
        rows: the segment of each, ``(n,)``, numbered over all places: rows of ``(outer *
            segments, inner)`` matrices.
        starts: where each segment starts, ``(outer * segments,)``, places like ``positions``.
        lengths: how many elements each segment has, likewise.
        shape: the shape of a result.
    """

    positions: torch.Tensor
    rows: torch.Tensor
    starts: torch.Tensor
    lengths: torch.Tensor
    shape: tuple[int, ...]


def _segments(
    data: torch.Tensor, lengths: torch.Tensor | None, offsets: torch.Tensor | None
) -> Segments:
    if offsets is not None:
        starts, ends = offsets[..., :-1].long(), offsets[..., 1:].long()
    else:
        assert lengths is not None
        ends = lengths.long().cumsum(-1)
        starts = ends - lengths
    axis, size = starts.dim() - 1, data.shape[starts.dim() - 1]
    shape = (*data.shape[:axis], starts.shape[-1], *data.shape[axis + 1 :])
    places = torch.arange(math.prod(data.shape[:axis])).unsqueeze(1) * size
    starts, ends = (x.reshape(-1, x.shape[-1]) + places for x in (starts, ends))
    counts = (ends - starts).reshape(-1)
    rows = torch.arange(counts.numel()).repeat_interleave(counts)
    first = (counts.cumsum(0) - counts).repeat_interleave(counts)
    starts = starts.reshape(-1)
    positions = starts[rows] + torch.arange(rows.numel()) - first
    return Segments(positions, rows, starts, counts, shape)


def _matrix(x: torch.Tensor, axis: int) -> torch.Tensor:
    return x.reshape(math.prod(x.shape[: axis + 1]), math.prod(x.shape[axis + 1 :]))


def _axis(lengths: torch.Tensor | None, offsets: torch.Tensor | None) -> int:
    cut = lengths if offsets is None else offsets
    assert cut is not None
    return cut.dim() - 1


def segment_reduce(
    call: Call,
    data: torch.Tensor,
    reduce: str,
    *,
    lengths: torch.Tensor | None = None,
    indices: torch.Tensor | None = None,
    offsets: torch.Tensor | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Any = None,
) -> torch.Tensor:
    if reduce in EXTREMES:
        cut = {"lengths": lengths, "offsets": offsets, "axis": axis, "unsafe": unsafe}
        y: torch.Tensor = call.overload(data, reduce, **cut, initial=initial)
        return y
    segments = _segments(data, lengths, offsets)
    source = _matrix(data, _axis(lengths, offsets))
    neutral = 1.0 if reduce == "prod" else 0.0
    start = neutral if initial is None else call.number(initial)
    out = source.new_full((segments.lengths.numel(), source.shape[1]), start)
    if reduce == "prod":
        _multiply(call, source, segments, out)
    else:
        call.accumulate(segments.rows, source[segments.positions], out)
    if reduce == "mean":
        counts = segments.lengths.unsqueeze(1)
        empty = out if initial is not None else out.new_full((), torch.nan)
        mean = DIV(call, out, counts.clamp(min=1))
        out = torch.where(counts > 0, mean, empty)
    return out.view(segments.shape)


def _multiply(call: Call, source: torch.Tensor, segments: Segments, out: torch.Tensor) -> None:
    """Multiplies ``out`` by the elements of each segment, one after the other."""
    longest = int(segments.lengths.max()) if segments.lengths.numel() else 0
    for j in range(longest):
        rows = (segments.lengths > j).nonzero().squeeze(1)
        out[rows] = MUL(call, out[rows], source[segments.starts[rows] + j])


def segment_reduce_backward(
    call: Call,
    grad: torch.Tensor,
    output: torch.Tensor,
    data: torch.Tensor,
    reduce: str,
    *,
    lengths: torch.Tensor | None = None,
    offsets: torch.Tensor | None = None,
    axis: int = 0,
    initial: Any = None,
) -> torch.Tensor:
    segments = _segments(data, lengths, offsets)
    cut = _axis(lengths, offsets)
    grads, results, values = (_matrix(x, cut) for x in (grad, output, data))
    values = values[segments.positions]
    if reduce in EXTREMES:
        terms = _of_extremes(call, grads, results, values, segments.rows)
    elif reduce == "prod":
        terms = _of_products(call, grads, results, values, segments, initial)
    elif reduce == "mean":
        terms = DIV(call, grads, segments.lengths.clamp(min=1).unsqueeze(1))[segments.rows]
    else:
        terms = grads[segments.rows]
    out = torch.zeros_like(data, memory_format=torch.contiguous_format)
    _matrix(out, cut)[segments.positions] = terms
    return out


def _of_extremes(
    call: Call,
    grads: torch.Tensor,
    results: torch.Tensor,
    values: torch.Tensor,
    rows: torch.Tensor,
) -> torch.Tensor:
    """The gradient at the extremes; where there are several, they share it if it is positive.

    Stock torch gives a negative gradient to each of them in full.
    """
    attained = values.isnan() | (values == results[rows])
    terms = grads[rows] * attained
    count = torch.zeros_like(results, dtype=torch.int64).index_add_(0, rows, attained.long())
    shared = (count[rows] > 1) & (terms > 0)
    terms[shared] = DIV(call, terms[shared], count[rows][shared])
    return terms


def _of_products(
    call: Call,
    grads: torch.Tensor,
    results: torch.Tensor,
    values: torch.Tensor,
    segments: Segments,
    initial: Any,
) -> torch.Tensor:
    """Gradient times product over the element; without a division where that is 0 or NaN."""
    rows = segments.rows
    terms = DIV(call, MUL(call, grads, results)[rows], values)
    element, column = ((values == 0) | values.isnan()).nonzero().unbind(1)
    if element.numel() == 0:
        return terms
    row = rows[element]
    # Segments are neighbours among the elements that were taken.
    first = torch.searchsorted(rows, row)
    product = terms.new_full(element.shape, 1.0 if initial is None else call.number(initial))
    for j in range(int(segments.lengths[row].max())):
        other = first + j
        factor = ((j < segments.lengths[row]) & (other != element)).nonzero().squeeze(1)
        others = values[other[factor], column[factor]]
        product[factor] = MUL(call, product[factor], others)
    terms[element, column] = MUL(call, grads[row, column], product)
    return terms


ROWS: tuple[Row, ...] = (
    Row(
        "aten.segment_reduce.default",
        Verdict.ROUNDED,
        segment_reduce,
        "every addition or multiplication, in order, and the quotient of a mean; extremes are "
        "selected",
    ),
    Row(
        "aten._segment_reduce_backward.default",
        Verdict.ROUNDED,
        segment_reduce_backward,
        "the quotient of a mean and of shared extremes; of a product, the products and quotients",
    ),
)
