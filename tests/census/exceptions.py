"""Entries whose stochastic means differ from the exact results for a reason, each with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

CONSTANTS: Final[Mapping[str, str]] = {
    "deg2rad": "pi / 180",
    "rad2deg": "180 / pi",
    "nn.functional.leaky_relu": "the default slope 0.01",
    "nn.functional.selu": "the scale and alpha",
    "nn.functional.huber_loss": "1 / n in the gradient",
    "lerp": "1 - weight in the gradient",
    "signal.windows.cosine": "pi / n",
    "special.ndtr": "1 / sqrt(2 pi) in the gradient",
    "special.erfcx": "2 / sqrt(pi) in the gradient",
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
    "signal.windows.hamming": "coefficients are rounded to the dtype, and their sum cancels",
    "signal.windows.nuttall": "coefficients are rounded to the dtype, and their sum cancels",
    "histogram": "the edges of bins are numbers of the dtype, exact as those of linspace",
    "histogramdd": "the edges of bins are numbers of the dtype, exact as those of linspace",
}
"""Entries whose exact results in binary64 are not those of the same computation."""

INCOMPARABLE_IN_16_BITS: Final[Mapping[str, str]] = {
    "nn.functional.hinge_embedding_loss": "the margin is rounded to the dtype",
    "linalg.vector_norm": "powers in the gradient leave the range of float16",
    "logcumsumexp": "the gradient of stock torch is far from that of binary64 there",
}
"""Those whose exact results are not those of the same computation in float16 and bfloat16."""

INCOMPARABLE_IN_FLOAT64: Final[Mapping[str, str]] = {
    "grid_sampler_3d": "coordinates that are exact here by luck are rounded in stock torch's order",
}
"""Those of which stock torch's own result in float64 is too far from the exact one."""

WITHOUT_BINARY64: Final[Mapping[str, str]] = {
    "nn.functional.linear_cross_entropy.chunked": "the dtype of its totals excludes binary64",
}
"""Entries with samples of which no exact result is known: both are stored, a unit each."""

DIFFERENTIATED_OTHERWISE: Final[Mapping[str, str]] = {
    "masked.prod": "torch takes another formula, which is exact, under any dispatch mode",
}
"""Entries whose gradients need not be those without a mode where nothing rounds."""


def incomparable(name: str, dtype_name: str) -> bool:
    """Whether binary64 does not say what the results of an entry ought to be."""
    narrow = dtype_name in ("float16", "bfloat16")
    if dtype_name == "float64" and name in INCOMPARABLE_IN_FLOAT64:
        return True
    return name in INCOMPARABLE or (narrow and name in INCOMPARABLE_IN_16_BITS)


def constants(name: str) -> bool:
    """Whether an entry computes with rounded constants."""
    family = name.partition(".")[0]
    return name in CONSTANTS or family in CONSTANTS or f"{family}." in CONSTANTS


def normwise(name: str) -> bool:
    """Whether those constants move every element as much as the largest one."""
    return name.partition(".")[0] in NORMWISE
