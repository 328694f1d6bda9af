"""Rows of histograms: edges and counts are those of stock torch, weights are summed.

Which bin an element belongs to is a question of comparisons.  Edges that are computed are
grids, kept as stock torch gives them like those of ``linspace``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from fuzzytorch.ops.call import Call
from fuzzytorch.ops.pointwise import DIV, SUB
from fuzzytorch.table import Row, Verdict


def _weighted(
    call: Call,
    x: torch.Tensor,
    edges: Sequence[torch.Tensor],
    weight: torch.Tensor | None,
    density: bool,
) -> torch.Tensor:
    """The histogram of points ``(..., D)``.

    Weights are added to their bins in the order of the points, as by one thread of stock
    torch; a density is divided by their total, then by the length of a bin in each dimension.
    """
    sizes = [e.numel() - 1 for e in edges]
    points = x.reshape(-1, len(edges))
    inside = torch.ones(points.shape[0], dtype=torch.bool)
    place = torch.zeros(points.shape[0], dtype=torch.int64)
    for coordinate, e, size in zip(points.unbind(1), edges, sizes, strict=True):
        coordinate, e = coordinate.contiguous(), e.contiguous()
        inside &= (coordinate >= e[0]) & (coordinate <= e[-1])
        # The last bin holds its right edge, too.
        bin = torch.searchsorted(e, coordinate, right=True).sub_(1).clamp_(max=size - 1)
        place = place * size + bin
    taken = inside.nonzero().squeeze(1)
    out = torch.zeros(math.prod(sizes), 1, dtype=call.dtype)
    if weight is None:
        out += torch.bincount(place[taken], minlength=out.shape[0]).unsqueeze(1)
    else:
        call.accumulate(place[taken], weight.reshape(-1, 1)[taken], out)
    hist = out.view(sizes)
    if density:
        hist = DIV(call, hist, call.reduce("sum", hist))
        for d, e in enumerate(edges):
            shape = [-1 if i == d else 1 for i in range(len(edges))]
            hist = DIV(call, hist, SUB(call, e[1:], e[:-1]).view(shape))
    return hist


def histogram_of_count(
    call: Call,
    x: torch.Tensor,
    bins: int = 100,
    *,
    range: Sequence[float] | None = None,
    weight: torch.Tensor | None = None,
    density: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    _, edges = call.overload(x, bins, range=range)
    return _weighted(call, x.reshape(-1, 1), [edges], weight, density), edges


def histogram_of_edges(
    call: Call,
    x: torch.Tensor,
    bins: torch.Tensor,
    *,
    weight: torch.Tensor | None = None,
    density: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    edges = bins.clone(memory_format=torch.contiguous_format)
    return _weighted(call, x.reshape(-1, 1), [edges], weight, density), edges


def histogramdd_of_counts(
    call: Call,
    x: torch.Tensor,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: torch.Tensor | None = None,
    density: bool = False,
) -> torch.Tensor:
    edges = torch.ops.aten._histogramdd_bin_edges(x, bins, range=range)
    return _weighted(call, x, edges, weight, density)


def histogramdd_of_edges(
    call: Call,
    x: torch.Tensor,
    bins: Sequence[torch.Tensor],
    *,
    weight: torch.Tensor | None = None,
    density: bool = False,
) -> torch.Tensor:
    return _weighted(call, x, bins, weight, density)


_WHY = (
    "every addition of a weight and, for a density, the sum, the lengths of the bins and the "
    "quotients; counts and edges are exact"
)

ROWS: tuple[Row, ...] = (
    Row("aten.histogram.bin_ct", Verdict.ROUNDED, histogram_of_count, _WHY),
    Row("aten.histogram.bins_tensor", Verdict.ROUNDED, histogram_of_edges, _WHY),
    Row("aten._histogramdd_from_bin_cts.default", Verdict.ROUNDED, histogramdd_of_counts, _WHY),
    Row("aten._histogramdd_from_bin_tensors.default", Verdict.ROUNDED, histogramdd_of_edges, _WHY),
)
