"""Where the windows of a pooling lie: which elements of the input every output reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch


@dataclasses.dataclass(frozen=True, slots=True)
class Axis:
    """The windows along one dimension.

    Attributes:
        size: elements of the input.
        positions: int64 ``(outputs, taps)``, positions in the input.
        valid: bool, the same shape: whether the tap belongs to the window and lies
            within the input.
        lengths: int64 ``(outputs,)``, the elements that an average counts.
    """

    size: int
    positions: torch.Tensor
    valid: torch.Tensor
    lengths: torch.Tensor

    @property
    def outputs(self) -> int:
        return self.positions.shape[0]


@dataclasses.dataclass(frozen=True, slots=True)
class Windows:
    """The windows of all dimensions, flattened row-major: int64 and bool ``(outputs, taps)``."""

    positions: torch.Tensor
    valid: torch.Tensor

    @classmethod
    def of(cls, axes: Sequence[Axis]) -> Windows:
        positions, valid = axes[0].positions, axes[0].valid
        for axis in axes[1:]:
            positions = positions[:, None, :, None] * axis.size + axis.positions[None, :, None, :]
            valid = valid[:, None, :, None] & axis.valid[None, :, None, :]
            shape = (positions.shape[0] * positions.shape[1], -1)
            positions, valid = positions.reshape(shape), valid.reshape(shape)
        return cls(positions, valid)


def regular(
    size: int, kernel: int, stride: int, padding: int, ceil_mode: bool, include_padding: bool
) -> Axis:
    """Windows of equal size at equal distances, as stock torch counts them."""
    span = size + 2 * padding - kernel
    outputs = (span + (stride - 1 if ceil_mode else 0)) // stride + 1
    if ceil_mode and (outputs - 1) * stride >= size + padding:
        outputs -= 1
    start = torch.arange(outputs) * stride - padding
    positions = start[:, None] + torch.arange(kernel)
    valid = (positions >= 0) & (positions < size)
    padded = (start + kernel).clamp(max=size + padding) - start
    return Axis(
        size,
        positions.clamp(0, max(size - 1, 0)),
        valid,
        padded if include_padding else valid.sum(1),
    )


def adaptive(size: int, outputs: int) -> Axis:
    """Windows from ``floor(i * size / outputs)`` to ``ceil((i + 1) * size / outputs)``."""
    i = torch.arange(outputs)
    start = i * size // outputs
    end = -(-(i + 1) * size // outputs)
    taps = int((end - start).max()) if outputs else 0
    positions = start[:, None] + torch.arange(taps)
    valid = positions < end[:, None]
    return Axis(size, positions.clamp(max=max(size - 1, 0)), valid, end - start)


def regular_axes(
    x: torch.Tensor,
    dimensions: int,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    include_padding: bool,
) -> list[Axis]:
    kernel = each(kernel_size, dimensions)
    steps = each(stride, dimensions) if stride else kernel
    pads = each(padding, dimensions)
    return [
        regular(x.shape[d - dimensions], kernel[d], steps[d], pads[d], ceil_mode, include_padding)
        for d in range(dimensions)
    ]


def each(values: int | Sequence[int], dimensions: int) -> list[int]:
    given = [values] if isinstance(values, int) else list(values)
    return given * dimensions if len(given) == 1 else given
