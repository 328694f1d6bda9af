"""Laws that hold for the rows of elementwise and indexing families, one function each."""

from __future__ import annotations

import importlib.util
from typing import Final

import torch
from row_cases import Case, cases_of

from fuzzytorch.backends import EXTENSION
from fuzzytorch.fuzzy import fuzzy
from fuzzytorch.table import Row, Verdict

BACKEND: Final = "cpu" if importlib.util.find_spec(EXTENSION) else "reference"
"""Both give the same bits; the reference backend is slow."""

REPEATS: Final = 48
"""Realisations of a call whose mean is compared with binary64."""

SAMPLED_CASES: Final = 3
"""Cases of a row that are repeated."""

CONSTANTS: Final = {
    "aten.deg2rad.default": "pi / 180",
    "aten.rad2deg.default": "180 / pi",
    "aten.sinc.default": "pi",
    "aten.logit.default": "1 - eps",
    "aten.logit_backward.default": "1 - eps",
    "aten.logaddexp2.default": "1 / log(2)",
    "aten.round.decimals": "a power of ten",
    "aten.mvlgamma.default": "p (p - 1) log(pi) / 4",
    "aten.gelu.default": "sqrt(1/2), sqrt(2/pi) and 0.044715",
    "aten.gelu_backward.default": "sqrt(1/2), sqrt(2/pi) and 0.044715",
    "aten.elu.default": "scales that are not float32 numbers",
    "aten.elu_backward.default": "scales that are not float32 numbers",
    "aten.celu.default": "1 / alpha",
    "aten.selu.default": "alpha and scale",
    "aten.leaky_relu.default": "the default slope 0.01",
    "aten.rrelu_with_noise.default": "the mean slope",
    "aten.rrelu_with_noise_.default": "the mean slope",
    "aten.rrelu_with_noise_backward.default": "the mean slope",
    "aten.hardsigmoid_backward.default": "1 / 6",
    "aten.native_dropout.default": "1 / (1 - p)",
    "aten._fused_adam_.default": "step size and bias corrections",
    "aten._fused_adam_.tensor_lr": "step size and bias corrections",
    "aten._fused_adamw_.default": "step size and bias corrections",
    "aten._fused_adamw_.tensor_lr": "step size and bias corrections",
    "aten._fused_adagrad_.default": "the decayed rate",
    "aten._fused_adagrad_.tensor_lr": "the decayed rate",
    "aten.embedding_dense_backward.default": "1 / count",
}
"""Rows whose formula holds a number that float32 arithmetic rounds and binary64 does not."""

CANCELLING: Final = {
    "aten.gelu.default": "1 + erf and 1 + tanh, near -1",
    "aten.gelu_backward.default": "1 + erf and 1 + tanh, near -1",
}
"""Rows in which a sum of rounded terms cancels: of a term that is hundreds of ulps of the result
coarse, a rounding that happens once in a hundred times moves the mean, so that many draws are
needed to see it."""

DRAWS_OF_CANCELLING: Final = 4800

INACCURATE: Final = {
    "aten.polygamma.default": "order 1 of negative arguments loses half of its digits",
}
"""Rows whose float32 kernel in stock torch misses its function by more than torch's tolerance."""


def equals_stock_in_nearest_rounding(row: Row) -> None:
    """Dtype, shape, strides, and values: within torch's own tolerance of stock torch.

    A ``COARSE`` row is compared with its claim, the binary64 result rounded once; so is one
    whose kernel in stock torch is inaccurate.
    """
    cases = cases_of(row.name)
    assert cases, f"no case for {row.name}"
    for case in cases:
        stock = case.run()
        with fuzzy("rn", seed=11, backend=BACKEND) as mode:
            actual = case.run()
        expected = stock
        if row.verdict is Verdict.COARSE or row.name in INACCURATE:
            wide = case.in_binary64()
            expected = [torch.empty_like(y).copy_(w) for y, w in zip(stock, wide, strict=True)]
        torch.testing.assert_close(
            actual, expected, equal_nan=True, check_stride=True, msg=lambda m, c=case: f"{c}\n{m}"
        )
        verdicts = {record.verdict for record in mode.coverage.records}
        assert verdicts <= {row.verdict, Verdict.ROUNDED, Verdict.EXACT}, verdicts


def is_centred_and_noisy_in_stochastic_rounding(row: Row) -> None:
    """The mean of many realisations is the binary64 result, and inexact elements vary."""
    compared = 0
    for case in cases_of(row.name)[:SAMPLED_CASES]:
        samples = []
        for seed in range(DRAWS_OF_CANCELLING if row.name in CANCELLING else REPEATS):
            with fuzzy("sr", seed=seed, backend=BACKEND):
                samples.append(case.run())
        for truth, *drawn in zip(case.in_binary64(), *samples, strict=True):
            if drawn[0].dtype == torch.float32:
                compared += _check(case, torch.stack(drawn).double(), truth.double(), row.name)
    assert compared, f"no finite result of {row.name} was compared"


def _check(case: Case, drawn: torch.Tensor, truth: torch.Tensor, name: str) -> int:
    # Close to the ends of the range of float32 the two differ by design.
    inside = truth.isfinite() & (truth.abs() < 2.0**127)
    inside &= (truth.abs() > 2.0**-120) | (truth == 0)
    drawn, truth = drawn[:, inside], truth[inside]
    if truth.numel() == 0:
        return 0
    mean, deviation, ulp = drawn.mean(0), drawn.std(0), _ulp(truth)
    # An element that never varies must be exact, or so nearly that 48 draws agree:
    # at a fifth of an ulp from a float32 number they do with probability 0.8^48 = 2e-5.
    # A constant that float32 rounds shifts the mean about as far as one more rounding scatters.
    allowed = 0.2 * ulp
    if name in CONSTANTS:
        allowed = torch.maximum(2.0 * ulp, 3.0 * deviation)
    error, bound = (mean - truth).abs(), 5 * deviation / len(drawn) ** 0.5 + allowed
    worst = (error / bound).argmax()
    assert bool((error <= bound).all()), (
        f"{case}: mean {mean[worst]}, deviation {deviation[worst]}, "
        f"but binary64 gives {truth[worst]} (ulp {ulp[worst]})"
    )
    if name in CONSTANTS:
        # For a fraction spread over an ulp the draws vary with probability 1 - 2/49; that
        # fewer than half of the elements do is beyond any chance for ten of them.
        inexact = (truth / ulp).frac() != 0
        varied = (deviation[inexact] > 0).float().mean()
        assert int(inexact.sum()) < 10 or varied > 0.5, f"{case}: {varied:.0%} of elements varied"
    return truth.numel()


def _ulp(x: torch.Tensor) -> torch.Tensor:
    """The distance between float32 numbers around ``x``."""
    exponent = torch.frexp(x).exponent.clamp(min=-125)
    return torch.ldexp(torch.ones_like(x), exponent - 24)
