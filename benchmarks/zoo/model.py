"""What the zoo keeps of a model: how to build it at two sizes, and what one step of it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Tensor = torch.Tensor


@dataclasses.dataclass(frozen=True)
class Training:
    """One training step: ``loss()`` is a forward pass, ``step()`` also a backward pass.

    Both draw the same random numbers of torch at every call.

    Attributes:
        module: holds the parameters, whose gradients ``step`` leaves in place.
        loss: a forward pass; returns a scalar.
        fit: a whole optimization instead of a single backward pass, for models that are fit.
    """

    module: nn.Module
    loss: Callable[[], Tensor]
    fit: Callable[[], Tensor] | None = None

    def step(self) -> Tensor:
        """A forward and a backward pass, or the fit; the last loss, detached."""
        if self.fit is not None:
            return self.fit().detach()
        self.module.zero_grad()
        loss = self.loss()
        loss.backward()
        return loss.detach()


@dataclasses.dataclass(frozen=True)
class Inference:
    """One forward pass of a model with trained weights, without gradients.

    Attributes:
        module: the network, or that of the last stage where there are several.
        output: what a user of the model calls, from its input to its probabilities.
    """

    module: nn.Module
    output: Callable[[], Tensor]

    def step(self) -> Tensor:
        """The output."""
        with torch.no_grad():
            return self.output()


@dataclasses.dataclass(frozen=True)
class Model:
    """A model at two sizes.

    Attributes:
        name: as in the table of the documentation.
        size: the real size, in words.
        build: makes the step from the keywords of a size.
        small, real: these keywords.
        needs: a package beside torch.
    """

    name: str
    size: str
    build: Callable[..., Training | Inference]
    small: dict[str, Any]
    real: dict[str, Any]
    needs: str | None = None

    def at(self, size: str) -> Training | Inference:
        """The step at ``"small"`` or ``"real"`` size, the same at every call."""
        torch.manual_seed(0)
        return self.build(**(self.small if size == "small" else self.real))
