"""Convolutions and their gradients have the strides of stock torch, also where a size is 1."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch

import fuzzytorch as ft

SIZES = [
    (n, c, o, size, taps, groups)
    for n, c, o, size, taps, groups in itertools.product(
        (1, 2), (1, 2), (1, 2), (1, 3), (1, 2), (1, 2)
    )
    if c % groups == 0 and o % groups == 0 and taps <= size
]


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """Stock torch chooses another kernel, and with it other strides, on one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def layouts(shape: tuple[int, ...]) -> list[torch.Tensor]:
    """Contiguous, channels last by view, and two dimensions exchanged."""
    n, c, *spatial = shape
    last = torch.ones(n, *spatial, c).movedim(-1, 1)
    return [torch.ones(shape), last, torch.ones(c, n, *spatial).transpose(0, 1)]


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_strides_are_those_of_stock_torch(dimensions: int, transposed: bool) -> None:
    forward, backward = torch.ops.aten.convolution, torch.ops.aten.convolution_backward
    plain = ([1] * dimensions, [0] * dimensions, [1] * dimensions, transposed, [0] * dimensions)
    for n, c, o, size, taps, groups in SIZES:
        outer, inner = (c, o // groups) if transposed else (o, c // groups)
        both = itertools.product(
            layouts((n, c, *[size] * dimensions)), layouts((outer, inner, *[taps] * dimensions))
        )
        for x, weight in both:
            geometry = (*plain, groups)
            y = forward(x, weight, None, *geometry)
            asked = (y, x, weight, [o], *geometry, [True, True, True])
            expected = [t.stride() for t in (y, *backward(*asked))]
            with ft.fuzzy("rn", seed=0):
                ours = [forward(x, weight, None, *geometry), *backward(*asked)]
            assert [t.stride() for t in ours] == expected, (x.shape, x.stride(), weight.stride())
