"""Published complaints about overflow and constant inputs, each with its expected outcome."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import pytest
import torch
from moments import LEVEL, LIMIT
from scipy import stats
from torch import nn
from torch.nn import functional as F

import fuzzytorch as ft
from fuzzytorch.backends import EXTENSION

pytest.importorskip(EXTENSION, reason="the native kernels were not built")

RANDOM: Final = ("sr", "ud", "cestac")
LARGEST: Final = 65504.0
"""The largest number of float16; the next one would be 65536."""


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


CONSTANTS: Final = (151.7, 1234.1, 1e6 + 0.3, 12345678.9, 1e10)


def test_batch_norm_of_constant_channels_has_no_digit_and_an_absolute_scale() -> None:
    channels = torch.tensor(CONSTANTS)[None, :, None].expand(8, -1, 7).contiguous()

    def run() -> torch.Tensor:
        return F.batch_norm(channels, None, None, training=True)

    samples = ft.sample(run, n=30, mode="sr", seed=0)
    assert bool((samples.digits < 0.5).all())
    assert bool((samples.mean.abs() < LIMIT * samples.std / 30**0.5).all())
    # The residue of a mean is about a unit in the last place; the variance alone is not there to
    # divide it by, and the root of eps, 3e-3, takes its place.
    for i, constant in enumerate(CONSTANTS):
        unit = 2.0 ** (math.floor(math.log2(constant)) - 23)
        scale = samples.std[:, i] * 1e-5**0.5 / unit
        assert scale.min() > 0.05 and scale.max() < 2.0, constant
    (row,) = (line for line in samples.summary().splitlines() if line.startswith("output  8x5x7"))
    assert float(row.split()[5]) == pytest.approx(samples.std.max().item(), rel=0.05)


@pytest.mark.parametrize("mode", RANDOM)
def test_layer_norm_of_a_constant_row_is_finite_in_every_sample(mode: str) -> None:
    x = torch.full((256,), 1234.1)
    samples = ft.sample(lambda: F.layer_norm(x, (256,)), n=30, mode=mode, seed=0)
    assert bool(samples.values.isfinite().all())
    assert bool(samples.reference.isfinite().all())


@pytest.mark.parametrize("mode", RANDOM)
def test_layer_norm_of_a_huge_constant_row_gives_no_more_nan_than_stock_torch(mode: str) -> None:
    x = torch.full((256,), 1e30)
    samples = ft.sample(lambda: F.layer_norm(x, (256,)), n=30, mode=mode, seed=0)
    assert bool((samples.values.isnan() <= samples.reference.isnan()).all())


REDUCTIONS: Final[dict[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "mean": lambda x: x.mean(1),
    "sum": lambda x: x.sum(1),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=1),
    "norm of order one": lambda x: torch.linalg.vector_norm(x, 1, dim=1),
    "variance": lambda x: x.var(1),
    "product": lambda x: (1.0 + x / 4096).prod(1),
    "running sum": lambda x: x.cumsum(1),
    "logarithm of a sum of exponentials": lambda x: x.logsumexp(1),
    "softmax": lambda x: x.softmax(1),
    "dot product": lambda x: (x[:, None] @ x[:, :, None]).flatten(),
}


def test_the_mean_of_many_ones_in_float16_is_one() -> None:
    ones = torch.ones(100_000, dtype=torch.float16)
    for mode in ("rn", "sr", "cestac"):
        samples = ft.sample(ones.mean, n=10, mode=mode, seed=0)
        assert samples.values.tolist() == [1.0] * 10
        assert samples.reference.item() == 1.0
    # A moved accumulator and one more move when it is stored, in units of 1: 2^-10 or 2^-11.
    samples = ft.sample(ones.mean, n=10, mode="ud", seed=0)
    assert set(samples.values.tolist()) <= {1.0 - 2.0**-11, 1.0 + 2.0**-10}


@pytest.mark.parametrize("mode", ["rn", *RANDOM])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_no_finite_reduction_in_float16_becomes_infinite(name: str, mode: str) -> None:
    # Up to 2^15, every sum and square; beyond the range of float16, nothing.
    x = (randn(40, 300) * torch.logspace(-3, 1.4, 40, 2.0)[:, None]).half()
    samples = ft.sample(lambda: REDUCTIONS[name](x), n=20, mode=mode, seed=0)
    exact = REDUCTIONS[name](x.double())
    within = samples.reference.isfinite() & (exact.abs() < LARGEST * (1 - 2.0**-10))
    assert bool(within.any())
    assert bool(samples.values[:, within].isfinite().all())


def test_at_the_largest_number_of_float16_ud_alone_becomes_infinite() -> None:
    halves = torch.full((2000, 2), LARGEST / 2, dtype=torch.float16)
    for mode in ("rn", "sr", "cestac", "zero", "away", "up", "down"):
        with ft.fuzzy(mode, seed=0):
            assert set(halves.sum(1).tolist()) == {LARGEST}, mode
    with ft.fuzzy("ud", seed=0):
        sums = halves.sum(1)
    assert set(sums.tolist()) == {LARGEST - 32, math.inf}
    assert stats.binomtest(int(sums.isinf().sum()), 2000).pvalue > LEVEL


def test_beyond_the_largest_number_of_float16_sr_is_infinite_as_often_as_it_is_unbiased() -> None:
    # 65510 lies 6/32 of the way to the number that does not exist any more; nearest is finite.
    x = torch.full((20_000,), LARGEST + 6)
    assert bool((x.half() == LARGEST).all())
    with ft.fuzzy("sr", seed=0):
        y = x.half()
    assert set(y.tolist()) == {LARGEST, math.inf}
    assert stats.binomtest(int(y.isinf().sum()), 20_000, 6 / 32).pvalue > LEVEL


class Weights(nn.Module):
    """A softmax as it stands in the definition, without the largest number taken off."""

    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        raised = scores.exp()
        return raised / raised.sum()


def test_a_naive_softmax_in_float16_is_overflow_and_not_rounding() -> None:
    scores = torch.tensor([12.0, 11.0, 10.0], dtype=torch.float16)
    samples = ft.sample(lambda: Weights()(scores), n=30, mode="sr", seed=0)
    assert bool(samples.values[:, 0].isnan().all())
    found = ft.first_nonfinite(lambda: Weights()(scores), n=30, mode="sr", seed=0)
    assert found.verdict == "overflow, not rounding"
    assert "overflow, not rounding" in found.text()
    assert found.count("NaN") == found.count("Inf") == 30
    infinite, invalid = found.origins
    assert (infinite.value, infinite.operation) == ("Inf", "aten.exp.default")
    assert (invalid.value, invalid.operation) == ("NaN", "aten.div.Tensor")


class Attention(nn.Module):
    """Masks with the lowest number of the dtype, before a bias is added."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.tensor(-16.0))

    def forward(self, scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        lowest = torch.finfo(scores.dtype).min
        return (scores.masked_fill(mask, lowest) + self.bias).softmax(-1)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Identity(), Attention()])

    def forward(self, scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.layers[1](self.layers[0](scores), mask)


def test_a_mask_that_overflows_float16_names_the_operation_and_the_module() -> None:
    model = Model().half()
    scores, mask = torch.zeros(3, 4, dtype=torch.float16), torch.ones(3, 4, dtype=torch.bool).triu()
    found = ft.first_nonfinite(lambda: model(scores, mask), n=10, mode="sr", seed=0)
    origin, *rest = found.origins
    assert (origin.value, origin.operation) == ("Inf", "aten.add.Tensor")
    assert origin.place is not None
    assert (origin.place.path, origin.place.kind) == ("layers.1", "Attention")
    assert origin.cause == "overflow"
    # The first row is masked throughout.
    assert [(o.value, o.operation) for o in rest] == [("NaN", "aten._softmax.default")]
    for text in ("aten.add.Tensor", "layers.1 (Attention)", "overflow"):
        assert text in found.text()
    # -65520 lies halfway between the lowest number and one that does not exist: to nearest even
    # it is infinite, and in sr half of the time.
    assert origin.ieee
    assert found.verdict == "rounding decides"


def test_a_mask_that_overflows_float16_by_far_is_not_rounding() -> None:
    model = Model().half()
    nn.init.constant_(model.layers[1].bias, -64.0)
    scores, mask = torch.zeros(3, 4, dtype=torch.float16), torch.ones(3, 4, dtype=torch.bool).triu()
    found = ft.first_nonfinite(lambda: model(scores, mask), n=10, mode="sr", seed=0)
    assert found.verdict == "overflow, not rounding"
    assert [(o.value, o.replicas) for o in found.origins] == [
        ("Inf", tuple(range(10))),
        ("NaN", tuple(range(10))),
    ]
