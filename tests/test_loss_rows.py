"""Losses refuse what stock torch refuses."""

from __future__ import annotations

import math

import pytest
import torch
from accumulation_laws import BACKEND

from fuzzytorch.fuzzy import fuzzy


@pytest.mark.parametrize("argument", ["input", "target"])
@pytest.mark.parametrize("wrong", [1.5, -0.25, math.nan])
def test_cross_entropy_of_what_is_no_probability_is_refused_as_by_stock_torch(
    argument: str, wrong: float
) -> None:
    right, broken = torch.tensor([0.25, 1.0]), torch.tensor([0.25, wrong])
    operands = (broken, right) if argument == "input" else (right, broken)
    sentence = f"all elements of {argument} should be between 0 and 1"
    with pytest.raises(RuntimeError, match=sentence):
        torch.nn.functional.binary_cross_entropy(*operands)
    with fuzzy("sr", seed=0, backend=BACKEND):
        torch.nn.functional.binary_cross_entropy(right, right)
        with pytest.raises(RuntimeError, match=sentence):
            torch.nn.functional.binary_cross_entropy(*operands)
