"""Published complaints about numbers that change, each with its expected outcome."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pytest
import torch
from moments import LEVEL
from scipy import stats
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

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


@pytest.mark.parametrize("mode", ["rn", "sr", "ud", "cestac"])
def test_the_grid_of_a_floored_range_is_bit_identical(mode: str) -> None:
    expected = torch.arange(-5, 5, 1.4, dtype=torch.float64).floor()
    with ft.fuzzy(mode, seed=0):
        assert torch.equal(torch.arange(-5, 5, 1.4, dtype=torch.float64).floor(), expected)


def test_adding_and_subtracting_is_exact_in_sr_and_scatters_in_ud() -> None:
    x = torch.full((10_000,), 0.7)
    with ft.fuzzy("sr", seed=0):
        assert bool((x + 0.3 - 0.3 == x).all())
    with ft.fuzzy("ud", seed=0):
        y = (x + 0.3 - 0.3).double()
    y -= x.double()
    # 1 becomes 1 + 2^-23 or 1 - 2^-24; the difference, exact again, moves by 2^-24.
    values, counts = torch.unique(y * 2.0**24, return_counts=True)
    assert values.tolist() == [-2.0, 0.0, 1.0, 3.0]
    assert stats.chisquare(counts.numpy()).pvalue > LEVEL
    assert (y.std() / 1.1e-7).item() == pytest.approx(1.0, abs=0.05)


def test_a_convolution_scatters_under_inference_mode() -> None:
    x, w, b = rand(2, 3, 8, 8), rand(5, 3, 3, 3, seed=1), rand(5, seed=2)
    with torch.inference_mode():
        mode = ft.fuzzy("cestac", seed=0)
        samples = []
        for _ in range(40):
            with mode:
                samples.append(F.conv2d(x, w, b, padding=1))
        varied = torch.stack(samples)
        assert bool((varied != varied[0]).any(0).all())
    assert {r.verdict.name for r in mode.coverage.records} <= {"ROUNDED", "LOWERED", "EXACT"}


THREADED: Final = torch.linspace(0.5, 3.0, 500)


def _in_thread(**arguments: Any) -> torch.Tensor:
    results: list[torch.Tensor] = []

    def work() -> None:
        with ft.fuzzy("sr", **arguments):
            results.append(THREADED * 0.1)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return results[0]


def test_threads_differ_without_a_seed_and_agree_with_one() -> None:
    assert not torch.equal(_in_thread(), _in_thread())
    with ft.fuzzy("sr", seed=4):
        here = THREADED * 0.1
    assert torch.equal(_in_thread(seed=4), here)
    assert torch.equal(_in_thread(seed=4), here)


def test_work_in_a_thread_that_the_mode_cannot_see_is_warned_about() -> None:
    with ft.fuzzy("sr", seed=0):
        thread = threading.Thread(target=lambda: THREADED * 0.1)
        with pytest.warns(UserWarning, match="does not inherit"):
            thread.start()
        thread.join()


class Perturbed(Dataset[torch.Tensor]):
    """Items that are computed in a worker, under a mode of its own."""

    def __init__(self, seed: int | None) -> None:
        self.seed = seed

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        with ft.fuzzy("sr", seed=self.seed):
            return THREADED * 0.1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_forked_loader_workers_differ_without_a_seed_and_agree_with_one() -> None:
    for seed, different in ((None, 4), (7, 1)):
        loader = DataLoader(Perturbed(seed), num_workers=2, multiprocessing_context="fork")
        items = {tuple(item.flatten().tolist()) for item in loader}
        assert len(items) == different, seed


def test_two_processes_differ_without_a_seed_and_agree_with_one() -> None:
    script = textwrap.dedent("""
        import json, torch, fuzzytorch as ft
        x = torch.linspace(0.5, 3.0, 500)
        results = []
        for seed in (None, 11):
            with ft.fuzzy("sr", seed=seed):
                results.append((x * 0.1).tolist())
        print(json.dumps(results))
    """)
    runs = [
        json.loads(
            subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout
        )
        for _ in range(2)
    ]
    assert runs[0][0] != runs[1][0]
    assert runs[0][1] == runs[1][1]
    with ft.fuzzy("sr", seed=11):
        assert (THREADED * 0.1).tolist() == runs[0][1]


def test_nearest_rounding_changes_no_random_stream_state_dtype_stride_or_nan() -> None:
    def train() -> tuple[list[torch.Tensor], dict[str, torch.Tensor], torch.Tensor]:
        torch.manual_seed(5)
        net = torch.nn.Sequential(
            torch.nn.Conv2d(2, 4, 3),
            torch.nn.BatchNorm2d(4),
            torch.nn.Dropout(),
            torch.nn.Flatten(),
            torch.nn.Linear(4 * 36, 3),
        )
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        x = torch.randn(6, 2, 8, 8).contiguous(memory_format=torch.channels_last)
        y = net(x)
        y.square().mean().backward()
        optimizer.step()
        spoilt = x.clone()
        spoilt[0, 0, 0, 0], spoilt[1, 0, 0, 0] = torch.nan, torch.inf
        hidden = [net[0](spoilt), net[0](spoilt) - net[0](spoilt), torch.rand(3), y]
        return hidden, net.state_dict(), torch.get_rng_state()

    stock, state, generator = train()
    with ft.fuzzy("rn"):
        ours, ours_state, ours_generator = train()
    assert torch.equal(ours_generator, generator)
    assert torch.equal(ours[2], stock[2])
    assert list(ours_state) == list(state)
    pairs = [*zip(ours, stock, strict=True), *((ours_state[k], state[k]) for k in state)]
    for a, b in pairs:
        assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
        assert torch.equal(a.isnan(), b.isnan())
        torch.testing.assert_close(a, b, equal_nan=True)
    assert bool(stock[1].isnan().any())


FRACTIONS: Final = (1 / 1024, 0.25, 0.5, 0.999)
LOWER: Final = {
    "one": 1.0,
    "minus one": -1.0,
    "a number": 1.2345678,
    "its opposite": -1.2345678,
    "a power of two": 2.0**40,
    "below a power of two": 1.0 - 2.0**-24,
    "a subnormal": 5 * 2.0**-149,
    "a negative subnormal": -(2.0**-149),
    "below the smallest normal": 2.0**-126 - 2.0**-149,
    "zero": 0.0,
}
"""Numbers of binary32 (once converted); the one next to it is farther from zero."""


@pytest.mark.parametrize("f", FRACTIONS)
@pytest.mark.parametrize("name", LOWER)
def test_sr_takes_the_two_neighbours_only_and_their_mean_is_the_value(name: str, f: float) -> None:
    low = np.float32(LOWER[name])
    high = np.nextafter(low, np.copysign(np.float32(np.inf), low))
    x = float(low) + f * (float(high) - float(low))
    with ft.fuzzy("sr", seed=0):
        y = torch.full((100_000,), x, dtype=torch.float64).float()
    assert set(y.unique().tolist()) == {float(low), float(high)}
    # Four standard errors of a binomial count.
    error = abs((y == float(high)).double().mean().item() - f)
    assert error < 4 * (f * (1 - f) / 100_000) ** 0.5


@pytest.mark.parametrize("x", [torch.inf, -torch.inf, torch.nan])
def test_sr_leaves_infinities_and_nan_alone(x: float) -> None:
    with ft.fuzzy("sr", seed=0):
        y = torch.full((1000,), x, dtype=torch.float64).float()
        z = torch.full((1000,), x) * 1.5
    assert torch.equal(y.nan_to_num(), z.nan_to_num())
    assert bool(((y == x) | y.isnan()).all()) and bool((y.isnan() == (x != x)).all())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_nearest_rounding_to_16_bits_is_the_cast_of_torch_everywhere(
    dtype: torch.dtype,
) -> None:
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).short().view(dtype).float()
    every = every[every.isfinite()].sort().values
    middle = ((every[1:].double() + every[:-1].double()) / 2).float()
    infinity = torch.tensor(torch.inf)
    x = torch.cat([every, middle, middle.nextafter(infinity), middle.nextafter(-infinity)])
    stock = x.to(dtype)
    with ft.fuzzy("rn"):
        assert torch.equal(x.to(dtype).view(torch.int16), stock.view(torch.int16))
    with ft.fuzzy("rn", format=str(dtype).removeprefix("torch.")):
        assert torch.equal(x * 1.0, stock.float())


def half_of_the_time(chosen: torch.Tensor) -> bool:
    return stats.binomtest(int(chosen.sum()), chosen.numel()).pvalue > LEVEL


def test_ud_takes_the_ends_of_the_range_to_infinity_and_zero_half_of_the_time() -> None:
    largest, smallest = torch.finfo(torch.float32).max, 2.0**-149
    with ft.fuzzy("ud", seed=0):
        up, down = torch.full((10_000,), largest) * 1.0, torch.full((10_000,), smallest) * 1.0
    below = np.nextafter(np.float32(largest), np.float32(0))
    assert set(up.unique().tolist()) == {float(below), torch.inf}
    assert set(down.unique().tolist()) == {0.0, 2 * smallest}
    assert half_of_the_time(up.isinf())
    assert half_of_the_time(down == 0)


def test_the_dot_product_of_the_first_hundred_integers_is_exact_in_sr() -> None:
    x, ones = torch.arange(1.0, 101.0), torch.ones(100)
    with ft.fuzzy("sr", seed=0):
        for _ in range(100):
            assert torch.dot(x, ones).item() == 5050.0
            assert (x @ ones).item() == x.sum().item() == 5050.0


def cholesky_failures(jitter: float, samples: int = 40) -> float:
    """The share of samples in which a covariance of 60 points has no Cholesky factor."""
    x = rand(60)
    covariance = torch.exp(-(x.unsqueeze(1) - x).square() / (2 * 0.3**2))
    covariance = covariance + jitter * torch.eye(60)
    failed = 0
    for seed in range(samples):
        with ft.fuzzy("sr", seed=seed):
            try:
                torch.linalg.cholesky(covariance)
            except torch.linalg.LinAlgError:
                failed += 1
    return failed / samples


def test_the_cholesky_factor_of_a_smooth_covariance_exists_by_luck() -> None:
    assert [cholesky_failures(jitter) for jitter in (1e-7, 2e-7, 5e-7)] == [1.0, 1.0, 1.0]
    assert 0.0 < cholesky_failures(1e-6) < 1.0
    assert [cholesky_failures(jitter) for jitter in (2e-6, 5e-6)] == [0.0, 0.0]
