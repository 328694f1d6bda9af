"""Laws that hold for the rows of accumulating families, one function each."""

from __future__ import annotations

import math
from importlib.util import find_spec
from typing import Any, Final

import torch
from accumulation_cases import Case, cases_of
from scipy.stats import t as student

from fuzzytorch.backends import EXTENSION
from fuzzytorch.fuzzy import fuzzy
from fuzzytorch.table import Row, Verdict

BACKEND: Final = "reference" if find_spec(EXTENSION) is None else "cpu"
"""Rows do not know what computes; the native kernels, equal bit for bit, are faster."""

REPEATS: Final = 48
"""Realisations of a call."""

LEVEL: Final = 1e-9
"""Probability of a false alarm per element; a run of the suite compares about 10^5."""

RELATIVE, ABSOLUTE = 1.3e-6, 1e-5
"""Tolerances of ``torch.testing.assert_close`` for float32."""


def results(case: Case, mode: str, seed: int = 11) -> list[torch.Tensor]:
    """What a case gives under a mode."""
    return case.run(fuzzy(mode, seed=seed, backend=BACKEND))


def equals_stock_in_nearest_rounding(row: Row) -> None:
    """Dtype, shape, strides and values.

    Values may differ by torch's own tolerance (relative to the largest element, as
    accumulations cancel) and by the error of stock torch itself.
    """
    cases = cases_of(row.name)
    assert cases, f"no case for {row.name}"
    for case in cases:
        mode = fuzzy("rn", seed=11, backend=BACKEND)
        actual = case.run(mode)
        records = {record.name: record.verdict for record in mode.coverage.records}
        # Where no operation was needed the record says so.
        assert records.pop(row.name) in (row.verdict, Verdict.EXACT), records
        parts = {Verdict.EXACT, Verdict.ROUNDED, Verdict.LOWERED}
        assert set(records.values()) <= (parts if row.verdict is Verdict.LOWERED else set()), (
            records
        )
        both = zip(actual, case.run(), case.in_binary64(), strict=True)
        for ours, stock, truth in both:
            assert (ours.dtype, ours.shape) == (stock.dtype, stock.shape), case
            assert ours.numel() == 0 or ours.stride() == stock.stride(), case
            _check_values(case, ours, stock, truth)


def counts(case: Case, operations: int) -> None:
    """The scalar operations that are rounded, of which a fused multiply-add counts as two."""
    mode = fuzzy("sr", seed=11, backend=BACKEND)
    case.run(mode)
    assert [record.operations for record in mode.coverage.records] == [operations], case


def _check_values(case: Case, ours: torch.Tensor, stock: torch.Tensor, truth: torch.Tensor) -> None:
    if not ours.is_floating_point():
        assert torch.equal(ours, stock), case
        return
    plain = stock.isfinite()
    assert torch.equal(plain, ours.isfinite()), case
    assert torch.equal(ours[~plain].isnan(), stock[~plain].isnan()), case
    ours, stock, truth = (y[plain].double() for y in (ours, stock, truth))
    largest = stock.abs().max() if stock.numel() else 0.0
    bound = max(ABSOLUTE, RELATIVE * float(largest)) + (stock - truth).abs()
    assert bool(((ours - stock).abs() <= bound).all()), f"{case}\n{ours}\n{stock}"


def is_centred_in_stochastic_rounding(row: Row) -> None:
    """The mean of many realisations is the binary64 result."""
    compared = 0
    for case in cases_of(row.name):
        infinite = any(isinstance(x, float) and math.isinf(x) for x in case.args)
        if infinite and "dist_backward" in row.name:
            # In binary64 no component attains the maximum that a float32 argument states.
            continue
        linear = "upsample" in row.name and "cubic" not in row.name
        if linear and any(x is True for x in case.args):
            # With aligned corners the last coordinate is the end of the image in exact
            # arithmetic; where rounding leads past it, it is held there, which biases it.
            continue
        grid = case.kwargs.get("density") and case.kwargs.get("range") is None
        if "bin_ct" in row.name and grid:
            # The lengths of the bins are those of a float32 grid.
            continue
        # A new seed per realisation: the realisations are independent.
        drawn = [results(case, "sr", seed) for seed in range(REPEATS)]
        for truth, *samples in zip(case.in_binary64(), *drawn, strict=True):
            if truth.dtype == torch.float64:
                compared += _check_mean(case, torch.stack(samples).double(), truth)
    assert compared, f"no finite result of {row.name} was compared"


