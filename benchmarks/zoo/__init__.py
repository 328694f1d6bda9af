"""Whole models by theme: written here, of the package transformers, with trained weights."""

from __future__ import annotations

from zoo import architectures, trained, written
from zoo.model import Inference, Model, Training

__all__ = ["MODELS", "TRAINED", "Inference", "Model", "Training"]

MODELS = (*written.MODELS, *architectures.MODELS)
"""Models with random weights; one step is a forward and a backward pass."""

TRAINED = trained.MODELS
"""Models with trained weights; one step is a forward pass."""
