"""Is mode ``rn`` as accurate as stock torch?  Deviations of both from binary64, per operation.

The spread of samples depends on the order in which a kernel adds; if nearest
rounding in our order is as accurate as stock torch's own order, the order is a
fair one to perturb.  Usage: ``python benchmarks/accuracy.py``.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F

import fuzzytorch as ft

LOW, HIGH = 0.8, 1.25
"""Accepted ratios of our deviation to stock torch's."""

Function = Callable[..., torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Case:
    """An operation at one size: a function of float32 tensors, drawn by ``draw(generator)``."""

    name: str
    function: Function
    draw: Callable[[torch.Generator], tuple[torch.Tensor, ...]]
    gated: bool = True
    """Whether :data:`LOW` and :data:`HIGH` apply; otherwise ``why`` says why not."""
    why: str = ""


def _normal(*shape: int) -> Callable[[torch.Generator], torch.Tensor]:
    return lambda generator: torch.randn(shape, generator=generator)


def _uniform(*shape: int) -> Callable[[torch.Generator], torch.Tensor]:
    return lambda generator: torch.rand(shape, generator=generator)


def _case(name: str, function: Function, *tensors: Callable, **more: object) -> Case:
    return Case(name, function, lambda g: tuple(draw(g) for draw in tensors), **more)


def cases() -> Iterator[Case]:
    """Every case, from small to large: K from 16 to 8192 for products, to 100,000 for sums."""
    for k in (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192):
        yield _case(f"mm 64x{k}x64", torch.mm, _normal(64, k), _normal(k, 64))
    for channels in (4, 16, 32, 64, 128):
        x, w = _normal(2, channels, 16, 16), _normal(32, channels, 3, 3)
        yield _case(f"conv2d 3x3 {channels}->32", F.conv2d, x, w)
    for k in (100, 1000, 10_000, 100_000):
        yield _case(f"sum of {k} positive", _sum, _uniform(64, k))
        yield _case(f"sum of {k} normal", _sum, _normal(64, k))
        yield _case(f"norm of {k}", _norm, _normal(64, k))
    for k in (10, 100, 1000, 10_000):
        yield _case(f"softmax of {k}", _softmax, _normal(64, k))


def _sum(x: torch.Tensor) -> torch.Tensor:
    return x.sum(-1)


def _norm(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.vector_norm(x, dim=-1)


def _softmax(x: torch.Tensor) -> torch.Tensor:
    return x.softmax(-1)


def deviations(case: Case, seed: int = 0) -> tuple[float, float]:
    """Root mean square relative deviation from binary64 of mode ``rn`` and of stock torch.

    Each element counts relative to the root mean square of the result, softmax
    (whose elements differ by orders of magnitude) relative to itself.
    """
    inputs = case.draw(torch.Generator().manual_seed(seed))
    truth = case.function(*(x.double() for x in inputs))
    scale = truth if case.function is _softmax else truth.square().mean().sqrt()
    stock = case.function(*inputs)
    with ft.fuzzy(mode="rn"):
        ours = case.function(*inputs)
    return _rms((ours.double() - truth) / scale), _rms((stock.double() - truth) / scale)


def _rms(x: torch.Tensor) -> float:
    return x.square().mean().sqrt().item()


def main() -> int:
    """Prints the table; 1 if a gated ratio lies outside the accepted range."""
    failed = False
    print(f"{'operation':<26}{'ours (rn)':>12}{'stock':>12}{'ratio':>8}")
    for case in cases():
        ours, stock = deviations(case)
        ratio = ours / stock
        outside = case.gated and not LOW <= ratio <= HIGH
        failed |= outside
        mark = f"  outside {LOW} to {HIGH}" if outside else f"  {case.why}"
        print(f"{case.name:<26}{ours:12.3e}{stock:12.3e}{ratio:8.2f}{mark}".rstrip())
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
