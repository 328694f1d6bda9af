"""Matrices with known spectra, calls of the rows of spectral decompositions, and their errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from fuzzytorch.active import stock

linalg = torch.linalg
WIDE: Final = {torch.float32: torch.float64, torch.complex64: torch.complex128}
DTYPES: Final = (*WIDE, *WIDE.values())


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


def error(y: torch.Tensor, truth: torch.Tensor) -> float:
    return ((y - truth).norm() / truth.norm()).item()


def unorthogonal(q: torch.Tensor) -> float:
    return (q.mH @ q - torch.eye(q.shape[-1])).norm().item() / q.shape[-1] ** 0.5
