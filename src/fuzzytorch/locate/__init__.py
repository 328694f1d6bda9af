"""Where in a program digits are lost, and where Inf or NaN first appears."""

from __future__ import annotations

from fuzzytorch.locate.calls import Flow, ModuleCall, Profile
from fuzzytorch.locate.origins import NonFinite, Origin
from fuzzytorch.locate.places import Place
from fuzzytorch.locate.profiling import profile
from fuzzytorch.locate.watching import first_nonfinite

__all__ = [
    "Flow",
    "ModuleCall",
    "NonFinite",
    "Origin",
    "Place",
    "Profile",
    "first_nonfinite",
    "profile",
]
