"""Calls of factorizations and of what is solved with them, in every dtype."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Final

import torch

from fuzzytorch.active import stock

aten = torch.ops.aten
linalg = torch.linalg


@dataclasses.dataclass(frozen=True)
class Matrices:
    """Matrices whose elements are numbers of single precision, held in ``dtype``."""

    dtype: torch.dtype = torch.float32

    @property
    def single(self) -> torch.dtype:
        return torch.complex64 if self.dtype.is_complex else torch.float32

    @stock()
    def _normal(self, *shape: int, seed: int = 0) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(shape, dtype=self.single, generator=generator)

    @stock()
    def normal(self, *shape: int, seed: int = 0) -> torch.Tensor:
        return self._normal(*shape, seed=seed).to(self.dtype)

    @stock()
    def general(self, n: int, *batch: int, seed: int = 0) -> torch.Tensor:
        """Matrices far from singular, which need pivoting."""
        a = self._normal(*batch, n, n, seed=seed) / n**0.5 + 2.0 * torch.eye(n)
        return a.roll(1, -1).to(self.dtype)

    @stock()
    def positive(self, n: int, *batch: int) -> torch.Tensor:
        g = self._normal(*batch, n, n)
        return (g @ g.mH / n + torch.eye(n)).to(self.dtype)

    @stock()
    def triangular(self, n: int, *batch: int) -> torch.Tensor:
        return (self._normal(*batch, n, n) / max(n, 4) + torch.eye(n) * 1.5).to(self.dtype)

    @stock()
    def indefinite(self, n: int, *batch: int, hermitian: bool = False) -> torch.Tensor:
        """Symmetric or Hermitian matrices with small diagonals, for pivots of two columns."""
        a = self._normal(*batch, n, n)
        a = a + (a.mH if hermitian else a.mT)
        a.diagonal(dim1=-2, dim2=-1).mul_(0.125)
        return a.to(self.dtype)

    @stock()
    def indefinite_factors(
        self, n: int, *batch: int, hermitian: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        a = self.indefinite(n, *batch, hermitian=hermitian).to(self.single)
        factors, pivots = linalg.ldl_factor(a, hermitian=hermitian)
        return factors.to(self.dtype), pivots

    @stock()
    def factor(self, n: int, *batch: int) -> torch.Tensor:
        """Triangles with a real diagonal, as those of a Cholesky factorization."""
        a = self._normal(*batch, n, n).tril(-1) / max(n, 4) + torch.eye(n) * 1.5
        return (a + self._normal(*batch, n, n, seed=1).triu(1) / max(n, 4)).to(self.dtype)

    @stock()
    def tall(self, m: int, n: int, *batch: int) -> torch.Tensor:
        return (self._normal(*batch, m, n) + 2.0 * torch.eye(m, n)).to(self.dtype)

    @stock()
    def deficient(self, m: int, n: int, *batch: int) -> torch.Tensor:
        """Matrices with a column twice; of a batch the last ones have it three times."""
        a = self._normal(*batch, m, n) + 2.0 * torch.eye(m, n)
        a[..., n // 2] = a[..., 0]
        if batch:
            a[-1, :, -1] = a[-1, :, 0]
        return a.to(self.dtype)

    @stock()
    def reflectors(self, *shape: int) -> torch.Tensor:
        return (self._normal(*shape) / 16).to(self.dtype)

    @stock()
    def coefficients(self, *shape: int) -> torch.Tensor:
        """Coefficients of reflectors: positive ones, or complex numbers."""
        x = self._normal(*shape) / 2
        return (x if x.is_complex() else x.abs()).to(self.dtype)

    @stock()
    def factors(self, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        lu, pivots = linalg.lu_factor(self.general(n).to(self.single))
        return lu.to(self.dtype), pivots


CALLS: Final[dict[str, tuple[str, Callable[[Matrices, int], Any]]]] = {
    "cholesky": ("linalg_cholesky_ex", lambda m, n: linalg.cholesky(m.positive(n))),
    "upper cholesky": (
        "linalg_cholesky_ex",
        lambda m, n: linalg.cholesky_ex(m.positive(n, 2), upper=True),
    ),
    "old cholesky": ("cholesky", lambda m, n: torch.cholesky(m.positive(n))),
    "lu factor": ("linalg_lu_factor_ex", lambda m, n: linalg.lu_factor_ex(m.general(n, 3))),
    "wide lu factor": (
        "linalg_lu_factor_ex",
        lambda m, n: linalg.lu_factor(m.tall(n + 5, n).mT),
    ),
    "lu": ("linalg_lu", lambda m, n: linalg.lu(m.tall(n + 5, n, 2))),
    "qr": ("linalg_qr", lambda m, n: linalg.qr(m.tall(n + 3, n, 2))),
    "complete qr": ("linalg_qr", lambda m, n: linalg.qr(m.tall(n + 3, n), "complete")),
    "wide qr": ("linalg_qr", lambda m, n: linalg.qr(m.tall(n + 3, n).mT)),
    "r alone": ("linalg_qr", lambda m, n: linalg.qr(m.tall(n + 3, n), "r")),
    "geqrf": ("geqrf", lambda m, n: torch.geqrf(m.tall(n + 3, n, 2))),
    "householder product": (
        "linalg_householder_product",
        lambda m, n: linalg.householder_product(m.reflectors(2, n + 3, n), m.coefficients(2, n)),
    ),
    "ormqr": (
        "ormqr",
        lambda m, n: torch.ormqr(m.reflectors(n + 3, n), m.coefficients(n), m.normal(n + 3, 4)),
    ),
    "ormqr, transposed": (
        "ormqr",
        lambda m, n: torch.ormqr(
            m.reflectors(n + 3, n), m.coefficients(n), m.normal(n + 3, 4), True, True
        ),
    ),
    "ormqr, right, transposed": (
        "ormqr",
        lambda m, n: torch.ormqr(
            m.reflectors(n, n), m.coefficients(n), m.normal(4, n), False, True
        ),
    ),
    "triangular": (
        "linalg_solve_triangular",
        lambda m, n: linalg.solve_triangular(m.triangular(n, 2), m.normal(2, n, 3), upper=False),
    ),
    "upper unit triangular from the right": (
        "linalg_solve_triangular",
        lambda m, n: linalg.solve_triangular(
            m.triangular(n), m.normal(3, n), upper=True, left=False, unitriangular=True
        ),
    ),
    "old triangular": (
        "triangular_solve",
        lambda m, n: aten.triangular_solve(m.normal(n, 2), m.triangular(n), True, True),
    ),
    "solve": ("_linalg_solve_ex", lambda m, n: linalg.solve(m.general(n), m.normal(n, 3))),
    "solve for vectors": (
        "_linalg_solve_ex",
        lambda m, n: linalg.solve(m.general(n, 2), m.normal(2, n)),
    ),
    "solve from the right": (
        "_linalg_solve_ex",
        lambda m, n: linalg.solve(m.general(n, 2), m.normal(3, n), left=False),
    ),
    "lu solve from the right": (
        "linalg_lu_solve",
        lambda m, n: linalg.lu_solve(*m.factors(n), m.normal(2, n), left=False),
    ),
    "lu solve": (
        "linalg_lu_solve",
        lambda m, n: linalg.lu_solve(
            *m.factors(n),
            m.normal(n, 2),
            adjoint=True,
        ),
    ),
    "inverse": ("linalg_inv_ex", lambda m, n: linalg.inv(m.general(n, 2))),
    "determinant": ("_linalg_det", lambda m, n: aten._linalg_det(m.general(n, 2))),
    "log determinant": ("_linalg_slogdet", lambda m, n: linalg.slogdet(m.general(n, 2))),
    "cholesky solve": (
        "cholesky_solve",
        lambda m, n: torch.cholesky_solve(m.normal(n, 3), m.factor(n)),
    ),
    "upper cholesky inverse": (
        "cholesky_inverse",
        lambda m, n: torch.cholesky_inverse(m.factor(n, 2), upper=True),
    ),
    "cholesky solve, inner": (
        "_cholesky_solve_helper",
        lambda m, n: aten._cholesky_solve_helper(m.normal(n, 3), m.factor(n), True),
    ),
    "cholesky inverse": (
        "cholesky_inverse",
        lambda m, n: torch.cholesky_inverse(m.factor(n)),
    ),
    "ldl factor": (
        "linalg_ldl_factor_ex",
        lambda m, n: linalg.ldl_factor_ex(m.indefinite(n, 2)),
    ),
    "hermitian ldl factor": (
        "linalg_ldl_factor_ex",
        lambda m, n: linalg.ldl_factor(m.indefinite(n, hermitian=True), hermitian=True),
    ),
    "ldl solve": (
        "linalg_ldl_solve",
        lambda m, n: linalg.ldl_solve(*m.indefinite_factors(n, 2), m.normal(2, n, 3)),
    ),
    "hermitian ldl solve": (
        "linalg_ldl_solve",
        lambda m, n: linalg.ldl_solve(
            *m.indefinite_factors(n, hermitian=True), m.normal(n, 2), hermitian=True
        ),
    ),
    "least squares": (
        "linalg_lstsq",
        lambda m, n: linalg.lstsq(m.tall(n + 3, n), m.normal(n + 3, 2), driver="gels"),
    ),
    "least norm": (
        "linalg_lstsq",
        lambda m, n: linalg.lstsq(m.tall(n + 3, n, 2).mT, m.normal(2, n, 2)),
    ),
}
"""Calls by name: the row that answers, and the call."""


def results(name: str, dtype: torch.dtype, n: int) -> list[torch.Tensor]:
    """The results of a call at size ``n``."""
    y = CALLS[name][1](Matrices(dtype), n)
    return list(y) if isinstance(y, tuple) else [y]
