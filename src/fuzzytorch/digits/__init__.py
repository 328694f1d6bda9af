"""How many digits of a repeated result can be trusted."""

from __future__ import annotations

from fuzzytorch.digits.normal import Digits, cap, distance, significant
from fuzzytorch.digits.streaming import Running
from fuzzytorch.digits.vectors import degenerate, up_to_sign

__all__ = ["Digits", "Running", "cap", "degenerate", "distance", "significant", "up_to_sign"]
