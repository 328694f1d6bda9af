"""Significant digits by the centred normal hypothesis.

Sohier, Castro, Fevotte, Lathuiliere, Petit, Jamond, "Confidence intervals for
stochastic arithmetic", ACM Transactions on Mathematical Software 47(2), 2021.

With ``n`` samples of mean ``m`` and standard deviation ``s`` (divisor ``n - 1``), the
point estimate is ``-log10(s / |m|)``.  The error of one more sample relative to the
mean is normal around zero by hypothesis; with the stated confidence it is below
``10^-lower`` with the stated probability, where

    lower = -log10(s0 / |m|) - log10(sqrt((n - 1) / chi2) * F),

``s0`` is the standard deviation with divisor ``n``, ``chi2`` the quantile of order
``(1 - confidence) / 2`` of the chi-square law with ``n - 1`` degrees of freedom, and
``F`` the normal quantile of order ``(1 + probability) / 2``.  These are the
conventions of the ``significantdigits`` package; its divisor is a little optimistic
and its two-sided ``chi2`` more than makes up for it, so that the confidence holds.

All arithmetic is numpy's in binary64, which no torch mode perturbs.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, TypeAlias

import numpy as np
import torch

from fuzzytorch.digits.quantiles import chi_square_quantile, normal_quantile

Array: TypeAlias = "torch.Tensor | np.ndarray[Any, Any]"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Digits:
    """Moments and significant decimal digits of every element.

    Arrays are float64 of the shape of one sample (a complex sample has a last
    dimension of two, real and imaginary part), tensors if the samples were.

    Attributes:
        count: number of samples.
        mean, std: of the samples; the divisor of ``std`` is ``count - 1``.
        digits: the point estimate, within ``0 .. cap``; NaN where a sample is not finite.
        lower: the lower confidence bound, likewise.
        nonfinite: int64, how many samples of the element are NaN or Inf.
        probability, confidence: what ``lower`` states.
        cap: digits that the dtype holds; reported where ``std`` is zero.
    """

    count: int
    mean: Any
    std: Any
    digits: Any
    lower: Any
    nonfinite: Any
    probability: float
    confidence: float
    cap: float

    @property
    def overall(self) -> float:
        """Digits of all elements together: ``-log10(|std| / |mean|)``, within ``0 .. cap``.

        The norms are Euclidean, over the elements that are finite in every sample; NaN if there
        are none.  An element that is small among its neighbours counts for little, which makes
        this the measure of what an operation that mixes the elements can preserve.
        """
        std = np.ravel(self.std)
        finite = np.isfinite(std)
        if not finite.any():
            return math.nan
        error, size = norm(std[finite]), norm(np.ravel(self.mean)[finite])
        if error == 0.0:
            return self.cap
        if size == 0.0:
            return 0.0
        return min(max(math.log10(size) - math.log10(error), 0.0), self.cap)


def norm(x: np.ndarray[Any, Any]) -> float:
    """The Euclidean norm of finite numbers, without overflow or underflow on the way."""
    largest = float(np.max(np.abs(x), initial=0.0))
    return largest * float(np.sqrt(np.sum((x / largest) ** 2))) if largest else 0.0


def significant(
    samples: Array,
    *,
    probability: float = 0.95,
    confidence: float = 0.95,
    cap: float | None = None,
) -> Digits:
    """The significant digits of samples stacked along axis 0.

    Args:
        samples: tensor or numpy array ``(n, ...)``, ``n >= 2``, of a real or complex
            floating-point dtype, or of integers (a count, say).
        probability, confidence: of the lower bound, between 0 and 1.
        cap: most digits to report; by default those of the dtype (:func:`cap`).

    A negative number of digits (the samples scatter more than their mean) is
    reported as 0, and ``std`` then says by how much in absolute terms.

    Raises:
        ValueError: fewer than two samples, or a probability outside ``(0, 1)``.
    """
    count = len(samples) if samples.ndim else 0
    if count < 2:
        raise ValueError(
            f"significant digits need at least two samples along the first axis, got {count}: "
            "run the program again under another replica."
        )
    found = estimate(
        count,
        *_moments(samples),
        cap=_cap_of(samples.dtype) if cap is None else cap,
        probability=probability,
        confidence=confidence,
    )
    if isinstance(samples, torch.Tensor):
        arrays = ("mean", "std", "digits", "lower", "nonfinite")
        tensors: dict[str, Any] = {n: torch.as_tensor(getattr(found, n)) for n in arrays}
        return dataclasses.replace(found, **tensors)
    return found


def estimate(
    count: int,
    mean: np.ndarray[Any, Any],
    std: np.ndarray[Any, Any],
    nonfinite: np.ndarray[Any, Any],
    *,
    cap: float,
    probability: float = 0.95,
    confidence: float = 0.95,
) -> Digits:
    """The significant digits that belong to moments of ``count >= 2`` samples.

    Raises:
        ValueError: a probability outside ``(0, 1)``.
    """
    for name, value in (("probability", probability), ("confidence", confidence)):
        if not 0.0 < value < 1.0:
            raise ValueError(f"{name}={value!r} is impossible: give a number between 0 and 1.")
    with np.errstate(divide="ignore", invalid="ignore"):
        # 0/0 means a result that is always zero: exact, like every std of zero.
        raw = np.where(std == 0.0, np.inf, -np.log10(std / np.abs(mean)))
    return Digits(
        count,
        mean=np.asarray(mean),
        std=np.asarray(std),
        digits=np.clip(raw, 0.0, cap),
        lower=np.clip(raw - bound_offset(count, probability, confidence), 0.0, cap),
        nonfinite=np.asarray(nonfinite),
        probability=probability,
        confidence=confidence,
        cap=cap,
    )


def bound_offset(count: int, probability: float, confidence: float) -> float:
    """Digits between the point estimate and the lower bound of ``count`` samples."""
    chi2 = chi_square_quantile((1 - confidence) / 2, count - 1)
    inside = normal_quantile((1 + probability) / 2)
    # The estimate divides by n - 1, the bound by n.
    divisor = 0.5 * math.log10((count - 1) / count)
    return divisor + 0.5 * math.log10((count - 1) / chi2) + math.log10(inside)


def cap(samples: Array) -> float:
    """Decimal digits that a number of the dtype holds: its bits of precision times log10(2).

    7.2 for binary32, 15.95 for binary64, 3.3 for float16, 2.4 for bfloat16; integers
    and anything wider than binary64 count as binary64, in which they are measured.
    """
    return _cap_of(samples.dtype)


def distance(value: Array, digits: Digits) -> Any:
    """How many standard deviations a value lies from the samples: ``|value - mean| / std``.

    Args:
        value: one result, of the shape and kind of one sample.
        digits: of the samples.

    Returns:
        float64 like ``digits.mean``: 0 where value and all samples are equal, Inf
        where the samples do not scatter and the value differs, NaN where anything
        is not finite.
    """
    mean, std = np.asarray(digits.mean), np.asarray(digits.std)
    with np.errstate(divide="ignore", invalid="ignore"):
        gap = np.abs(binary64(value) - mean)
        z = np.where((gap == 0.0) & (std == 0.0), 0.0, gap / std)
    return torch.as_tensor(z) if isinstance(digits.mean, torch.Tensor) else z


def binary64(value: Array) -> np.ndarray[Any, Any]:
    """The numbers in numpy's float64; complex ones as pairs in a last dimension."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().resolve_conj().resolve_neg()
        if value.is_complex():
            value = torch.view_as_real(value)
        # numpy knows neither bfloat16 nor the 8-bit formats.
        return value.to(torch.float64).numpy()
    if np.iscomplexobj(value):
        return np.stack([value.real, value.imag], -1).astype(np.float64)
    return np.asarray(value).astype(np.float64)


def _moments(
    samples: Array,
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Mean, standard deviation and number of NaN or Inf, one sample in memory at a time."""
    count = len(samples)
    # Deviations from the first sample: equal samples have a std of exactly zero,
    # and a small scatter on a large mean keeps its digits.
    origin = binary64(samples[0])
    total = np.zeros_like(origin)
    nonfinite = np.zeros(origin.shape, np.int64)
    with np.errstate(invalid="ignore", over="ignore"):
        for sample in samples:
            number = binary64(sample)
            nonfinite += ~np.isfinite(number)
            total += number - origin
        shift = total / count
        squares = np.zeros_like(origin)
        for sample in samples:
            squares += (binary64(sample) - origin - shift) ** 2
        std = np.sqrt(squares / (count - 1))
        return origin + shift, std, nonfinite


def _cap_of(dtype: Any) -> float:
    if isinstance(dtype, torch.dtype):
        real = dtype.is_floating_point or dtype.is_complex
        eps = torch.finfo(dtype).eps if real else 0.0
    else:
        eps = float(np.finfo(dtype).eps) if np.dtype(dtype).kind in "fc" else 0.0
    precision = min(53.0, 1.0 - math.log2(eps)) if eps else 53.0
    return precision * math.log10(2.0)
