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


ELEMENTWISE: Final = """
    abs asin asinh atan atanh ceil deg2rad erf erfinv expm1 floor frac log1p nan_to_num rad2deg
    relu round sgn sign sin sinh sqrt tan tanh trunc
"""
UNIT: Final = half(7, 6).abs() / 4
"""Numbers from 0 to 1, of which functions are known."""


def _gradient(function: Any, x: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    x = x.requires_grad_()
    y = function(x, 1)
    return torch.autograd.grad(y, x, grad.sparse_mask(y.detach().coalesce()))[0]


def _gradient_of_products(
    a: torch.Tensor, b: torch.Tensor, grad: torch.Tensor, reduce: str
) -> tuple[torch.Tensor, ...]:
    a, b = a.requires_grad_(), b.requires_grad_()
    return torch.autograd.grad(torch.sparse.mm(a, b, reduce), (a, b), grad)


Layout = Callable[[torch.Tensor], torch.Tensor]
KINDS: Final = ("sum", "mean", "amax", "amin")


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
        for kind in KINDS
    },
    **{
        f"gradient of {kind} of products, {which}": (
            "_sparse_mm_reduce_impl_backward",
            lambda s, d, kind=kind, i=i: _gradient_of_products(
                s(half(7, 6)), d(normal(6, 5)), d(normal(7, 5)), kind
            )[i],
        )
        for kind in KINDS
        for i, which in enumerate(("left", "right"))
    },
    **{
        name: (name, lambda s, d, name=name: getattr(torch, name)(s(UNIT)))
        for name in ELEMENTWISE.split()
    },
    "square": ("pow", lambda s, d: s(half(7, 6)) ** 2),
    "power": ("pow", lambda s, d: s(UNIT) ** 1.5),
    "norm": ("norm", lambda s, d: s(half(7, 6)).norm()),
    "1-norm": ("norm", lambda s, d: aten.norm.Scalar(s(half(7, 6)), 1)),
    "sums of columns": ("sum", lambda s, d: s(half(7, 6)).sum(0)),
    "sums of rows": ("sum", lambda s, d: s(half(7, 6)).sum(1, keepdim=True)),
    "sparse sums": ("_sparse_sum", lambda s, d: torch.sparse.sum(s(half(7, 6, 3)), [0, 2])),
    "dense": ("_to_dense", lambda s, d: s(half(7, 6)).to_dense()),
    "softmax": ("_sparse_softmax", lambda s, d: torch.sparse.softmax(s(half(7, 6)), 1)),
    "log-softmax": ("_sparse_log_softmax", lambda s, d: torch.sparse.log_softmax(s(half(7, 6)), 0)),
    **{
        f"gradient of {name}": (
            f"_sparse_{name}_backward_data",
            lambda s, d, name=name: _gradient(
                getattr(torch.sparse, name), s(half(7, 6)), d(normal(7, 6))
            ),
        )
        for name in ("softmax", "log_softmax")
    },
}
"""Calls by name: the operation that answers, and the call for a sparse layout and a dense dtype."""


def result(name: str, layout: str, dtype: torch.dtype) -> torch.Tensor:
    def typed(x: torch.Tensor, number: complex) -> torch.Tensor:
        # Numbers of the narrower dtype, so that both hold the same ones.
        return (x.to(torch.complex64) * number).to(dtype) if dtype.is_complex else x.to(dtype)

    def sparse(x: torch.Tensor) -> torch.Tensor:
        with stock():
            return typed(LAYOUTS[layout](x), 0.375 - 1.25j)

    @stock()
    def dense(x: torch.Tensor) -> torch.Tensor:
        return typed(x, 1.125 + 0.625j)

    return CALLS[name][1](sparse, dense)


def supported() -> list[tuple[str, str, torch.dtype]]:
    """Calls, layouts and dtypes that stock torch has a kernel for."""
    found = []
    complex_ = [(layout, torch.complex64) for layout in ("coo", "csr")]
    for name in CALLS:
        for layout, dtype in [*((layout, torch.float32) for layout in LAYOUTS), *complex_]:
            if (name, layout) == ("addmm, all sparse", "csc"):
                # Stock torch returns a tensor whose indices do not fit its values.
                continue
            try:
                result(name, layout, dtype)
            except (RuntimeError, NotImplementedError):
                continue
            found.append((name, layout, dtype))
    return found


SUPPORTED: Final = supported()
CASES: Final = [pytest.param(*case, id="-".join(map(str, case))) for case in SUPPORTED]
COALESCED: Final = (("sums", "uncoalesced"), ("differences", "uncoalesced"))
WIDE: Final = {torch.float32: torch.float64, torch.complex64: torch.complex128}


