"""The memory formats that stock torch chooses for convolutions and their gradients.

They depend on the backend that stock torch would take, which it says itself.  Its backends
for few channels on one thread work group by group and ask the strides of each group, which
matters where a dimension of size 1 makes a tensor contiguous in both senses.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import torch
from torch._prims_common import suggest_memory_format

_BY_GROUP: Final = ("Slow2d", "SlowTranspose2d", "SlowDilated2d")
"""Backends of stock torch that ask every group for its memory format."""


def empty(
    shape: Sequence[int], memory_format: torch.memory_format, like: torch.Tensor
) -> torch.Tensor:
    """An uninitialised tensor of signals, images or volumes in a memory format."""
    lines = [*shape[:2], 1, *shape[2:]] if len(shape) == 3 else shape
    out = torch.empty(lines, dtype=like.dtype, device=like.device, memory_format=memory_format)
    return out.squeeze(2) if len(shape) == 3 else out


class Formats(NamedTuple):
    """Memory formats of the output, of the gradient of the input and of that of the weight."""

    output: torch.memory_format
    x: torch.memory_format
    weight: torch.memory_format


def formats(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    bias_sizes: Sequence[int] | None,
    geometry: tuple[Any, ...],
    output: Sequence[int],
) -> Formats:
    """Asks stock torch, which computes nothing for it.

    Args:
        x, weight, bias: as in ``aten.convolution``; ``bias_sizes`` as in its gradient.
        geometry: stride, padding, dilation, transposed, output padding and groups.
        output: the shape of the output.
    """
    if x.dim() == 3:
        # Stock torch takes signals, made contiguous, for images of one line.
        x = x if x.is_contiguous() else x.new_empty(x.shape)
        stride, padding, dilation, transposed, output_padding, groups = geometry
        geometry = (
            [1, *stride], [0, *padding], [1, *dilation], transposed, [0, *output_padding], groups
        )  # fmt: skip
        x, weight, output = x.unsqueeze(2), weight.unsqueeze(2), [*output[:2], 1, *output[2:]]
    backend = torch._C._select_conv_backend(x, weight, bias, *geometry, bias_sizes)
    chosen = torch._C._conv_determine_backend_memory_format(x, weight, backend)
    if chosen is not torch.contiguous_format and str(backend).endswith(_BY_GROUP):
        return _by_group(
            tuple(x.shape),
            x.stride(),
            tuple(weight.shape),
            weight.stride(),
            tuple(output),
            chosen,
            geometry[-1],
        )
    return Formats(chosen, chosen, chosen)


@functools.lru_cache(1024)
def _by_group(
    x_shape: Sequence[int],
    x_stride: Sequence[int],
    weight_shape: Sequence[int],
    weight_stride: Sequence[int],
    output: Sequence[int],
    chosen: torch.memory_format,
    groups: int,
) -> Formats:
    x = torch.empty_strided(x_shape, x_stride, device="meta").contiguous(memory_format=chosen)
    weight = torch.empty_strided(weight_shape, weight_stride, device="meta")
    weight = weight.contiguous(memory_format=chosen)
    if groups > 1:
        x, weight = _first(x, 1, groups), _first(weight, 0, groups)
    last = torch.channels_last in (suggest_memory_format(x), suggest_memory_format(weight))
    part = torch.channels_last if last else torch.contiguous_format
    return Formats(
        _joined(output, 1, part, groups),
        _joined(x_shape, 1, part, groups),
        _joined(weight_shape, 0, suggest_memory_format(weight), groups),
    )


def _first(x: torch.Tensor, dim: int, groups: int) -> torch.Tensor:
    """The first group of a tensor, as stock torch copies it."""
    part = x.narrow(dim, 0, x.shape[dim] // groups)
    return part.contiguous(memory_format=suggest_memory_format(x))


def _joined(
    shape: Sequence[int], dim: int, part: torch.memory_format, groups: int
) -> torch.memory_format:
    """The format of a tensor of this shape that is concatenated of groups in format ``part``."""
    if groups == 1:
        return part
    sizes = list(shape)
    sizes[dim] //= groups
    return suggest_memory_format(torch.empty(sizes, memory_format=part, device="meta"))
