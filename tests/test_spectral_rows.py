"""Laws of singular value decompositions and of Hermitian eigenproblems."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
from scatter import between
from spectral_cases import (
    CALLS,
    DTYPES,
    WIDE,
    error,
    hermitian,
    listed,
    normal,
    results,
    separated,
    unorthogonal,
)

import fuzzytorch as ft
from fuzzytorch.active import stock
from fuzzytorch.lookup import table
from fuzzytorch.table import Verdict

linalg = torch.linalg
REPEATS: Final = 64
SIZES: Final = (1, 2, 3, 8, 17)


def test_every_row_has_a_call() -> None:
    rows = {(r.name, r.operands) for r in table() if table().family(r) == "spectral"}
    called = {f"aten.{row}.default" for row, _, _ in CALLS.values()}
    assert {(name, operands) for name in called for operands in ("real", "complex")} == rows


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nearest_rounding_gives_what_stock_torch_gives(
    dtype: torch.dtype, name: str, n: int
) -> None:
    expected = results(name, n, dtype)
    with ft.fuzzy("rn") as mode:
        ours = results(name, n, dtype)
    # Vectors move by the error of the matrix, n units, over the gap of 1 between the values.
    # The phase of a complex vector is that of one component, over which its error counts.
    vectors = [y.abs() for y in expected if y.dtype.is_complex]
    sizes = [float(x.min()) for y in vectors for x in (y[..., 0, :], y[..., -1, :], y[..., 0])]
    bound = 20 * n * torch.finfo(dtype).eps / min([1.0, *(max(x, 1e-3) for x in sizes)])
    torch.testing.assert_close(ours, expected, rtol=bound, atol=bound, check_stride=True)
    found = {r.name: r.verdict for r in mode.coverage.records if r.operations}
    assert found.get(f"aten.{CALLS[name][0]}.default", Verdict.ROUNDED) is Verdict.ROUNDED
    assert n == 1 or f"aten.{CALLS[name][0]}.default" in found


def deviations(function: str, a: torch.Tensor) -> list[float]:
    """Of the values from binary64; of the product from the matrix; of vectors from orthonormal."""
    wide = a.to(WIDE[a.dtype])
    if function == "svd":
        u, s, vh = linalg.svd(a)
        with stock():
            truth = linalg.svdvals(wide)
            vectors = [unorthogonal(u), unorthogonal(vh.mH)]
            return [error(s, truth), error(u * s @ vh, a), sum(vectors)]
    values, v = linalg.eigh(a)
    with stock():
        return [
            error(values, linalg.eigvalsh(wide)),
            error(v * values @ v.mH, a),
            unorthogonal(v),
        ]


@pytest.mark.parametrize("n", [8, 32, 96])
@pytest.mark.parametrize("function", ["svd", "eigh"])
@pytest.mark.parametrize("dtype", WIDE, ids=str)
def test_nearest_rounding_deviates_at_most_twice_as_much_as_stock_torch(
    dtype: torch.dtype, function: str, n: int
) -> None:
    ours, expected = torch.zeros(3), torch.zeros(3)
    for seed in range(8 if n < 96 else 2):
        a = normal(n, n, dtype=dtype, seed=seed)
        a = a if function == "svd" else (a + a.mH) / 2
        expected += torch.tensor(deviations(function, a))
        with ft.fuzzy("rn"):
            ours += torch.tensor(deviations(function, a))
    assert (ours <= 2 * expected).all(), (ours, expected)


@pytest.mark.parametrize("n", [8, 48])
@pytest.mark.parametrize("function", ["svd", "eigh"])
@pytest.mark.parametrize("dtype", WIDE, ids=str)
def test_values_scatter_as_much_as_stock_torch_errs(
    dtype: torch.dtype, function: str, n: int
) -> None:
    ours = expected = 0.0
    for seed in range(8):
        a = normal(n, n, dtype=dtype, seed=seed)
        a = a if function == "svd" else (a + a.mH) / 2
        expected += deviations(function, a)[0] ** 2
        with ft.fuzzy("sr", seed=seed):
            ours += deviations(function, a)[0] ** 2
    assert 1 / 3 <= (ours / expected) ** 0.5 <= 2


def with_signs(exact: list[torch.Tensor], like: list[torch.Tensor]) -> list[torch.Tensor]:
    """Results in binary64 with the signs of others, without vectors that are not determined."""
    if len(exact) == 1:
        return exact
    if len(exact) == 2:
        values, v = exact
        return [values, v * (v.conj() * like[1]).real.sum(-2, keepdim=True).sgn()]
    u, s, vh = exact
    k = s.shape[-1]
    u, vh = u[..., :k], vh[..., :k, :]
    sign = (u.conj() * like[0][..., :k]).real.sum(-2).sgn()
    return [u * sign.unsqueeze(-2), s, vh * sign.unsqueeze(-1)]


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", WIDE, ids=str)
def test_the_mean_in_stochastic_rounding_is_the_binary64_result(
    dtype: torch.dtype, name: str
) -> None:
    n = 7
    samples = []
    for seed in range(REPEATS):
        with ft.fuzzy("sr", seed=seed):
            samples.append(results(name, n, dtype))
    _, function, operand = CALLS[name]
    exact = with_signs(listed(function(operand(n, dtype).to(WIDE[dtype]))), results(name, n, dtype))
    for truth, *drawn in zip(exact, *samples, strict=True):
        # Vectors beyond those that the matrix determines are left out.
        values = torch.stack(drawn).to(truth.dtype)[(..., *map(slice, truth.shape))]
        # The parts of a complex number one by one.
        if truth.is_complex():
            values, truth = torch.view_as_real(values), torch.view_as_real(truth)
        deviation = values.std(0)
        # Errors s of the matrix move values by s^2 n / gap in the second order, and vectors
        # by s^2 n / gap^2; the gap is 1.
        second = n * deviation.max() ** 2
        bound = 5 * deviation / REPEATS**0.5 + second + 1e-12
        assert ((values.mean(0) - truth).abs() <= bound).all()
        assert (deviation[between(truth) & (truth.abs() > 0.1)] > 0).all()


@pytest.mark.parametrize("function", ["svd", "eigh"])
@pytest.mark.parametrize("dtype", WIDE, ids=str)
def test_small_values_scatter_with_the_norm_of_the_matrix(
    dtype: torch.dtype, function: str
) -> None:
    n = 6
    q = linalg.qr(normal(n, n, dtype=dtype)).Q
    p = q if function == "eigh" else linalg.qr(normal(n, n, dtype=dtype, seed=1)).Q
    values = torch.tensor([1.0, 0.7, 0.5, 0.3, 0.2, 1e-5])
    a = q * values @ p.mH
    drawn = []
    for seed in range(REPEATS):
        with ft.fuzzy("sr", seed=seed):
            drawn.append(getattr(linalg, function)(a)[1 if function == "svd" else 0])
    smallest = torch.stack(drawn).abs().amin(1)
    # The errors of stock torch are about 2^-24 / 3, those of one-sided rotations 2^-24 / 8; a
    # rounding of the result alone scatters by less than 2^-24 * 1e-5.
    assert 2.0**-24 / 20 < smallest.std() < 2.0**-24 * 4


@pytest.mark.parametrize("function", ["svd", "eigh"])
@pytest.mark.parametrize("dtype", WIDE, ids=str)
def test_vectors_of_close_values_scatter_with_the_inverse_of_the_gap(
    dtype: torch.dtype, function: str
) -> None:
    gap = 1e-3
    q = linalg.qr(normal(4, 4, dtype=dtype)).Q
    a = q * torch.tensor([4.0, 2.0, 1.0 + gap, 1.0]) @ q.mH
    drawn = []
    for seed in range(REPEATS):
        with ft.fuzzy("sr", seed=seed):
            drawn.append(getattr(linalg, function)(a))
    vectors = torch.stack([y.U if function == "svd" else y.eigenvectors.flip(-1) for y in drawn])
    scatter = (vectors - vectors.mean(0)).abs().square().mean((0, 1)).sqrt()
    assert (scatter[2:] > 0.05 * 2.0**-23 / gap).all()
    assert (scatter[:2] < 10 * 2.0**-23).all()
    # The space of both is as well determined as the other vectors.
    spaces = vectors[..., 2:] @ vectors[..., 2:].mH
    assert (spaces - spaces.mean(0)).abs().square().mean().sqrt() < 10 * 2.0**-23


DEPENDENTS: Final[dict[str, Callable[[torch.Tensor], Any]]] = {
    "cond": linalg.cond,
    "matrix_rank": linalg.matrix_rank,
    "pinv": linalg.pinv,
    "nuclear norm": lambda a: linalg.matrix_norm(a, "nuc"),
    "spectral norm": lambda a: linalg.matrix_norm(a, 2),
    "svd_lowrank": lambda a: torch.svd_lowrank(a, 2)[1],
    "pca_lowrank": lambda a: torch.pca_lowrank(a, 2)[1],
    "old svd": lambda a: torch.svd(a)[1],
}


@pytest.mark.parametrize("name", DEPENDENTS)
def test_what_is_composed_of_decompositions_is_rounded(name: str) -> None:
    a = separated(6, 4, torch.float32)
    torch.manual_seed(0)
    expected = DEPENDENTS[name](a)
    torch.manual_seed(0)
    with ft.fuzzy("rn") as mode:
        ours = DEPENDENTS[name](a)
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)
    assert mode.coverage.share(Verdict.ROUNDED) == 1


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradients_are_those_of_stock_torch(dtype: torch.dtype) -> None:
    def run() -> list[torch.Tensor]:
        a = separated(5, 4, dtype).requires_grad_()
        h = hermitian(5, dtype).requires_grad_()
        u, s, vh = linalg.svd(a, full_matrices=False)
        values, v = linalg.eigh(h)
        loss = (u[:, :2] @ vh[:2]).abs().square().sum() + s.log().sum() + linalg.svdvals(a).sum()
        loss = loss + (v[:, :2] @ v[:, :2].mH)[0].abs().sum() + values.exp().sum()
        return list(torch.autograd.grad(loss, (a, h)))

    expected = run()
    with ft.fuzzy("rn") as mode:
        ours = run()
    bound = 1e3 * torch.finfo(dtype).eps
    torch.testing.assert_close(ours, expected, rtol=bound, atol=bound)
    weak = {
        r.name for r in mode.coverage.records if r.verdict in (Verdict.COARSE, Verdict.UNCOVERED)
    }
    assert not any("svd" in name or "eigh" in name for name in weak)


def test_targets_are_written() -> None:
    a = separated(4, 3, torch.float32)
    out = (torch.empty(0), torch.empty(0), torch.empty(0))
    with ft.fuzzy("sr", seed=0):
        linalg.svd(a, out=out)
    with ft.fuzzy("sr", seed=0):
        expected = linalg.svd(a)
    assert all(torch.equal(y, z) for y, z in zip(out, expected, strict=True))
