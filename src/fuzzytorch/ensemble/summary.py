"""The summary of an ensemble as plain text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from fuzzytorch.rounding import Rounding
from fuzzytorch.text import aligned

if TYPE_CHECKING:
    from fuzzytorch.ensemble.samples import Leaf, Samples

_HEADER = ("output", "shape", "digits", "minimum", "bound", "std", "z")
_LEGEND = (
    "digits: significant decimal digits, mean over the elements; minimum: the worst element; "
    "bound: its 95% lower bound; std: the largest; z: largest distance of the IEEE value "
    "from the mean, in std (of at least one unit in the last place)"
)


def summarize(samples: Samples) -> str:
    """The text of :meth:`~fuzzytorch.ensemble.samples.Samples.summary`."""
    title = f"{len(samples)} samples, mode {samples.mode}, seed {samples.seed}"
    lines = [title, "", *aligned([_HEADER, *map(_row, samples.leaves)], range(2, 7)), "", _LEGEND]
    remarks = list(_remarks(samples))
    if remarks:
        lines += ["", *(f"! {remark}" for remark in remarks)]
    if samples.coverage is not None:
        lines += ["", f"coverage: {samples.coverage.headline()}"]
    return "\n".join(lines)


def _row(leaf: Leaf) -> tuple[str, ...]:
    shape = "x".join(map(str, leaf.shape)) or "scalar"
    moments = leaf.measured
    if moments is None:
        total = int(np.prod(leaf.shape))
        same = f"differs in {leaf.changed} of {total}" if leaf.changed else "equal"
        return (leaf.name, shape, same, "", "", "", "")
    digits, lower, std = (_finite(x) for x in (moments.digits, moments.lower, moments.std))
    if not digits.size:
        return (leaf.name, shape, "none", "", "", "", "")
    z = "" if leaf.excess is None else _largest(leaf.excess, ".1f")
    worst, bound = f"{digits.min():.2f}", f"{lower.min():.2f}"
    return (leaf.name, shape, f"{digits.mean():.2f}", worst, bound, f"{std.max():.1e}", z)


def _remarks(samples: Samples) -> Iterator[str]:
    rounding = Rounding(samples.mode)
    if not rounding.draws:
        yield (
            f"Mode {samples.mode} draws nothing: all samples are one and the same, "
            "and these digits say nothing. Use sr."
        )
    elif samples.mode == "ud":
        yield (
            "ud scatters around the IEEE value: these digits say how well the result repeats, "
            "not how accurate it is. Use sr to see a bias."
        )
    for leaf in samples.leaves:
        yield from _leaf_remarks(leaf)
    if samples.failures:
        total = len(samples) + len(samples.failures)
        first = samples.failures[0]
        yield (
            f"{len(samples.failures)} of {total} samples failed and are not in the table; "
            f"the first, replica {first.replica}: {first.error}"
        )
    yield from samples.notes


def _leaf_remarks(leaf: Leaf) -> Iterator[str]:
    if leaf.measured is None:
        return
    bad = np.asarray(leaf.measured.nonfinite)
    if bad.any():
        text = (
            f"{leaf.name}: {np.count_nonzero(bad)} of {bad.size} elements are NaN or Inf "
            f"in some sample ({np.count_nonzero(bad == leaf.measured.count)} in every sample) "
            "and have no digits"
        )
        yield f"{text}; mean and minimum leave them out."
    if leaf.excess is not None and leaf.outliers:
        yield (
            f"{leaf.name}: the IEEE value lies outside the samples in {leaf.outliers} of "
            f"{bad.size} elements, by up to {_largest(leaf.excess, '.0f')} std. Rounding to "
            "nearest is biased there, and its error is larger than these digits say."
        )


def _finite(x: object) -> np.ndarray:
    array = np.asarray(x)
    return array[np.isfinite(array)]


def _largest(excess: np.ndarray, form: str) -> str:
    known = excess[~np.isnan(excess)]
    return format(float(known.max()), form) if known.size else ""
