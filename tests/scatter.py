"""Which elements of a result must differ between realisations."""

from __future__ import annotations

import torch


def ulp(truth: torch.Tensor) -> torch.Tensor:
    """The distance of float32 numbers around float64 ones."""
    exponent = torch.frexp(truth).exponent.clamp(min=-125)
    return torch.ldexp(torch.ones_like(truth), exponent - 24)


def between(truth: torch.Tensor) -> torch.Tensor:
    """Whether a float64 result lies well between two float32 numbers.

    Stochastic rounding takes each of them with a probability of at least a quarter, so that
    64 realisations agree with a probability of 1e-8.
    """
    fraction = (truth / ulp(truth)).abs().frac()
    return (fraction > 0.25) & (fraction < 0.75)
