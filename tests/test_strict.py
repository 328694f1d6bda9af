"""Laws of strict modes: what ran unperturbed is listed, with the modules that called it."""

from __future__ import annotations

import copy
import pickle
import re

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import fuzzytorch as ft
from fuzzytorch.gaps import Gap

pytestmark = pytest.mark.filterwarnings("ignore:.*runs without perturbation.*:UserWarning")

LIBRARY = torch.library.Library("fuzzytorch_strict", "DEF")
LIBRARY.define("opaque(Tensor x) -> Tensor")
LIBRARY.impl("opaque", lambda x: x * 3, "CPU")
NAME = "fuzzytorch_strict.opaque.default"
STOCK_CALL = nn.Module.__call__


class Opaque(torch.autograd.Function):
    """An operation without a row, forward and backward."""

    @staticmethod
    def forward(ctx, x):
        return torch.ops.fuzzytorch_strict.opaque(x)

    @staticmethod
    def backward(ctx, gradient):
        return torch.ops.fuzzytorch_strict.opaque(gradient)


class Head(nn.Module):
    def forward(self, x):
        return Opaque.apply(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), Head())
        self.head = Head()

    def forward(self, x):
        return Opaque.apply(self.head(self.body(x)))


def x():
    return torch.rand(3, 4, generator=torch.Generator().manual_seed(0))


def places(error):
    return {gap.module: gap.calls for gap in error.value.gaps}


def nothing_is_on():
    return torch._C._len_torch_dispatch_stack() == 0 and nn.Module.__call__ is STOCK_CALL


def test_one_run_lists_everything_that_ran_unperturbed_with_its_modules():
    net = Net()
    mode = ft.fuzzy("sr", seed=0, strict=True)

    @mode
    def run():
        for _ in range(2):
            net(x())
        torch.ops.fuzzytorch_strict.opaque(x())
        x().to_mkldnn()

    with pytest.raises(ft.UncoveredError) as error:
        run()
    why = mode.gaps[0].why
    assert mode.gaps == (
        Gap(NAME, why, "body.1 (Head)", 2),
        Gap(NAME, why, "head (Head)", 2),
        Gap(NAME, why, "Net", 2),
        Gap(NAME, why, "", 1),
        Gap("aten.to_mkldnn.default", mode.gaps[4].why, "", 1),
    )
    assert error.value.gaps == mode.gaps
    text = str(error.value)
    assert text.startswith("2 operations ran without perturbation under fuzzy(mode='sr', seed=0")
    calls = "2 calls in body.1 (Head), 2 calls in head (Head), 2 calls in Net, 1 call outside"
    assert calls in text
    assert nothing_is_on()
    assert re.search(r"aten\.to_mkldnn\.default \(.*\): 1 call outside of modules\n", text)


def test_a_backward_pass_belongs_to_the_modules_of_its_forward_pass():
    net = Net()
    with pytest.raises(ft.UncoveredError) as error, ft.fuzzy("sr", seed=0, strict=True):
        net(x()).sum().backward()
    assert places(error) == {"body.1 (Head)": 2, "head (Head)": 2, "Net": 2}


def test_a_checkpointed_module_that_is_called_again_is_the_same_one():
    class Saving(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(Head(), nn.Linear(4, 4))

        def forward(self, x):
            return checkpoint(self.body, x, use_reentrant=False)

    with pytest.raises(ft.UncoveredError) as error, ft.fuzzy("sr", seed=0, strict=True):
        Saving()(x().requires_grad_()).sum().backward()
    assert places(error) == {"body.0 (Head)": 3}


def test_a_strict_mode_rounds_with_the_bits_of_any_other():
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    def gradient(**options):
        own = copy.deepcopy(net)
        with ft.fuzzy("sr", seed=3, **options) as mode:
            own(x()).sum().backward()
        return own[0].weight.grad, mode

    strict, mode = gradient(strict=True)
    assert torch.equal(strict, gradient()[0])
    assert mode.gaps == ()


def test_operations_run_on_and_are_warned_about_as_without_strict():
    results = []
    with (
        pytest.raises(ft.UncoveredError),
        pytest.warns(UserWarning, match="opaque.*runs without perturbation") as caught,
        ft.fuzzy("sr", seed=0, strict=True),
    ):
        results += [torch.ops.fuzzytorch_strict.opaque(x()) for _ in range(2)]
    assert [torch.equal(y, x() * 3) for y in results] == [True, True]
    assert len(caught) == 1


def test_another_exception_is_passed_on_and_leaves_nothing_switched_on():
    mode = ft.fuzzy("sr", seed=0, strict=True)

    @mode
    def run():
        Net()(x())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run()
    assert nothing_is_on()
    assert sum(gap.calls for gap in mode.gaps) == 3


def test_a_mode_inside_itself_raises_when_the_outer_one_is_left():
    mode = ft.fuzzy("sr", seed=0, strict=True)

    @mode
    def run():
        with mode:
            torch.ops.fuzzytorch_strict.opaque(x())
        torch.ops.fuzzytorch_strict.opaque(x())

    with pytest.raises(ft.UncoveredError) as error:
        run()
    assert places(error) == {"": 2}
    with mode:
        x() * 0.1
    assert mode.gaps == ()


def test_what_is_excluded_is_no_gap():
    with ft.fuzzy("sr", seed=0, strict=True, exclude=Net) as mode:
        Net()(x())
    assert mode.gaps == ()


def test_a_mode_that_is_not_strict_keeps_no_gaps_and_watches_nothing():
    with ft.fuzzy("sr", seed=0) as mode:
        assert nn.Module.__call__ is STOCK_CALL
        torch.ops.fuzzytorch_strict.opaque(x())
    assert mode.gaps == ()


def test_the_error_can_be_handed_to_another_process():
    with pytest.raises(ft.UncoveredError) as error, ft.fuzzy("sr", seed=0, strict=True):
        Net()(x())
    again = pickle.loads(pickle.dumps(error.value))
    assert (str(again), again.gaps) == (str(error.value), error.value.gaps)


def test_a_strict_ensemble_names_the_gaps_in_its_cause():
    with pytest.raises(RuntimeError) as error:
        ft.sample(lambda: Net()(x()), n=2, seed=0, strict=True)
    assert isinstance(error.value.__cause__, ft.UncoveredError)
