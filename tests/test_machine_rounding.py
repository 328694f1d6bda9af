"""Kernels that change how the machine rounds leave it as it was, in every thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

import fuzzytorch as ft
from fuzzytorch.backends import cpu

MODES = ("cestac", "up", "down", "zero")
LARGE = 200_000  # elements of which every thread gets some

x = torch.linspace(0.1, 1.0, LARGE)
wide = x.double()
index = torch.arange(LARGE) % 7
WORK: dict[str, Callable[[], object]] = {
    "elementwise": lambda: x + x / 3,
    "elementwise float64": lambda: wide + wide / 3,
    "function": lambda: torch.exp(x),
    "reduction": lambda: x.sum(),
    "scan": lambda: x[:1000].cumsum(0),
    "product": lambda: x.view(-1, 500) @ x[:1000].view(500, 2),
    "product float64": lambda: wide.view(-1, 500) @ wide[:10_000].view(500, 20),
    "accumulation": lambda: torch.zeros(7).index_add(0, index, x),
}


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    isa, threads = cpu.isa(), torch.get_num_threads()
    yield
    cpu.select_isa(isa)
    torch.set_num_threads(threads)


def rounds_to_nearest() -> bool:
    """Whether stock torch does, in every thread and on both sides of zero."""
    third = torch.full((LARGE,), 1.0) / 3.0
    tiny = torch.full((LARGE,), 2.0**-30)
    return bool(
        (third == 0.3333333432674408).all()
        and (-third == torch.full((LARGE,), -1.0) / 3.0).all()
        and (1.0 + tiny == 1.0).all()
        and (-1.0 - tiny == -1.0).all()
    )


@pytest.mark.parametrize("isa", cpu.available_isas())
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", WORK)
def test_stock_torch_rounds_to_nearest_after_a_kernel(name: str, mode: str, isa: str) -> None:
    cpu.select_isa(isa)
    torch.set_num_threads(2)
    with ft.fuzzy(mode, seed=0):
        WORK[name]()
    assert rounds_to_nearest()
    assert 1.0 + 2.0**-60 == 1.0


@pytest.mark.parametrize("isa", cpu.available_isas())
def test_a_program_that_flushes_subnormals_still_does_so_after_a_kernel(isa: str) -> None:
    if not torch.set_flush_denormal(True):
        pytest.skip("this machine cannot flush subnormal numbers")
    try:
        torch.set_num_threads(1)
        cpu.select_isa(isa)
        with ft.fuzzy("cestac", seed=0):
            WORK["elementwise"]()
        assert (torch.tensor([1e-38]) * 1e-2).item() == 0.0
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.parametrize("isa", cpu.available_isas())
def test_directed_modes_enclose_functions_between_neighbours(isa: str) -> None:
    cpu.select_isa(isa)
    a = torch.linspace(-4.0, 4.0, 4097)
    with ft.fuzzy("down"):
        below = torch.exp(a)
    with ft.fuzzy("up"):
        above = torch.exp(a)
    value = a.double().exp()
    inexact = a != 0
    assert bool((below.double() <= value).all()) and bool((value <= above.double()).all())
    assert torch.equal(above[inexact], torch.nextafter(below, above + 1)[inexact])
    assert above[~inexact].item() == below[~inexact].item() == 1.0
