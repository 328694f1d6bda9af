"""Singular value decompositions, and eigenvalues and -vectors of Hermitian matrices."""

from __future__ import annotations

from typing import Any, Final

import torch

from fuzzytorch.ops.call import Call
from fuzzytorch.ops.coarse import rounded_once
from fuzzytorch.ops.jacobi import (
    TIMES_PHASE,
    hermitian,
    matrices,
    one_sided,
    orthonormal,
    turned,
    unit,
    vectors,
)
from fuzzytorch.ops.layout import placed
from fuzzytorch.ops.matrix_steps import batch_of, product
from fuzzytorch.ops.pointwise import DIV
from fuzzytorch.table import Row, Verdict

LARGEST: Final = 512
"""Vectors of a matrix up to which rotations are used: some seconds.  Beyond it is coarse."""

TALL: Final = 2
"""Rows per column from which on a QR factorization comes first."""


def eigh(
    call: Call, a: torch.Tensor, UPLO: str = "L", compute_v: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotations until the matrix is diagonal; vectors have the phases of stock torch."""
    stock = call.overload(a, UPLO, compute_v)
    if a.numel() == 0:
        return stock
    if a.shape[-1] > LARGEST:
        return _coarse(call, stock, a, UPLO, compute_v)
    triangle = (a if UPLO.upper() == "L" else a.mH).tril()
    full = batch_of(triangle + triangle.tril(-1).mH)
    if a.is_complex():
        full.diagonal(dim1=-2, dim2=-1).imag.zero_()
    finite, full = _finite(full)
    x, exponent = _scaled(vectors(full))
    values, v = hermitian(call, x, compute_v)
    values, order = values.sort(dim=1, stable=True)
    values = _unscaled(values, exponent)
    if v is None:
        return _result(values, stock[0], finite), stock[1]
    v = _taken(v, order)
    at = 0 if UPLO.upper() == "L" else -1
    phase = _conventional(call, v, _phase(v, vectors(batch_of(stock[1]).mT)), at)
    v = _with_real(_aligned(call, v, phase), _determines(call, v, at), at)
    return _result(values, stock[0], finite), _result(matrices(v).mT, stock[1], finite)


def svd(
    call: Call,
    a: torch.Tensor,
    full_matrices: bool = False,
    compute_uv: bool = True,
    *,
    driver: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rotations until the columns (of a wide matrix the rows) are orthogonal.

    Of a tall matrix the triangular factor is rotated.  The directions of the columns are made
    orthonormal by reflections.  Vectors have the phases of those of stock torch; vectors that
    the matrix does not determine are those of stock torch, made orthogonal to the others.
    """
    stock = call.overload(a, full_matrices, compute_uv, driver=driver)
    if a.numel() == 0:
        return stock
    found = (stock[0].shape[-1], stock[2].shape[-2]) if compute_uv else ()
    if max((min(a.shape[-2:]), *found)) > LARGEST:
        return _coarse(call, stock, a, full_matrices, compute_uv, driver=driver)
    wide = a.shape[-2] < a.shape[-1]
    finite, columns = _finite(batch_of(a))
    columns = columns.mH if wide else columns
    g, exponent = _scaled(vectors(columns.mT))
    q = orthonormal(call, g) if g.shape[3] >= TALL * g.shape[1] else None
    if q is not None:
        g = vectors(product(call, matrices(g), matrices(q).mH).tril())
    values, g, v = one_sided(call, g, compute_uv)
    values, order = values.sort(dim=1, descending=True, stable=True)
    s = _result(_unscaled(values, exponent), stock[1], finite)
    if v is None:
        return stock[0], s, stock[2]
    if q is not None:
        g = vectors(product(call, matrices(g), matrices(q)))
    # Of a wide matrix the adjoint was decomposed.
    pair = [batch_of(stock[0]), batch_of(stock[2]).mH]
    left, right = (vectors(y.mT) for y in (reversed(pair) if wide else pair))
    u, v = _vectors(call, values, _taken(g, order), _taken(v, order), left, right)
    u, v = (matrices(y).mT for y in ((v, u) if wide else (u, v)))
    return _result(u, stock[0], finite), s, _result(v.mH, stock[2], finite)


def _vectors(
    call: Call,
    values: torch.Tensor,
    g: torch.Tensor,
    v: torch.Tensor,
    left: torch.Tensor,
    right: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Left and right singular vectors, with the phases of those of stock torch."""
    k = g.shape[1]
    dead = (values == 0)[..., None, None]
    u = DIV(call, g, torch.where(values == 0, 1.0, values)[..., None, None])
    u = torch.where(dead, left[:, :k], u)
    u = orthonormal(call, torch.cat([u, left[:, k:]], 1))
    own, other = _phase(u, left), _phase(v, right)
    both = torch.where(dead[..., 0], other, own[:, :k] + other)
    phase = _conventional(call, v, both, 0)
    own[:, :k] = torch.where(dead[..., 0], own[:, :k], phase)
    v = _with_real(_aligned(call, v, phase), _determines(call, v, 0), 0)
    return _aligned(call, u, own), v


def _determines(call: Call, x: torch.Tensor, at: int) -> torch.Tensor:
    """Whether component ``at`` of a vector is large enough to tell its phase."""
    size: torch.Tensor = x[..., at].double().norm(dim=-1)
    return size > unit(call) ** 0.5


def _conventional(call: Call, x: torch.Tensor, phase: torch.Tensor, at: int) -> torch.Tensor:
    """The phase nearest to ``phase``, or opposite, that makes component ``at`` real.

    This is the convention of stock torch, whose vectors agree between machines up to
    roundings only: they give the sign alone, and the phase where the component is too small.
    """
    if x.shape[2] == 1:
        return phase
    real = x[..., at].double() * torch.tensor([1.0, -1.0], dtype=torch.float64)
    real = torch.where((real * phase).sum(-1, keepdim=True) < 0, -real, real)
    return torch.where(_determines(call, x, at).unsqueeze(-1), real, phase)


def _with_real(x: torch.Tensor, real: torch.Tensor, at: int) -> torch.Tensor:
    """Vectors whose component ``at`` is exactly real where ``real`` says so."""
    if x.shape[2] == 2:
        x[..., 1, at] = torch.where(real, 0.0, x[..., 1, at])
    return x


def _phase(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The products ``x^H like`` of vectors, binary64 ``(batch, count, parts)``."""
    wide, other = x.double(), like.double()
    products = [(wide * other).sum((2, 3))]
    if x.shape[2] == 2:
        products.append((turned(wide) * other).sum((2, 3)))
    return torch.stack(products, -1)


def _aligned(call: Call, x: torch.Tensor, phase: torch.Tensor) -> torch.Tensor:
    """Vectors times the direction of ``phase``: a sign, which is exact, or a complex number."""
    if x.shape[2] == 1:
        return torch.where(phase[..., None] < 0, -x, x)
    size = phase.norm(dim=-1, keepdim=True)
    one = torch.tensor([1.0, 0.0], dtype=phase.dtype)
    direction = torch.where(size == 0, one, phase / size)
    c, d = call.round(direction)[..., None, None].unbind(2)
    return TIMES_PHASE(call, c, d, x, turned(x))


def _finite(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Which matrices are finite, and all of them with zero in place of the others."""
    finite = a.isfinite().all(-1).all(-1)
    return finite, torch.where(finite[:, None, None], a, 0.0)


def _result(y: torch.Tensor, stock: torch.Tensor, finite: torch.Tensor) -> torch.Tensor:
    """Results of a batch in the layout of stock torch; its own where a matrix is not finite."""
    if not bool(finite.all()):
        others = stock.reshape(y.shape)
        y = torch.where(finite.view(-1, *[1] * (y.dim() - 1)), y, others)
    return placed(y.reshape(stock.shape), _layout(stock))


def _taken(x: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    return x.gather(1, order[..., None, None].expand(-1, -1, *x.shape[2:]))


def _scaled(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Matrices times the power of two that brings their largest element near 1: exact.

    Squares then neither overflow nor vanish.
    """
    exponent = torch.frexp(x.abs().amax((1, 2, 3))).exponent.clamp(-1000, 1000)
    factor = torch.ldexp(torch.ones_like(exponent, dtype=torch.float64), -exponent)
    return (x.double() * factor.view(-1, 1, 1, 1)).to(x.dtype), exponent


def _unscaled(values: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
    factor = torch.ldexp(torch.ones_like(exponent, dtype=torch.float64), exponent)
    return (values.double() * factor.view(-1, 1)).to(values.dtype)


def _layout(x: torch.Tensor) -> Any:
    return x.shape, x.stride(), x.dtype


def _coarse(call: Call, stock: Any, a: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """One rounding of the result in binary64."""
    call.coarse = True
    wide = call.overload(
        a.to(torch.complex128 if a.is_complex() else torch.float64), *args, **kwargs
    )
    pairs = zip(wide, stock, strict=True)
    return tuple(placed(rounded_once(call, y, z.dtype), _layout(z)) for y, z in pairs)


_EIGH: Final = (
    f"every scalar operation of Jacobi rotations; above {LARGEST} rows one rounding of the "
    "binary64 result"
)
_SVD: Final = (
    "every scalar operation of one-sided Jacobi rotations and of reflections; above "
    f"{LARGEST} singular values or vectors one rounding of the binary64 result"
)

ROWS: tuple[Row, ...] = tuple(
    Row(f"aten.{name}.default", Verdict.ROUNDED, function, why, operands=operands)
    for operands in ("real", "complex")
    for name, function, why in (("_linalg_eigh", eigh, _EIGH), ("_linalg_svd", svd, _SVD))
)
