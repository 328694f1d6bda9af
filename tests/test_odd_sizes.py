"""At odd sizes, in any layout, on every instruction set: all noise arrives, nothing is overrun."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pytest
import torch
from representative_operations import (
    ELEMENTWISE,
    LAYOUTS,
    OPERATIONS,
    Operation,
    guarded,
    untouched,
)
from torch.nn import functional as F

import fuzzytorch as ft
from fuzzytorch.backends import EXTENSION
from fuzzytorch.ops import FAMILIES

pytest.importorskip(EXTENSION, reason="the native kernels were not built")

from fuzzytorch.backends import cpu

SIZES: Final = (1, 2, 3, 7, 8, 9, 15, 17, 31, 33, 64, 67)
"""Around the widths of vectors, of column groups and of tiles."""

SAMPLED_SIZES: Final = (1, 2, 3, 9, 17, 67)
"""Sizes at which calls are repeated."""

REPEATS: Final = 40
"""In ``cestac`` and ``ud`` one inexact operation takes the same turn so often with 2^-39."""

SR_REPEATS: Final = 100
"""Discarding between 1/4 and 3/4, ``sr`` takes the same turn so often with 2 * 0.75^100 < 1e-12."""

EXACT_FAMILIES: Final = {"exact", "random", "scaling", "coarse"}
"""Families without a rounding, or with rows of torch's own kernels only."""


