"""Published complaints about the signs of eigenvectors, with their expected outcome."""

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
    assert samples.coverage.share(Verdict.COARSE) > 0
    assert significant(values).digits.min() > 6.5
    # The signs flip from sample to sample, so that not one vector has a digit by itself.
    assert significant(vectors).digits.diagonal().max() < 1.0
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
