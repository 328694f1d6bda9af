"""Vectors that are determined up to a sign or a phase only: those of eigenvalues and the like."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fuzzytorch.digits.normal import Array, significant


def up_to_sign(samples: Array, dim: int, reference: Array | None = None) -> Any:
    """Samples of vectors, each turned to the side of a reference.

    A real vector is multiplied by the sign of its inner product with that of the reference, which
    is exact; a complex one by the phase that makes the inner product positive, rounded to nearest
    in its own dtype.  A vector that is perpendicular to that of the reference stays as it is.

    Args:
        samples: tensor or numpy array ``(n, ...)``, stacked along axis 0 as for
            :func:`fuzzytorch.digits.significant`, of a real or complex floating-point dtype.
        dim: the axis *of one sample* along which the numbers of one vector lie: -2 for the
            columns of ``torch.linalg.eigh`` and of the ``U`` of an SVD, -1 for the rows of its
            ``Vh``.
        reference: vectors of the shape of one sample; the first sample if ``None``.

    Returns:
        New samples of the same type, dtype and shape.

    Raises:
        ValueError: samples without such an axis, or a reference of another shape.
    """
    wide = _wide(samples)
    axes = wide.ndim - 1
    if not -axes <= dim < axes:
        raise ValueError(
            f"samples of shape {tuple(wide.shape)} have no axis {dim} behind the first: give the "
            "axis of one sample along which the numbers of a vector lie."
        )
    against = wide[0] if reference is None else _wide(reference)
    if against.shape != wide.shape[1:]:
        raise ValueError(
            f"the reference has the shape {tuple(against.shape)} and one sample "
            f"{tuple(wide.shape[1:])}: they must be the same."
        )
    with np.errstate(invalid="ignore", divide="ignore"):
        product = (against * wide.conj()).sum(dim % axes - axes, keepdims=True)
        turned = np.isfinite(product) & (product != 0)
        turn = np.where(turned, product / np.abs(product), 1.0)
    if isinstance(samples, torch.Tensor):
        return (torch.as_tensor(wide * turn)).to(samples.dtype)
    return (wide * turn).astype(samples.dtype)


def degenerate(values: Array, gap: float = 10.0) -> Any:
    """Which eigenvalues or singular values lie too near to another for their vectors to be known.

    A perturbation of size ``e`` turns a vector by about ``e`` over the distance of its value to
    the nearest other one.  The noise of the values of one matrix says how large ``e`` is: the
    largest of their standard deviations.

    Args:
        values: samples of real values, tensor or numpy array ``(n, ..., k)`` with ``n >= 2``.
        gap: the distance, in that standard deviation, up to which a value counts as
            degenerate; with 10 the vectors of the others have at least about one digit.

    Returns:
        Truth values ``(..., k)``, a tensor if ``values`` is one.

    Raises:
        ValueError: fewer than two samples.
    """
    moments = significant(values)
    mean, std = np.asarray(moments.mean), np.asarray(moments.std)
    if mean.ndim == 0:
        raise ValueError("samples of one number each have no neighbours: give all values.")
    order = np.argsort(mean, axis=-1)
    between = np.diff(np.take_along_axis(mean, order, -1), axis=-1)
    near = between <= gap * std.max(-1, keepdims=True, initial=0.0)
    flags = np.zeros(mean.shape, bool)
    flags[..., 1:] |= near
    flags[..., :-1] |= near
    found = np.empty_like(flags)
    np.put_along_axis(found, order, flags, -1)
    return torch.as_tensor(found) if isinstance(values, torch.Tensor) else found


def _wide(x: Array) -> np.ndarray[Any, Any]:
    if isinstance(x, torch.Tensor):
        x = x.detach().cpu().resolve_conj().resolve_neg()
        return x.to(torch.complex128 if x.is_complex() else torch.float64).numpy()
    return np.asarray(x).astype(np.complex128 if np.iscomplexobj(x) else np.float64)
