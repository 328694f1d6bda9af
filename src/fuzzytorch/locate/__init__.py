"""Where in a program digits are lost, and where Inf or NaN first appears."""

from __future__ import annotations

from fuzzytorch.locate.calls import Flow, ModuleCall, Profile
from fuzzytorch.locate.places import Place
from fuzzytorch.locate.profiling import profile

__all__ = ["Flow", "ModuleCall", "Place", "Profile", "profile"]
