"""Laws of singular value decompositions and of Hermitian eigenproblems."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
from scatter import between

import fuzzytorch as ft
from fuzzytorch.active import stock
from fuzzytorch.lookup import table
from fuzzytorch.ops import spectral
from fuzzytorch.table import Verdict

linalg = torch.linalg
REPEATS: Final = 64
WIDE: Final = {torch.float32: torch.float64, torch.complex64: torch.complex128}
DTYPES: Final = (*WIDE, *WIDE.values())
SIZES: Final = (1, 2, 3, 8, 17)


@stock()
def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


@stock()
def separated(m: int, n: int, dtype: torch.dtype, *batch: int) -> torch.Tensor:
    """Matrices whose singular values are the integers up to ``min(m, n)``."""
    k = min(m, n)
    left = linalg.qr(normal(*batch, m, k, dtype=dtype)).Q
    right = linalg.qr(normal(*batch, n, k, dtype=dtype, seed=1)).Q
    return left * torch.arange(1, k + 1) @ right.mH


@stock()
def hermitian(n: int, dtype: torch.dtype, *batch: int) -> torch.Tensor:
    """Hermitian matrices whose eigenvalues are 1, -2, 3, ..."""
    q = linalg.qr(normal(*batch, n, n, dtype=dtype)).Q
    values = torch.arange(1, n + 1) * (1 - 2 * (torch.arange(n) % 2))
    a = q * values @ q.mH
    return (a + a.mH) / 2


Operand = Callable[[int, torch.dtype], torch.Tensor]

CALLS: Final[dict[str, tuple[str, Callable[[torch.Tensor], Any], Operand]]] = {
    "eigh": ("_linalg_eigh", linalg.eigh, hermitian),
    "eigh of upper triangles": (
        "_linalg_eigh",
        lambda a: linalg.eigh(a, UPLO="U"),
        lambda n, dtype: hermitian(n, dtype, 2).triu(),
    ),
    "eigvalsh": ("_linalg_eigh", linalg.eigvalsh, lambda n, dtype: hermitian(n, dtype, 2, 2)),
    "svd": ("_linalg_svd", linalg.svd, lambda n, dtype: separated(n, n, dtype)),
    "svd of wide matrices": (
        "_linalg_svd",
        linalg.svd,
        lambda n, dtype: separated(n, n + 2, dtype, 2),
    ),
    "reduced svd": (
        "_linalg_svd",
        lambda a: linalg.svd(a, full_matrices=False),
        lambda n, dtype: separated(n + 1, n, dtype),
    ),
    "svd of a tall matrix": (
        "_linalg_svd",
        linalg.svd,
        lambda n, dtype: separated(3 * n, n, dtype),
    ),
    "reduced svd of a flat matrix": (
        "_linalg_svd",
        lambda a: linalg.svd(a, full_matrices=False),
        lambda n, dtype: separated(n, 4 * n, dtype),
    ),
    "svdvals": ("_linalg_svd", linalg.svdvals, lambda n, dtype: separated(n + 2, n, dtype, 3)),
}
"""Calls by name: the row that answers, the function, and its operand."""


def listed(y: Any) -> list[torch.Tensor]:
    return list(y) if isinstance(y, tuple) else [y]


def results(name: str, n: int, dtype: torch.dtype) -> list[torch.Tensor]:
    _, function, operand = CALLS[name]
    return listed(function(operand(n, dtype)))


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
    bound = 20 * n * torch.finfo(dtype).eps
    torch.testing.assert_close(ours, expected, rtol=bound, atol=bound, check_stride=True)
    found = {r.name: r.verdict for r in mode.coverage.records if r.operations}
    assert found.get(f"aten.{CALLS[name][0]}.default", Verdict.ROUNDED) is Verdict.ROUNDED
    assert n == 1 or f"aten.{CALLS[name][0]}.default" in found


def error(y: torch.Tensor, truth: torch.Tensor) -> float:
    return ((y - truth).norm() / truth.norm()).item()


def unorthogonal(q: torch.Tensor) -> float:
    return (q.mH @ q - torch.eye(q.shape[-1])).norm().item() / q.shape[-1] ** 0.5


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


def in_phase(exact: list[torch.Tensor], like: list[torch.Tensor]) -> list[torch.Tensor]:
    """Results in binary64 with the phases of others, without vectors that are not determined."""
    if len(exact) == 1:
        return exact
    if len(exact) == 2:
        values, v = exact
        return [values, v * (v.conj() * like[1]).sum(-2, keepdim=True).sgn()]
    u, s, vh = exact
    k = s.shape[-1]
    u, vh = u[..., :k], vh[..., :k, :]
    left = (u.conj() * like[0][..., :k]).sum(-2)
    right = (vh * like[2][..., :k, :].conj()).sum(-1)
    phase = (left + right).sgn()
    return [u * phase.unsqueeze(-2), s, vh * phase.conj().unsqueeze(-1)]


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
    exact = in_phase(listed(function(operand(n, dtype).to(WIDE[dtype]))), results(name, n, dtype))
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


@pytest.mark.parametrize("mode", ["sr", "cestac", "up"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_diagonal_matrices_are_decomposed_exactly(dtype: torch.dtype, mode: str) -> None:
    values = torch.tensor([3.0, -1.0, 12345.0, 0.1, -12.0, 0.0])
    a = torch.diag(values).to(dtype)
    tall = torch.cat([a, torch.zeros_like(a), torch.zeros_like(a)])
    expected = [linalg.eigh(a), linalg.svd(a), linalg.svd(tall, False)]
    with ft.fuzzy(mode, seed=0):
        ours = [linalg.eigh(a), linalg.svd(a), linalg.svd(tall, False)]
    for ours_, expected_ in zip(ours, expected, strict=True):
        for y, z in zip(ours_, expected_, strict=True):
            assert torch.equal(y, z)


@pytest.mark.parametrize("function", ["svd", "svdvals", "eigh", "eigvalsh"])
@pytest.mark.parametrize("shape", [(0, 0), (2, 0, 0), (0, 3, 3), (0, 2), (2, 0), (3, 0, 2)])
def test_empty_matrices_have_the_results_of_stock_torch(
    shape: tuple[int, ...], function: str
) -> None:
    if "eig" in function and shape[-1] != shape[-2]:
        pytest.skip("not square")
    a = torch.ones(shape)
    expected = listed(getattr(linalg, function)(a))
    with ft.fuzzy("sr", seed=0):
        ours = listed(getattr(linalg, function)(a))
    torch.testing.assert_close(ours, expected)


NAN: Final = torch.where(torch.eye(4) + torch.eye(4).roll(1, 0) > 0, torch.nan, 1.0)

FAILING: Final[dict[str, Callable[[], Any]]] = {
    "eigh of NaN": lambda: linalg.eigh(NAN),
    "svd of NaN": lambda: linalg.svd(NAN),
    "a batch with NaN": lambda: linalg.svd(torch.stack([torch.eye(4), NAN])),
    "not square": lambda: linalg.eigh(torch.ones(2, 3)),
    "a triangle that does not exist": lambda: linalg.eigh(torch.eye(2), UPLO="X"),
    "a driver": lambda: linalg.svd(torch.eye(2), driver="gesvd"),
    "half": lambda: linalg.svd(torch.eye(2).half()),
}


@pytest.mark.parametrize("name", FAILING)
def test_what_fails_in_stock_torch_fails_in_the_same_way(name: str) -> None:
    with pytest.raises((RuntimeError, NotImplementedError)) as expected:
        FAILING[name]()
    with ft.fuzzy("sr", seed=0), pytest.raises((RuntimeError, NotImplementedError)) as ours:
        FAILING[name]()
    assert (ours.type, str(ours.value)) == (expected.type, str(expected.value))


@pytest.mark.parametrize("function", ["svd", "eigh"])
def test_a_matrix_with_infinities_leaves_the_others_of_its_batch_alone(function: str) -> None:
    a = hermitian(4, torch.float32, 3)
    a[1, 0, 0] = torch.inf
    expected = getattr(linalg, function)(a)
    with ft.fuzzy("sr", seed=0) as mode:
        ours = getattr(linalg, function)(a)
    assert mode.coverage.share(Verdict.ROUNDED) == 1
    for y, z in zip(ours, expected, strict=True):
        torch.testing.assert_close(y, z, rtol=1e-5, atol=1e-5, equal_nan=True)
        assert not torch.equal(y[0], z[0])


@pytest.mark.parametrize("shape", [(5, 5), (7, 4), (4, 9), (16, 5)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rank", [0, 1, 3])
def test_vectors_are_orthonormal_where_the_rank_is_not_full(
    rank: int, dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    m, n = shape
    a = normal(m, rank, dtype=dtype) @ normal(rank, n, dtype=dtype, seed=1)
    with ft.fuzzy("sr", seed=0):
        u, s, vh = linalg.svd(a)
    unit = torch.finfo(dtype).eps
    assert u.shape == (m, m) and vh.shape == (n, n)
    assert unorthogonal(u) < 20 * unit and unorthogonal(vh.mH) < 20 * unit
    k = min(m, n)
    torch.testing.assert_close(u[:, :k] * s @ vh[:k], a, rtol=50 * unit, atol=50 * unit)
    assert (s[rank:] <= 50 * unit).all()


@pytest.mark.parametrize("function", ["svd", "eigh"])
@pytest.mark.parametrize("dtype", WIDE, ids=str)
@pytest.mark.parametrize("exponent", [-100, 60, 110])
def test_a_power_of_two_scales_the_values_alone(
    exponent: int, dtype: torch.dtype, function: str
) -> None:
    a = hermitian(5, dtype)
    bits = []
    for scale in (1.0, 2.0**exponent):
        with ft.fuzzy("sr", seed=3):
            y = getattr(linalg, function)(a * scale)
        values, vectors = (y.S, y.U) if function == "svd" else y
        bits.append((values / scale, vectors))
    assert torch.equal(bits[0][0], bits[1][0])
    # Complex vectors have the phases of those that stock torch finds for each of both.
    bound = 0.0 if dtype == torch.float32 else 1e-5
    torch.testing.assert_close(bits[0][1], bits[1][1], rtol=bound, atol=bound)


@pytest.mark.parametrize("function", ["svd", "eigh"])
def test_matrices_of_other_layouts_give_the_same_bits(function: str) -> None:
    bits = []
    for a in (hermitian(6, torch.float32), hermitian(6, torch.float32).mT.contiguous().mT):
        with ft.fuzzy("sr", seed=4):
            bits.append(getattr(linalg, function)(a))
    assert all(torch.equal(y, z) for y, z in zip(*bits, strict=True))


@pytest.mark.parametrize("dtype", WIDE, ids=str)
def test_conjugated_views_are_resolved(dtype: torch.dtype) -> None:
    a = separated(4, 6, dtype)
    with ft.fuzzy("rn"):
        lazy, resolved = linalg.svd(a.mH), linalg.svd(a.mH.resolve_conj())
    for y, z in zip(lazy, resolved, strict=True):
        torch.testing.assert_close(y, z)


@pytest.mark.parametrize("function", ["svd", "eigh"])
@pytest.mark.parametrize("format", ["binary32", "bfloat16", "float16", "tf32"])
@pytest.mark.parametrize("mode", ["rn", "sr", "ud", "cestac", "zero", "away", "up", "down"])
def test_every_mode_and_format_decomposes_the_matrix(mode: str, format: str, function: str) -> None:
    a = hermitian(6, torch.float32, 2)
    unit = 2.0 ** (1 - ft.Rounding.of(mode, format).precision)
    with ft.fuzzy(mode, format=format, seed=0):
        y = getattr(linalg, function)(a)
    again = y.U * y.S.unsqueeze(-2) @ y.Vh if function == "svd" else None
    if again is None:
        again = y.eigenvectors * y.eigenvalues.unsqueeze(-2) @ y.eigenvectors.mT
    # Directed roundings add up over all rotations, and ud moves by a whole unit.
    assert error(again, a) < (100 if mode in ("rn", "sr", "cestac") else 400) * unit


def test_a_converged_matrix_is_left_alone_while_others_are_rotated() -> None:
    a = torch.stack([hermitian(6, torch.float32), torch.diag(torch.arange(6.0) + 0.5)])
    with ft.fuzzy("ud", seed=0):
        values, vectors = linalg.eigh(a)
    assert torch.equal(values[1], torch.arange(6.0) + 0.5)
    assert torch.equal(vectors[1], torch.eye(6))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_larger_matrices_are_coarse(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spectral, "LARGEST", 4)
    for function, a in (
        (linalg.eigh, hermitian(5, dtype)),
        (linalg.svd, separated(5, 5, dtype)),
        (lambda a: linalg.svd(a, full_matrices=False), separated(7, 5, dtype)),
    ):
        with ft.fuzzy("sr", seed=0) as mode:
            y = function(a)
        assert mode.coverage.share(Verdict.COARSE) == 1
        again = y[0] * y[1] @ y[2] if len(y) == 3 else y[1] * y[0] @ y[1].mH
        torch.testing.assert_close(again, a, rtol=1e-5, atol=1e-5)
    for full, verdict in ((True, Verdict.COARSE), (False, Verdict.ROUNDED)):
        with ft.fuzzy("sr", seed=0) as mode:
            linalg.svd(separated(5, 2, dtype), full_matrices=full)
        assert mode.coverage.share(verdict) == 1


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
