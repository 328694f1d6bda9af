"""How many digits of a repeated result can be trusted."""

from __future__ import annotations

from fuzzytorch.digits.normal import Digits, cap, distance, significant

__all__ = ["Digits", "cap", "distance", "significant"]