def real(y: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(y) if y.is_complex() else y


def test_every_row_has_a_call_that_stock_torch_supports() -> None:
    rows = {r.name for r in table() if r.operands == "sparse"}
    called = set()
    for name, layout, dtype in SUPPORTED:
        with ft.fuzzy("rn") as mode:
            result(name, layout, dtype)
        called |= {r.name for r in mode.coverage.records if r.operations}
        assert mode.coverage.share(Verdict.UNCOVERED) == 0
    assert rows <= called


@pytest.mark.parametrize(("name", "layout", "narrow"), CASES)
@pytest.mark.parametrize("width", ["narrow", "wide"])
def test_nearest_rounding_gives_what_stock_torch_gives(
    width: str, name: str, layout: str, narrow: torch.dtype
) -> None:
    dtype = narrow if width == "narrow" else WIDE[narrow]
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


@pytest.mark.parametrize(("name", "layout", "dtype"), CASES)
def test_the_mean_in_stochastic_rounding_is_the_binary64_result(
    name: str, layout: str, dtype: torch.dtype
) -> None:
    expected = result(name, layout, WIDE[dtype])
    truth = real(expected.to_dense())
    samples = []
    for seed in range(REPEATS):
        with ft.fuzzy("sr", seed=seed):
            y = result(name, layout, dtype)
        # Elements that are stored for one position are summed without a rounding.
        samples.append(real(y.to(expected.dtype).to_dense()))
    drawn = torch.stack(samples)
    deviation = drawn.std(0)
    bound = 5 * deviation / REPEATS**0.5 + 0.2 * ulp(truth)
    assert bool(((drawn.mean(0) - truth).abs() <= bound).all())
    if y.layout is not torch.sparse_coo or y.is_coalesced():
        assert bool((deviation[between(truth)] > 0).all())


@pytest.mark.parametrize("layout", ["coo", "csr"])
@pytest.mark.parametrize("number", [1.0, 0.375 - 1.25j], ids=["real", "complex"])
def test_gradients_are_those_of_stock_torch_and_every_operation_is_rounded(
    number: complex, layout: str
) -> None:
    values, factors = half(7, 6) * number, normal(6, 5) * number

    def run() -> list[torch.Tensor]:
        s = LAYOUTS[layout](values).requires_grad_()
        b = factors.clone().requires_grad_()
        y = torch.sparse.mm(s, b)
        a, c = torch.autograd.grad(y.abs().square().sum(), (s, b))
        return [y.detach(), a.to_dense(), c]

    expected = run()
    with ft.fuzzy("rn") as mode:
        ours = run()
    torch.testing.assert_close(ours, expected)
    assert mode.coverage.share(Verdict.ROUNDED) == 1


def test_pending_conjugates_of_dense_factors_are_read_as_such() -> None:
    s = LAYOUTS["csr"](half(6, 6) * (0.375 - 1.25j))
    b = torch.complex(normal(6, 6), normal(6, 6, seed=1)).mH
    assert b.is_conj()
    for product in (lambda: torch.mm(s, b), lambda: torch.mm(b, s)):
        expected = product()
        with ft.fuzzy("rn"):
            y = product()
        torch.testing.assert_close(y, expected)


@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_integers_stay_exact(layout: str) -> None:
    s, b = LAYOUTS[layout]((4 * half(7, 6)).round()), (4 * normal(6, 5)).round()
    with ft.fuzzy("sr", seed=0):
        y = s @ b
        count = (s.to_dense().int().to_sparse() * 2).to_dense()
    assert torch.equal(y, s.to_dense() @ b)
    assert torch.equal(count, s.to_dense().int() * 2)


def test_elements_of_one_position_are_added_with_a_rounding_when_a_tensor_becomes_dense() -> None:
    values = torch.tensor([0.1, 0.7, 0.3])
    x = torch.sparse_coo_tensor([[2, 2, 0]], values, (4,), check_invariants=False)
    samples = []
    for seed in range(REPEATS):
        with ft.fuzzy("sr", seed=seed):
            samples.append(x.to_dense())
    deviation = torch.stack(samples).std(0)
    assert float(deviation[2]) > 0
    assert torch.equal(samples[0][[0, 1, 3]], torch.tensor([0.3, 0.0, 0.0]))


def test_sums_are_written_into_dense_and_sparse_targets() -> None:
    s, t = half(7, 6).to_sparse(), half(7, 6, seed=3).to_sparse()
    with ft.fuzzy("rn"):
        dense, points = normal(7, 6).add_(s), s.clone().add_(t)
        rows = s.to_sparse_csr().clone().add_(t.to_sparse_csr())
    torch.testing.assert_close(dense, normal(7, 6) + s.to_dense())
    for y in (points, rows):
        torch.testing.assert_close(y.to_dense(), s.to_dense() + t.to_dense())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_narrow_elements_are_computed_in_float32_and_stored_once(
    kind: str, dtype: torch.dtype
) -> None:
    s, b = half(7, 6).to(dtype).to_sparse_csr(), normal(6, 5).to(dtype)

    def run(dtype: torch.dtype) -> list[torch.Tensor]:
        a, c = s.to(dtype).requires_grad_(), b.to(dtype).requires_grad_()
        with ft.fuzzy("rn") as mode:
            y = torch.sparse.mm(a, c, kind)
            grads = torch.autograd.grad(y, (a, c), torch.ones_like(y))
        assert mode.coverage.share(Verdict.ROUNDED) == 1
        return [y.detach(), grads[0].to_dense(), grads[1]]

    for narrow, wide in zip(run(dtype), run(torch.float32), strict=True):
        assert torch.equal(narrow, wide.to(dtype))
