"""Published complaints about factors and eigenvectors, with their expected outcome."""

from __future__ import annotations

import pytest
import torch

import fuzzytorch as ft
from fuzzytorch.backends import EXTENSION
from fuzzytorch.digits import degenerate, significant, up_to_sign
from fuzzytorch.table import Verdict

pytest.importorskip(EXTENSION, reason="the native kernels were not built")


def noisy_diagonal() -> torch.Tensor:
    """1 to 5 on the diagonal, and what 0.1 + 0.2 - 0.3 leaves beside it."""
    noise = torch.full((5, 5), 0.1) + 0.2 - 0.3
    return torch.diag(torch.arange(1.0, 6.0)) + noise + noise.T


def test_eigenvectors_are_compared_up_to_their_sign_on_request() -> None:
    samples = ft.sample(lambda: torch.linalg.eigh(noisy_diagonal()), n=30, mode="sr", seed=0)
    values, vectors = samples.values
    assert samples.coverage.share(Verdict.ROUNDED) == 1
    assert significant(values).digits.min() > 6.5
    # Signs flip from sample to sample, so that most vectors have no digit by themselves.
    assert (significant(vectors).digits.diagonal() < 1.0).sum() >= 3
    assert significant(up_to_sign(vectors, -2)).digits.diagonal().min() > 6.5
    assert not degenerate(values).any()


def test_singular_vectors_of_both_sides_are_compared_up_to_their_sign_on_request() -> None:
    samples = ft.sample(lambda: torch.linalg.svd(noisy_diagonal()), n=30, mode="sr", seed=0)
    left, values, right = samples.values
    exact = torch.linalg.svd(torch.diag(torch.arange(1.0, 6.0)))
    for vectors, dim, reference in ((left, -2, exact.U), (right, -1, exact.Vh)):
        assert significant(vectors).digits[reference != 0].min() < 1.0
        aligned = significant(up_to_sign(vectors, dim, reference))
        assert aligned.digits[reference != 0].min() > 6.5
    assert significant(values).digits.min() > 6.5


def test_a_pair_of_nearly_equal_eigenvalues_is_flagged_and_has_no_vectors() -> None:
    spectrum = torch.tensor([1.0, 2.0, 3.0, 3.0000005, 5.0, 8.0])
    basis = torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(0))).Q

    def run() -> tuple[torch.Tensor, torch.Tensor]:
        matrix = (basis * spectrum) @ basis.T
        return tuple(torch.linalg.eigh((matrix + matrix.T) / 2))

    values, vectors = ft.sample(run, n=30, mode="sr", seed=0).values
    flagged = degenerate(values)
    assert flagged.tolist() == [False, False, True, True, False, False]
    aligned = significant(up_to_sign(vectors, -2))
    assert aligned.overall < 3.0
    digits = torch.tensor([significant(up_to_sign(vectors[..., i], 0)).overall for i in range(6)])
    assert digits[flagged].max() < 1.5
    assert digits[~flagged].min() > 5.0


def cholesky_failures(jitter: float, samples: int = 40) -> float:
    """The share of samples in which a covariance of 60 points has no Cholesky factor."""
    x = torch.rand(60, generator=torch.Generator().manual_seed(0))
    covariance = torch.exp(-(x.unsqueeze(1) - x).square() / (2 * 0.3**2))
    covariance = covariance + jitter * torch.eye(60)

    def run() -> torch.Tensor:
        return torch.linalg.cholesky_ex(covariance).info > 0

    failed = ft.sample(run, n=samples, mode="sr", seed=0).values
    return failed.double().mean().item()


def test_the_cholesky_factor_of_a_smooth_covariance_exists_by_luck() -> None:
    assert [cholesky_failures(jitter) for jitter in (1e-7, 2e-7, 5e-7)] == [1.0, 1.0, 1.0]
    assert 0.0 < cholesky_failures(1e-6) < 1.0
    assert [cholesky_failures(jitter) for jitter in (2e-6, 5e-6)] == [0.0, 0.0]


def test_a_sample_without_a_factor_is_recorded_and_the_others_go_on() -> None:
    x = torch.rand(60, generator=torch.Generator().manual_seed(0))
    covariance = torch.exp(-(x.unsqueeze(1) - x).square() / (2 * 0.3**2)) + 1e-6 * torch.eye(60)
    samples = ft.sample(lambda: torch.linalg.cholesky(covariance), n=40, mode="sr", seed=0)
    assert 0 < len(samples.failures) < 40
    assert len(samples) == 40 - len(samples.failures)
    assert all("not positive-definite" in failure.error for failure in samples.failures)
    assert f"{len(samples.failures)} of 40" in samples.summary()
