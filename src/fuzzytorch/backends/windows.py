"""Which input element meets which weight of a convolution: index arithmetic, no rounding."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from fuzzytorch.backends.protocol import Geometry


@dataclasses.dataclass(frozen=True, slots=True)
class Axis:
    """One spatial dimension.

    Attributes:
        taps: int64 ``(T,)``, the positions in the kernel that take part, increasing.
        source: int64 ``(T, J)``, the input position that tap ``t`` reads for output
            ``j``; positions outside the input read as zero.
    """

    taps: torch.Tensor
    source: torch.Tensor


def conv_axes(
    kernel: Sequence[int],
    outputs: Sequence[int],
    geometry: Geometry,
) -> list[Axis]:
    """The axes of a convolution: output ``j`` reads ``j * stride - padding + t * dilation``."""
    axes = []
    steps = geometry.stride, geometry.padding, geometry.dilation
    for size, count, s, p, d in zip(kernel, outputs, *steps, strict=True):
        taps = torch.arange(size)
        axes.append(Axis(taps, torch.arange(count) * s - p + taps[:, None] * d))
    return axes


def phase_axes(
    residue: Sequence[int],
    kernel: Sequence[int],
    outputs: Sequence[int],
    geometry: Geometry,
) -> list[Axis]:
    """The axes of one phase of a transposed convolution: outputs ``residue + j * stride``."""
    axes = []
    steps = geometry.stride, geometry.padding, geometry.dilation
    for r, size, count, s, p, d in zip(residue, kernel, outputs, *steps, strict=True):
        taps = torch.arange(size)
        taps = taps[(r + p - taps * d) % s == 0]
        positions = torch.arange(r, max(r, count), s)
        axes.append(Axis(taps, (positions + p - taps[:, None] * d) // s))
    return axes


def windows(x: torch.Tensor, axes: Sequence[Axis]) -> torch.Tensor:
    """Gathers ``(N, C, D, H, W)`` to ``(N, C, Td, Th, Tw, Jd, Jh, Jw)``, with zeros outside."""
    dims = len(axes)
    inside = torch.ones((), dtype=torch.bool, device=x.device)
    positions = []
    for i, (axis, size) in enumerate(zip(axes, x.shape[2:], strict=True)):
        shape = [1] * (2 * dims)
        shape[i], shape[dims + i] = axis.source.shape
        source = axis.source.to(x.device).view(shape)
        inside = inside & (source >= 0) & (source < size)
        positions.append(source.clamp(0, max(size - 1, 0)))
    gathered: tuple[slice | torch.Tensor, ...] = (slice(None), slice(None), *positions)
    return torch.where(inside, x[gathered], 0.0)
