"""Laws of the mode: when it rounds, what it leaves alone, and what it says."""

from __future__ import annotations

import gc
import warnings

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import fuzzytorch as ft
from fuzzytorch.backends import BACKENDS, backend_named
from fuzzytorch.fuzzy import _thread
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
    assert not _thread.active
    assert not _thread.handling
    assert not _thread.lowering


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


class TestControl:
    """In ``rn`` and without a mode: everything but the values is what stock torch gives."""

    def test_random_streams_are_those_of_stock_torch(self):
        def draws():
            torch.manual_seed(7)
            dropout = torch.nn.functional.dropout(torch.ones(50), 0.3)
            layer = torch.nn.Linear(4, 4)
            return [
                torch.rand(5),
                torch.randn(5),
                torch.randperm(9),
                torch.bernoulli(torch.full((9,), 0.5)),
                torch.empty(5).normal_(),
                torch.empty(5).exponential_(),
                torch.multinomial(torch.ones(9), 4),
                dropout != 0,
                layer.weight.detach() != 0,
                torch.nn.functional.rrelu(-torch.ones(9), training=True) != 0,
                torch.rand(3),
            ]

        stock = draws()
        for mode in ("rn", "sr", "ud"):
            with ft.fuzzy(mode, seed=0):
                assert all(torch.equal(a, b) for a, b in zip(draws(), stock, strict=True))

    def test_grids_are_those_of_stock_torch(self):
        def grids():
            return [
                torch.arange(-5, 5, 1.4, dtype=torch.float64).floor(),
                torch.arange(0, 3, 0.1),
                torch.linspace(0, 1, 37),
                torch.logspace(0, 2, 11),
                torch.eye(4),
                torch.hann_window(16),
            ]

        stock = grids()
        with ft.fuzzy("ud", seed=0):
            assert all(torch.equal(a, b) for a, b in zip(grids(), stock, strict=True))

    def test_exact_results_stay_exact_in_sr(self):
        with ft.fuzzy("sr", seed=0):
            n = torch.arange(1.0, 101.0)
            assert n.sum() == 5050
            assert torch.dot(n, torch.ones(100)) == 5050
            assert ((torch.tensor(0.7) + 0.25) - 0.25 == torch.tensor(0.7)).all()

    def test_a_training_step_keeps_dtypes_strides_aliasing_and_state(self):
        def step():
            torch.manual_seed(0)
            # No bias: its gradient vanishes before a normalization, and Adam divides by it.
            net = torch.nn.Sequential(
                torch.nn.Conv2d(1, 3, 3, bias=False), torch.nn.BatchNorm2d(3), torch.nn.ReLU()
            ).to(memory_format=torch.channels_last)
            optimizer = torch.optim.Adam(net.parameters())
            x = randn(2, 1, 8, 8).to(memory_format=torch.channels_last)
            y = net(x)
            y.square().mean().backward()
            optimizer.step()
            tensors = [y, y.mT, *net.state_dict().values(), *(p.grad for p in net.parameters())]
            state = optimizer.state_dict()["state"]
            return tensors + [v for entry in state.values() for v in entry.values()]

        stock = step()
        with ft.fuzzy("rn", seed=0):
            ours = step()
        for a, b in zip(ours, stock, strict=True):
            assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
            assert a.is_leaf == b.is_leaf
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)

    def test_views_share_memory_as_in_stock_torch(self):
        with ft.fuzzy("sr", seed=0):
            x = randn(4, 6)
            for view in (x.t(), x[1], x.view(24), x.reshape(6, 4), x.detach(), x.expand(2, 4, 6)):
                assert view.data_ptr() - x.data_ptr() in range(4 * 24)

    @pytest.mark.parametrize("mode", MODES)
    def test_integers_are_left_alone(self, mode):
        n = torch.arange(10)
        with ft.fuzzy(mode, seed=0) as fuzzy:
            assert torch.equal(n * 3 + 1, torch.arange(1, 31, 3))
            assert (n // 4).dtype == torch.long
            assert n.sum() == 45
            assert n.add_(1).tolist() == list(range(1, 11))
        assert fuzzy.coverage.operations == 0
        assert {r.verdict for r in fuzzy.coverage.records} == {Verdict.EXACT}

    def test_integers_that_become_floats_are_rounded(self):
        n = torch.arange(1, 200)
        with ft.fuzzy("sr", seed=0) as mode:
            quotients = [n / 3, n / 3]
            assert (n * 0.5).dtype == torch.float32
        assert not torch.equal(*quotients)
        assert verdicts(mode, "aten.div.Tensor") == {Verdict.ROUNDED: 2}

    @pytest.mark.parametrize("mode", MODES)
    def test_empty_tensors_pass(self, mode):
        with ft.fuzzy(mode, seed=0):
            x = torch.empty(0, 3)
            assert (x + 1).shape == (0, 3)
            assert x.sum() == 0
            assert torch.mm(x.t(), x).eq(0).all()
            assert torch.nn.Linear(3, 2)(x).shape == (0, 2)
            assert x.mean(0).isnan().all()
            x.add_(1)

    def test_tensors_without_numbers_pass(self):
        with ft.fuzzy("sr", seed=0) as mode:
            y = torch.empty(3, 4, device="meta") @ torch.empty(4, 5, device="meta")
        assert y.shape == (3, 5)
        assert mode.coverage.operations == 0


class TestPaths:
    @pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, torch.enable_grad])
    def test_layers_scatter_whatever_the_gradient_mode(self, context):
        layers = {
            torch.nn.Conv2d(2, 3, 3): (2, 2, 6, 6),
            torch.nn.Linear(20, 7): (3, 20),
            torch.nn.LayerNorm(30): (4, 30),
        }
        for layer, shape in layers.items():
            x = randn(*shape)
            with context(), ft.fuzzy("sr", seed=0) as mode:
                samples = torch.stack([layer(x).clone() for _ in range(12)])
                product = torch.matmul(randn(2, 3, 4), randn(4, 5))
            assert (samples.double().std(0) > 0).float().mean() > 0.9
            assert product.shape == (2, 3, 5)
            assert mode.coverage.share(Verdict.ROUNDED) == 1

    def test_scripted_functions_are_perturbed(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            scripted = torch.jit.script(_composite)
        for _ in range(3):
            scripted(X)
        with ft.fuzzy("sr", seed=0):
            a = scripted(X)
        with ft.fuzzy("sr", seed=0):
            assert torch.equal(a, _composite(X))

    def test_a_tensor_subclass_answers_for_itself_and_its_parts_are_perturbed(self):
        with ft.fuzzy("sr", seed=0) as mode:
            y = Wrapped(X) + Wrapped(X)
            assert isinstance(y, Wrapped)
            z = Wrapped(X) * 0.1
        assert not torch.equal(z.inner, X * 0.1)
        assert verdicts(mode, "aten.mul.Tensor") == {Verdict.ROUNDED: 1}

    def test_a_custom_operation_runs_is_counted_and_warned_about_once(self, cube):
        with ft.fuzzy("sr", seed=0) as mode, pytest.warns(UserWarning, match="cube") as caught:
            for _ in range(3):
                y = cube(X)
        assert torch.equal(y, X**3)
        assert len(caught) == 1
        assert verdicts(mode, "fuzzytorch_test.cube.default") == {Verdict.UNCOVERED: 3}
        assert mode.coverage.share(Verdict.UNCOVERED) == 1

    def test_a_strict_mode_refuses_what_it_cannot_perturb(self, cube):
        with ft.fuzzy("sr", seed=0, strict=True):
            work()
            with pytest.raises(RuntimeError, match=r"fuzzytorch_test\.cube\.default"):
                cube(X)
            with pytest.raises(RuntimeError, match=r"aten\.add\.Tensor.*float64"):
                X.double() + 1

    @pytest.mark.parametrize("dtype", [torch.float64, torch.complex64])
    def test_a_dtype_that_no_row_computes_runs_unperturbed_and_is_named(self, dtype):
        x = X.to(dtype)
        name = str(dtype).removeprefix("torch.")
        with ft.fuzzy("sr", seed=0) as mode, pytest.warns(UserWarning, match=f"dtype {name}"):
            y = x * 0.1
        assert torch.equal(y, x * 0.1)
        assert verdicts(mode, "aten.mul.Tensor") == {Verdict.UNCOVERED: 1}

    def test_a_complex_number_makes_an_operation_complex(self):
        with ft.fuzzy("sr", seed=0), pytest.warns(UserWarning, match="a complex number"):
            assert torch.equal(X * 2j, X.to(torch.complex64) * 2j)

    def test_sparse_tensors_run_unperturbed_and_are_named(self):
        x = torch.eye(3).to_sparse()
        with ft.fuzzy("sr", seed=0), pytest.warns(UserWarning, match="layout sparse_coo"):
            assert torch.equal((x * 0.5).to_dense(), torch.eye(3) * 0.5)

    def test_without_a_row_or_decomposition_the_result_of_binary64_is_rounded(self):
        a = randn(3, 5, 4)
        with ft.fuzzy("sr", seed=0) as mode:
            samples = torch.stack([torch.linalg.householder_product(a, a[:, 0]) for _ in range(9)])
        exact = torch.linalg.householder_product(a.double(), a[:, 0].double())
        assert samples.dtype == torch.float32
        assert ((samples - exact).abs() <= exact.abs() * 2.0**-23).all()
        assert samples.double().std(0).mean() > 0
        assert mode.coverage.share(Verdict.COARSE) == 1


def _composite(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(x * 0.1) + x


class Wrapped(torch.Tensor):
    """A subclass that holds a tensor and wraps the result of every operation on it."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        inner = [a.inner if isinstance(a, Wrapped) else a for a in args]
        return cls(func(*inner, **(kwargs or {})))


@pytest.fixture(scope="module")
def cube():
    library = torch.library.Library("fuzzytorch_test", "DEF")
    library.define("cube(Tensor x) -> Tensor")
    library.impl("cube", lambda x: x**3, "CPU")
    yield torch.ops.fuzzytorch_test.cube
    library._destroy()
