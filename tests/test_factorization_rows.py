"""Laws of factorizations, linear systems and determinants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
from scatter import between, ulp

import fuzzytorch as ft
from fuzzytorch.active import stock
from fuzzytorch.lookup import table
from fuzzytorch.ops.factorization import BLOCK
from fuzzytorch.table import Verdict

aten = torch.ops.aten
linalg = torch.linalg
REPEATS: Final = 64
SIZES: Final = (1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 2)


@stock()
def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@stock()
def general(n: int, *batch: int, seed: int = 0) -> torch.Tensor:
    """Matrices far from singular, which need pivoting."""
    a = normal(*batch, n, n, seed=seed) / n**0.5 + 2.0 * torch.eye(n)
    return a.roll(1, -1)


@stock()
def positive(n: int, *batch: int) -> torch.Tensor:
    g = normal(*batch, n, n)
    return g @ g.mT / n + torch.eye(n)


@stock()
def triangular(n: int, *batch: int) -> torch.Tensor:
    return normal(*batch, n, n) / max(n, 4) + torch.eye(n) * 1.5


@stock()
def factors(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return linalg.lu_factor(general(n))


@stock()
def tall(m: int, n: int, *batch: int) -> torch.Tensor:
    return normal(*batch, m, n) + 2.0 * torch.eye(m, n)


CALLS: Final[dict[str, tuple[str, Callable[[Callable[..., torch.Tensor], int], Any]]]] = {
    "cholesky": ("linalg_cholesky_ex", lambda to, n: linalg.cholesky(to(positive(n)))),
    "upper cholesky": (
        "linalg_cholesky_ex",
        lambda to, n: linalg.cholesky_ex(to(positive(n, 2)), upper=True),
    ),
    "old cholesky": ("cholesky", lambda to, n: torch.cholesky(to(positive(n)))),
    "lu factor": ("linalg_lu_factor_ex", lambda to, n: linalg.lu_factor_ex(to(general(n, 3)))),
    "wide lu factor": (
        "linalg_lu_factor_ex",
        lambda to, n: linalg.lu_factor(to(tall(n + 5, n).mT)),
    ),
    "lu": ("linalg_lu", lambda to, n: linalg.lu(to(tall(n + 5, n, 2)))),
    "qr": ("linalg_qr", lambda to, n: linalg.qr(to(tall(n + 3, n, 2)))),
    "complete qr": ("linalg_qr", lambda to, n: linalg.qr(to(tall(n + 3, n)), "complete")),
    "wide qr": ("linalg_qr", lambda to, n: linalg.qr(to(tall(n + 3, n).mT))),
    "r alone": ("linalg_qr", lambda to, n: linalg.qr(to(tall(n + 3, n)), "r")),
    "geqrf": ("geqrf", lambda to, n: torch.geqrf(to(tall(n + 3, n, 2)))),
    "householder product": (
        "linalg_householder_product",
        lambda to, n: linalg.householder_product(
            to(normal(2, n + 3, n)) / 16, to(normal(2, n).abs()) / 2
        ),
    ),
    "ormqr": (
        "ormqr",
        lambda to, n: torch.ormqr(
            to(normal(n + 3, n)) / 16, to(normal(n).abs()) / 2, to(normal(n + 3, 4))
        ),
    ),
    "ormqr, right, transposed": (
        "ormqr",
        lambda to, n: torch.ormqr(
            to(normal(n, n)) / 16, to(normal(n).abs()) / 2, to(normal(4, n)), False, True
        ),
    ),
    "triangular": (
        "linalg_solve_triangular",
        lambda to, n: linalg.solve_triangular(
            to(triangular(n, 2)), to(normal(2, n, 3)), upper=False
        ),
    ),
    "upper unit triangular from the right": (
        "linalg_solve_triangular",
        lambda to, n: linalg.solve_triangular(
            to(triangular(n)), to(normal(3, n)), upper=True, left=False, unitriangular=True
        ),
    ),
    "old triangular": (
        "triangular_solve",
        lambda to, n: aten.triangular_solve(to(normal(n, 2)), to(triangular(n)), True, True),
    ),
    "solve": ("_linalg_solve_ex", lambda to, n: linalg.solve(to(general(n)), to(normal(n, 3)))),
    "solve for vectors": (
        "_linalg_solve_ex",
        lambda to, n: linalg.solve(to(general(n, 2)), to(normal(2, n))),
    ),
    "solve from the right": (
        "_linalg_solve_ex",
        lambda to, n: linalg.solve(to(general(n, 2)), to(normal(3, n)), left=False),
    ),
    "lu solve": (
        "linalg_lu_solve",
        lambda to, n: linalg.lu_solve(
            *(to(y) if y.is_floating_point() else y for y in factors(n)),
            to(normal(n, 2)),
            adjoint=True,
        ),
    ),
    "inverse": ("linalg_inv_ex", lambda to, n: linalg.inv(to(general(n, 2)))),
    "determinant": ("_linalg_det", lambda to, n: aten._linalg_det(to(general(n, 2)))),
    "log determinant": ("_linalg_slogdet", lambda to, n: linalg.slogdet(to(general(n, 2)))),
    "cholesky solve": (
        "cholesky_solve",
        lambda to, n: torch.cholesky_solve(to(normal(n, 3)), to(triangular(n))),
    ),
    "cholesky solve, inner": (
        "_cholesky_solve_helper",
        lambda to, n: aten._cholesky_solve_helper(to(normal(n, 3)), to(triangular(n)), True),
    ),
    "cholesky inverse": (
        "cholesky_inverse",
        lambda to, n: torch.cholesky_inverse(to(triangular(n))),
    ),
    "least squares": (
        "linalg_lstsq",
        lambda to, n: linalg.lstsq(to(tall(n + 3, n)), to(normal(n + 3, 2)), driver="gels"),
    ),
    "least norm": (
        "linalg_lstsq",
        lambda to, n: linalg.lstsq(to(tall(n + 3, n, 2).mT), to(normal(2, n, 2))),
    ),
}
"""Calls by name: the row that answers, and the call."""


def results(name: str, dtype: torch.dtype, n: int) -> list[torch.Tensor]:
    y = CALLS[name][1](lambda x: x.to(dtype), n)
    return list(y) if isinstance(y, tuple) else [y]


def test_every_row_has_a_call() -> None:
    families = ("factorization", "solve")
    rows = {r.name for r in table() if table().family(r) in families}
    rows -= {"aten.linalg_pinv.atol_rtol_tensor"}
    assert {f"aten.{row}.default" for row, _ in CALLS.values()} == rows


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
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


@pytest.mark.parametrize("name", CALLS)
def test_the_mean_in_stochastic_rounding_is_the_binary64_result(name: str) -> None:
    n = BLOCK + 2
    samples = []
    for seed in range(REPEATS):
        with ft.fuzzy("sr", seed=seed):
            samples.append(results(name, torch.float32, n))
    for truth, *drawn in zip(results(name, torch.float64, n), *samples, strict=True):
        if truth.dtype != torch.float64 or truth.numel() == 0:
            assert all(torch.equal(y, truth) for y in drawn if y.numel())
            continue
        values = torch.stack(drawn).double()
        deviation = values.std(0)
        bound = 5 * deviation / REPEATS**0.5 + 0.2 * ulp(truth)
        assert bool(((values.mean(0) - truth).abs() <= bound).all())
        assert bool((deviation[between(truth)] > 0).all())


def deviation(y: torch.Tensor, truth: torch.Tensor) -> float:
    return ((y - truth).norm() / truth.norm()).item()


@pytest.mark.parametrize(
    "name", ["cholesky", "triangular", "qr", "inverse", "least squares", "lu factor"]
)
def test_deviations_from_binary64_are_at_most_twice_those_of_stock_torch(name: str) -> None:
    expected, truth = (results(name, dtype, 64)[0] for dtype in (torch.float32, torch.float64))
    with ft.fuzzy("rn"):
        ours = results(name, torch.float32, 64)[0]
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
    a = positive(12, 3)
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


def test_least_squares_without_full_rank_is_coarse() -> None:
    a = tall(6, 3)
    a[:, 2] = a[:, 1]
    for driver in ("gelsy", "gelsd"):
        with ft.fuzzy("sr", seed=0) as mode:
            y = linalg.lstsq(a, normal(6, 2), driver=driver)
        expected = linalg.lstsq(a, normal(6, 2), driver=driver)
        torch.testing.assert_close(y.solution, expected.solution, rtol=1e-4, atol=1e-4)
        assert torch.equal(y.rank, expected.rank)
        assert mode.coverage.share(Verdict.COARSE) == 1


@pytest.mark.parametrize("name", ["eig", "eigvals"])
def test_general_eigenproblems_are_coarse_and_reproduce_the_matrix(name: str) -> None:
    a = positive(5)
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


def test_the_pseudoinverse_is_composed_of_its_decomposition() -> None:
    a = normal(4, 3) @ normal(3, 5, seed=1)
    with ft.fuzzy("rn"):
        y = linalg.pinv(a)
    torch.testing.assert_close(y, linalg.pinv(a), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(a @ y @ a, a, rtol=1e-4, atol=1e-4)


def test_gradients_are_those_of_stock_torch() -> None:
    def run() -> list[torch.Tensor]:
        a, s = general(6).requires_grad_(), positive(6).requires_grad_()
        b = normal(6, 2).requires_grad_()
        x = linalg.solve(a, b) + torch.cholesky_solve(b, linalg.cholesky(s))
        loss = x.square().sum() + linalg.slogdet(a).logabsdet + linalg.qr(a).R.sum()
        return list(torch.autograd.grad(loss + linalg.inv(s).sum() + linalg.det(s), (a, s, b)))

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
    for a in (general(9), general(9).mT.contiguous().mT):
        with ft.fuzzy("sr", seed=4):
            bits.append(functions[name](a))
    assert torch.equal(*bits)