@pytest.fixture(params=cpu.available_isas())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every instruction set in turn."""
    before = cpu.isa()
    cpu.select_isa(request.param)
    assert cpu.isa() == request.param
    yield request.param
    cpu.select_isa(before)


def test_every_family_that_rounds_has_a_representative() -> None:
    assert {operation.family for operation in OPERATIONS} == set(FAMILIES) - EXACT_FAMILIES


def repeated(run: Callable[[], torch.Tensor], mode: str, count: int) -> torch.Tensor:
    """Realisations of a call under one mode, which numbers them through."""
    drawn, context = [], ft.fuzzy(mode, seed=1)
    for _ in range(count):
        with context:
            drawn.append(run())
    return torch.stack(drawn)


def once(run: Callable[[], torch.Tensor], mode: str) -> torch.Tensor:
    with ft.fuzzy(mode, seed=1):
        return run()


def varies(drawn: torch.Tensor) -> torch.Tensor:
    return (drawn != drawn[0]).any(0)


@pytest.mark.parametrize("operation", OPERATIONS, ids=str)
def test_every_inexact_element_scatters_at_odd_sizes(operation: Operation, isa: str) -> None:
    inexact_elements = 0
    for n in SAMPLED_SIZES:
        x = operation.operands(n)
        run = lambda x=x: operation.run(*x)  # noqa: E731
        inexact = once(run, "up") != once(run, "down")
        inexact_elements += int(inexact.sum())
        cestac = varies(repeated(run, "cestac", REPEATS))
        assert bool(cestac[inexact].all()), n
        if operation.single:
            assert not cestac[~inexact].any(), n
            # ud moves every number but zero, and these operands are positive.
            moved = varies(repeated(run, "ud", REPEATS))
            assert bool(moved[once(run, "rn") != 0].all()), n
    assert inexact_elements > 0


@pytest.mark.parametrize("operation", [o for o in ELEMENTWISE if o.single], ids=str)
def test_every_element_between_a_quarter_and_three_quarters_scatters_in_sr(
    operation: Operation, isa: str
) -> None:
    chosen = 0
    for n in SAMPLED_SIZES:
        x = operation.operands(n)
        exact = operation.run(*(v.double() for v in x)).numpy()
        unit = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)
        f = np.abs(exact) / unit % 1
        middle = torch.from_numpy((f >= 0.25) & (f <= 0.75))
        chosen += int(middle.sum())
        drawn = varies(repeated(lambda x=x: operation.run(*x), "sr", SR_REPEATS))
        assert bool(drawn[middle].all()), n
    assert chosen > 50


@pytest.mark.parametrize("operation", OPERATIONS, ids=str)
def test_layouts_give_the_same_bits_and_nothing_outside_is_read_or_written(
    operation: Operation, isa: str
) -> None:
    for n in SIZES:
        x = operation.operands(n)
        expected = once(lambda x=x: operation.run(*x), "sr")
        # Whoever reads beside the operands finds NaN.
        assert bool(expected.isfinite().all())
        for layout in LAYOUTS:
            placed = [guarded(v, layout) for v in x]
            y = once(lambda p=placed: operation.run(*(v for v, _ in p)), "sr")
            assert torch.equal(y, expected), (n, layout)
            for (view, _), v in zip(placed, x, strict=True):
                assert torch.equal(view, v), (n, layout)
            assert all(untouched(view, buffer) for view, buffer in placed), (n, layout)


WRITING: Final[dict[str, tuple[Callable[[int], tuple[tuple[int, ...], ...]], Any]]] = {
    "add": (lambda n: ((n, 5), (n, 5)), torch.add),
    "div": (lambda n: ((n, 5), (n, 5)), torch.div),
    "exp": (lambda n: ((n, 5),), torch.exp),
    "mm": (lambda n: ((n, 7), (7, n)), torch.mm),
    "bmm": (lambda n: ((2, n, 7), (2, 7, 3)), torch.bmm),
    "addmm": (lambda n: ((n, 5), (n, 3), (3, 5)), torch.addmm),
    "sum": (lambda n: ((n, 21),), lambda x, out=None: torch.sum(x, 1, out=out)),
    "cumsum": (lambda n: ((n, 9),), lambda x, out=None: torch.cumsum(x, 1, out=out)),
    "softmax": (lambda n: ((n, 9),), lambda x, out=None: torch.softmax(x, 1, out=out)),
}
"""Operations that write into a given tensor."""


@pytest.mark.parametrize("name", WRITING)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_result_written_into_a_given_tensor_leaves_its_surroundings(
    name: str, layout: str, isa: str
) -> None:
    shapes, run = WRITING[name]
    for n in SIZES:
        generator = torch.Generator().manual_seed(n)
        x = [torch.rand(shape, generator=generator) + 0.25 for shape in shapes(n)]
        expected = once(lambda x=x: run(*x), "sr")
        view, buffer = guarded(torch.zeros_like(expected), layout)
        once(lambda x=x, out=view: run(*x, out=out), "sr")
        assert torch.equal(view, expected), n
        assert untouched(view, buffer), n


@pytest.mark.parametrize("mode", ["sr", "ud", "cestac"])
@pytest.mark.parametrize("operation", ELEMENTWISE, ids=str)
def test_tensors_without_dimensions_scatter_as_those_of_one_element(
    operation: Operation, mode: str, isa: str
) -> None:
    one = [v.view(-1)[:1] for v in operation.operands(1)]
    none = [v.view(()) for v in one]
    drawn = repeated(lambda: operation.run(*none), mode, REPEATS)
    assert drawn.shape == (REPEATS,)
    assert torch.equal(drawn, repeated(lambda: operation.run(*one), mode, REPEATS)[:, 0])
    inexact = once(lambda: operation.run(*none), "up") != once(lambda: operation.run(*none), "down")
    if mode == "cestac" and operation.single:
        assert varies(drawn) == inexact
    elif mode == "cestac":
        # Errors of several steps may cancel where all of them point upwards.
        assert bool(varies(drawn) | ~inexact)
    elif mode == "ud" and operation.single:
        assert bool(varies(drawn))


def test_a_reduction_of_one_number_is_that_number(isa: str) -> None:
    x = torch.tensor(0.1)
    for mode in ("sr", "cestac"):
        for function in (torch.sum, torch.mean, torch.prod):
            assert bool((repeated(lambda f=function: f(x), mode, REPEATS) == x).all()), function


EMPTY: Final[dict[str, Callable[[], torch.Tensor]]] = {
    "add": lambda: torch.empty(0, 3) + torch.empty(1, 3),
    "exp": lambda: torch.empty(3, 0).exp(),
    "sum": lambda: torch.empty(0, 3).sum(0),
    "sum of all": lambda: torch.empty(0).sum(),
    "mean": lambda: torch.empty(0, 3).mean(0),
    "product": lambda: torch.empty(3, 0).prod(1),
    "running sum": lambda: torch.empty(2, 0).cumsum(1),
    "softmax": lambda: torch.empty(0, 3).softmax(1),
    "mm without rows": lambda: torch.empty(0, 3) @ torch.ones(3, 2),
    "mm without terms": lambda: torch.empty(2, 0) @ torch.empty(0, 3),
    "bmm without batch": lambda: torch.bmm(torch.empty(0, 2, 3), torch.empty(0, 3, 4)),
    "linear": lambda: torch.nn.functional.linear(
        torch.empty(0, 3), torch.ones(2, 3), torch.ones(2)
    ),
    "conv2d": lambda: torch.conv2d(torch.empty(0, 2, 5, 5), torch.ones(3, 2, 3, 3)),
    "layer norm": lambda: F.layer_norm(torch.empty(0, 4), (4,)),
    "index_add": lambda: torch.ones(3).index_add(
        0, torch.empty(0, dtype=torch.int64), torch.empty(0)
    ),
}
"""Operations on tensors without elements."""


@pytest.mark.parametrize("mode", ["rn", "sr", "ud", "cestac"])
@pytest.mark.parametrize("name", EMPTY)
def test_tensors_without_elements_give_what_stock_torch_gives(
    name: str, mode: str, isa: str
) -> None:
    expected, y = EMPTY[name](), once(EMPTY[name], mode)
    assert (y.shape, y.stride(), y.dtype) == (expected.shape, expected.stride(), expected.dtype)
    assert torch.equal(y, expected) or bool(expected.isnan().all() and y.isnan().all())
