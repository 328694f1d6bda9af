"""Repeated realisations of one computation."""

from __future__ import annotations

from fuzzytorch.ensemble.samples import Failure, Leaf, Samples
from fuzzytorch.ensemble.sampling import sample

__all__ = ["Failure", "Leaf", "Samples", "sample"]
