"""Tensors cut into pieces that stay in the cache, for functions that torch evaluates."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

import torch

from fuzzytorch.program import TILE

PIECE: Final = 2**15
"""Elements that one thread works on at a time: torch gives no thread fewer."""


def pieces(
    tensors: Sequence[torch.Tensor], threads: int
) -> Iterator[tuple[int, tuple[torch.Tensor, ...]]]:
    """The same elements of several tensors of one shape, in logical order.

    Where every thread has a piece, they are handed out together.  Cuts lie at multiples of a
    length that depends on shape and strides alone, so that the number of threads cannot change
    what torch computes for an element.

    Yields:
        The number of the first element, a multiple of :data:`~fuzzytorch.program.TILE`, and
        views of the tensors.
    """
    count = tensors[0].numel()
    if count <= PIECE:
        yield 0, tuple(tensors)
        return
    if all(x.is_contiguous() for x in tensors):
        tensors = [x.view(-1) for x in tensors]
    rows = tensors[0].shape[0]
    width = count // rows
    aligned = TILE // math.gcd(width, TILE)
    step = math.ceil(PIECE / (width * aligned)) * aligned
    row = 0
    while row < rows:
        size = step * threads if row + step * threads <= rows else step
        yield row * width, tuple(x[row : row + size] for x in tensors)
        row += size
