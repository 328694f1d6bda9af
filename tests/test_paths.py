"""Laws of the ways into a mode: gradient modes, scripts, subclasses, and what no row computes."""

from __future__ import annotations

import inspect
import warnings

import pytest
import torch

import fuzzytorch as ft
from fuzzytorch.table import Verdict


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


X = randn(200)


def verdicts(mode, name):
    return {r.verdict: r.calls for r in mode.coverage.records if r.name == name}


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

    def test_scripted_traced_and_frozen_modules_are_perturbed_in_both_directions(self):
        torch.manual_seed(0)
        module = torch.nn.Sequential(
            torch.nn.Conv2d(2, 3, 3), torch.nn.Flatten(), Rescaled()
        ).eval()
        x = randn(4, 2, 6, 6)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            scripted, traced = torch.jit.script(module), torch.jit.trace(module, x)
            frozen = torch.jit.freeze(torch.jit.script(module))

        def run(seed, called):
            with ft.fuzzy("sr", seed=seed) as mode:
                y = called(x)
            return y.detach(), mode

        def gradient(seed, called):
            module.zero_grad()
            with ft.fuzzy("sr", seed=seed):
                called(x).square().sum().backward()
            return module[0].weight.grad.clone()

        for called in (scripted, traced, frozen):
            # The second run is optimised, with what the first one met.
            for _ in range(3):
                (a, mode), (b, _) = run(0, called), run(1, called)
                assert (a != b).float().mean() > 0.5
                assert mode.coverage.share(Verdict.ROUNDED) == 1
                assert torch.equal(a, run(0, called)[0])
        assert torch.equal(run(0, scripted)[0], run(0, module)[0])
        assert torch.equal(run(0, traced)[0], run(0, module)[0])
        for called in (scripted, traced):
            assert (gradient(0, called) != gradient(1, called)).float().mean() > 0.5

    def test_a_layout_that_hides_operations_is_warned_about(self):
        with ft.fuzzy("sr", seed=0) as mode, pytest.warns(UserWarning, match="to_mkldnn"):
            X.to_mkldnn()
        assert mode.coverage.share(Verdict.UNCOVERED) == 1
        with ft.fuzzy("sr", seed=0, strict=True), pytest.raises(RuntimeError, match="to_mkldnn"):
            X.to_mkldnn()

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

    def test_the_warning_points_at_the_line_of_the_program(self, cube):
        x = X.to(torch.complex32).requires_grad_()
        with ft.fuzzy("sr", seed=0), pytest.warns(UserWarning, match="runs without") as caught:
            here = inspect.currentframe().f_lineno
            cube(X)
            loss = torch.view_as_real(x * x).sum()
            loss.backward()
        lines = {str(w.message).split()[0]: (w.filename, w.lineno - here) for w in caught}
        assert lines["fuzzytorch_test.cube.default"] == (__file__, 1)
        assert lines["aten.mul.Tensor"] == (__file__, 2)
        # Both factors have a gradient, which autograd adds.
        assert lines["aten.add.Tensor"] == (__file__, 3)

    def test_a_filter_for_the_module_of_the_program_silences_the_warning(self, cube):
        with ft.fuzzy("sr", seed=0), warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", module=__name__)
            cube(X)

    def test_a_strict_mode_refuses_what_it_cannot_perturb(self, cube):
        with ft.fuzzy("sr", seed=0, strict=True):
            X + 0.1
            with pytest.raises(RuntimeError, match=r"fuzzytorch_test\.cube\.default"):
                cube(X)
            with pytest.raises(RuntimeError, match=r"aten\.mul\.Tensor.*complex32"):
                X.to(torch.complex32) * X.to(torch.complex32)

    def test_a_dtype_that_no_row_computes_runs_unperturbed_and_is_named(self):
        x = X.to(torch.complex32)
        with ft.fuzzy("sr", seed=0) as mode, pytest.warns(UserWarning, match="dtype complex32"):
            y = x * x
        assert torch.equal(y.to(torch.complex64), (x * x).to(torch.complex64))
        assert verdicts(mode, "aten.mul.Tensor") == {Verdict.UNCOVERED: 1}

    def test_a_complex_number_makes_an_operation_complex(self):
        with ft.fuzzy("sr", seed=0) as mode:
            y = X * 0.1j
        assert y.dtype == torch.complex64
        assert verdicts(mode, "aten.mul.Tensor") == {Verdict.ROUNDED: 1}

    def test_sparse_tensors_that_no_row_computes_run_unperturbed_and_are_named(self):
        x = torch.eye(3).to_sparse()
        with ft.fuzzy("sr", seed=0), pytest.warns(UserWarning, match="layout sparse_coo"):
            assert torch.equal(x.sin().to_dense(), torch.eye(3).sin())

    def test_without_a_row_or_decomposition_the_result_of_binary64_is_rounded(self):
        a = randn(3, 4, 4)
        with ft.fuzzy("sr", seed=0) as mode:
            samples = torch.stack([torch.linalg.matrix_exp(a) for _ in range(9)])
        exact = torch.linalg.matrix_exp(a.double())
        assert samples.dtype == torch.float32
        assert ((samples - exact).abs() <= exact.abs() * 2.0**-23).all()
        assert samples.double().std(0).mean() > 0
        assert mode.coverage.share(Verdict.COARSE) == 1


class Rescaled(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x * 0.1) + x


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
