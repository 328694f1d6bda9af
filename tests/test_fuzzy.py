"""Laws of the mode: when it rounds, what it leaves alone, and what it says."""

from __future__ import annotations

import copy
import gc
import pickle
import warnings
from contextlib import suppress

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import fuzzytorch as ft
from fuzzytorch.active import stock, thread
from fuzzytorch.backends import BACKENDS, backend_named
from fuzzytorch.rounding import MODES
from fuzzytorch.table import Verdict


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


X = randn(200)


def work():
    """Two hundred sums, nearly all of them inexact."""
    return X + 0.1


def under(mode="sr", seed=0, **options):
    with ft.fuzzy(mode, seed=seed, **options):
        return work()


def is_stock():
    return torch._C._len_torch_dispatch_stack() == 0 and torch.equal(work(), work())


def verdicts(mode, name):
    return {r.verdict: r.calls for r in mode.coverage.records if r.name == name}


@pytest.fixture(autouse=True)
def _nothing_stays_on():
    yield
    assert torch._C._len_torch_dispatch_stack() == 0
    assert not thread.active
    assert not thread.handling
    assert not thread.lowering


class TestNames:
    def test_the_same_seed_gives_the_same_bits(self):
        assert torch.equal(under(seed=3), under(seed=3))

    @pytest.mark.parametrize("options", [{"seed": 4}, {"replica": 1}])
    def test_another_seed_or_replica_gives_other_bits(self, options):
        assert not torch.equal(under(**{"seed": 3, **options}), under(seed=3))

    def test_two_runs_without_a_seed_differ_and_say_which_seed_repeats_them(self):
        first, second = ft.fuzzy("sr"), ft.fuzzy("sr")
        with first:
            a = work()
        with second:
            b = work()
        assert not torch.equal(a, b)
        assert torch.equal(under(seed=first.seed), a)

    def test_entering_again_continues_the_numbering(self):
        mode = ft.fuzzy("sr", seed=0)
        with mode:
            a = work()
        with mode:
            b = work()
        with ft.fuzzy("sr", seed=0):
            assert torch.equal(work(), a)
            assert torch.equal(work(), b)
        assert not torch.equal(a, b)

    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            ({"seed": -1}, "seed=-1 is not a stream name"),
            ({"seed": 2**64}, "is not a stream name"),
            ({"seed": 1.5}, "is not a stream name"),
            ({"replica": -1}, "replica=-1 is not a stream name"),
            ({"mode": "stochastic"}, "unknown rounding mode 'stochastic': choose one of rn, sr"),
            ({"format": "bf16"}, "unknown format 'bf16': choose one of binary32"),
            ({"precision": 30}, "precision 30 is impossible"),
            ({"emin": 5, "emax": 4}, "the exponent range 5..4 is impossible"),
            ({"backend": "gpu"}, "unknown backend 'gpu': choose one of cpu, reference"),
        ],
    )
    def test_what_is_impossible_is_refused_in_a_sentence(self, options, sentence):
        with pytest.raises(ValueError, match=sentence):
            ft.fuzzy(**options)

    def test_missing_native_kernels_are_named(self, monkeypatch):
        monkeypatch.setattr("fuzzytorch.backends.EXTENSION", "fuzzytorch._absent")
        with pytest.raises(RuntimeError, match=r"needs the native kernels.*backend='reference'"):
            backend_named.__wrapped__("cpu")

    def test_a_precision_replaces_that_of_the_format(self):
        y = under("rn", format="bfloat16", precision=4)
        assert torch.equal(y.frexp().mantissa * 16, (y.frexp().mantissa * 16).round())

    @pytest.mark.parametrize("mode", MODES)
    def test_every_backend_gives_the_same_bits(self, mode):
        results = [under(mode, backend=name) for name in BACKENDS]
        assert all(torch.equal(y, results[0]) for y in results)


