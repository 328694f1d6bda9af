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
    "sinc": "pi in the gradient",
    "var": "2 / (n - correction) in the gradient",
    "std": "1 / (n - correction) in the gradient",
    "var_mean": "2 / (n - correction) in the gradient",
    "std_mean": "1 / (n - correction) in the gradient",
    "fft.": "the sines and cosines of a transform",
    "stft": "the sines and cosines of a transform",
    "istft": "the sines and cosines of a transform",
}
"""Entries and their variants, or where a name ends in a dot families, that compute with numbers
which their dtype rounds and binary64 does not: a rounding that is the same in every realisation."""

NORMWISE: Final = ("fft", "stft", "istft")
"""Families whose constants enter every result with the largest operands."""

INCOMPARABLE: Final[Mapping[str, str]] = {
    "nextafter": "the neighbour of a number depends on the dtype",
    "signal.windows.bartlett": "the grid is rounded to the dtype, and differences of it cancel",
    "signal.windows.blackman": "coefficients are rounded to the dtype, and their sum cancels",
    "signal.windows.nuttall": "coefficients are rounded to the dtype, and their sum cancels",
}
"""Entries whose exact results in binary64 are not those of the same computation."""


def constants(name: str) -> bool:
    """Whether an entry computes with rounded constants."""
    family = name.partition(".")[0]
    return name in CONSTANTS or family in CONSTANTS or f"{family}." in CONSTANTS


def normwise(name: str) -> bool:
    """Whether those constants move every element as much as the largest one."""
    return name.partition(".")[0] in NORMWISE
