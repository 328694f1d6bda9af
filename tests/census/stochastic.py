"""In stochastic rounding results scatter where they are inexact, around the exact ones.

The exact results are those of stock torch in binary64 on the same inputs; float64 has no wider
type, so that there the result of stock torch stands for them and its own error is allowed for.
Of each sample REPLICAS realisations are drawn. PILOTS more, in other modes that round up and down
whether that is likely or not, say how far the roundings of a call can move an element: its *reach*,
which does not depend on the draws and weighs them. One rounding shows in cestac but for 2^-9.

Two comparisons of means, both with Student's distribution for REPLICAS - 1 degrees of freedom:

* every element, at the level ELEMENT. Draws of one rounding may all agree although the exact
  result lies between two numbers: at a distance of 1 - ELEMENT^(1 / REPLICAS) = 0.68 of theirs
  that has the probability ELEMENT. So much of the reach is allowed besides.
* the sum of the weighted errors of all elements of all samples of an entry, at the level POOLED:
  replicas are independent whatever elements have to do with one another. Once as they are, once
  with the sign of the exact result, which shows a bias toward or away from zero. Where the sum
  scatters less than a quarter as much as in the pilots, it hangs on an unlikely rounding, and 0.60
  of the range of the pilots is allowed, too.

What the format implies is allowed besides. A smooth function of numbers that scatter is biased by
its curvature: for a result t that scatters by s, by s^2 / |t| where it changes by itself over a
change of its inputs by themselves, which holds for powers, products, quotients and roots. Entries
in :data:`~census.exceptions.CONSTANTS` hold numbers that the dtype rounds and binary64 does not.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import torch
from scipy import stats

import fuzzytorch as ft
from census.calls import WIDE, Arguments, Outcome, call, copied, same, widened
from census.entries import UNDEFINED, Entry
from census.exceptions import DIFFERENTIATED_OTHERWISE, constants, incomparable, normwise
from census.tolerance import exactly
from fuzzytorch.records import Coverage
from fuzzytorch.table import Verdict, overload_named

REPLICAS: Final = 20
PILOTS: Final = ("up", "down", *["cestac"] * 10)

LARGEST: Final = 2**20
"""Elements of the results of a sample; larger ones are left to the law of nearest rounding."""

NOISE: Final = 2.0**-44
"""What binary64 itself leaves where operands of the order of ten cancel."""

ELEMENT: Final = 1e-10
"""Probability that a right element fails; a full census compares some 10^7."""

POOLED: Final = 1e-8
"""Probability that a right entry fails one pooled comparison; there are some 10^4."""

_QUANTILE = {p: float(stats.t.isf(p / 2, REPLICAS - 1)) for p in (ELEMENT, POOLED)}
_STILL = {p: 1 - p ** (1 / REPLICAS) for p in (ELEMENT, POOLED)}
"""Part of the reach that REPLICAS equal draws may be off."""

FRACTIONS: Final = (0.25, 0.75)
"""Of an exact result between two numbers, where 20 draws agree with probability 0.75^20 = 0.3%."""

FEWEST: Final = 6
"""Such results from which on at most half may stand still: by chance 20 (0.3%)^3 < 1e-6 do not."""


@dataclasses.dataclass
class Pool:
    """What the samples of an entry add up.

    Attributes:
        errors: ``(kind, sign) -> (REPLICAS + PILOTS,)`` sums of weighted errors.
        allowed: the sums of what is allowed.
        between: exact results well between two numbers of the dtype, and how many of them
            stood still.
        coverage: what the runs were made of.
        compared: elements whose mean was compared.
    """

    errors: dict[tuple[str, str], np.ndarray] = dataclasses.field(default_factory=dict)
    allowed: dict[tuple[str, str], float] = dataclasses.field(default_factory=dict)
    between: int = 0
    still: int = 0
    coverage: Coverage = dataclasses.field(default_factory=Coverage)
    compared: int = 0

    def verdicts(self, entry: Entry) -> Iterator[str]:
        """Sentences about pooled comparisons that fail."""
        for (kind, sign), errors in self.errors.items():
            drawn, pilots = errors[:REPLICAS], errors[REPLICAS:]
            mean, deviation = drawn.mean(), drawn.std(ddof=1)
            bound = _QUANTILE[POOLED] * deviation / math.sqrt(REPLICAS)
            bound += self.allowed[kind, sign]
            if deviation < pilots.std(ddof=1) / 4:
                bound += _STILL[POOLED] * np.ptp(pilots)
            if abs(mean) > bound:
                yield (
                    f"{kind}, {sign}: the pooled error is {mean:.4g} units of reach, "
                    f"and {bound:.4g} are allowed (standard error {deviation / REPLICAS**0.5:.3g})"
                )
        if self.between >= FEWEST and 2 * self.still > self.between:
            yield f"{self.still} of {self.between} inexact elements never moved"


def law(entry: Entry, sample: Any, pool: Pool) -> Iterator[str]:
    """Sentences about elements whose mean is wrong, and about exact calls that moved."""
    gauge = sample.output_process_fn_grad if entry.differentiable else None
    stock = _run(entry, copied(sample), gauge)
    undefined = entry.name in UNDEFINED or incomparable(entry.name, entry.dtype_name)
    if undefined or stock.error is not None:
        return
    if sum(y.numel() for y in stock.tensors) > LARGEST:
        return
    drawn = []
    for replica, name in enumerate((*["sr"] * REPLICAS, *PILOTS)):
        mode = ft.fuzzy(name, seed=1, replica=replica)
        drawn.append(_run(entry, copied(sample), gauge, mode=mode))
        if replica == 0:
            pool.coverage = pool.coverage.merge(mode.coverage)
            verdicts = {r.verdict for r in mode.coverage.records if r.operations}
            if not verdicts:
                yield from _unmoved(entry, drawn[0], stock)
                return
            if Verdict.UNCOVERED in verdicts or _draws(mode.coverage):
                return
    for outcome in drawn:
        if outcome.error is not None or len(outcome.tensors) != len(stock.tensors):
            yield f"a realisation raises {outcome.error}, or has not as many results"
            return
    truth = _truth(entry, sample, gauge, stock)
    if truth is None:
        return
    outputs = len(stock.outputs)
    for i, exact in enumerate(truth):
        kind = "results" if i < outputs else "gradients"
        values = [outcome.tensors[i] for outcome in drawn]
        for sentence in _compared(entry, kind, values, stock.tensors[i], exact, pool):
            yield f"{kind} {i}: {sentence}"


def _unmoved(entry: Entry, outcome: Outcome, stock: Outcome) -> Iterator[str]:
    if outcome.error != stock.error or outcome.memory != stock.memory:
        yield f"an exact call differs: {outcome.error}, {outcome.memory}"
    for i, (a, b) in enumerate(zip(outcome.tensors, stock.tensors, strict=True)):
        gradient = i >= len(stock.outputs)
        if not same(a, b) and not (gradient and entry.name in DIFFERENTIATED_OTHERWISE):
            yield f"result {i} of an exact call is not that of stock torch, bit for bit"


def _truth(
    entry: Entry, sample: Any, gauge: Callable[[Any], Any] | None, stock: Outcome
) -> list[torch.Tensor] | None:
    """The results in binary64, or ``None`` where torch does not have the same ones there."""
    weights = tuple(y.dtype for y in stock.outputs)
    wide = _run(entry, copied(sample, widened), gauge, weights)
    if wide.error is not None:
        return None
    shapes = [y.shape for y in stock.tensors]
    if [y.shape for y in wide.tensors] != shapes:
        return None
    return wide.tensors


def _draws(coverage: Coverage) -> bool:
    """Whether a call took random numbers of torch: in binary64 it would take others."""
    seeded = torch.Tag.nondeterministic_seeded
    return any(seeded in overload_named(r.name).tags for r in coverage.records)


def _run(
    entry: Entry,
    arguments: Arguments,
    gauge: Callable[[Any], Any] | None,
    weights: tuple[torch.dtype, ...] | None = None,
    mode: ft.fuzzy | None = None,
) -> Outcome:
    with warnings.catch_warnings(), torch.set_grad_enabled(gauge is not None):
        warnings.simplefilter("ignore")
        return call(entry.info, arguments, gauge, weights, mode)


def _compared(
    entry: Entry,
    kind: str,
    drawn: list[torch.Tensor],
    stock: torch.Tensor,
    exact: torch.Tensor,
    pool: Pool,
) -> Iterator[str]:
    dtype = stock.dtype
    if not (dtype.is_floating_point or dtype.is_complex) or stock.numel() == 0:
        return
    truth = _components(exact)
    draws = torch.stack([_components(y) for y in drawn])
    unit = _unit(truth, dtype)
    inside = _inside(truth, dtype) & draws.isfinite().all(0) & _components(stock).isfinite()
    truth, draws, unit = truth[inside], draws[:, inside], unit[inside]
    if truth.numel() == 0:
        return
    error, pilots = draws - truth, draws[REPLICAS:]
    mean, deviation = error[:REPLICAS].mean(0), error[:REPLICAS].std(0)
    reach = unit + pilots.amax(0) - pilots.amin(0)
    noise = NOISE if dtype in WIDE else 0.0
    allowed = noise + deviation.square() / truth.abs().clamp(min=torch.finfo(torch.float64).tiny)
    if constants(entry.name):
        moved = unit.max() if normwise(entry.name) else unit
        allowed = allowed + 2 * torch.maximum(moved, reach)
    if dtype not in WIDE:
        # The exact result is not known better than one realisation is, in another order
        # of additions, which moves an element as its largest neighbours are rounded.
        allowed = allowed + _QUANTILE[ELEMENT] * deviation + 2 * reach.clamp(min=unit.max())
    pool.compared += truth.numel()
    bound = _QUANTILE[ELEMENT] * deviation / math.sqrt(REPLICAS) + _STILL[ELEMENT] * reach + allowed
    wrong = mean.abs() > bound
    if wrong.any():
        at = int((mean.abs() / bound).argmax())
        yield (
            f"{int(wrong.sum())} of {wrong.numel()} means are off, one by {mean[at]:.4g} from "
            f"{truth[at]!r}, deviation {deviation[at]:.3g}, unit {unit[at]:.3g}"
        )
    _pooled(kind, pool, error / reach, allowed / reach, truth)
    if dtype in WIDE:
        _stillness(pool, truth, deviation, unit)


def _pooled(
    kind: str, pool: Pool, error: torch.Tensor, allowed: torch.Tensor, truth: torch.Tensor
) -> None:
    for sign, factor in (("as they are", torch.ones_like(truth)), ("outward", truth.sign())):
        key = (kind, sign)
        pool.errors[key] = pool.errors.get(key, 0.0) + (error * factor).sum(1).numpy()
        pool.allowed[key] = pool.allowed.get(key, 0.0) + float(allowed.sum())


def _stillness(
    pool: Pool, truth: torch.Tensor, deviation: torch.Tensor, unit: torch.Tensor
) -> None:
    """Counts values, not elements: those that are copies of one another move together."""
    fraction = (truth / unit).frac().abs()
    between = (fraction > FRACTIONS[0]) & (fraction < FRACTIONS[1])
    moved = deviation > 0
    pool.between += truth[between].abs().unique().numel()
    pool.still += truth[between & ~moved].abs().unique().numel()


def _components(x: torch.Tensor) -> torch.Tensor:
    y = exactly(x)
    return (torch.view_as_real(y.resolve_conj()) if y.is_complex() else y).reshape(-1)


def _real(dtype: torch.dtype) -> torch.dtype:
    return {torch.complex64: torch.float32, torch.complex128: torch.float64}.get(dtype, dtype)


def _unit(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The distance between numbers of a dtype around ``x``."""
    format = torch.finfo(_real(dtype))
    smallest = math.frexp(format.smallest_normal)[1]
    precision = 1 - round(math.log2(format.eps))
    exponent = torch.frexp(x).exponent.clamp(min=smallest)
    return torch.ldexp(torch.ones_like(x), exponent - precision)


def _inside(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Where the range of the dtype plays no part."""
    format = torch.finfo(_real(dtype))
    large, small = format.max / 2, format.smallest_normal * 2.0**6
    return x.isfinite() & (x.abs() < large) & ((x.abs() > small) | (x == 0))
