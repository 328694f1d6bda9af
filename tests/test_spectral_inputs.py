"""Laws of spectral decompositions on hard inputs, in all layouts, modes and formats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
from spectral_cases import DTYPES, WIDE, error, hermitian, listed, normal, separated, unorthogonal

import fuzzytorch as ft
from fuzzytorch.ops import spectral
from fuzzytorch.table import Verdict

linalg = torch.linalg


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
    assert torch.equal(bits[0][1], bits[1][1])


def test_complex_vectors_have_the_real_components_of_stock_torch() -> None:
    with ft.fuzzy("sr", seed=0):
        lower = linalg.eigh(hermitian(5, torch.complex64)).eigenvectors
        upper = linalg.eigh(hermitian(5, torch.complex64), UPLO="U").eigenvectors
        right = linalg.svd(separated(5, 4, torch.complex64)).Vh
        left = linalg.svd(separated(4, 5, torch.complex64)).U
    for components in (lower[0], upper[-1], right[:, 0], left[0]):
        assert (components.imag == 0).all()


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128], ids=str)
def test_values_alone_are_written_into_a_given_tensor(dtype: torch.dtype) -> None:
    a = torch.randn(3, 4, dtype=dtype, generator=torch.Generator().manual_seed(0))
    out = torch.empty(0, dtype=a.real.dtype)
    with ft.fuzzy("rn"):
        y = torch.linalg.svdvals(a, out=out)
    assert y is out
    torch.testing.assert_close(out, torch.linalg.svdvals(a))
