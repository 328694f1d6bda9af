"""The rows of the table, one file per family; each ends in a tuple ``ROWS``."""

from __future__ import annotations

from typing import Final

FAMILIES: Final = (
    "exact",
    "conversion",
    "random",
    "pointwise",
    "transcendental",
    "activation",
    "activation_backward",
    "indexing",
    "folding",
    "optimizer",
    "scaling",
    "complex",
    "fft",
    "linear_algebra",
    "factorization",
    "solve",
    "spectral",
    "sparse",
    "convolution",
    "reduction",
    "normalization",
    "batch_norm",
    "softmax",
    "pooling",
    "loss",
    "attention",
    "transformer",
    "recurrent",
    "embedding_bag",
    "interpolation",
    "grid_sampling",
    "multilinear",
    "coarse",
)
"""Modules of this package that hold rows; a name without its file is an error."""
