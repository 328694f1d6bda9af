"""What mistakes are made of: tensors that are kept, to see whether an error changes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class Operands:
    """Makes the tensors of one mistake, and keeps them as ``made``."""

    def __init__(self) -> None:
        self.made: list[torch.Tensor] = []

    def _kept(self, x: torch.Tensor) -> torch.Tensor:
        self.made.append(x)
        return x

    def __call__(self, *shape: int) -> torch.Tensor:
        return self._kept(torch.randn(*shape, generator=torch.Generator().manual_seed(0)))

    def leaf(self, *shape: int) -> torch.Tensor:
        return self(*shape).requires_grad_()

    def index(self, *values: int) -> torch.Tensor:
        return self._kept(torch.tensor(values))

    def zeros(self, *shape: Any, **options: Any) -> torch.Tensor:
        return self._kept(torch.zeros(*shape, **options))

    def empty(self, *shape: Any, **options: Any) -> torch.Tensor:
        return self.zeros(*shape, **options)

    def ones(self, *shape: Any, **options: Any) -> torch.Tensor:
        return self._kept(torch.ones(*shape, **options))

    def full(self, *args: Any) -> torch.Tensor:
        return self._kept(torch.full(*args))


Mistake = Callable[[Operands], Any]
"""A call that stock torch refuses."""
