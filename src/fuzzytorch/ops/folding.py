"""Gradients of movements that copy an element to several places: windows and padding.

Contributions to one element are added one after the other in the order of stock
torch: row-major order of the gradient.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import torch

from fuzzytorch.ops.call import Call
from fuzzytorch.ops.indexing import overlapping
from fuzzytorch.table import Row, Verdict


def _numbers(shape: Sequence[int]) -> torch.Tensor:
    """Elements numbered in row-major order, exact in binary64."""
    return torch.arange(math.prod(shape), dtype=torch.float64).view(tuple(shape))


def unfold_backward(
    call: Call, grad_in: torch.Tensor, input_sizes: Sequence[int], dim: int, size: int, step: int
) -> torch.Tensor:
    """Adds the gradients of all windows that hold an element, in the order of the windows."""
    numbers = torch.arange(math.prod(input_sizes)).view(tuple(input_sizes))
    return overlapping(call, grad_in, numbers.unfold(dim, size, step), input_sizes)


def col2im(
    call: Call,
    self: torch.Tensor,
    output_size: Sequence[int],
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> torch.Tensor:
    """Adds every column into the image, in row-major order of the columns."""
    batch = self.shape[:-2]
    channels = self.shape[-2] // math.prod(kernel_size)
    shape = (*batch, channels, *output_size)
    # Numbered from one: the zeros that im2col reads in the padding belong nowhere.
    numbers = torch.ops.aten.im2col(
        _numbers(shape) + 1.0, kernel_size, dilation, padding, stride
    ).long()
    if numbers.shape != self.shape:
        raise RuntimeError(
            f"col2im: columns of shape {list(self.shape)} do not fit an image of size "
            f"{list(output_size)}, which has {list(numbers.shape)}."
        )
    inside = numbers > 0
    return overlapping(call, self[inside], numbers[inside] - 1, shape)


def padding_backward(
    call: Call,
    grad_output: torch.Tensor,
    self: torch.Tensor,
    padding: Sequence[int],
    pad: Callable[..., torch.Tensor],
) -> torch.Tensor:
    """Adds the gradients of all copies of an element, in row-major order of the gradient."""
    numbers = pad(_numbers(self.shape), padding).long()
    return overlapping(call, grad_output, numbers, self.shape)


_ADDED = "zero plus every contribution in order, each addition rounded"

ROWS: tuple[Row, ...] = (
    Row("aten.unfold_backward.default", Verdict.ROUNDED, unfold_backward, _ADDED),
    Row("aten.col2im.default", Verdict.ROUNDED, col2im, _ADDED),
    *(
        Row(
            f"aten.{kind}_pad{n}d_backward.default",
            Verdict.ROUNDED,
            functools.partial(padding_backward, pad=getattr(torch.ops.aten, f"{kind}_pad{n}d")),
            _ADDED,
        )
        for kind in ("reflection", "replication")
        for n in (1, 2, 3)
    ),
)
