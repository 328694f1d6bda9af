"""Published complaints about one input with two results, each with its expected outcome."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Final

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fuzzytorch as ft
from fuzzytorch.backends import EXTENSION

pytest.importorskip(EXTENSION, reason="the native kernels were not built")

from fuzzytorch.backends import cpu


@pytest.fixture(params=cpu.available_isas())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every instruction set in turn."""
    before = cpu.isa()
    cpu.select_isa(request.param)
    assert cpu.isa() == request.param
    yield request.param
    cpu.select_isa(before)


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def rand(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def forward_and_backward(last: bool) -> list[torch.Tensor]:
    """Loss and gradients of two convolutions, with the memory layout of choice."""
    form = torch.channels_last if last else torch.contiguous_format
    x = rand(4, 3, 40, 40).contiguous(memory_format=form).requires_grad_()
    first = (rand(16, 3, 3, 3, seed=1) - 0.5).contiguous(memory_format=form).requires_grad_()
    second = (rand(8, 16, 3, 3, seed=2) - 0.5).contiguous(memory_format=form).requires_grad_()
    with ft.fuzzy("sr", seed=3):
        y = F.conv2d(F.relu(F.conv2d(x, first, padding=1)), second, stride=2)
        loss = y.square().mean()
        return [y, loss, *torch.autograd.grad(loss, (x, first, second))]


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_threads_and_channels_last_do_not_change_the_result_of_a_seed(
    threads: Callable[[int], None],
) -> None:
    threads(1)
    expected = forward_and_backward(last=False)
    for count, last in itertools.product((1, 2), (False, True)):
        threads(count)
        assert same(forward_and_backward(last), expected), (count, last)


EXPECTED: Final = forward_and_backward(last=False)


def test_another_processor_does_not_change_the_result_of_a_seed(isa: str) -> None:
    assert same(forward_and_backward(last=False), EXPECTED)


def test_a_function_equals_itself_in_nearest_rounding_and_not_in_a_random_one() -> None:
    x, w = rand(20, 30), rand(30, 20, seed=1)
    for mode, equal in (("rn", True), ("sr", False), ("ud", False)):
        with ft.fuzzy(mode, seed=0):
            assert torch.equal((x @ w).tanh(), (x @ w).tanh()) == equal, mode


def test_a_row_alone_and_in_a_batch_differs_by_no_more_than_rounding_explains() -> None:
    weight, rows = rand(1000, 1000), rand(2, 1000, seed=1)

    def run() -> tuple[torch.Tensor, torch.Tensor]:
        return F.linear(rows[:1], weight), F.linear(rows, weight)[:1]

    samples = ft.sample(run, n=30, mode="sr", seed=0)
    alone, batched = (leaf.reference.double() for leaf in samples.leaves)
    difference = (alone - batched).abs()
    # The complaint: two kernels of stock torch, or one order of additions and another.
    assert 0 < (difference / alone).max() < 4e-7
    for std in samples.std:
        assert (difference < 5 * std).double().mean() >= 0.99
    for digits in samples.digits:
        assert digits.min() > 6 and digits.max() < 7.2
    assert [leaf.outliers for leaf in samples.leaves] == [0, 0]


def stack_with_a_flat_channel(layer: int) -> nn.Sequential:
    """Twenty convolutions, each normalized; one channel of one of them is almost constant."""
    torch.manual_seed(0)
    blocks = []
    for i in range(20):
        convolution = nn.Conv2d(16 if i else 3, 16, 3, padding=1)
        blocks.append(nn.Sequential(convolution, nn.BatchNorm2d(16), nn.ReLU()))
    net = nn.Sequential(*blocks)
    with torch.no_grad():
        flat = net[layer][0]
        flat.bias[5] = 16.0
        below = net[:layer](IMAGES)
        flat.weight[5] *= 1e-3 / (flat(below)[:, 5] - 16.0).std()
        assert flat(below)[:, 5].double().var().item() == pytest.approx(1e-6, rel=0.01)
    return net


IMAGES: Final = rand(4, 3, 12, 12, seed=5) - 0.5


@pytest.mark.parametrize("layer", [4, 11, 17])
def test_the_batch_norm_of_an_almost_constant_channel_is_named_and_no_convolution(
    layer: int,
) -> None:
    net = stack_with_a_flat_channel(layer)
    with torch.no_grad():
        profile = ft.profile(lambda: net(IMAGES), n=5, mode="sr", seed=0)
    worst, second = profile.worst(2)
    assert (worst.place.path, worst.place.kind) == (f"{layer}.1", "BatchNorm2d")
    assert worst.own > 1.0 > 2 * second.own
    assert f"most digits are lost in {layer}.1 (BatchNorm2d)" in profile.text()
    # The numbers of that channel come out with an error of about 1e-3.
    assert 1e-4 < worst.outputs.std < 1e-2
    assert worst.inputs.std < 1e-5