def _check_mean(case: Case, drawn: torch.Tensor, truth: torch.Tensor) -> int:
    finite = truth.isfinite()
    drawn, truth = drawn[:, finite], truth[finite]
    if truth.numel() == 0:
        return 0
    # A rounding that never went the rare way in all realisations still has a variance, at
    # most that of a fair coin; its ulp is that of the largest element at most.
    exponent = torch.frexp(truth.abs().max()).exponent.clamp(min=-125)
    ulp = torch.ldexp(torch.tensor(1.0, dtype=torch.float64), exponent - 24)
    deviation = drawn.std(0).clamp(min=float(ulp) / 2)
    quantile = student.isf(LEVEL / 2, REPEATS - 1)
    error, bound = (drawn.mean(0) - truth).abs(), quantile * deviation / REPEATS**0.5
    worst = int((error / bound).argmax())
    assert float(error[worst]) <= float(bound[worst]), (
        f"{case}: mean {drawn.mean(0)[worst]} but binary64 gives {truth[worst]}"
    )
    return truth.numel()


def noise_reaches_inexact_elements(row: Row) -> None:
    """Elements that directed rounding moves vary from one realisation to the next.

    The direction of every inexact operation is a fair coin in ``cestac``, so that 48
    equal realisations have a probability of 2^-47 where one operation is inexact.
    """
    varied = 0
    for case in cases_of(row.name):
        # Dead wood otherwise: an output that is a copy, as in a pooling of one element.
        upper, lower = results(case, "up"), results(case, "down")
        drawn = [results(case, "cestac", seed) for seed in range(REPEATS)]
        for high, low, *samples in zip(upper, lower, *drawn, strict=True):
            if high.is_floating_point():
                inexact = (high != low) & high.isfinite() & low.isfinite()
                values = torch.stack(samples)
                same = (values == values[0]).all(0)
                assert not bool((same & inexact).any()), f"{case}: an inexact element never varied"
                varied += int(inexact.sum())
    assert varied, f"no case of {row.name} has an inexact element"


def keeps_integers(row: Row) -> None:
    """Sums and products of small integers are exact, and stay so in ``sr`` and ``cestac``."""
    for case in cases_of(row.name):
        whole = case.changed(_whole)
        for mode in ("sr", "cestac"):
            for ours, truth in zip(results(whole, mode), whole.in_binary64(), strict=True):
                assert torch.equal(ours.double(), truth.double()), whole


def _whole(x: Any) -> Any:
    if isinstance(x, torch.Tensor) and x.is_floating_point():
        return x.round().clamp(-2, 2)
    return float(round(x)) if isinstance(x, float) else x


_LAST: Final = {4: torch.channels_last, 5: torch.channels_last_3d}


def ignores_the_layout(row: Row) -> int:
    """Channels-last arguments give the same bits; returns how many cases could be tried."""
    tried = 0
    # Stock torch reads the indices of fractional pooling in the order of memory.
    cases = [] if "fractional" in row.name else cases_of(row.name)
    for case in cases:
        if any(x.dim() in _LAST and min(x.shape[1:]) > 1 for x in case.tensors):
            tried += 1
            turned = case.changed(_channels_last)
            for a, b in zip(results(case, "sr"), results(turned, "sr"), strict=True):
                assert torch.equal(a.isnan(), b.isnan()), case
                assert torch.equal(a.nan_to_num(), b.nan_to_num()), case
            _check_strides(turned)
    return tried


def _check_strides(case: Case) -> None:
    for ours, stock in zip(results(case, "rn"), case.run(), strict=True):
        assert ours.numel() == 0 or ours.stride() == stock.stride(), case


def _channels_last(x: Any) -> Any:
    if not isinstance(x, torch.Tensor) or x.dim() not in _LAST:
        return x
    return x.contiguous(memory_format=_LAST[x.dim()])
