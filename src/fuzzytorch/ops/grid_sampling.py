"""Sampling of images at the places that a grid names, and the gradients.

A sample is a weighted sum over the taps of each dimension: two for linear, one for
nearest, four for cubic interpolation.  Dimensions are numbered as in the grid: the last
one of the image first.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any, Final

import torch

from fuzzytorch.ops.call import Call
from fuzzytorch.ops.formula import Formula, fma, minimum
from fuzzytorch.ops.interpolation import cubic_weights
from fuzzytorch.ops.pointwise import FMA, MUL, SUB
from fuzzytorch.table import Row, Verdict

LINEAR, NEAREST, CUBIC = range(3)
"""Interpolations."""

ZEROS, BORDER, REFLECTION = range(3)
"""What lies outside of the image."""

NOWHERE: Final = -100.0
"""Where a coordinate that no integer holds is, as in stock torch: outside of any image."""

LARGEST: Final = 2**24
"""Terms of a gradient that are kept at a time."""

SCALED_CORNERS = Formula(lambda x, scale: (x + 1.0) * scale)
SCALED_EDGES = Formula(lambda x, scale: fma(x + 1.0, scale, -0.5))
REFLECTED_CORNERS = Formula(lambda rest, twice: minimum(rest, twice - rest))
REFLECTED_EDGES = Formula(lambda rest, twice: minimum(rest, twice - rest) - 0.5)
FROM_ONE = Formula(lambda t: t + 1.0)
FROM_EDGE = Formula(lambda x: x + 0.5)
CUBIC_SLOPE_FAR = Formula(lambda t: (-2.25 * t + 7.5) * t - 6.0)
CUBIC_SLOPE_NEAR = Formula(lambda t: (3.75 * t - 4.5) * t)


@dataclasses.dataclass(frozen=True, slots=True)
class Taps:
    """The taps along one dimension; every tensor is ``(batch, taps, places)``.

    Attributes:
        positions: int64, held inside the image.
        valid: whether the tap lies in the image.
        weights: ``None`` where there is one tap, which is copied.
        slopes: derivatives of the weights by the coordinate, or ``None``.
        factor: ``(batch, places)``, derivative of the coordinate by that of the grid.
    """

    positions: torch.Tensor
    valid: torch.Tensor
    weights: torch.Tensor | None
    slopes: torch.Tensor | None
    factor: torch.Tensor


def _unnormalized(
    call: Call, x: torch.Tensor, size: int, align: bool
) -> tuple[torch.Tensor, float]:
    """Coordinates in elements of the image, and their derivative."""
    scale = (size - 1 if align else size) / 2
    return (SCALED_CORNERS if align else SCALED_EDGES)(call, x, scale), scale


def _reflected(
    call: Call | None, x: torch.Tensor, size: int, align: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Coordinates mirrored at the ends of the image, and the sign of their derivative.

    Without a call the coordinates are integers, whose arithmetic is exact.
    """
    span = float(size - 1 if align else size)
    if span == 0:
        return torch.zeros_like(x), torch.zeros_like(x)
    raised = x
    if not align:
        raised = x + 0.5 if call is None else FROM_EDGE(call, x)
    rest = torch.fmod(raised.abs(), 2.0 * span)
    sign = torch.where(raised < 0, -1.0, 1.0) * torch.where(rest < span, 1.0, -1.0)
    if call is None:
        y = torch.minimum(rest, 2.0 * span - rest) - (0.0 if align else 0.5)
    else:
        y = (REFLECTED_CORNERS if align else REFLECTED_EDGES)(call, rest, 2.0 * span)
    return y, sign.to(x.dtype)


