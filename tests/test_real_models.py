"""Laws of whole models: all that they compute is rounded, and the results stay what they were."""

from __future__ import annotations

import math

import pytest
import torch
from zoo import MODELS, Model

import fuzzytorch as ft
from fuzzytorch.table import Verdict

UNIT = 2.0**-23
"""The largest relative error of one rounding in ``sr`` and ``ud``."""


@pytest.fixture(params=MODELS, ids=lambda model: model.name)
def model(request) -> Model:
    if request.param.needs is not None:
        pytest.importorskip(request.param.needs)
    return request.param


def weakly_covered(coverage):
    """Names of the operations that are neither rounded nor made of such that are."""
    claims = (Verdict.EXACT, Verdict.ROUNDED, Verdict.LOWERED)
    return {r.name for r in coverage.records if r.verdict not in claims}


def gradient(step):
    parts = [p.grad.flatten() for p in step.module.parameters() if p.grad is not None]
    return torch.cat(parts)


def under(step, mode, seed):
    """Loss, gradient and coverage of one step."""
    with ft.fuzzy(mode, seed=seed, strict=True) as run:
        loss = step.step()
    return loss, gradient(step), run.coverage


@pytest.mark.parametrize("mode", ["sr", "ud"])
def test_a_training_step_is_rounded_throughout_and_stays_what_it_was(model, mode):
    step = model.at("small")
    loss, expected = step.step(), gradient(step)
    found, perturbed, coverage = under(step, mode, seed=0)
    assert not weakly_covered(coverage)
    # Roundings are a random walk; the gradient at a minimum has no leading digits to keep.
    bound = UNIT * math.sqrt(coverage.operations)
    assert abs(found - loss) <= bound * abs(loss)
    if step.fit is None:
        assert (perturbed - expected).norm() <= bound * expected.norm()
    _, other, _ = under(step, mode, seed=1)
    assert not torch.equal(perturbed, other)
    _, repeated, _ = under(step, mode, seed=0)
    assert torch.equal(perturbed, repeated)


@pytest.mark.parametrize("grad", [torch.no_grad, torch.inference_mode])
def test_inference_is_rounded_throughout(model, grad):
    step = model.at("small")
    step.module.eval()
    with grad():
        expected = step.loss()
        with ft.fuzzy("sr", seed=0, strict=True) as run:
            found = step.loss()
    assert not weakly_covered(run.coverage)
    assert abs(found - expected) <= UNIT * math.sqrt(run.coverage.operations) * abs(expected)
