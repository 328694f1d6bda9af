"""Whether there is Inf or NaN among many numbers."""

from __future__ import annotations

import cmath

import torch


def all_finite(x: torch.Tensor) -> bool:
    """Whether a dense tensor of floating-point numbers holds neither Inf nor NaN.

    The sum is finite only if all terms are, and takes a tenth of the time of a look at each; it
    may overflow, though.
    """
    return cmath.isfinite(x.sum().item()) or bool(torch.isfinite(x).all())