def _padded(
    call: Call | None, x: torch.Tensor, size: int, padding: int, align: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Coordinates after padding, and the derivative of padding."""
    slope = torch.ones_like(x)
    if padding == ZEROS:
        return _findable(x), slope
    if padding == REFLECTION:
        x, slope = _reflected(call, x, size, align)
    inside = (x > 0) & (x < size - 1)
    return _findable(x.clamp(0, size - 1)), slope * inside


def _findable(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x.isfinite() & (x.abs() < 2.0**31 - 2), x, NOWHERE)


def _taps(
    call: Call, x: torch.Tensor, size: int, interpolation: int, padding: int, align: bool
) -> Taps:
    """The taps of coordinates of the grid, ``(batch, places)``, along one dimension."""
    coordinate, scale = _unnormalized(call, x, size, align)
    if interpolation == CUBIC:
        return _cubic_taps(call, coordinate, scale, size, padding, align)
    coordinate, slope = _padded(call, coordinate, size, padding, align)
    # The derivative is exact but for the product of an integer or half of one with a sign.
    factor = slope * scale
    if interpolation == NEAREST:
        return _held(coordinate.round().long().unsqueeze(1), size, None, None, factor)
    lower = coordinate.floor()
    fraction = SUB(call, coordinate, lower)
    weights = torch.stack([SUB(call, 1.0, fraction), fraction], 1)
    slopes = torch.ones_like(weights)
    slopes[:, 0] = -1.0
    near = lower.long()
    return _held(torch.stack([near, near + 1], 1), size, weights, slopes, factor)


def _cubic_taps(
    call: Call, coordinate: torch.Tensor, scale: float, size: int, padding: int, align: bool
) -> Taps:
    """Four taps around a coordinate that is not padded; each tap is."""
    coordinate = _findable(coordinate)
    lower = coordinate.floor()
    fraction = SUB(call, coordinate, lower)
    places = torch.stack([lower + d for d in range(-1, 3)], 1)
    places, _ = _padded(None, places, size, padding, align)
    rest = SUB(call, 1.0, fraction)
    far, near = FROM_ONE(call, fraction), FROM_ONE(call, rest)
    slopes = (
        CUBIC_SLOPE_FAR(call, far),
        CUBIC_SLOPE_NEAR(call, fraction),
        CUBIC_SLOPE_NEAR(call, rest).neg(),
        CUBIC_SLOPE_FAR(call, near).neg(),
    )
    weights, factor = cubic_weights(call, fraction, 1), torch.full_like(coordinate, scale)
    return _held(places.long(), size, weights, torch.stack(slopes, 1), factor)


def _held(
    positions: torch.Tensor,
    size: int,
    weights: torch.Tensor | None,
    slopes: torch.Tensor | None,
    factor: torch.Tensor,
) -> Taps:
    valid = (positions >= 0) & (positions < size)
    return Taps(positions.clamp(0, size - 1), valid, weights, slopes, factor)


def _axes(
    call: Call, x: torch.Tensor, grid: torch.Tensor, interpolation: int, padding: int, align: bool
) -> list[Taps]:
    """Taps of every dimension, in the order of the grid."""
    sizes = x.shape[2:][::-1]
    places = grid.reshape(grid.shape[0], -1, len(sizes))
    return [
        _taps(call, places[..., d].contiguous(), size, interpolation, padding, align)
        for d, size in enumerate(sizes)
    ]


def _corners(axes: Sequence[Taps]) -> list[tuple[int, ...]]:
    """The taps of all dimensions; those of the first dimension of the grid vary fastest."""
    counts = [range(taps.positions.shape[1]) for taps in reversed(axes)]
    return [corner[::-1] for corner in itertools.product(*counts)]


def _place(
    axes: Sequence[Taps], corner: Sequence[int], sizes: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Flat positions ``(batch, places)`` of a corner, and whether it lies in the image."""
    position = torch.zeros_like(axes[0].positions[:, 0])
    valid = torch.ones_like(position, dtype=torch.bool)
    for taps, tap, size in reversed(list(zip(axes, corner, sizes[::-1], strict=True))):
        position = position * size + taps.positions[:, tap]
        valid &= taps.valid[:, tap]
    return position, valid


def _values(x: torch.Tensor, position: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Elements ``(batch, channels, places)`` of an image; zero outside."""
    flat = x.flatten(2)
    index = position.unsqueeze(1).expand(-1, x.shape[1], -1)
    return flat.gather(2, index).masked_fill(~valid.unsqueeze(1), 0.0)


def _weight(
    call: Call, axes: Sequence[Taps], corner: Sequence[int], sloped: int | None = None
) -> torch.Tensor | None:
    """Product of the weights of a corner; of one dimension the slope is taken instead."""
    product: torch.Tensor | None = None
    for d, (taps, tap) in enumerate(zip(axes, corner, strict=True)):
        own = taps.slopes if d == sloped else taps.weights
        if own is not None:
            product = own[:, tap] if product is None else MUL(call, product, own[:, tap])
    return product


def grid_sampler(
    call: Call,
    x: torch.Tensor,
    grid: torch.Tensor,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
) -> torch.Tensor:
    """Samples ``(batch, channels, ...)`` of an image at the places of a grid."""
    shape = (x.shape[0], x.shape[1], *grid.shape[1:-1])
    if math.prod(shape) == 0:
        return x.new_zeros(shape)
    axes = _axes(call, x, grid, interpolation_mode, padding_mode, align_corners)
    sizes = x.shape[2:]
    if interpolation_mode == CUBIC:
        return _cubic(call, x, axes).view(shape)
    total: torch.Tensor | None = None
    for corner in _corners(axes):
        values = _values(x, *_place(axes, corner, sizes))
        weight = _weight(call, axes, corner)
        if weight is None:
            return values.view(shape)
        weight = weight.unsqueeze(1)
        if total is None:
            total = MUL(call, values, weight)
        else:
            total = FMA(call, values, weight, total, out=total)
    assert total is not None
    return total.view(shape)


def _cubic(call: Call, x: torch.Tensor, axes: Sequence[Taps]) -> torch.Tensor:
    """Four rows interpolated along the last dimension, then a column of these."""
    columns, rows = axes
    assert columns.weights is not None and rows.weights is not None
    total: torch.Tensor | None = None
    for i in range(4):
        row: torch.Tensor | None = None
        for j in range(4):
            values = _values(x, *_place(axes, (j, i), x.shape[2:]))
            weight = columns.weights[:, None, j]
            row = MUL(call, values, weight) if row is None else FMA(call, values, weight, row)
        assert row is not None
        weight = rows.weights[:, None, i]
        total = MUL(call, row, weight) if total is None else FMA(call, row, weight, total)
    assert total is not None
    return total


def grid_sampler_backward(
    call: Call,
    grad: torch.Tensor,
    x: torch.Tensor,
    grid: torch.Tensor,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> tuple[torch.Tensor | None, torch.Tensor]:
    """Gradients of the image, as far as it is wanted, and of the grid."""
    grad_grid = torch.zeros_like(grid, memory_format=torch.contiguous_format)
    grad_x = torch.zeros_like(x, memory_format=torch.contiguous_format) if output_mask[0] else None
    if grad.numel() == 0:
        return grad_x, grad_grid
    axes = _axes(call, x, grid, interpolation_mode, padding_mode, align_corners)
    g = grad.flatten(2)
    if output_mask[0]:
        grad_x = _image_gradient(call, g, x, axes)
    if interpolation_mode != NEAREST:
        slopes = [_grid_gradient(call, g, x, axes, d) for d in range(len(axes))]
        grad_grid.copy_(torch.stack(slopes, -1).view(grid.shape))
    return grad_x, grad_grid


def _image_gradient(
    call: Call, g: torch.Tensor, x: torch.Tensor, axes: Sequence[Taps]
) -> torch.Tensor:
    """Adds the gradient of each sample to the elements it was taken from, sample after sample."""
    batch, channels = x.shape[:2]
    sizes = x.shape[2:]
    corners = _corners(axes)
    places = [_place(axes, corner, sizes) for corner in corners]
    positions, valid = (torch.stack(parts, 2) for parts in zip(*places, strict=True))
    weights = [_weight(call, axes, corner) for corner in corners]
    elements = math.prod(sizes)
    total = torch.zeros(batch, elements, channels, dtype=g.dtype)
    step = max(1, LARGEST // max(1, channels * positions.shape[2]))
    for n in range(batch):
        for i in range(0, positions.shape[1], step):
            part = slice(i, i + step)
            rows = g[n, :, part].t().unsqueeze(1).expand(-1, len(corners), -1)
            kept = valid[n, part]
            terms = rows[kept]
            if weights[0] is not None:
                own = torch.stack([w[n, part] for w in weights if w is not None], 1)
                terms = MUL(call, terms, own[kept].unsqueeze(1))
            call.accumulate(positions[n, part][kept], terms, total[n])
    return total.transpose(1, 2).contiguous().view(x.shape)


def _grid_gradient(
    call: Call, g: torch.Tensor, x: torch.Tensor, axes: Sequence[Taps], d: int
) -> torch.Tensor:
    """``(batch, places)``: the derivative of each sample along ``d``, summed over channels."""
    slope: torch.Tensor | None = None
    for corner in _corners(axes):
        weight = _weight(call, axes, corner, sloped=d)
        assert weight is not None
        values = _values(x, *_place(axes, corner, x.shape[2:]))
        weight = weight.unsqueeze(1)
        slope = MUL(call, values, weight) if slope is None else FMA(call, values, weight, slope)
    assert slope is not None
    total = call.reduce("dot", slope, [1], y=g)
    return MUL(call, total, axes[d].factor)


_FORWARD: Final = (
    "coordinates, weights and their products, then the product and fused multiply-adds of every "
    "sample; the nearest element is copied"
)
_BACKWARD: Final = (
    "coordinates, weights and products; each addition to the image, sample after sample (product "
    "and addition fused in stock torch); the sums over taps and channels of the grid"
)


def _row(name: str, function: Any, why: str) -> Row:
    return Row(f"aten.{name}.default", Verdict.ROUNDED, function, why)


ROWS: tuple[Row, ...] = (
    _row("grid_sampler_2d", grid_sampler, _FORWARD),
    _row("grid_sampler_3d", grid_sampler, _FORWARD),
    _row("_grid_sampler_2d_cpu_fallback", grid_sampler, _FORWARD),
    _row("grid_sampler_2d_backward", grid_sampler_backward, _BACKWARD),
    _row("grid_sampler_3d_backward", grid_sampler_backward, _BACKWARD),
)
