"""Laws of complex arithmetic: parts round one by one, in the order of stock torch."""

from __future__ import annotations

import itertools
from typing import Any, Final

import pytest
import torch
from complex_cases import CASES, PLACES, SCALE, A, B, x, z
from scatter import between, ulp
from torch.utils._pytree import tree_map

import fuzzytorch as ft
from fuzzytorch.lookup import table
from fuzzytorch.table import Verdict, overload_named

aten = torch.ops.aten
REPEATS: Final = 64


ROWS: Final = [row for row in table() if table().family(row).startswith("complex")]
NAMES: Final = [row.name.removeprefix("aten.") for row in ROWS]
ELSEWHERE: Final = ("_chunk_cat.default", "native_dropout.default")
"""What only moves elements, and what draws random numbers, have tests of their own."""
CALLS: Final = [
    pytest.param(name, args, kwargs, id=f"{name}-{i}")
    for name in NAMES
    if name not in ELSEWHERE
    for i, (args, kwargs) in enumerate(CASES.get(name, [((A,), {})]))
]


def holds_numbers(v: Any) -> bool:
    return isinstance(v, torch.Tensor) and (v.is_complex() or v.is_floating_point())


def wide(tree: Any) -> Any:
    def widened(v: Any) -> Any:
        if holds_numbers(v):
            return v.to(torch.complex128 if v.is_complex() else torch.float64)
        return v

    return tree_map(widened, tree)


def varies_between_numbers(samples: list[torch.Tensor], truth: torch.Tensor) -> bool:
    deviation = torch.stack([real(y) for y in samples]).std(0)
    inexact = between(real(truth))
    return bool(inexact.any()) and bool((deviation[inexact] > 0).all())


def real(y: Any) -> torch.Tensor:
    """All parts of all results."""
    if isinstance(y, tuple):
        return torch.cat([real(v).flatten() for v in y if v.dtype is not torch.bool])
    return torch.view_as_real(y.resolve_conj()) if y.is_complex() else y


def test_every_case_belongs_to_a_row() -> None:
    assert set(CASES) <= set(NAMES)


