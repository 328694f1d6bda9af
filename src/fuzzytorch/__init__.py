"""Run unmodified PyTorch programs under stochastic arithmetic."""

from __future__ import annotations

from fuzzytorch.fuzzy import fuzzy
from fuzzytorch.rounding import Rounding
from fuzzytorch.stream import Stream

__version__ = "0.1.0"

__all__ = ["Rounding", "Stream", "__version__", "fuzzy"]
