"""Laws of scope in the backward pass: a derivative goes with what it differentiates."""

from __future__ import annotations

import pytest
import torch
from scoped_modules import Stack, randn
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

import fuzzytorch as ft
from fuzzytorch import provenance

pytestmark = pytest.mark.usefixtures("silent_scope")


class TestBackward:
    def test_a_gradient_that_is_summed_over_passes_goes_with_the_module_of_its_parameter(self):
        layer, other = nn.Linear(7, 7), nn.Linear(7, 7)
        x = randn(20, 7)

        def passes():
            layer.zero_grad()
            other.zero_grad()
            for scale in (0.1, 0.2, 0.3):
                for each in (layer, other):
                    each(x).backward(torch.full((20, 7), scale))
            return layer.weight.grad.clone(), other.weight.grad.clone()

        expected = passes()
        with ft.fuzzy("ud", seed=0, exclude=layer):
            found = passes()
        assert torch.equal(found[0], expected[0])
        assert not torch.equal(found[1], expected[1])

    def test_a_graph_outlives_the_forward_passes_after_it(self):
        model = Stack()
        with ft.fuzzy("ud", seed=0, exclude="encoder.1"):
            y = model(randn(5, 7).requires_grad_())
            kept = {name: dict(m.seen) for name, m in model.layers().items()}
            for _ in range(3):
                model(randn(5, 7, seed=8).requires_grad_())
            (y * 1.1).sum().backward()
        for name, m in model.layers().items():
            m.seen.update({key: kept[name][key] for key in ("x", "y")})
        # The hooks of the later calls did not run; those of the first saw their gradients.
        assert {n for n, m in model.layers().items() if m.is_stock()} == {"encoder.1"}

    def test_a_derivative_of_a_derivative_goes_with_the_module(self):
        class Cubic(nn.Module):
            def forward(self, x):
                return x**3 * 0.7

        def second(x, function):
            (g,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
            return torch.autograd.grad(g, x, torch.full_like(x, 0.3))[0]

        x = randn(100).requires_grad_()
        expected = second(x, Cubic())
        with ft.fuzzy("ud", seed=0, exclude=Cubic):
            assert torch.equal(second(x, Cubic()), expected)
            assert not torch.equal(second(x, Cubic().forward), expected)
            mixed = second(x, lambda x: Cubic()(x) + x**3 * 0.7)
        assert not torch.equal(mixed, second(x, lambda x: Cubic()(x) + x**3 * 0.7))

    @pytest.mark.parametrize("reentrant", [False, True])
    @pytest.mark.parametrize("excluded", ["encoder.1", "encoder.2", "encoder.*"])
    def test_a_checkpointed_module_is_called_again_in_its_place(self, reentrant, excluded):
        class Checkpointed(Stack):
            def body(self, x):
                for layer in self.encoder.values():
                    x = layer(x) * 1.1
                return x

            def forward(self, x):
                return self.decoder(checkpoint(self.body, x, use_reentrant=reentrant))

        model = Checkpointed()
        outputs = {name: [] for name in model.layers()}
        for name, m in model.layers().items():
            m.register_forward_hook(
                lambda m, args, y, name=name: outputs[name].append(
                    torch.equal(y, m.compute(args[0].detach()))
                )
            )
        # All layers are to run to their end again, where their hooks are.
        whole = set_checkpoint_early_stop(False)
        with whole, ft.fuzzy("ud", seed=0, exclude=excluded):
            model(randn(5, 7).requires_grad_()).sum().backward()
        expected = {n for n in outputs if n.startswith("encoder")}
        if excluded != "encoder.*":
            expected = {excluded}
        for name, repeated in outputs.items():
            # The comparison runs in the module too: it repeats the bits where that is excluded.
            assert len(repeated) == (2 if name.startswith("encoder") else 1)
            assert all(repeated) == (name in expected)
            assert any(repeated) == (name in expected)

    def test_a_backward_pass_inside_a_module_goes_with_the_modules_of_its_forward_pass(self):
        class Energy(nn.Module):
            def forward(self, x):
                return (x**3 * 0.1).sum()

        class Force(nn.Module):
            def __init__(self):
                super().__init__()
                self.energy = Energy()

            def forward(self, x):
                (g,) = torch.autograd.grad(self.energy(x), x)
                return g, g * 0.1

        x = randn(100).requires_grad_()
        expected, _ = Force()(x)
        with ft.fuzzy("ud", seed=0, exclude="energy"):
            g, scaled = Force()(x)
        assert torch.equal(g, expected)
        assert not torch.equal(scaled, g * 0.1)

    def test_hooks_of_a_module_go_with_it(self):
        layer, x = nn.Linear(7, 7), randn(20, 7).requires_grad_()
        layer.register_forward_pre_hook(lambda m, args: (args[0] * 0.1,))
        layer.register_forward_hook(lambda m, args, y: y * 0.1)
        layer.register_full_backward_hook(lambda m, gx, gy: (gx[0] * 0.1,))

        def run():
            y = layer(x)
            return y, *torch.autograd.grad(y, x, torch.full_like(y, 0.3))

        expected = run()
        with ft.fuzzy("ud", seed=0, exclude=nn.Linear):
            found = run()
        assert all(map(torch.equal, found, expected))

    def test_a_graph_that_was_made_outside_the_mode_has_no_modules(self):
        layer, x = nn.Linear(7, 7), randn(20, 7)
        gradient = torch.full((20, 7), 0.1)
        layer(x).backward(gradient)
        expected, layer.weight.grad = layer.weight.grad, None
        y = layer(x)
        with ft.fuzzy("ud", seed=0, exclude=nn.Linear):
            layer(x)
            y.backward(gradient)
        assert not torch.equal(layer.weight.grad, expected)

    def test_a_graph_whose_modules_are_forgotten_is_refused(self, monkeypatch):
        monkeypatch.setattr(provenance, "HISTORY", 8)
        layer, x = nn.Linear(7, 7), randn(20, 7)
        with ft.fuzzy("ud", seed=0, exclude=nn.Linear):
            old = layer(x)
            for _ in range(20):
                recent = layer(x) * 2
            recent.sum().backward()
            with pytest.raises(RuntimeError, match="modules are forgotten"):
                old.sum().backward()

    def test_training_for_long_remembers_no_more_than_it_says(self, monkeypatch):
        monkeypatch.setattr(provenance, "HISTORY", 64)
        layer, x = nn.Linear(7, 7), randn(20, 7)
        with ft.fuzzy("ud", seed=0, exclude=nn.Linear) as mode:
            for _ in range(200):
                (layer(x) * 2).sum().backward()
            with torch.no_grad():
                before = len(mode._scope._state.history._starts)
                layer(x)
                layer(x)
                assert len(mode._scope._state.history._starts) == before
        assert before <= 64
