"""Is mode ``rn`` as accurate as stock torch?  Deviations of both from binary64, per operation.

The spread of samples depends on the order in which a kernel adds; if nearest
rounding in our order is as accurate as stock torch's own order, the order is a
fair one to perturb.  Usage: ``python benchmarks/accuracy.py``.

Stock torch has several orders.  Its matrix product splits K evenly into chains of
at most 192 products on some processors and of up to 384 on others; its 3x3
convolution accumulates 144 products at a time with AVX-512 and all of them in one
chain with AVX2.  For these two the accepted range therefore reaches from the
deviation of the shortest to that of the longest chains, both in closed form
(:func:`chained`), or to the one measured here.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F

import fuzzytorch as ft

LOW, HIGH = 0.8, 1.25
"""Accepted ratios of our deviation to stock torch's."""

ROUNDING = 2.0**-23 * math.sqrt(3 / (8 * math.log(2)) / 12)
"""Root mean square relative error of one nearest rounding to binary32, over all magnitudes alike:
the error is uniform within an ulp, and the mean of 1/m^2 over significands m is 3 / (8 ln 2)."""

Function = Callable[..., torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Case:
    """An operation at one size.

    Attributes:
        name: for the table.
        function: of float32 or float64 tensors.
        draw: the float32 operands from a generator.
        orders: deviations of the shortest and of the longest chains of stock torch.
    """

    name: str
    function: Function
    draw: Callable[[torch.Generator], tuple[torch.Tensor, ...]]
    orders: tuple[float, float] | None = None


@dataclasses.dataclass(frozen=True)
class Deviation:
    """Root mean square relative deviations from binary64, and the accepted range of ours."""

    ours: float
    stock: float
    least: float
    most: float

    @property
    def ratio(self) -> float:
        """Ours over stock's."""
        return self.ours / self.stock

    @property
    def accepted(self) -> bool:
        """Whether ours lies in the accepted range."""
        return self.least <= self.ours <= self.most


def chained(k: int, longest: int) -> float:
    """Deviation of ``k`` normal products added in equal chains of up to ``longest``: closed form.

    Adding the j-th term of a chain rounds a partial sum of variance j; a chain that
    joins m chains of b products rounds one of variance b (m + 1).
    """
    chains = math.ceil(k / longest)
    b = k / chains
    variance = chains * (b * (b + 1) / 2 - 1) + b * (chains * (chains + 1) / 2 - 1)
    return ROUNDING * math.sqrt(variance / k)


def cases() -> Iterator[Case]:
    """Every case, from small to large: K from 16 to 8192 for products, to 100,000 for sums."""
    for k in (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192):
        orders = (chained(k, 192), chained(k, 384))
        yield Case(f"mm 64x{k}x64", torch.mm, _drawn(torch.randn, (64, k), (k, 64)), orders)
    for channels in (4, 16, 32, 64, 128):
        k = 9 * channels
        draw = _drawn(torch.randn, (2, channels, 16, 16), (32, channels, 3, 3))
        orders = (chained(k, 144), chained(k, k))
        yield Case(f"conv2d 3x3 {channels}->32", F.conv2d, draw, orders)
    for images, channels, size in ((4, 1, 28), (8, 16, 16), (16, 32, 26)):
        shape = (images, channels, size, size)
        grad = (images, 32, size - 2, size - 2)
        name = f"{images} images {channels}->32"
        draw = _drawn(torch.randn, shape, grad)
        yield Case(f"weight gradient, {name}", _weight_gradient, draw)
        draw = _drawn(torch.randn, (32, channels, 3, 3), grad)
        orders = (chained(288, 144), chained(288, 288))
        yield Case(f"input gradient, {name}", _input_gradient, draw, orders)
    for k in (100, 1000, 10_000, 100_000):
        # Enough rows that the deviations themselves are known within a few percent.
        rows = max(64, 102_400 // k)
        yield Case(f"sum of {k} positive", _sum, _drawn(torch.rand, (rows, k)))
        yield Case(f"sum of {k} normal", _sum, _drawn(torch.randn, (rows, k)))
        yield Case(f"norm of {k}", _norm, _drawn(torch.randn, (rows, k)))
    for k in (10, 100, 1000, 10_000):
        yield Case(f"softmax of {k}", _softmax, _drawn(torch.randn, (64, k)))


def _drawn(
    law: Callable[..., torch.Tensor], *shapes: tuple[int, ...]
) -> Callable[[torch.Generator], tuple[torch.Tensor, ...]]:
    return lambda generator: tuple(law(shape, generator=generator) for shape in shapes)


def _weight_gradient(x: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    return torch.nn.grad.conv2d_weight(x, (grad.shape[1], x.shape[1], 3, 3), grad)


def _input_gradient(weight: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    size = grad.shape[2] + 2
    shape = (grad.shape[0], weight.shape[1], size, size)
    return torch.nn.grad.conv2d_input(shape, weight, grad)


def _sum(x: torch.Tensor) -> torch.Tensor:
    return x.sum(-1)


def _norm(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.vector_norm(x, dim=-1)


def _softmax(x: torch.Tensor) -> torch.Tensor:
    return x.softmax(-1)


def deviation(case: Case, seed: int = 0) -> Deviation:
    """Deviations of mode ``rn`` and of stock torch on operands drawn from a seed.

    Each element counts relative to the root mean square of the result, softmax
    (whose elements differ by orders of magnitude) relative to itself.
    """
    threads = torch.get_num_threads()
    # Stock torch cuts weight gradients into as many chains as there are threads.
    torch.set_num_threads(1)
    try:
        return _deviation(case, seed)
    finally:
        torch.set_num_threads(threads)


def _deviation(case: Case, seed: int) -> Deviation:
    inputs = case.draw(torch.Generator().manual_seed(seed))
    truth = case.function(*(x.double() for x in inputs))
    scale = truth if case.function is _softmax else _rms(truth)
    stock = _rms((case.function(*inputs).double() - truth) / scale)
    with ft.fuzzy(mode="rn"):
        result = case.function(*inputs)
    ours = _rms((result.double() - truth) / scale)
    shortest, longest = case.orders or (stock, stock)
    return Deviation(ours, stock, LOW * min(stock, shortest), HIGH * max(stock, longest))


def _rms(x: torch.Tensor) -> float:
    return x.square().mean().sqrt().item()


def main() -> int:
    """Prints the table; 1 if a deviation lies outside its accepted range."""
    failed = False
    print(f"{'operation':<36}{'ours (rn)':>12}{'stock':>12}{'ratio':>8}   accepted deviations")
    for case in cases():
        found = deviation(case)
        failed |= not found.accepted
        note = "" if found.accepted else "OUTSIDE"
        print(
            f"{case.name:<36}{found.ours:12.3e}{found.stock:12.3e}{found.ratio:8.2f}   "
            f"{found.least:.2e} to {found.most:.2e}  {note}".rstrip()
        )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
