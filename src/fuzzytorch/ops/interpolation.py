"""Linear, cubic and antialiased resampling of images, and the gradients.

An output is a weighted sum over a few places along each dimension.  Places and weights
are found once per dimension; then every output is computed by itself, the last
dimension first, as the kernels of stock torch do.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, Final

import torch

from fuzzytorch.ops.call import Call
from fuzzytorch.ops.formula import Formula, fma
from fuzzytorch.ops.layout import laid_out
from fuzzytorch.ops.pointwise import ADD, DIV, FMA, MUL, SUB
from fuzzytorch.table import Row, Verdict

LARGEST: Final = 2**24
"""Terms of a gradient that are kept at a time."""

SOURCE = Formula(lambda place, ratio: fma(ratio, place + 0.5, -0.5))
CENTRE = Formula(lambda place, ratio: ratio * (place + 0.5))
DISTANCE = Formula(lambda place, centre, inverse: (place - centre + 0.5) * inverse)


def _near(t: Any, a: float) -> Any:
    return ((a + 2.0) * t - (a + 3.0)) * t * t + 1.0


def _far(t: Any, a: float) -> Any:
    return ((a * t - 5.0 * a) * t + 8.0 * a) * t - 4.0 * a


CUBIC_NEAR, CUBIC_FAR = Formula(lambda t: _near(t, -0.75)), Formula(lambda t: _far(t, -0.75))
SMOOTH_NEAR, SMOOTH_FAR = Formula(lambda t: _near(t, -0.5)), Formula(lambda t: _far(t, -0.5))


@dataclasses.dataclass(frozen=True, slots=True)
class Taps:
    """Where the outputs along one dimension take their input, and with what weights.

    Attributes:
        size: elements of the input.
        positions: int64 ``(outputs, taps)``.
        weights: ``(outputs, taps)``.
        valid: bool, the same shape, where outputs have different numbers of taps; else ``None``.
    """

    size: int
    positions: torch.Tensor
    weights: torch.Tensor
    valid: torch.Tensor | None = None


def _ratio(
    call: Call, size: int, outputs: int, align: bool, scale: float | None, dtype: torch.dtype
) -> torch.Tensor:
    """Elements of the input per element of the output, a tensor without dimensions."""
    if align:
        if outputs <= 1:
            return torch.zeros((), dtype=dtype)
        return DIV(call, torch.full((), float(size - 1), dtype=dtype), outputs - 1)
    if scale is not None and scale > 0:
        return call.round(torch.full((), 1.0 / scale, dtype=torch.float64))
    return DIV(call, torch.full((), float(size), dtype=dtype), outputs)


def _coordinates(
    call: Call, size: int, outputs: int, align: bool, scale: float | None, dtype: torch.dtype
) -> torch.Tensor:
    """The place in the input of every output, before it is held inside."""
    ratio = _ratio(call, size, outputs, align, scale, dtype)
    place = torch.arange(outputs, dtype=dtype)
    return MUL(call, place, ratio) if align else SOURCE(call, place, ratio)


def linear_taps(
    call: Call, size: int, outputs: int, align: bool, scale: float | None, dtype: torch.dtype
) -> Taps | None:
    """Two neighbours; ``None`` for a dimension that keeps its size, which is copied."""
    if size == outputs:
        return None
    coordinate = _coordinates(call, size, outputs, align, scale, dtype).clamp(min=0)
    lower = coordinate.floor().clamp(max=size - 1)
    fraction = SUB(call, coordinate, lower).clamp(0, 1)
    near = lower.long()
    return Taps(
        size,
        torch.stack([near, (near + 1).clamp(max=size - 1)], 1),
        torch.stack([SUB(call, 1.0, fraction), fraction], 1),
    )


def cubic_taps(
    call: Call, size: int, outputs: int, align: bool, scale: float | None, dtype: torch.dtype
) -> Taps:
    """Four neighbours; those outside are the border."""
    coordinate = _coordinates(call, size, outputs, align, scale, dtype)
    lower = coordinate.floor()
    fraction = SUB(call, coordinate, lower).clamp(0, 1)
    positions = lower.long()[:, None] + torch.arange(-1, 3)
    return Taps(size, positions.clamp(0, size - 1), cubic_weights(call, fraction, 1))


def cubic_weights(call: Call, fraction: torch.Tensor, dim: int) -> torch.Tensor:
    """Weights of the four neighbours of a place between the second and the third."""
    rest = SUB(call, 1.0, fraction)
    weights = (
        CUBIC_FAR(call, ADD(call, fraction, 1.0)),
        CUBIC_NEAR(call, fraction),
        CUBIC_NEAR(call, rest),
        CUBIC_FAR(call, ADD(call, rest, 1.0)),
    )
    return torch.stack(weights, dim)


def _triangle(call: Call, x: torch.Tensor) -> torch.Tensor:
    return SUB(call, 1.0, x).clamp(min=0)


def _smooth(call: Call, x: torch.Tensor) -> torch.Tensor:
    y = torch.where(x < 1, SMOOTH_NEAR(call, x), SMOOTH_FAR(call, x))
    return y.masked_fill(x >= 2, 0.0)


def _lanczos(call: Call, x: torch.Tensor) -> torch.Tensor:
    y = call.via_binary64(lambda wide: wide.sinc() * (wide / 3.0).sinc(), x)
    return y.masked_fill(x >= 3, 0.0)


def antialiased_taps(
    call: Call,
    size: int,
    outputs: int,
    align: bool,
    scale: float | None,
    dtype: torch.dtype,
    *,
    reach: int,
    window: Any,
) -> Taps | None:
    """All elements under a window that grows with the ratio; its weights are divided by their sum.

    Args:
        reach: half the width of the window at a ratio of at most 1.
        window: weight as a function of the distance.
    """
    if size == outputs:
        return None
    ratio = _ratio(call, size, outputs, align, scale, dtype)
    grows = float(ratio) >= 1.0
    support = float(MUL(call, ratio, float(reach))) if grows else float(reach)
    centre = CENTRE(call, torch.arange(outputs, dtype=dtype), ratio)
    first = (centre - support + 0.5).long().clamp(min=0)
    last = (centre + support + 0.5).long().clamp(max=size)
    count = int((last - first).max().clamp(min=1)) if outputs else 1
    positions = first[:, None] + torch.arange(count)
    valid = positions < last[:, None]
    inverse = DIV(call, 1.0, ratio) if grows else torch.ones_like(ratio)
    distance = DISTANCE(call, positions.to(dtype), centre[:, None], inverse).abs()
    weights = window(call, distance).masked_fill(~valid, 0.0)
    total = weights[:, :1]
    for j in range(1, count):
        # One term after the other, and none where the window is narrower.
        more = ADD(call, total, weights[:, j : j + 1])
        total = torch.where(valid[:, j : j + 1], more, total)
    weights = DIV(call, weights, total.masked_fill(total == 0, 1.0))
    return Taps(size, positions.clamp(max=size - 1), weights, valid)


def _along(x: torch.Tensor, weights: torch.Tensor, dim: int) -> torch.Tensor:
    shape = [1] * x.dim()
    shape[dim] = -1
    return weights.view(shape)


def _interpolated(
    call: Call, x: torch.Tensor, axes: Sequence[tuple[int, Taps | None]]
) -> torch.Tensor:
    """The weighted sums over ``axes``, the innermost of which is taken first for each output."""
    axes = [(dim, taps) for dim, taps in axes if taps is not None]
    if not axes:
        return x
    dim, taps = axes[0]
    assert taps is not None
    total: torch.Tensor | None = None
    for j in range(taps.positions.shape[1]):
        part = _interpolated(call, x.index_select(dim, taps.positions[:, j]), axes[1:])
        weight = _along(part, taps.weights[:, j], dim)
        if total is None:
            total = MUL(call, part, weight)
        elif taps.valid is None:
            total = FMA(call, part, weight, total, out=total)
        else:
            more = FMA(call, part, weight, total)
            total = torch.where(_along(part, taps.valid[:, j], dim), more, total)
    assert total is not None
    return total


def _resampled(
    call: Call,
    x: torch.Tensor,
    output_size: Sequence[int],
    align: bool,
    scales: Sequence[float | None],
    taps_of: Any,
) -> torch.Tensor:
    sizes = x.shape[2:]
    axes = [
        (d + 2, taps_of(call, sizes[d], output_size[d], align, scales[d], x.dtype))
        for d in range(len(sizes))
    ]
    y = x.contiguous()
    if taps_of in _SEPARABLE:
        # One dimension after the other, the last one first, each stored in between.
        for axis in reversed(axes):
            y = _interpolated(call, y, [axis])
        return y
    return _interpolated(call, y, axes)


def upsample(
    call: Call,
    x: torch.Tensor,
    output_size: Sequence[int],
    align_corners: bool,
    *scales: float | None,
    taps_of: Any,
    **named: float | None,
) -> torch.Tensor:
    """``(batch, channels, ...)`` resampled to ``output_size``."""
    given = _given(len(output_size), scales, named)
    y = _resampled(call, x, output_size, align_corners, given, taps_of)
    # The same size is a copy, never an alias.
    y = y.clone() if y is x else y
    return laid_out(call, [y], x, output_size, align_corners, *given)[0]


def _given(
    dimensions: int, scales: Sequence[float | None], named: dict[str, float | None]
) -> list[float | None]:
    names = ["scales"] if dimensions == 1 else [f"scales_{d}" for d in "dhw"[-dimensions:]]
    return [*scales, *(named.get(name) for name in names[len(scales) :])]


def upsample_backward(
    call: Call,
    grad: torch.Tensor,
    output_size: Sequence[int],
    input_size: Sequence[int],
    align_corners: bool,
    *scales: float | None,
    taps_of: Any,
    **named: float | None,
) -> torch.Tensor:
    """Adds the gradient of every output, times the weights, to the places it was taken from."""
    given = _given(len(output_size), scales, named)
    if taps_of is _LANCZOS_AA:
        # The one kernel whose result is row-major whatever the meta kernel says.
        grad = grad.contiguous()
    args = (grad, output_size, input_size, align_corners, *given)
    sizes = input_size[2:]
    if list(sizes) == list(output_size):
        return laid_out(call, [grad.clone(memory_format=torch.contiguous_format)], *args)[0]
    axes = [
        taps_of(call, sizes[d], output_size[d], align_corners, given[d], grad.dtype)
        for d in range(len(sizes))
    ]
    return laid_out(call, [_scattered(call, grad.contiguous(), sizes, axes)], *args)[0]


def _scattered(
    call: Call, grad: torch.Tensor, sizes: Sequence[int], axes: Sequence[Taps | None]
) -> torch.Tensor:
    positions = torch.zeros(1, 1, dtype=torch.int64)
    valid: torch.Tensor | None = None
    weights: torch.Tensor | None = None
    for size, taps in zip(sizes, axes, strict=True):
        own = torch.arange(size)[:, None] if taps is None else taps.positions
        shape = (positions.shape[0], own.shape[0], positions.shape[1], own.shape[1])
        flat = (shape[0] * shape[1], shape[2] * shape[3])
        positions = (positions[:, None, :, None] * size + own[None, :, None, :]).reshape(flat)
        inside = None if taps is None else taps.valid
        if valid is not None or inside is not None:
            ones = torch.ones(1, 1, dtype=torch.bool)
            before = (ones if valid is None else valid)[:, None, :, None]
            after = (ones if inside is None else inside)[None, :, None, :]
            valid = (before & after).expand(shape).reshape(flat)
        if taps is not None and weights is not None:
            weights = MUL(call, weights[:, None, :, None], taps.weights[None, :, None, :])
            weights = weights.expand(shape).reshape(flat)
        elif taps is not None:
            weights = taps.weights[None, :, None, :].expand(shape).reshape(flat)
        elif weights is not None:
            weights = weights[:, None, :, None].expand(shape).reshape(flat)
    assert weights is not None
    return _accumulated(call, grad, sizes, positions, weights, valid)


def _accumulated(
    call: Call,
    grad: torch.Tensor,
    sizes: Sequence[int],
    positions: torch.Tensor,
    weights: torch.Tensor,
    valid: torch.Tensor | None,
) -> torch.Tensor:
    """``(batch, channels, *sizes)``: output after output, its taps in row-major order."""
    planes = grad.shape[0] * grad.shape[1]
    rows = grad.reshape(planes, -1).t()
    total = torch.zeros(math.prod(sizes), planes, dtype=grad.dtype)
    step = max(1, LARGEST // max(1, positions.numel()))
    index = positions.reshape(-1) if valid is None else positions[valid]
    for i in range(0, planes, step):
        part = rows[:, None, i : i + step]
        if valid is None:
            terms = MUL(call, weights[:, :, None], part)
        else:
            output = torch.arange(positions.shape[0])[:, None].expand_as(positions)[valid]
            terms = MUL(call, weights[valid][:, None], part[output, 0])
        columns = torch.zeros(total.shape[0], part.shape[2], dtype=grad.dtype)
        call.accumulate(index, terms.reshape(index.numel(), -1), columns)
        total[:, i : i + step] = columns
    return total.t().reshape(grad.shape[0], grad.shape[1], *sizes)


_BILINEAR_AA = functools.partial(antialiased_taps, reach=1, window=_triangle)
_BICUBIC_AA = functools.partial(antialiased_taps, reach=2, window=_smooth)
_LANCZOS_AA = functools.partial(antialiased_taps, reach=3, window=_lanczos)
_SEPARABLE: Final = (_BILINEAR_AA, _BICUBIC_AA, _LANCZOS_AA)

_COORDINATES = "ratio, coordinates and weights of each dimension, "
_FORWARD = _COORDINATES + "then the product and fused multiply-adds of every output"
_BACKWARD = (
    _COORDINATES + "their products, the product with the gradient (fused with the addition in "
    "stock torch), each addition in the order of the outputs"
)

_KINDS: Final = {
    "upsample_linear1d": linear_taps,
    "upsample_bilinear2d": linear_taps,
    "upsample_trilinear3d": linear_taps,
    "upsample_bicubic2d": cubic_taps,
    "_upsample_bilinear2d_aa": _BILINEAR_AA,
    "_upsample_bicubic2d_aa": _BICUBIC_AA,
    "_upsample_lanczos2d_aa": _LANCZOS_AA,
}


def _rows(name: str, taps_of: Any) -> tuple[Row, ...]:
    forms = (
        (f"{name}.default", upsample, _FORWARD),
        (f"{name}_backward.default", upsample_backward, _BACKWARD),
    )
    return tuple(
        Row(f"aten.{n}", Verdict.ROUNDED, functools.partial(f, taps_of=taps_of), why)
        for n, f, why in forms
    )


ROWS: tuple[Row, ...] = tuple(
    row for name, taps_of in _KINDS.items() for row in _rows(name, taps_of)
)