class TestScope:
    @pytest.mark.parametrize("copier", [copy.copy, copy.deepcopy, pickle.dumps])
    def test_a_mode_refuses_to_be_copied_and_stays_usable(self, copier):
        mode = ft.fuzzy("sr", seed=1, replica=2)
        with pytest.raises(TypeError, match=r"replica=2\) cannot be copied or pickled.*new mode"):
            copier(mode)
        with mode:
            y = work()
        with ft.fuzzy("sr", seed=1, replica=2):
            assert torch.equal(work(), y)

    def test_of_nested_modes_the_innermost_alone_rounds(self):
        with ft.fuzzy("sr", seed=1) as outer:
            with ft.fuzzy("rn", seed=2) as inner:
                assert torch.equal(work(), work())
            assert not torch.equal(work(), work())
        assert verdicts(inner, "aten.add.Tensor") == {Verdict.ROUNDED: 2}
        assert verdicts(outer, "aten.add.Tensor") == {Verdict.ROUNDED: 2}

    def test_an_inner_mode_takes_no_numbers_from_the_outer(self):
        with ft.fuzzy("sr", seed=1):
            a = work()
            with ft.fuzzy("ud", seed=2):
                work()
            b = work()
        with ft.fuzzy("sr", seed=1):
            assert torch.equal(work(), a)
            assert torch.equal(work(), b)

    @pytest.mark.parametrize("outer", ["sr", "up"])
    def test_an_outer_mode_does_not_see_what_the_operations_of_an_inner_one_are_made_of(
        self, outer
    ):
        def layers():
            torch.manual_seed(0)
            layer = torch.nn.Linear(9, 4)
            y = layer(randn(3, 9)).exp().softmax(1)
            y.log().sum().backward()
            return layer.weight.grad

        with ft.fuzzy("sr", seed=2):
            expected = layers()
        with warnings.catch_warnings(), ft.fuzzy(outer, seed=1) as mode:
            warnings.simplefilter("error")
            with ft.fuzzy("sr", seed=2):
                assert torch.equal(layers(), expected)
        assert mode.coverage.records == ()

    def test_a_mode_inside_itself_rounds_once(self):
        mode = ft.fuzzy("sr", seed=1)
        with mode, ft.fuzzy("up", seed=2), mode:
            a = work()
        assert torch.equal(a, under("sr", seed=1))
        assert verdicts(mode, "aten.add.Tensor") == {Verdict.ROUNDED: 1}

    def test_modes_left_in_another_order_leave_each_other_alone(self):
        first, second = ft.fuzzy("sr", seed=1), ft.fuzzy("rn", seed=1)
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert torch.equal(work(), work())
        assert torch._C._get_dispatch_stack_at(0) is second
        second.__exit__(None, None, None)
        assert is_stock()

    def test_set_aside_modes_see_nothing_and_come_back_in_their_order(self):
        class Counting(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                seen.append(str(func))
                return func(*args, **(kwargs or {}))

        seen: list[str] = []
        with ft.fuzzy("up", seed=0) as outer, Counting(), ft.fuzzy("sr", seed=1):
            with suppress(KeyError), stock():
                a = work()
                counted = list(seen)
                with ft.fuzzy("sr", seed=3):
                    b = work()
                raise KeyError("on purpose")
            c = work()
        assert torch.equal(a, work())
        assert torch.equal(b, under(seed=3))
        assert torch.equal(c, under(seed=1))
        assert counted == ["aten.add.Tensor"]
        assert outer.coverage.records == ()

    def test_leaving_a_mode_that_is_not_on_this_thread_is_refused(self):
        with pytest.raises(RuntimeError, match="enter and leave it on one"):
            ft.fuzzy("sr", seed=1).__exit__(None, None, None)

    def test_a_mode_of_torch_outside_sees_stock_operations_inside_does_not_break(self):
        class Logging(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                seen.append(str(func))
                return func(*args, **(kwargs or {}))

        seen: list[str] = []
        with ft.fuzzy("sr", seed=0), Logging():
            y = work()
        assert "aten.add.Tensor" in seen
        assert torch.equal(y, under())

    def test_nothing_stays_on_after_an_exception_in_an_operation(self):
        with pytest.raises(RuntimeError), ft.fuzzy("sr", seed=0):
            randn(3) + randn(4)
        assert is_stock()

    def test_nothing_stays_on_after_an_exception_in_a_decomposition(self):
        x, weight = randn(1, 2, 5, 5), randn(3, 4, 3, 3)
        with pytest.raises(RuntimeError), torch.inference_mode(), ft.fuzzy("sr", seed=0):
            torch.nn.functional.conv2d(x, weight)
        assert is_stock()

    def test_nothing_stays_on_after_an_exception_in_a_backward_pass(self):
        class Failing(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2

            @staticmethod
            def backward(ctx, grad):
                raise KeyError("failing on purpose")

        x = randn(3).requires_grad_()
        with pytest.raises(KeyError), ft.fuzzy("sr", seed=0):
            Failing.apply(x).sum().backward()
        assert is_stock()

    def test_an_exception_caught_inside_leaves_the_mode_on(self):
        with ft.fuzzy("sr", seed=0) as mode:
            with pytest.raises(RuntimeError):
                randn(3) + randn(4)
            assert torch._C._get_dispatch_stack_at(0) is mode
            assert not torch.equal(work(), work())

    def test_a_decorated_function_runs_under_the_mode_at_every_call(self):
        mode = ft.fuzzy("sr", seed=0)
        decorated = mode(work)
        assert decorated.__name__ == "work"
        a, b = decorated(), decorated()
        assert is_stock()
        with ft.fuzzy("sr", seed=0):
            assert torch.equal(work(), a)
            assert torch.equal(work(), b)

    def test_a_decorated_generator_is_under_the_mode_between_its_yields_only(self):
        @ft.fuzzy("sr", seed=0)
        def generator():
            yield work()
            yield work()

        values = []
        for value in generator():
            assert is_stock()
            values.append(value)
        with ft.fuzzy("sr", seed=0):
            assert all(torch.equal(work(), value) for value in values)

    def test_an_abandoned_generator_that_holds_a_mode_open_closes_it_alone(self):
        def generator():
            with ft.fuzzy("up", seed=0):
                yield work()
                yield work()

        held = generator()
        next(held)
        with ft.fuzzy("sr", seed=1) as mode:
            del held
            gc.collect()
            assert torch._C._get_dispatch_stack_at(0) is mode
            assert torch._C._len_torch_dispatch_stack() == 1
        assert is_stock()

    def test_a_mode_that_was_dropped_is_freed(self):
        import weakref

        mode = ft.fuzzy("sr", seed=0)
        with mode:
            work()
        with ft.fuzzy("sr", seed=0):
            work()
        reference = weakref.ref(mode)
        del mode
        gc.collect()
        assert reference() is None
