"""Laws of products and sums with sparse operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
from scatter import between, ulp

import fuzzytorch as ft
from fuzzytorch.active import stock
from fuzzytorch.lookup import table
from fuzzytorch.table import Verdict

aten = torch.ops.aten
REPEATS: Final = 64
pytestmark = pytest.mark.filterwarnings("ignore:Sparse:UserWarning")


@stock()
def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@stock()
def half(*shape: int, seed: int = 0) -> torch.Tensor:
    """About half of the elements are zero."""
    return normal(*shape, seed=seed) * (normal(*shape, seed=seed + 50) > 0)


LAYOUTS: Final[dict[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "coo": lambda x: x.to_sparse_coo(),
    "csr": lambda x: x.to_sparse_csr(),
    "csc": lambda x: x.to_sparse_csc(),
    "uncoalesced": lambda x: _twice(x),
}


def _twice(x: torch.Tensor) -> torch.Tensor:
    """Every element stored as a quarter and three quarters, which binary32 adds exactly."""
    x = x.to_sparse_coo().coalesce()
    indices, values = x.indices(), x.values()
    return torch.sparse_coo_tensor(
        torch.cat([indices, indices], 1),
        torch.cat([values * 0.25, values - values * 0.25]),
        x.shape,
        check_invariants=False,
    )


Layout = Callable[[torch.Tensor], torch.Tensor]

CALLS: Final[dict[str, tuple[str, Callable[[Layout, Layout], Any]]]] = {
    "sparse by dense": ("mm", lambda s, d: aten.mm(s(half(7, 6)), d(normal(6, 5)))),
    "dense by sparse": ("mm", lambda s, d: aten.mm(d(normal(5, 7)), s(half(7, 6)))),
    "sparse by sparse": ("mm", lambda s, d: aten.mm(s(half(7, 6)), s(half(6, 5)))),
    "sparse by sparse, inner": (
        "_sparse_sparse_matmul",
        lambda s, d: aten._sparse_sparse_matmul(s(half(7, 6)), s(half(6, 5))),
    ),
    "batches": ("bmm", lambda s, d: aten.bmm(s(half(2, 7, 6)), d(normal(2, 6, 3)))),
    "by vector": ("mv", lambda s, d: aten.mv(s(half(7, 6)), d(normal(6)))),
    "addmm": (
        "addmm",
        lambda s, d: aten.addmm(
            d(normal(5)), s(half(7, 6)), d(normal(6, 5)), beta=0.375, alpha=1.25
        ),
    ),
    "addmm from the right": (
        "addmm",
        lambda s, d: aten.addmm(d(normal(5, 6)), d(normal(5, 7)), s(half(7, 6)), beta=0.375),
    ),
    "addmm, all sparse": (
        "addmm",
        lambda s, d: aten.addmm(s(half(7, 5)), s(half(7, 6)), s(half(6, 5)), alpha=1.25),
    ),
    "sparse addmm": (
        "_sparse_addmm",
        lambda s, d: aten._sparse_addmm(d(normal(7, 5)), s(half(7, 6)), d(normal(6, 5))),
    ),
    "addmv": (
        "addmv",
        lambda s, d: aten.addmv(d(normal(7)), s(half(7, 6)), d(normal(6)), beta=0),
    ),
    "sampled": (
        "sparse_sampled_addmm",
        lambda s, d: aten.sparse_sampled_addmm(
            s(half(7, 6)), d(normal(7, 9)), d(normal(9, 6)), beta=0.375
        ),
    ),
    "sums": ("add", lambda s, d: torch.add(s(half(7, 6)), s(half(7, 6, seed=3)), alpha=1.25)),
    "sum with dense": ("add", lambda s, d: torch.add(d(normal(7, 6)), s(half(7, 6)), alpha=1.25)),
    "differences": ("sub", lambda s, d: s(half(7, 6)) - s(half(7, 6, seed=3))),
    "by number": ("mul", lambda s, d: s(half(7, 6)) * 0.375),
    "by number, scalar": ("mul.Scalar", lambda s, d: aten.mul.Scalar(s(half(7, 6)), 1.375)),
    "by elements": ("mul", lambda s, d: s(half(7, 6)) * d(normal(7, 6))),
    "by sparse elements": ("mul", lambda s, d: s(half(7, 6)) * s(half(7, 6, seed=3))),
    "quotient": ("div", lambda s, d: s(half(7, 6)) / 1.375),
    "quotient, scalar": ("div.Scalar", lambda s, d: aten.div.Scalar(s(half(7, 6)), 1.375)),
    "coalesced": ("_coalesce", lambda s, d: (s(half(7, 6)) * 1.0).coalesce()),
    "sum of all": ("sum", lambda s, d: aten.sum(s(half(7, 6)))),
    **{
        f"{kind} of products": (
            "_sparse_mm_reduce_impl",
            lambda s, d, kind=kind: torch.sparse.mm(s(half(7, 6)), d(normal(6, 5)), kind),
        )
        for kind in ("sum", "mean", "amax", "amin")
    },
}
"""Calls by name: the operation that answers, and the call for a sparse layout and a dense dtype."""


def result(name: str, layout: str, dtype: torch.dtype) -> torch.Tensor:
    def operand(x: torch.Tensor) -> torch.Tensor:
        with stock():
            return LAYOUTS[layout](x).to(dtype)

    return CALLS[name][1](operand, lambda x: x.to(dtype))


def supported() -> list[tuple[str, str]]:
    """Calls and layouts that stock torch has a kernel for."""
    found = []
    for name in CALLS:
        for layout in LAYOUTS:
            if (name, layout) == ("addmm, all sparse", "csc"):
                # Stock torch returns a tensor whose indices do not fit its values.
                continue
            try:
                result(name, layout, torch.float32)
            except (RuntimeError, NotImplementedError):
                continue
            found.append((name, layout))
    return found


SUPPORTED: Final = supported()
COALESCED: Final = (("sums", "uncoalesced"), ("differences", "uncoalesced"))


def test_every_row_has_a_call_that_stock_torch_supports() -> None:
    rows = {r.name for r in table() if r.operands == "sparse"}
    called = set()
    for name, layout in SUPPORTED:
        with ft.fuzzy("rn") as mode:
            result(name, layout, torch.float32)
        called |= {r.name for r in mode.coverage.records if r.verdict is Verdict.ROUNDED}
    assert rows <= called


@pytest.mark.parametrize(("name", "layout"), SUPPORTED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_nearest_rounding_gives_what_stock_torch_gives(
    dtype: torch.dtype, name: str, layout: str
) -> None:
    expected = result(name, layout, dtype)
    with ft.fuzzy("rn") as mode:
        y = result(name, layout, dtype)
    assert y.layout == expected.layout
    if y.layout is torch.strided:
        assert y.stride() == expected.stride()
    # Sums of what holds positions twice are coalesced, which stock torch leaves for later.
    if y.layout is torch.sparse_coo and (name, layout) not in COALESCED:
        assert y.is_coalesced() == expected.is_coalesced()
        assert torch.equal(y._indices(), expected._indices())
    torch.testing.assert_close(y.to_dense(), expected.to_dense())
    verdicts = {r.verdict for r in mode.coverage.records if r.operations}
    assert verdicts <= {Verdict.ROUNDED}


@pytest.mark.parametrize(("name", "layout"), SUPPORTED)
def test_the_mean_in_stochastic_rounding_is_the_binary64_result(name: str, layout: str) -> None:
    truth = result(name, layout, torch.float64).to_dense()
    samples = []
    for seed in range(REPEATS):
        with ft.fuzzy("sr", seed=seed):
            y = result(name, layout, torch.float32)
        # Elements that are stored for one position are summed without a rounding.
        samples.append(y.to(torch.float64).to_dense())
    drawn = torch.stack(samples)
    deviation = drawn.std(0)
    bound = 5 * deviation / REPEATS**0.5 + 0.2 * ulp(truth)
    assert bool(((drawn.mean(0) - truth).abs() <= bound).all())
    if y.layout is not torch.sparse_coo or y.is_coalesced():
        assert bool((deviation[between(truth)] > 0).all())


@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_gradients_are_those_of_stock_torch_and_every_operation_is_rounded(layout: str) -> None:
    def run() -> list[torch.Tensor]:
        s = LAYOUTS[layout](half(7, 6)).requires_grad_()
        b = normal(6, 5).requires_grad_()
        y = torch.sparse.mm(s, b)
        a, c = torch.autograd.grad(y.square().sum(), (s, b))
        return [y.detach(), a.to_dense(), c]

    expected = run()
    with ft.fuzzy("rn") as mode:
        ours = run()
    torch.testing.assert_close(ours, expected)
    assert mode.coverage.share(Verdict.ROUNDED) == 1


@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_integers_stay_exact(layout: str) -> None:
    s, b = LAYOUTS[layout]((4 * half(7, 6)).round()), (4 * normal(6, 5)).round()
    with ft.fuzzy("sr", seed=0):
        y = s @ b
        count = (s.to_dense().int().to_sparse() * 2).to_dense()
    assert torch.equal(y, s.to_dense() @ b)
    assert torch.equal(count, s.to_dense().int() * 2)


def test_sums_are_written_into_dense_and_sparse_targets() -> None:
    s, t = half(7, 6).to_sparse(), half(7, 6, seed=3).to_sparse()
    with ft.fuzzy("rn"):
        dense, points = normal(7, 6).add_(s), s.clone().add_(t)
        rows = s.to_sparse_csr().clone().add_(t.to_sparse_csr())
    torch.testing.assert_close(dense, normal(7, 6) + s.to_dense())
    for y in (points, rows):
        torch.testing.assert_close(y.to_dense(), s.to_dense() + t.to_dense())
