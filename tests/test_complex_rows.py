"""Laws of complex arithmetic: parts round one by one, in the order of stock torch."""

from __future__ import annotations

import itertools
from typing import Any, Final

import pytest
import torch
from scatter import between, ulp
from torch.utils._pytree import tree_map

import fuzzytorch as ft
from fuzzytorch.lookup import table
from fuzzytorch.table import Verdict, overload_named

aten = torch.ops.aten
REPEATS: Final = 64


def z(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.complex64, generator=generator)


def x(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


A, B, C = z(6, 5), z(6, 5, seed=2), z(5, seed=3)
SCALE: Final = 0.375 - 1.25j

CASES: Final[dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]]] = {
    "add.Tensor": [
        ((A, C), {}),
        ((x(6, 5), A), {"alpha": SCALE}),
        ((A, 0.3), {}),
        ((x(5), 0.375 + 1j), {}),
    ],
    "add.Scalar": [((A, SCALE), {})],
    "sub.Tensor": [((A, B), {"alpha": 3}), ((A.mT, x(5, 6)), {})],
    "sub.Scalar": [((A, SCALE), {})],
    "rsub.Tensor": [((A, C), {})],
    "rsub.Scalar": [((A, SCALE), {})],
    "mul.Tensor": [((A, B.conj()), {}), ((A, x(5)), {}), ((A.mT, SCALE), {}), ((x(6), SCALE), {})],
    "mul.Scalar": [((A, SCALE), {})],
    "div.Tensor": [((A, B), {}), ((x(6, 5), C), {}), ((A, x(5)), {}), ((A, SCALE), {})],
    "div.Scalar": [((A, SCALE), {})],
    "reciprocal.default": [((A,), {})],
    "square.default": [((A,), {})],
    "addcmul.default": [((A, B, C), {"value": SCALE})],
    "addcdiv.default": [((A, B, C), {})],
    "pow.Tensor_Scalar": [((A, e), {}) for e in (2, 3, -1, 0.5, 1.5)],
    "pow.Tensor_Tensor": [((A, B), {})],
    "pow.Scalar": [((1.5, A), {})],
    "sum.default": [((A,), {})],
    "sum.dim_IntList": [((A, [0]), {}), ((A, [1], True), {})],
    "mean.default": [((A,), {})],
    "mean.dim": [((A, [1], True), {})],
    "cumsum.default": [((A, 1), {})],
    "linalg_vector_norm.default": [((A,), {}), ((A, 1, [0]), {}), ((A, 2, [1], True), {})],
    "mm.default": [((A, B.mH), {}), ((A, z(5, 300).contiguous()), {})],
    "bmm.default": [((z(3, 4, 5), z(3, 5, 2)), {})],
    "mv.default": [((A, C), {})],
    "dot.default": [((C, B[0]), {})],
    "vdot.default": [((C, B[0]), {})],
    "addmm.default": [((z(3), z(2, 4), z(4, 3)), {"beta": SCALE, "alpha": 0.5})],
    "baddbmm.default": [((z(3), z(2, 2, 4), z(2, 4, 3)), {"beta": 0})],
    "addmv.default": [((z(6, seed=5), A, C), {"alpha": SCALE})],
}
"""Arguments by row; transcendental functions are added below."""

ROWS: Final = [row for row in table() if row.operands == "complex" and "_fft_" not in row.name]
NAMES: Final = [row.name.removeprefix("aten.") for row in ROWS]
CALLS: Final = [
    pytest.param(name, args, kwargs, id=f"{name}-{i}")
    for name in NAMES
    for i, (args, kwargs) in enumerate(CASES.get(name, [((A,), {})]))
]


def wide(tree: Any) -> Any:
    def widened(v: Any) -> Any:
        if isinstance(v, torch.Tensor):
            return v.to(torch.complex128 if v.is_complex() else torch.float64)
        return v

    return tree_map(widened, tree)


def varies_between_numbers(samples: list[torch.Tensor], truth: torch.Tensor) -> bool:
    deviation = torch.stack([real(y) for y in samples]).std(0)
    inexact = between(real(truth))
    return bool(inexact.any()) and bool((deviation[inexact] > 0).all())


def real(y: torch.Tensor) -> torch.Tensor:
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
    args = tree_map(lambda v: v / 3 if isinstance(v, torch.Tensor) else v, wide(args))
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


INTEGERS: Final = (
    *("add.Tensor", "sub.Tensor", "mul.Tensor", "square.default", "cumsum.default"),
    *("sum.default", "sum.dim_IntList", "mm.default", "bmm.default", "mv.default"),
    *("dot.default", "vdot.default"),
)


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_stay_exact(name: str) -> None:
    def integers(v: Any) -> Any:
        if not isinstance(v, torch.Tensor):
            return v
        parts = [(4 * part).round() for part in (v.real, v.imag)] if v.is_complex() else []
        return torch.complex(*parts) if parts else (4 * v).round()

    args, kwargs = CASES[name][0]
    args = tree_map(integers, args)
    overload = overload_named(f"aten.{name}")
    with ft.fuzzy("sr", seed=0):
        y = overload(*args, **kwargs)
    assert torch.equal(wide(y), overload(*wide(args), **kwargs))


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
            samples.append(torch.linalg.inv(z(4, 4)))
    assert varies_between_numbers(samples, torch.linalg.inv(wide(z(4, 4))))
    found = [r for r in mode.coverage.records if r.operations]
    assert {(r.name, r.verdict) for r in found} == {("aten.linalg_inv_ex.default", Verdict.COARSE)}


def test_narrowing_to_complex64_rounds_both_parts() -> None:
    truth = wide(z(20)) / 3
    samples = []
    for seed in range(REPEATS):
        with ft.fuzzy("sr", seed=seed):
            samples.append(truth.to(torch.complex64))
    assert varies_between_numbers(samples, truth)


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