@pytest.mark.parametrize(("name", "args", "kwargs"), CALLS)
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_nearest_rounding_gives_what_stock_torch_gives(
    dtype: torch.dtype, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    overload = overload_named(f"aten.{name}")
    args = wide(args) if dtype == torch.complex128 else args
    stock = overload(*args, **kwargs)
    with ft.fuzzy("rn") as mode:
        y = overload(*args, **kwargs)
    bound = 16 * torch.finfo(dtype).eps
    torch.testing.assert_close(y, stock, rtol=bound, atol=bound, check_stride=True)
    assert mode.coverage.share(Verdict.ROUNDED) == 1


@pytest.mark.parametrize(("name", "args", "kwargs"), CALLS)
def test_both_parts_of_complex128_scatter_in_their_last_digits(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    overload = overload_named(f"aten.{name}")
    # Significands of 53 bits: those of binary32 have exact sums and products.
    args = tree_map(lambda v: v / 3 if holds_numbers(v) else v, wide(args))
    stock = real(overload(*args, **kwargs))
    samples = []
    for seed in range(16):
        with ft.fuzzy("sr", seed=seed):
            samples.append(real(overload(*args, **kwargs)))
    deviation = torch.stack(samples).std(0)
    # Sums of numbers of one exponent are exact half of the time, and zero parts always.
    assert bool((deviation > 0).float().mean() > 0.1)
    assert bool((deviation <= 64 * torch.finfo(torch.float64).eps * stock.abs().max()).all())


@pytest.mark.parametrize(("name", "args", "kwargs"), CALLS)
def test_the_mean_in_stochastic_rounding_is_the_binary64_result(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    overload = overload_named(f"aten.{name}")
    args = tree_map(lambda v: torch.tensor(v).item() if isinstance(v, float) else v, args)
    truth = real(overload(*wide(args), **kwargs))
    samples = []
    for seed in range(REPEATS):
        with ft.fuzzy("sr", seed=seed):
            samples.append(real(overload(*args, **kwargs)))
    drawn = torch.stack(samples).double()
    deviation = drawn.std(0)
    # An element within a fifth of an ulp of a number may be the same in all draws.
    bound = 5 * deviation / REPEATS**0.5 + 0.2 * ulp(truth)
    assert bool(((drawn.mean(0) - truth).abs() <= bound).all())
    assert bool((deviation[between(truth)] > 0).all())


INTEGERS: Final = """
    add.Tensor sub.Tensor mul.Tensor square.default cumsum.default sum.default sum.dim_IntList
    mm.default bmm.default mv.default dot.default vdot.default addr.default addbmm.default
    linalg_cross.default prod.dim_int cumprod.default trace.default scatter_add.default
    scatter.reduce scatter_reduce.two index_add.default index_put.default put.default
    embedding_dense_backward.default unfold_backward.default col2im.default
    reflection_pad1d_backward.default replication_pad2d_backward.default
    _unsafe_masked_index_put_accumulate.default
"""


@pytest.mark.parametrize("name", INTEGERS.split())
def test_integers_stay_exact(name: str) -> None:
    def integers(v: Any) -> Any:
        if not holds_numbers(v):
            return v
        parts = [(4 * part).round() for part in (v.real, v.imag)] if v.is_complex() else []
        return torch.complex(*parts) if parts else (4 * v).round()

    args, kwargs = CASES[name][0]
    args = tree_map(integers, args)
    overload = overload_named(f"aten.{name}")
    with ft.fuzzy("sr", seed=0):
        y = overload(*args, **kwargs)
    assert torch.equal(wide(y), overload(*wide(args), **kwargs))


def test_products_with_powers_of_two_are_exact() -> None:
    exponents = torch.arange(-2, 3)
    with ft.fuzzy("sr", seed=0):
        y = torch.ldexp(A, exponents)
    assert torch.equal(y, A * torch.tensor([0.25, 0.5, 1.0, 2.0, 4.0]))


def test_zeros_infinities_and_nan_are_those_of_stock_torch() -> None:
    values = [0.0, -0.0, 1.0, torch.inf, -torch.inf, torch.nan]
    every = torch.tensor([complex(a, b) for a, b in itertools.product(values, values)])
    a, b = every.unsqueeze(1), every
    for function in (torch.add, torch.sub, torch.mul):
        with ft.fuzzy("rn"):
            y = function(a, b)
        torch.testing.assert_close(y, function(a, b), equal_nan=True)


def test_a_quotient_neither_overflows_nor_underflows_on_the_way() -> None:
    for size in (1e30, 1e-30):
        a, b = A * size, B * size
        with ft.fuzzy("rn"):
            y = a / b
        torch.testing.assert_close(y, A / B, rtol=1e-5, atol=1e-5)


def test_variants_write_where_they_are_told() -> None:
    with ft.fuzzy("sr", seed=0) as mode:
        y = A.clone()
        assert y.mul_(B) is y
        out = torch.empty_like(A)
        torch.add(A, B, out=out)
        torch.abs(A, out=torch.empty(6, 5))
        with pytest.raises(RuntimeError, match="can't be cast"):
            x(6, 5).mul_(A)
    torch.testing.assert_close(y, A * B)
    torch.testing.assert_close(out, A + B)
    rounded = [r.name for r in mode.coverage.records if r.verdict is Verdict.ROUNDED]
    assert rounded == ["aten.mul_.Tensor", "aten.add.out", "aten.abs.out"]


def test_what_stock_torch_refuses_is_refused_as_there() -> None:
    with ft.fuzzy("sr", seed=0), pytest.raises(RuntimeError, match="div_floor_cpu"):
        torch.div(A, B, rounding_mode="floor")


@pytest.mark.parametrize("layout", ["in place", "out"])
def test_results_of_both_parts_are_written_in_place_and_into_targets(layout: str) -> None:
    def run() -> list[torch.Tensor]:
        if layout == "in place":
            a = A.clone().mT
            return [
                a.index_add_(1, torch.tensor([0, 3, 3, 1, 0, 3]), B.mT, alpha=SCALE),
                a.scatter_add_(1, PLACES.mT, B.mT),
                a.lerp_(B.mT, 0.3),
                a.cumprod_(1),
            ]
        wide, narrow = torch.empty(6, dtype=torch.float64), torch.empty(0)
        return [
            torch.std(A, 1, out=wide),
            torch.norm(A, dim=1, out=narrow),
            torch.prod(A, 1, out=torch.empty(0, dtype=torch.complex64)),
            torch.logsumexp(A, 1, out=torch.empty(6, dtype=torch.complex64)),
        ]

    with ft.fuzzy("rn") as mode:
        ours = run()
    for mine, theirs in zip(ours, run(), strict=True):
        torch.testing.assert_close(mine, theirs, check_stride=True)
    assert mode.coverage.share(Verdict.ROUNDED) == 1


def test_infinite_and_empty_terms_of_log_sum_exp_are_those_of_stock_torch() -> None:
    low, high, none = complex(-torch.inf, 0), complex(torch.inf, 1), complex(torch.nan, 0)
    a = torch.tensor([low, low, high, none, 1j])
    b = torch.tensor([low, 2, 1j, 2, low])
    with ft.fuzzy("rn"):
        pairs, sums = torch.logaddexp(a, b), torch.logsumexp(torch.stack([a, b])[:, :2], 0)
        nothing = torch.logsumexp(A[:0], 0)
    torch.testing.assert_close(pairs, torch.logaddexp(a, b), equal_nan=True)
    stacked = torch.logsumexp(torch.stack([a, b])[:, :2], 0)
    torch.testing.assert_close(sums, stacked, equal_nan=True)
    torch.testing.assert_close(nothing, torch.logsumexp(A[:0], 0), equal_nan=True)


def test_the_absolute_value_of_real_numbers_stays_exact() -> None:
    with ft.fuzzy("sr", seed=0) as mode:
        assert torch.equal(x(9).abs(), x(9).abs())
    assert {r.verdict for r in mode.coverage.records} == {Verdict.EXACT}


def test_narrow_operands_join_in_complex_arithmetic() -> None:
    half = x(5).bfloat16()
    with ft.fuzzy("rn"):
        y, single = A * half, A * torch.tensor(0.1, dtype=torch.float64)
    torch.testing.assert_close(y, A * half)
    torch.testing.assert_close(single, A * torch.tensor(0.1, dtype=torch.float64))


def test_what_has_no_complex_row_is_coarse_and_rounds_both_parts() -> None:
    samples = []
    for seed in range(REPEATS):
        with ft.fuzzy("sr", seed=seed) as mode:
            samples.append(torch.linalg.eigvals(z(4, 4)))
    assert varies_between_numbers(samples, torch.linalg.eigvals(wide(z(4, 4))))
    assert {r.verdict for r in mode.coverage.records if r.operations} == {Verdict.COARSE}


def test_narrowing_to_complex64_rounds_both_parts() -> None:
    truth = wide(z(20)) / 3
    samples = []
    for seed in range(REPEATS):
        with ft.fuzzy("sr", seed=seed):
            samples.append(truth.to(torch.complex64))
    assert varies_between_numbers(samples, truth)


def test_dropout_keeps_the_mask_of_stock_torch_and_rounds_both_products() -> None:
    def run(p: float) -> tuple[torch.Tensor, torch.Tensor]:
        torch.manual_seed(0)
        return aten.native_dropout.default(A, p, True)

    for p in (0.3, 1.0):
        with ft.fuzzy("rn") as mode:
            y, mask = run(p)
        stock, kept = run(p)
        assert torch.equal(mask, kept)
        torch.testing.assert_close(y, stock)
        assert mode.coverage.share(Verdict.ROUNDED) == 1


def test_what_only_moves_complex_numbers_rounds_nothing() -> None:
    arguments = [z(3, 5), z(4, 2)], 0, 2
    with ft.fuzzy("sr", seed=0) as mode:
        y = aten._chunk_cat.default(*arguments)
    assert torch.equal(y, aten._chunk_cat.default(*arguments))
    assert mode.coverage.operations == 0


def test_narrowing_operands_as_dtype_asks_rounds_them() -> None:
    third = wide(z(1)) / 3
    for function in (torch.sum, torch.prod):
        samples = []
        for seed in range(REPEATS):
            with ft.fuzzy("sr", seed=seed):
                samples.append(function(third, dtype=torch.complex64)[None])
        assert varies_between_numbers(samples, third)


def test_integers_and_real_numbers_become_complex_as_dtype_asks() -> None:
    for function in (torch.sum, torch.mean, torch.prod):
        for operand in (torch.arange(1, 6), x(5)):
            with ft.fuzzy("rn"):
                y = function(operand, dtype=torch.complex64)
            torch.testing.assert_close(y, function(operand, dtype=torch.complex64))


DIFFERENTIABLE: Final[dict[str, Any]] = {
    "products": lambda a, b: a.cumprod(1) + b.prod(0),
    "spreads": lambda a, b: a.var(1) + b.std(1) + torch.var_mean(a, 1)[1],
    "norms": lambda a, b: a.norm(3, 1) + torch.dist(a, b) + torch.renorm(b, 2, 0, 0.5)[:, 0],
    "functions": lambda a, b: a.tanh() * b.sigmoid(),
    "log-sum-exp": lambda a, b: a.logsumexp(0) + torch.logaddexp(a, b),
    "places": lambda a, b: a[[0, 0, 1]] + b.gather(0, PLACES[:3]) + b.take(PLACES[:3]),
    "windows": lambda a, b: (
        a.unfold(0, 3, 1).sum(2) + torch.nn.functional.pad(b, (4, 3), "reflect")[:4, :5]
    ),
    "products of vectors": lambda a, b: torch.lerp(a, b, SCALE) + torch.addr(b, a[:, 0], b[0]),
    "cross products": lambda a, b: torch.linalg.cross(a[:, :3], b[:, 2:]),
}


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_are_rounded_and_in_nearest_rounding_those_of_stock_torch(name: str) -> None:
    def run() -> list[torch.Tensor]:
        a, b = A.clone().requires_grad_(), B.clone().requires_grad_()
        y = DIFFERENTIABLE[name](a, b)
        return list(torch.autograd.grad(y.abs().square().sum(), (a, b), allow_unused=True))

    stock = run()
    with ft.fuzzy("rn") as mode:
        ours = run()
    for mine, theirs in zip(ours, stock, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5 * float(theirs.abs().max()))
    assert mode.coverage.share(Verdict.ROUNDED) == 1


def test_gradients_pass_through_complex_operations() -> None:
    def run() -> list[torch.Tensor]:
        a, b = A.clone().requires_grad_(), B.clone().requires_grad_()
        loss = ((a @ b.mH).exp().real.sum() / 30 + (a / b).abs().mean()) * 0.5
        return list(torch.autograd.grad(loss, (a, b)))

    stock = run()
    with ft.fuzzy("rn") as mode:
        ours = run()
    torch.testing.assert_close(ours, stock, rtol=1e-4, atol=1e-4 * float(stock[0].abs().max()))
    assert mode.coverage.share(Verdict.ROUNDED) == 1
