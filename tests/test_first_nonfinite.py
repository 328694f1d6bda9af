"""Laws of the report on Inf and NaN: which operation, which module, and whether rounding decides."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import fuzzytorch as ft
from fuzzytorch.locate import NonFinite, origins

STOCK_CALL = nn.Module.__call__
LARGE = torch.full((3,), 1e30)


@pytest.fixture(autouse=True)
def _nothing_stays_behind() -> Iterator[None]:
    yield
    assert nn.Module.__call__ is STOCK_CALL
    assert torch._C._len_torch_dispatch_stack() == 0


def report(fn: Callable[[], Any], n: int = 3, **options: Any) -> NonFinite:
    return ft.first_nonfinite(fn, n=n, seed=0, **options)


def met(found: NonFinite) -> list[tuple[str, str, str]]:
    return [(o.value, o.operation, o.cause) for o in found.origins]


OVERFLOW, DIVISION = origins.OVERFLOW, origins.DIVISION
INVALID, INFINITE = origins.INVALID, origins.INFINITE


def in_place() -> None:
    y = LARGE * 1.0
    y.mul_(LARGE)


def into_a_target() -> None:
    torch.mul(LARGE, LARGE, out=torch.full((3,), math.nan))


def all_at_once() -> None:
    torch._foreach_mul_([torch.ones(2), LARGE.clone()], 1e30)


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (lambda: LARGE * LARGE, ("Inf", "aten.mul.Tensor", OVERFLOW)),
        (in_place, ("Inf", "aten.mul_.Tensor", OVERFLOW)),
        (into_a_target, ("Inf", "aten.mul.out", OVERFLOW)),
        (all_at_once, ("Inf", "aten._foreach_mul_.Scalar", OVERFLOW)),
        (lambda: torch.full((2,), 7e4).half(), ("Inf", "aten._to_copy.default", OVERFLOW)),
        (lambda: torch.full((2,), 1e5).half().add(1), None),
        (lambda: torch.arange(3.0).log(), ("Inf", "aten.log.default", DIVISION)),
        (lambda: 1 / torch.arange(3.0), ("Inf", "aten.reciprocal.default", DIVISION)),
        (lambda: (-torch.arange(3.0)).sqrt(), ("NaN", "aten.sqrt.default", INVALID)),
        (lambda: torch.zeros(2) / torch.zeros(2), ("NaN", "aten.div.Tensor", INVALID)),
        (lambda: torch.full((2, 2), -math.inf).softmax(1), ("NaN", "aten._softmax.default", None)),
        (lambda: nn.functional.layer_norm(LARGE * LARGE[0].log(), (3,)), None),
    ],
)
def test_the_operation_and_its_cause_are_named(
    fn: Callable[[], Any], expected: tuple[str, str, str | None] | None
) -> None:
    found = report(fn)
    if expected is None:
        return
    value, operation, cause = expected
    assert met(found)[0] == (value, operation, cause or INFINITE)
    assert found.origins[0].replicas == (0, 1, 2)
    assert found.origins[0].ieee
    assert found.verdict == f"{cause or INFINITE}, not rounding"
