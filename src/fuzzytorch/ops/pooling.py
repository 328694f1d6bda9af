"""Averages over windows, and the gradients of pooling and of nearest upsampling.

Gradients add window after window, in the order of the outputs.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from fuzzytorch.ops.call import Call
from fuzzytorch.ops.pointwise import DIV
from fuzzytorch.ops.pooling_windows import Axis, Windows, adaptive, each, regular_axes
from fuzzytorch.program import Program
from fuzzytorch.table import Row, Verdict


def _memory_format(x: torch.Tensor, last: torch.memory_format | None) -> torch.memory_format:
    """``last`` where the strides of ``x`` say so, else row-major.

    Args:
        x: what stock torch takes the memory format of its result from.
        last: the channels-last format that its kernel keeps, if any.
    """
    if last is None or x.dim() != _DIMENSIONS[last] or x.is_contiguous():
        return torch.contiguous_format
    return last if x.is_contiguous(memory_format=last) else torch.contiguous_format


_DIMENSIONS: Final = {torch.channels_last: 4, torch.channels_last_3d: 5}


def _kept(dimensions: int) -> torch.memory_format | None:
    """What most kernels keep: channels last for images, nothing for volumes."""
    return torch.channels_last if dimensions == 2 else None


def _stored(
    y: torch.Tensor, shape: Sequence[int], like: torch.Tensor, last: torch.memory_format | None
) -> torch.Tensor:
    """``y`` in this shape, in the memory format of ``like`` if that is ``last``."""
    out = torch.empty(shape, device=y.device, memory_format=_memory_format(like, last))
    return out.copy_(y.reshape(shape))


def _sums(call: Call, x: torch.Tensor, axes: Sequence[Axis]) -> torch.Tensor:
    """Sum of every window; an element outside the input counts as a zero."""
    windows = Windows.of(axes)
    elements = x.flatten(-len(axes))[..., windows.positions]
    if not bool(windows.valid.all()):
        elements = elements.masked_fill(~windows.valid, 0.0)
    sums = call.reduce("sum", elements, [-1])
    return sums.view(*x.shape[: -len(axes)], *(axis.outputs for axis in axes))


def _strided_taps(x: torch.Tensor, axes: Sequence[Axis]) -> list[torch.Tensor]:
    """Every element of small windows as a view over all windows; empty where that cannot be."""
    taps = math.prod(axis.positions.shape[1] for axis in axes)
    whole = all(bool(axis.valid.all()) for axis in axes)
    if not whole or not 2 <= taps <= MOST_TAPS or any(axis.outputs == 0 for axis in axes):
        return []
    windows = x
    for axis in axes:
        step = int(axis.positions[1, 0]) if axis.outputs > 1 else axis.size
        # Every dimension of taps is appended, so that the next axis moves to this place.
        windows = windows.unfold(-len(axes), axis.positions.shape[1], step)
    places = itertools.product(*(range(axis.positions.shape[1]) for axis in axes))
    selections: list[Any] = [(..., *place) for place in places]
    return [windows[selection] for selection in selections]


MOST_TAPS: Final = 8
"""Elements of a window up to which they are inputs of one elementwise program."""


@functools.cache
def _mean_of(taps: int) -> Program:
    """The sum of the inputs from the first to the last, over a scalar."""
    adds = [("add", 0, 1)] + [("add", taps + t - 1, t) for t in range(2, taps)]
    return Program(taps, 1, (*adds, ("div", 2 * taps - 1, taps)))


def _divisor(axes: Sequence[Axis], override: int | None) -> int | torch.Tensor:
    """What every average is divided by: one number where it is the same for all."""
    if override is not None:
        return override
    counts = axes[0].lengths
    for axis in axes[1:]:
        counts = counts.unsqueeze(-1) * axis.lengths
    first = int(counts.flatten()[0]) if counts.numel() else 1
    return first if bool((counts == first).all()) else counts.to(torch.float32)


def _average(dimensions: int) -> Callable[..., torch.Tensor]:
    def average(
        call: Call,
        x: torch.Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> torch.Tensor:
        axes = regular_axes(
            x, dimensions, kernel_size, stride, padding, ceil_mode, count_include_pad
        )
        shape = (*x.shape[:-dimensions], *(axis.outputs for axis in axes))
        out = torch.empty(shape, memory_format=_memory_format(x, _kept(dimensions)))
        divisor = _divisor(axes, divisor_override)
        taps = _strided_taps(x, axes)
        if taps and not isinstance(divisor, torch.Tensor):
            return call.elementwise(_mean_of(len(taps)), *taps, scalars=(divisor,), out=out)
        return DIV(call, _sums(call, x, axes), divisor, out=out)

    return average


def _average_backward(dimensions: int) -> Callable[..., torch.Tensor]:
    def average_backward(
        call: Call,
        grad: torch.Tensor,
        x: torch.Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> torch.Tensor:
        axes = regular_axes(
            x, dimensions, kernel_size, stride, padding, ceil_mode, count_include_pad
        )
        shares = DIV(call, grad, _divisor(axes, divisor_override))
        return _spread(call, shares, x, axes)

    return average_backward


def _spread(
    call: Call, shares: torch.Tensor, x: torch.Tensor, axes: Sequence[Axis]
) -> torch.Tensor:
    """Adds the share of every output to all elements of its window."""
    windows = Windows.of(axes)
    outputs = torch.arange(windows.positions.shape[0])[:, None].expand_as(windows.positions)
    target, source = windows.positions[windows.valid], outputs[windows.valid]
    return _gathered(call, target, shares.flatten(-len(axes)), source, x.shape, len(axes), x)


def _gathered(
    call: Call,
    target: torch.Tensor,
    shares: torch.Tensor,
    source: torch.Tensor | None,
    shape: Sequence[int],
    dimensions: int,
    like: torch.Tensor,
) -> torch.Tensor:
    """A gradient: position ``target[i]`` gains ``shares[..., source[i]]``, in turn."""
    places = math.prod(shape[-dimensions:])
    by_place = shares.reshape(-1, shares.shape[-1]).t()
    terms = by_place.contiguous() if source is None else by_place[source]
    total = torch.zeros(places, by_place.shape[1])
    call.accumulate(target, terms, total)
    return _stored(total.t(), shape, like, _kept(dimensions))


def adaptive_average(call: Call, x: torch.Tensor, output_size: Sequence[int]) -> torch.Tensor:
    axes = _adaptive_axes(x, output_size)
    sums = _sums(call, x, axes)
    y = _stored(sums, sums.shape, x, _kept(len(axes)))
    return _divided(call, y, axes, out=y)


def _adaptive_axes(x: torch.Tensor, output_size: Sequence[int]) -> list[Axis]:
    sizes = x.shape[-len(output_size) :]
    return [adaptive(size, n) for size, n in zip(sizes, output_size, strict=True)]


def _divided(
    call: Call, y: torch.Tensor, axes: Sequence[Axis], out: torch.Tensor | None = None
) -> torch.Tensor:
    """``y`` over the length of its window in every dimension: one division for each."""
    for d, axis in enumerate(axes):
        lengths = axis.lengths.to(torch.float32).view(-1, *[1] * (len(axes) - 1 - d))
        y = DIV(call, y, lengths, out=out)
    return y


def _adaptive_average_backward(dimensions: int) -> Callable[..., torch.Tensor]:
    def adaptive_average_backward(call: Call, grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        axes = _adaptive_axes(x, grad.shape[-dimensions:])
        return _spread(call, _divided(call, grad, axes), x, axes)

    return adaptive_average_backward


def _maximum_backward(
    dimensions: int, last: torch.memory_format | None
) -> Callable[..., torch.Tensor]:
    def maximum_backward(
        call: Call, grad: torch.Tensor, x: torch.Tensor, *geometry: Any, **named: Any
    ) -> torch.Tensor:
        indices = named["indices"] if "indices" in named else geometry[-1]
        places = math.prod(x.shape[-dimensions:])
        positions = indices.reshape(-1, math.prod(indices.shape[-dimensions:]))
        rounding = call.rounding
        exact = rounding.is_binary32 and rounding.mode != "ud"
        if exact and _disjoint(dimensions, geometry):
            # No position gains twice, and adding a number of the format to zero is exact.
            planes = torch.zeros(positions.shape[0], places)
            total = planes.scatter_(1, positions, grad.reshape(positions.shape))
        else:
            planes = torch.arange(positions.shape[0])[:, None] * places
            total = torch.zeros(positions.shape[0] * places, 1)
            call.accumulate((positions + planes).flatten(), grad.reshape(-1, 1), total)
        return _stored(total, x.shape, x, last)

    return maximum_backward


def _disjoint(dimensions: int, geometry: Sequence[Any]) -> bool:
    """Whether the windows of a regular max pooling cannot overlap."""
    if len(geometry) < 5:
        return False
    kernel, dilation = each(geometry[0], dimensions), each(geometry[3], dimensions)
    stride = each(geometry[1], dimensions) if geometry[1] else kernel
    return all(s >= k for s, k in zip(stride, kernel, strict=True)) and max(dilation) == 1


def _nearest_backward(forward: Any) -> Callable[..., torch.Tensor]:
    def nearest_backward(
        call: Call,
        grad: torch.Tensor,
        output_size: Sequence[int],
        input_size: Sequence[int],
        *scales: float | None,
        **named: float | None,
    ) -> torch.Tensor:
        spatial = input_size[2:]
        places = torch.arange(math.prod(spatial), dtype=torch.float64)
        # Stock torch upsamples the positions themselves: that is where each output came from.
        origin = forward(places.view(1, 1, *spatial), output_size, *scales, **named)
        target = origin.flatten().long()
        return _gathered(call, target, grad.flatten(2), None, input_size, len(spatial), grad)

    return nearest_backward


def _row(name: str, function: Any, why: str) -> Row:
    return Row(f"aten.{name}", Verdict.ROUNDED, function, why)


_AVERAGE = "every addition (elements in the padding as zeros), then the division"
_AVERAGE_BACKWARD = "the division, then every addition of a share"
_MAXIMUM_BACKWARD = "every addition of a gradient; none where windows do not overlap"
_NEAREST_BACKWARD = "every addition of a gradient"

ROWS: tuple[Row, ...] = (
    *(_row(f"avg_pool{n}d.default", _average(n), _AVERAGE) for n in (2, 3)),
    *(
        _row(f"avg_pool{n}d_backward.default", _average_backward(n), _AVERAGE_BACKWARD)
        for n in (2, 3)
    ),
    *(
        _row(
            f"_adaptive_avg_pool{n}d.default",
            adaptive_average,
            "every addition, then one division for each dimension",
        )
        for n in (2, 3)
    ),
    *(
        _row(
            f"_adaptive_avg_pool{n}d_backward.default",
            _adaptive_average_backward(n),
            "one division for each dimension, then every addition of a share",
        )
        for n in (2, 3)
    ),
    *(
        _row(f"{name}_backward.default", _maximum_backward(n, last), _MAXIMUM_BACKWARD)
        for name, n, last in (
            ("max_pool2d_with_indices", 2, torch.channels_last),
            ("max_pool3d_with_indices", 3, torch.channels_last_3d),
            ("adaptive_max_pool2d", 2, torch.channels_last),
            ("adaptive_max_pool3d", 3, None),
            ("fractional_max_pool2d", 2, None),
            ("fractional_max_pool3d", 3, None),
        )
    ),
    *(
        _row(
            f"{kind}{n}d_backward.default",
            _nearest_backward(getattr(torch.ops.aten, f"{kind}{n}d").default),
            _NEAREST_BACKWARD,
        )
        for n in (1, 2, 3)
        for kind in ("upsample_nearest", "_upsample_nearest_exact")
    ),
)
