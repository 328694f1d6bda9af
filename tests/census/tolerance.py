"""How far results in nearest rounding may lie from those of stock torch.

First the tolerance of PyTorch's own tests: that of ``torch.testing`` for the dtype, or the
loosest that the database notes for the operation.  Its tests compare a kernel with itself, or with
one that adds in the same order; where an element lies beyond it, the bound is that of reordered
arithmetic.  Two ways of adding n terms are exact for terms that are changed by a relative
``lambda sqrt(n) u`` at most (Higham and Mary 2019, for independent errors of unit roundoff u), so
that two results differ by no more than twice the change of the exact result under such a change
of the inputs.  That change is measured, in binary64 on inputs moved at random by u.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import torch
from torch.testing._comparison import default_tolerances
from torch.testing._internal.common_device_type import precisionOverride, toleranceOverride
from torch.testing._internal.opinfo.core import DecorateInfo

from census.calls import Outcome, widened
from census.entries import Entry

TRIALS: Final = 6
"""Random changes of the inputs, of which the largest effect counts."""

LAMBDA: Final = 4.0
"""Of ``lambda sqrt(n) u``: the probability of a larger change is below 2 exp(-8) per element."""

_ELSEWHERE: Final = ("TestInductorOpInfo", "TestConsistency", "TestNNCOpInfo", "TestDTensorOps")
"""Tests of compilers and of other devices."""


def stated(entry: Entry, dtype: torch.dtype) -> tuple[float, float]:
    """``(rtol, atol)`` of PyTorch's own tests for results of ``dtype``."""
    rtol, atol = default_tolerances(dtype)
    for noted in entry.info.decorators:
        if isinstance(noted, DecorateInfo):
            if noted.cls_name in _ELSEWHERE or noted.active_if is not True:
                continue
            if noted.device_type not in (None, "cpu"):
                continue
            decorators = noted.decorators if entry.dtype in (noted.dtypes or (entry.dtype,)) else []
        else:
            decorators = [noted]
        for decorator in decorators:
            if isinstance(decorator, toleranceOverride) and entry.dtype in decorator.d:
                atol = max(atol, decorator.d[entry.dtype].atol)
                rtol = max(rtol, decorator.d[entry.dtype].rtol)
            elif isinstance(decorator, precisionOverride) and entry.dtype in decorator.d:
                atol = max(atol, decorator.d[entry.dtype])
    return rtol, atol


def beyond(
    actual: torch.Tensor, expected: torch.Tensor, bound: torch.Tensor | None, entry: Entry
) -> torch.Tensor:
    """Which elements differ by more than the stated tolerance plus ``bound``."""
    rtol, atol = stated(entry, actual.dtype)
    a, b = (exactly(x) for x in (actual, expected))
    allowed = atol + rtol * b.abs() + (0.0 if bound is None else bound)
    close = (a == b) | ((a - b).abs() <= allowed) & b.abs().isfinite()
    return ~(close | a.isnan() & b.isnan())


def exactly(x: torch.Tensor) -> torch.Tensor:
    """A dense tensor in binary64 with the values of ``x``."""
    x = x.detach()
    if x.layout is not torch.strided:
        x = x.to_dense()
    return x.to(torch.complex128 if x.dtype.is_complex else torch.float64)


def sensitivity(
    run: Callable[[Callable[[torch.Tensor], torch.Tensor]], Outcome], entry: Entry
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """For every result of a call its exact value and the bound of reordered arithmetic.

    Args:
        run: the outcome of the call on arguments that a function makes of those of the sample.
        entry: whose dtype says what u is.
    """
    plain = run(widened).tensors
    change = [torch.zeros_like(exactly(y).abs()) for y in plain]
    terms = [1]
    for trial in range(TRIALS):
        moved = run(_moved(entry.dtype, trial, terms)).tensors
        for i, (x, y) in enumerate(zip(moved, plain, strict=False)):
            if x.shape == y.shape:
                step = (exactly(x) - exactly(y)).abs().nan_to_num(posinf=math.inf)
                change[i] = torch.maximum(change[i], step)
    factor = 2 * LAMBDA * math.sqrt(max(terms))
    return [(exactly(y), factor * step) for y, step in zip(plain, change, strict=True)]


def _moved(dtype: torch.dtype, trial: int, terms: list[int]) -> Callable[[Any], Any]:
    unit = torch.finfo(dtype).eps / 2
    generator = torch.Generator().manual_seed(trial)

    def move(x: torch.Tensor) -> torch.Tensor:
        y = widened(x)
        if not (y.is_floating_point() or y.is_complex()) or y.layout is not torch.strided:
            return y
        terms.append(y.numel())
        draws = torch.rand(y.shape, generator=generator, dtype=torch.float64)
        return y * (1 + unit * (2 * draws - 1).round())

    return move
