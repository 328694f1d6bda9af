"""Laws of scripted models with trained weights: all is rounded, answers stay what they were."""

from __future__ import annotations

import functools
import importlib.util
import math
from collections import Counter

import pytest
import torch
from test_real_models import UNIT, weakly_covered
from zoo import TRAINED, Model
from zoo.trained import FRAME, RATE, detector, head, probabilities, speech

import fuzzytorch as ft
from fuzzytorch.table import dispatched

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.load` is deprecated")
"""The packages store TorchScript."""

MODES = ("sr", "ud")
CALLS = 3
"""TorchScript profiles the first calls of a module and runs others optimized."""


def needs(package):
    """Skips a test without the package, which is not imported: one sets torch to one thread."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"the weights of the model come in the package {package}")


@pytest.fixture(params=TRAINED, ids=lambda model: model.name)
def model(request) -> Model:
    needs(request.param.needs)
    return request.param


def under(function, mode, seed=0):
    """What a function returns under a mode without a warning, and the coverage."""
    with ft.fuzzy(mode, seed=seed, strict=True) as run:
        found = function()
    return found, run.coverage


def composite(name):
    """Whether torch composes an operation of others, so that without one it does nothing."""
    packet = getattr(torch.ops.aten, name.removeprefix("aten::"))
    overloads = (getattr(packet, overload) for overload in dispatched(packet))
    return any(overload._can_decompose() for overload in overloads)


def executed(function, met):
    """Calls of the outermost operations that ``met`` names or that are made of nothing else."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profile:
        function()
    calls = Counter()

    def visit(event):
        if event.name in met:
            calls[event.name] += 1
        elif event.cpu_children:
            for child in event.cpu_children:
                visit(child)
        elif not (event.name.startswith("aten::") and composite(event.name)):
            calls[event.name] += 1

    for event in profile.events():
        if event.cpu_parent is None:
            visit(event)
    return calls


@pytest.mark.parametrize("mode", MODES)
def test_inference_is_rounded_throughout_and_repeats_under_a_seed(model, mode):
    inference = model.at("small")
    expected = inference.step()
    for _ in range(CALLS):
        found, coverage = under(inference.step, mode)
        assert not weakly_covered(coverage)
        other, _ = under(inference.step, mode, seed=1)
        assert not torch.equal(found, expected)
        assert not torch.equal(found, other)
        assert torch.equal(found, under(inference.step, mode)[0])


def noise(samples):
    return 0.05 * torch.randn(samples, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("mode", MODES)
def test_vowels_are_heard_as_speech_and_silence_and_noise_are_not(mode):
    needs("silero_vad")
    net = detector()
    with torch.no_grad():
        heard, coverage = under(lambda: probabilities(net, speech(2.0)), mode)
        silence, _ = under(lambda: probabilities(net, torch.zeros(2 * RATE)), mode)
        hiss, _ = under(lambda: probabilities(net, noise(2 * RATE)), mode)
        expected = probabilities(net, speech(2.0))
    assert expected.max() > 0.9
    assert torch.equal(heard > 0.5, expected > 0.5)
    # Roundings are a random walk, and the scale of a probability is 1.
    assert (heard - expected).abs().max() <= UNIT * math.sqrt(coverage.operations)
    assert silence.max() < 0.1
    assert hiss.max() < 0.1


def dice(a, b):
    """The overlap of what two volumes of probabilities call brain, from 0 to 1."""
    a, b = a > 0.5, b > 0.5
    return float(2 * (a & b).sum() / (a.sum() + b.sum()))


@functools.cache
def extraction():
    """The extraction of a brain at its own size, and what stock torch finds."""
    (model,) = (m for m in TRAINED if m.needs == "deepbet")
    inference = model.at("real")
    return inference, inference.step()


@pytest.mark.parametrize("mode", MODES)
def test_a_brain_keeps_its_outline(mode):
    needs("deepbet")
    inference, expected = extraction()
    assert dice(expected, head(256)[1]) > 0.85
    found, coverage = under(inference.step, mode)
    assert not weakly_covered(coverage)
    assert dice(found, expected) > 0.99
    assert not torch.equal(found, expected)


@pytest.fixture(params=["silero_vad", "deepbet"])
def scripted(request):
    """A scripted module, the call of it, and the loss that fine-tuning would take from it."""
    needs(request.param)
    if request.param == "silero_vad":
        net, frame = detector(), speech(0.25)[None, -FRAME:]
        return net, lambda: net(frame, RATE), lambda y: y.log().mean().neg()
    from deepbet import BrainExtraction

    net = BrainExtraction(no_gpu=True).bbox_model
    scan, brain = head(32)
    x = (0.226 * (scan - scan.mean()) / scan.std() + 0.449)[None, None]
    return net, lambda: net(x), lambda y: torch.nn.functional.nll_loss(y.log(), brain.long()[None])


def test_the_mode_meets_every_operation_that_a_scripted_module_executes(scripted):
    _, call, _ = scripted
    with torch.no_grad():
        for _ in range(CALLS):
            call()
        _, coverage = under(call, "rn")
        met = Counter()
        for record in coverage.records:
            met["aten::" + record.name.split(".")[1]] += record.calls
        assert met == executed(call, met)


@pytest.mark.parametrize("mode", MODES)
def test_gradients_of_a_scripted_module_are_rounded_throughout(scripted, mode):
    net, call, loss = scripted

    def gradient():
        net.zero_grad()
        if hasattr(net, "reset_states"):
            net.reset_states()
        loss(call()).backward()
        return torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])

    expected = gradient()
    for _ in range(CALLS):
        found, coverage = under(gradient, mode)
        assert not weakly_covered(coverage)
        bound = UNIT * math.sqrt(coverage.operations)
        assert 0 < (found - expected).norm() <= bound * expected.norm()
