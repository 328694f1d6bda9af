"""Laws of factorizations, linear systems and determinants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
from factorization_cases import CALLS, Matrices, results
from scatter import between, ulp

import fuzzytorch as ft
from fuzzytorch.lookup import table
from fuzzytorch.ops.factorization import BLOCK
from fuzzytorch.table import Verdict

aten = torch.ops.aten
linalg = torch.linalg
REPEATS: Final = 64
REAL: Final = Matrices()
SIZES: Final = (1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 2)
DTYPES: Final = (torch.float32, torch.float64, torch.complex64, torch.complex128)
WIDE: Final = {torch.float32: torch.float64, torch.complex64: torch.complex128}


def test_every_row_has_a_call() -> None:
    families = ("factorization", "solve", "indefinite")
    rows = {r.name for r in table() if table().family(r) in families}
    rows -= {"aten.linalg_pinv.atol_rtol_tensor"}
    assert {f"aten.{row}.default" for row, _ in CALLS.values()} == rows


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nearest_rounding_gives_what_stock_torch_gives(
    dtype: torch.dtype, name: str, n: int
) -> None:
    expected = results(name, dtype, n)
    with ft.fuzzy("rn") as mode:
        ours = results(name, dtype, n)
    bound = 400 * torch.finfo(dtype).eps
    torch.testing.assert_close(ours, expected, rtol=bound, atol=bound, check_stride=True)
    found = {r.name: r.verdict for r in mode.coverage.records if r.operations}
    assert found.get(f"aten.{CALLS[name][0]}.default", Verdict.ROUNDED) is Verdict.ROUNDED
    assert n == 1 or f"aten.{CALLS[name][0]}.default" in found


def real(y: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(y.resolve_conj()) if y.is_complex() else y


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", WIDE, ids=str)
def test_the_mean_in_stochastic_rounding_is_the_binary64_result(
    dtype: torch.dtype, name: str
) -> None:
    n = BLOCK + 2
    samples = []
    for seed in range(REPEATS):
        with ft.fuzzy("sr", seed=seed):
            samples.append(results(name, dtype, n))
    for truth, *drawn in zip(results(name, WIDE[dtype], n), *samples, strict=True):
        if truth.dtype not in (WIDE[dtype], torch.float64) or truth.numel() == 0:
            assert all(torch.equal(y, truth) for y in drawn if y.numel())
            continue
        truth = real(truth)
        values = torch.stack([real(y) for y in drawn]).double()
        deviation = values.std(0)
        bound = 5 * deviation / REPEATS**0.5 + 0.2 * ulp(truth)
        assert bool(((values.mean(0) - truth).abs() <= bound).all())
        assert bool((deviation[between(truth)] > 0).all())


def deviation(y: torch.Tensor, truth: torch.Tensor) -> float:
    return ((y - truth).norm() / truth.norm()).item()


ACCURATE: Final = (
    "cholesky",
    "triangular",
    "qr",
    "inverse",
    "least squares",
    "lu factor",
    "solve",
    "cholesky inverse",
    "ldl factor",
)


@pytest.mark.parametrize("name", ACCURATE)
@pytest.mark.parametrize("dtype", WIDE, ids=str)
def test_deviations_from_binary64_are_at_most_twice_those_of_stock_torch(
    dtype: torch.dtype, name: str
) -> None:
    expected, truth = (results(name, d, 64)[0] for d in (dtype, WIDE[dtype]))
    with ft.fuzzy("rn"):
        ours = results(name, dtype, 64)[0]
    assert deviation(ours, truth) <= 2 * deviation(expected, truth)


def integer_triangle(n: int) -> torch.Tensor:
    """A unit lower triangle of halves whose products stay short, its columns in pivot order."""
    generator = torch.Generator().manual_seed(n)
    halves = torch.randint(-1, 2, (n, n), generator=generator) / 2
    near = torch.ones(n, n).tril(-1).triu(-2)
    return halves * near + torch.eye(n)


@pytest.mark.parametrize("mode", ["sr", "cestac"])
@pytest.mark.parametrize("n", [3, BLOCK + 3])
def test_factors_of_short_numbers_are_found_exactly(mode: str, n: int) -> None:
    lower = integer_triangle(n)
    upper = 4 * integer_triangle(n).mT
    b = torch.randint(-4, 5, (n, 2), generator=torch.Generator().manual_seed(1)).float()
    with ft.fuzzy(mode, seed=2):
        assert torch.equal(linalg.cholesky(lower @ lower.mT), lower)
        p, l, u = linalg.lu(lower @ upper)  # noqa: E741
        assert torch.equal(linalg.solve_triangular(lower, lower @ b, upper=False), b)
        assert torch.equal(linalg.solve(lower @ upper, lower @ (upper @ b)), b)
        determinant = linalg.det(lower @ upper)
    assert torch.equal(p @ l @ u, lower @ upper)
    assert determinant == 4.0**n


@pytest.mark.parametrize("shape", [(0, 0), (2, 0, 0), (0, 3, 3)])
def test_empty_matrices_have_the_results_of_stock_torch(shape: tuple[int, ...]) -> None:
    a = torch.ones(shape)
    for function in (linalg.cholesky, linalg.inv, linalg.det, linalg.qr, linalg.lu, linalg.slogdet):
        expected = function(a)
        with ft.fuzzy("sr", seed=0):
            ours = function(a)
        torch.testing.assert_close(ours, expected)


SINGULAR: Final = torch.tensor([[1.0, 2.0], [2.0, 4.0]])
BATCH: Final = torch.stack([torch.eye(2), SINGULAR])

FAILING: Final[dict[str, Callable[[], Any]]] = {
    "cholesky": lambda: linalg.cholesky(-torch.eye(3)),
    "cholesky of a batch": lambda: linalg.cholesky(-BATCH.flip(0)),
    "cholesky that checks": lambda: linalg.cholesky_ex(-torch.eye(3), check_errors=True),
    "cholesky of NaN": lambda: linalg.cholesky(torch.full((2, 2), torch.nan)),
    "inverse": lambda: linalg.inv(SINGULAR),
    "inverse of a batch": lambda: linalg.inv(BATCH),
    "solve": lambda: linalg.solve(SINGULAR, torch.ones(2)),
    "solve that checks": lambda: linalg.solve_ex(SINGULAR, torch.ones(2), check_errors=True),
    "lu factor": lambda: linalg.lu_factor(SINGULAR),
    "not square": lambda: linalg.det(torch.ones(2, 3)),
    "shapes": lambda: linalg.solve_triangular(torch.eye(3), torch.ones(2, 2), upper=True),
}


@pytest.mark.parametrize("name", FAILING)
def test_what_fails_in_stock_torch_fails_in_the_same_way(name: str) -> None:
    with pytest.raises(RuntimeError) as expected:
        FAILING[name]()
    with ft.fuzzy("sr", seed=0), pytest.raises(RuntimeError) as ours:
        FAILING[name]()
    assert (ours.type, str(ours.value)) == (expected.type, str(expected.value))


def test_what_is_reported_of_a_failure_is_that_of_stock_torch() -> None:
    a = REAL.positive(12, 3)
    a[1, 7, 7] = -1.0
    b = torch.eye(12).repeat(2, 1, 1)
    b[1, 9] = 0.0
    with ft.fuzzy("sr", seed=0):
        assert linalg.cholesky_ex(a).info.tolist() == [0, 8, 0]
        assert linalg.lu_factor_ex(b).info.tolist() == [0, 10]
        assert linalg.inv_ex(b).info.tolist() == [0, 10]


def test_equal_candidates_for_a_pivot_give_the_exchange_of_stock_torch() -> None:
    a = torch.tensor([[1.0, 3.0, 1.0], [-2.0, 1.0, 5.0], [2.0, 7.0, 4.0]])
    with ft.fuzzy("sr", seed=0):
        pivots = linalg.lu_factor(a).pivots
    assert torch.equal(pivots, linalg.lu_factor(a).pivots)


@pytest.mark.parametrize("driver", [None, "gelsy"])
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("dtype", WIDE, ids=str)
def test_least_squares_without_full_rank_round_every_step(
    dtype: torch.dtype, wide: bool, driver: str | None
) -> None:
    """The shortest solution; stock torch finds it by singular values only."""

    def system(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        m = Matrices(dtype)
        a = m.deficient(13, 10, 2)
        return (a.mT, m.normal(2, 10, 2)) if wide else (a, m.normal(2, 13, 2))

    precision = torch.finfo(dtype).eps
    expected = linalg.lstsq(*system(WIDE[dtype]), 13 * precision, driver="gelsd")
    drawn = []
    for seed in range(REPEATS):
        with ft.fuzzy("sr", seed=seed) as mode:
            y = linalg.lstsq(*system(dtype), driver=driver)
        drawn.append(real(y.solution))
        assert y.rank.tolist() == expected.rank.tolist() == [9, 8]
        assert mode.coverage.share(Verdict.ROUNDED) == 1
    truth, values = real(expected.solution), torch.stack(drawn).double()
    bound = 5 * values.std(0) / REPEATS**0.5 + 0.2 * ulp(truth)
    assert bool(((values.mean(0) - truth).abs() <= bound).all())
    assert bool((values.std(0) < 100 * precision * truth.abs().max()).all())


def test_least_squares_by_singular_values_are_coarse() -> None:
    a = REAL.tall(6, 3)
    a[:, 2] = a[:, 1]
    for driver in ("gelsd", "gelss"):
        with ft.fuzzy("sr", seed=0) as mode:
            y = linalg.lstsq(a, REAL.normal(6, 2), driver=driver)
        expected = linalg.lstsq(a, REAL.normal(6, 2), driver=driver)
        torch.testing.assert_close(y.solution, expected.solution, rtol=1e-4, atol=1e-4)
        assert torch.equal(y.rank, expected.rank)
        assert mode.coverage.share(Verdict.COARSE) == 1


@pytest.mark.parametrize("name", ["eig", "eigvals"])
def test_general_eigenproblems_are_coarse_and_reproduce_the_matrix(name: str) -> None:
    a = REAL.positive(5)
    with ft.fuzzy("sr", seed=0) as mode:
        y = getattr(linalg, name)(a)
    if name == "eigvals":
        torch.testing.assert_close(y.real.sort().values, linalg.eigvalsh(a))
    else:
        values, vectors = y
        again = (vectors * values.unsqueeze(-2) @ linalg.inv(vectors)).real
        torch.testing.assert_close(again, a, rtol=1e-5, atol=1e-5)
    verdicts = {r.verdict for r in mode.coverage.records if r.operations}
    assert verdicts == {Verdict.COARSE}


@pytest.mark.parametrize("hermitian", [False, True])
@pytest.mark.parametrize("dtype", WIDE, ids=str)
def test_the_pseudoinverse_is_composed_of_its_decomposition(
    dtype: torch.dtype, hermitian: bool
) -> None:
    m = Matrices(dtype)
    left = m.normal(4, 3)
    a = left @ (left.mH if hermitian else m.normal(3, 5, seed=1))
    with ft.fuzzy("rn") as mode:
        y = linalg.pinv(a, hermitian=hermitian, rtol=1e-4)
    expected = linalg.pinv(a, hermitian=hermitian, rtol=1e-4)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(a @ y @ a, a, rtol=1e-4, atol=1e-4)
    rounded = {r.name for r in mode.coverage.records if r.verdict is Verdict.ROUNDED}
    assert ("aten._linalg_eigh.default" if hermitian else "aten._linalg_svd.default") in rounded
    assert mode.coverage.share(Verdict.ROUNDED) == 1


@pytest.mark.parametrize("dtype", WIDE, ids=str)
def test_gradients_are_those_of_stock_torch(dtype: torch.dtype) -> None:
    m = Matrices(dtype)

    def run() -> list[torch.Tensor]:
        a, s = m.general(6).requires_grad_(), m.positive(6).requires_grad_()
        b = m.normal(6, 2).requires_grad_()
        x = linalg.solve(a, b) + torch.cholesky_solve(b, linalg.cholesky(s))
        loss = x.abs().square().sum() + linalg.slogdet(a).logabsdet + linalg.qr(a).R.abs().sum()
        loss = loss + linalg.inv(s).abs().sum() + linalg.det(s).abs()
        return list(torch.autograd.grad(loss, (a, s, b)))

    expected = run()
    with ft.fuzzy("rn") as mode:
        ours = run()
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)
    assert mode.coverage.share(Verdict.ROUNDED) == 1


@pytest.mark.parametrize("name", ["cholesky", "lu factor", "inverse", "qr"])
def test_matrices_of_other_layouts_give_the_same_bits(name: str) -> None:
    functions = {
        "cholesky": lambda a: linalg.cholesky(a @ a.mT + torch.eye(9)),
        "lu factor": lambda a: linalg.lu_factor(a).LU,
        "inverse": linalg.inv,
        "qr": lambda a: linalg.qr(a).R,
    }
    bits = []
    for a in (REAL.general(9), REAL.general(9).mT.contiguous().mT):
        with ft.fuzzy("sr", seed=4):
            bits.append(functions[name](a))
    assert torch.equal(*bits)


@pytest.mark.parametrize(
    "function",
    [
        linalg.inv,
        linalg.qr,
        linalg.lu,
        linalg.slogdet,
        linalg.ldl_factor,
        lambda a: torch.cholesky_inverse(a),
        lambda a: linalg.solve(a, a[:, :2], left=True),
        lambda a: linalg.solve_triangular(a, a, upper=False),
        lambda a: linalg.lu_solve(a, torch.arange(1, 10, dtype=torch.int32), a),
        lambda a: linalg.ldl_solve(a, torch.arange(1, 10, dtype=torch.int32), a, hermitian=True),
        lambda a: linalg.lstsq(a, a).solution,
        lambda a: torch.ormqr(a, a[0].contiguous(), a),
    ],
)
def test_pending_conjugations_of_operands_are_carried_out(function: Any) -> None:
    a = Matrices(torch.complex64).general(9)
    found = []
    for x in (a.conj(), a.conj().resolve_conj()):
        with ft.fuzzy("sr", seed=4):
            y = function(x)
        found.append(y if isinstance(y, tuple) else (y,))
    for first, second in zip(*found, strict=True):
        assert torch.equal(first, second)


def test_factors_of_short_complex_numbers_are_found_exactly() -> None:
    n = BLOCK + 3
    lower = torch.complex(integer_triangle(n), integer_triangle(n).tril(-1).roll(1, 0).tril(-1))
    b = torch.randint(-4, 5, (2, n, 2), generator=torch.Generator().manual_seed(1)).float()
    b = torch.complex(*b)
    with ft.fuzzy("sr", seed=2):
        assert torch.equal(linalg.cholesky(lower @ lower.mH), lower)
        assert torch.equal(linalg.solve_triangular(lower, lower @ b, upper=False), b)
        assert torch.equal(torch.cholesky_solve(lower @ (lower.mH @ b), lower), b)


@pytest.mark.parametrize("hermitian", [False, True])
def test_blocks_of_two_pivots_are_eliminated_exactly_where_nothing_rounds(hermitian: bool) -> None:
    a = torch.tensor([[0, 4, 2, 0], [4, 0, 0, 2], [2, 0, 0, 5], [0, 2, 5, 0]]).float()
    b = torch.tensor([[1.0, 2.0], [-3.0, 0.0], [4.0, 5.0], [0.0, 1.0]])
    if hermitian:
        turns = torch.tensor([1, 1j, -1, 1j])
        a, b = turns[:, None] * a * turns.conj(), torch.complex(b, b.flip(0))
    expected = linalg.ldl_factor(a, hermitian=hermitian)
    with ft.fuzzy("sr", seed=1):
        factors, pivots = linalg.ldl_factor(a, hermitian=hermitian)
        x = linalg.ldl_solve(factors, pivots, a @ b, hermitian=hermitian)
    assert pivots.tolist() == expected.pivots.tolist() == [-2, -2, -4, -4]
    assert torch.equal(factors, expected.LD)
    assert torch.equal(x, b)
