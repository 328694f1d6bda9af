"""Laws of scope by operation and by function of torch."""

from __future__ import annotations

import pytest
import torch
from scoped_modules import randn
from torch import nn

import fuzzytorch as ft
from fuzzytorch.table import Verdict

pytestmark = pytest.mark.usefixtures("silent_scope")


class TestOperations:
    @pytest.mark.parametrize(
        "selector",
        ["aten.exp", "aten.exp.default", "aten::exp", "aten.ex*", torch.ops.aten.exp],
        ids=str,
    )
    def test_an_excluded_operation_is_stock_and_so_is_its_derivative(self, selector):
        x = randn(100).requires_grad_()
        with ft.fuzzy("ud", seed=0, exclude=selector) as mode:
            y = x.exp()
            (g,) = torch.autograd.grad(y, x, torch.full_like(y, 0.1))
            assert torch.equal(torch.exp_(x.detach().clone()), y)
            assert not torch.equal(x * 0.1, x.detach() * 0.1)
        assert torch.equal(y, x.exp())
        assert torch.equal(g, y.detach() * 0.1)
        verdicts = {(r.name, r.verdict) for r in mode.coverage.records}
        assert ("aten.exp.default", Verdict.EXCLUDED) in verdicts
        assert ("aten.exp_.default", Verdict.EXCLUDED) in verdicts

    def test_an_operation_and_a_module_select_together(self):
        model = nn.Sequential(nn.Linear(7, 7), nn.Tanh(), nn.Linear(7, 7))
        x = randn(20, 7)
        with ft.fuzzy("ud", seed=0, include=["2", "aten.tanh"], exclude="aten.addmm"):
            hidden = model[0](x)
            y = model(x)
            z = model[1](x)
        assert torch.equal(hidden, model[0](x))
        # The product of the layer that is included is excluded: nothing but tanh is rounded.
        assert not torch.equal(y, model(x))
        assert not torch.equal(z, x.tanh())

    def test_the_parts_of_an_operation_that_is_lowered_belong_to_it(self):
        x, target = randn(6, 5), torch.arange(6) % 5
        loss = nn.functional.cosine_embedding_loss
        args = (x, x.flip(0), torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0, 1.0]))
        with torch.inference_mode():
            with ft.fuzzy("ud", seed=0, exclude="aten.cosine_embedding_loss"):
                a = loss(*args)
            with ft.fuzzy("ud", seed=0, include="aten.cosine_embedding_loss") as mode:
                loss(*args)
                torch.mm(x.T, x[:, target % 5])
            assert torch.equal(a, loss(*args))
        rounded = {r.name for r in mode.coverage.records if r.verdict is Verdict.ROUNDED}
        assert rounded
        assert not any(name.startswith("aten.mm") for name in rounded)

    @pytest.mark.parametrize("selector", [torch.mul, torch.Tensor.mul_, torch.Tensor.__rmul__])
    @pytest.mark.parametrize(
        "call",
        [
            lambda x: torch.mul(x, 0.1),
            lambda x: x.mul(0.1),
            lambda x: x * 0.1,
            lambda x: 0.1 * x,
            lambda x: x.clone().mul_(0.1),
            lambda x: torch.multiply(x, 0.1),
        ],
    )
    def test_a_function_is_its_method_its_operator_and_its_in_place_form(self, selector, call):
        x = randn(100).requires_grad_()
        with ft.fuzzy("ud", seed=0, exclude=selector):
            y = call(x)
            other = x.detach() + 0.1
            (g,) = torch.autograd.grad(y, x, torch.full_like(y, 0.3))
        assert torch.equal(y, call(x))
        assert torch.equal(g, torch.full_like(y, 0.3) * 0.1)
        assert not torch.equal(other, x.detach() + 0.1)

    def test_a_function_that_torch_composes_is_one_place(self):
        x = randn(9, 9).requires_grad_()
        with ft.fuzzy("ud", seed=0, exclude=nn.functional.cross_entropy):
            y = nn.functional.cross_entropy(x, torch.arange(9))
            y.backward()
        reference = x.detach().clone().requires_grad_()
        expected = nn.functional.cross_entropy(reference, torch.arange(9))
        expected.backward()
        assert torch.equal(y, expected)
        assert torch.equal(x.grad, reference.grad)

    def test_views_written_in_place_inside_a_function_or_module_go_with_it(self):
        class Writing(nn.Module):
            def forward(self, x):
                y = x.clone()
                y[1:].mul_(0.1)
                return y

        x = randn(50).requires_grad_()
        with ft.fuzzy("ud", seed=0, exclude=Writing):
            y = Writing()(x)
            (g,) = torch.autograd.grad(y, x, torch.full_like(y, 0.3))
        assert torch.equal(y, Writing()(x))
        assert torch.equal(g[1:], torch.full((49,), 0.3) * 0.1)

    def test_what_is_excluded_takes_no_random_numbers(self):
        x = randn(100)
        with ft.fuzzy("sr", seed=0):
            expected = x + 0.1
        with ft.fuzzy("sr", seed=0, exclude="aten.mul"):
            x * 0.1
            assert torch.equal(x + 0.1, expected)

    def test_an_excluded_operation_understands_the_views_that_it_makes(self):
        x = torch.complex(randn(4, 4), randn(4, 4, seed=1))
        expected = [torch.vdot(x[0], x[1]), torch.cov(x), torch.linalg.pinv(x)]
        with torch.inference_mode(), ft.fuzzy("ud", seed=0, include=[]):
            found = [torch.vdot(x[0], x[1]), torch.cov(x), torch.linalg.pinv(x)]
        assert all(map(torch.equal, found, expected))

    def test_exclusion_is_no_gap_in_strict_mode(self):
        library = torch.library.Library("fuzzytorch_scope", "DEF")
        library.define("thrice(Tensor x) -> Tensor")
        library.impl("thrice", lambda x: x * 3, "CPU")
        thrice, x = torch.ops.fuzzytorch_scope.thrice, randn(30)
        with ft.fuzzy("sr", strict=True, exclude="fuzzytorch_scope::thrice") as mode:
            y = thrice(x)
        assert torch.equal(y, x * 3)
        assert mode.coverage.share(Verdict.EXCLUDED) == 1
