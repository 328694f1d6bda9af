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
    "fft.": "the sines and cosines of a transform",
    "stft": "the sines and cosines of a transform",
    "istft": "the sines and cosines of a transform",
}
"""Entries, or where a name ends in a dot families of them, that compute with numbers which their
dtype rounds and binary64 does not: one more rounding, that is the same in every realisation."""

INCOMPARABLE: Final[Mapping[str, str]] = {
    "nextafter": "the neighbour of a number depends on the dtype",
    "signal.windows.bartlett": "the grid is rounded to the dtype, and differences of it cancel",
    "signal.windows.blackman": "coefficients are rounded to the dtype, and their sum cancels",
    "signal.windows.nuttall": "coefficients are rounded to the dtype, and their sum cancels",
}
"""Entries whose exact results in binary64 are not those of the same computation."""


def constants(name: str) -> bool:
    """Whether an entry computes with rounded constants."""
    return name in CONSTANTS or f"{name.partition('.')[0]}." in CONSTANTS
