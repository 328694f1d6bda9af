"""Entries whose stochastic means differ from the exact results for a reason, each with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

CONSTANTS: Final[Mapping[str, str]] = {
    "deg2rad": "pi / 180",
    "rad2deg": "180 / pi",
    "nn.functional.leaky_relu": "the default slope 0.01",
    "erf": "2 / sqrt(pi) in the gradient",
    "erfinv": "sqrt(pi) / 2 in the gradient",
    "signal.windows.bartlett": "the step of the grid",
    "signal.windows.blackman": "the coefficients of the cosines",
    "signal.windows.nuttall": "the coefficients of the cosines",
}
"""Entries that compute with a number which their dtype rounds and binary64 does not."""

JUMPS: Final[Mapping[str, str]] = {
    "nextafter": "the neighbour of a number depends on the dtype",
}
"""Entries whose results are not a continuous function of numbers alone."""
