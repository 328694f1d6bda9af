"""Laws of scope: what is excluded is stock to the bit, the rest is rounded, both ways."""

from __future__ import annotations

import threading
import warnings

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

import fuzzytorch as ft
from fuzzytorch import provenance
from fuzzytorch.scope import Scope
from fuzzytorch.table import Verdict

UP = ft.Rounding.of("up")
COARSE = ft.Rounding.of("sr", "bfloat16")
STOCK_CALL = nn.Module.__call__


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(autouse=True)
def _silent():
    """A selector that meets nothing fails the test, unless the test expects the warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
    assert nn.Module.__call__ is STOCK_CALL
    assert torch._C._len_torch_function_stack() == 0


class Recorded(nn.Module):
    """A layer that keeps what went in and out of it, and the gradients at both ends."""

    def __init__(self, width=7, seed=0):
        super().__init__()
        self.weight = nn.Parameter(randn(width, width, seed=seed))
        self.norm = nn.LayerNorm(width)
        self.seen = {}

    def forward(self, x):
        self.seen["x"] = x.detach()
        if x.requires_grad:
            x.register_hook(lambda g: self.seen.__setitem__("gx", g))
        y = self.compute(x)
        self.seen["y"] = y.detach()
        if y.requires_grad:
            y.register_hook(lambda g: self.seen.__setitem__("gy", g))
        return y

    def compute(self, x):
        return self.norm(x @ self.weight).tanh()

    def stock(self):
        """The output and the gradients that stock torch gives for what went in."""
        x = self.seen["x"].clone().requires_grad_()
        y = self.compute(x)
        inner = torch.autograd.grad(y, (x, *self.parameters()), self.seen["gy"])
        return y.detach(), inner

    def is_stock(self):
        y, (gx, *gradients) = self.stock()
        forward = torch.equal(y, self.seen["y"])
        backward = torch.equal(gx, self.seen["gx"]) and all(
            torch.equal(p.grad, g) for p, g in zip(self.parameters(), gradients, strict=True)
        )
        assert forward == backward, "a layer is stock in one direction only"
        return forward


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.ModuleDict({str(i): Recorded(seed=i) for i in range(3)})
        self.decoder = Recorded(seed=9)

    def forward(self, x):
        for layer in self.encoder.values():
            x = layer(x) * 1.1
        return self.decoder(x)

    def layers(self):
        return {**{f"encoder.{k}": m for k, m in self.encoder.items()}, "decoder": self.decoder}


def stock_layers(model, run=None, **options):
    """Names of the layers that are stock in a forward and backward pass under a mode."""
    model.zero_grad()
    with ft.fuzzy("ud", seed=0, **options) as mode:
        y = (model if run is None else run)(randn(5, 7, seed=3).requires_grad_())
        (y * 1.1).sum().backward()
    return {name for name, m in model.layers().items() if m.is_stock()}, mode.coverage


class TestModules:
    @pytest.mark.parametrize(
        ("pattern", "stock"),
        [
            ("encoder.1", {"encoder.1"}),
            ("encoder.*", {"encoder.0", "encoder.1", "encoder.2"}),
            ("encoder.[02]", {"encoder.0", "encoder.2"}),
            ("*coder*", {"encoder.0", "encoder.1", "encoder.2", "decoder"}),
            ("", {"encoder.0", "encoder.1", "encoder.2", "decoder"}),
            (Recorded, {"encoder.0", "encoder.1", "encoder.2", "decoder"}),
            (["decoder", "encoder.0"], {"encoder.0", "decoder"}),
        ],
        ids=str,
    )
    def test_what_is_excluded_is_stock_and_the_rest_is_not(self, pattern, stock):
        excluded = {"exclude": pattern or Stack}
        found, coverage = stock_layers(Stack(), **excluded)
        assert found == stock
        assert 0 < coverage.share(Verdict.EXCLUDED) < 1
        assert coverage.share(Verdict.UNCOVERED) == 0

    def test_one_module_is_excluded_wherever_it_is_called(self):
        model = Stack()
        found, _ = stock_layers(model, exclude=model.encoder["2"])
        assert found == {"encoder.2"}

    def test_of_what_is_included_the_rest_is_stock(self):
        found, _ = stock_layers(Stack(), include="encoder.1")
        assert found == {"encoder.0", "encoder.2", "decoder"}

    def test_what_is_both_included_and_excluded_is_excluded(self):
        found, _ = stock_layers(Stack(), include=Recorded, exclude="decoder")
        assert found == {"decoder"}
        found, _ = stock_layers(Stack(), include="encoder.0", exclude=Stack)
        assert len(found) == 4

    def test_including_nothing_rounds_nothing(self):
        found, coverage = stock_layers(Stack(), include=[])
        assert len(found) == 4
        assert coverage.share(Verdict.EXCLUDED) == 1

    def test_the_innermost_scope_says_how(self):
        x = torch.full((64,), 1.0)

        class Leaf(nn.Module):
            def forward(self, x):
                return x + 2.0**-30

        class Outer(nn.Module):
            def __init__(self):
                super().__init__()
                self.leaf, self.other = Leaf(), Leaf()

            def forward(self, x):
                return self.leaf(x), x + 2.0**-30, self.other(x)

        model = Outer()
        scopes = {"leaf": ft.Rounding.of("down"), Outer: UP}
        with ft.fuzzy("zero", seed=0, scopes=scopes):
            leaf, between, other = model(x)
            outside = x + 2.0**-30
        assert torch.equal(leaf, x)
        assert torch.equal(between, x.nextafter(x + 1))
        assert torch.equal(other, between)
        assert torch.equal(outside, x)

    @pytest.mark.parametrize("last", ["up", "down"])
    def test_the_last_of_several_scopes_for_one_place_counts(self, last):
        layer = nn.Identity()
        layer.forward = lambda x: x + 2.0**-30
        first = "down" if last == "up" else "up"
        scopes = {nn.Identity: ft.Rounding.of(first), layer: ft.Rounding.of(last)}
        with ft.fuzzy("rn", seed=0, scopes=scopes):
            y = layer(torch.ones(3))
        assert bool((y > 1).all()) == (last == "up")

    def test_a_scope_holds_in_the_backward_pass_too(self):
        model = Stack()
        x = randn(5, 7).requires_grad_()
        with ft.fuzzy("rn", seed=0, scopes={"decoder": COARSE}):
            model(x).sum().backward()
        narrow = [m.weight.grad for m in (model.decoder, model.encoder["0"])]
        assert [torch.equal(g, g.bfloat16().float()) for g in narrow] == [True, False]

    def test_functional_calls_belong_to_the_module_that_is_called(self):
        class Functional(nn.Module):
            def forward(self, x):
                return nn.functional.gelu(x) + x.exp()

        layer, x = Functional(), randn(50)
        with ft.fuzzy("ud", seed=0, exclude=Functional):
            inside, outside = layer(x), nn.functional.gelu(x) + x.exp()
        assert torch.equal(inside, layer(x))
        assert not torch.equal(outside, layer(x))


class TestShared:
    def test_a_shared_module_goes_by_the_name_under_which_it_is_called(self):
        shared = nn.Linear(7, 7)

        class Half(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = shared

            def forward(self, x):
                return self.layer(x)

        model = nn.ModuleDict({"a": Half(), "b": Half()})
        model.forward = lambda x: (model["a"](x), model["b"](x))
        x = randn(20, 7)
        with ft.fuzzy("ud", seed=0, exclude="b.layer"):
            a, b = model(x)
        assert not torch.equal(a, shared(x))
        assert torch.equal(b, shared(x))

    def test_a_module_with_two_names_in_one_place_has_both(self):
        layer = nn.Linear(7, 7)
        model, x = nn.Sequential(layer, layer), randn(20, 7)
        with ft.fuzzy("ud", seed=0, exclude="1"):
            y = model(x)
        assert torch.equal(y, model(x))

    def test_a_module_that_is_registered_nowhere_is_a_tree_of_its_own(self):
        teacher = nn.Sequential(nn.Linear(7, 7))
        student = nn.Sequential(nn.Linear(7, 7))
        student.held = [teacher]
        student.forward = lambda x: (student[0](x), student.held[0](x))
        x = randn(20, 7)
        with ft.fuzzy("ud", seed=0, exclude="0"):
            a, b = student(x)
        assert torch.equal(a, student[0](x))
        assert torch.equal(b, teacher(x))

    def test_a_tree_that_changes_between_calls_is_read_again(self):
        model, x = nn.Sequential(nn.Linear(7, 7)), randn(20, 7)
        kept = {}
        for name in ("old", "new"):
            layer = nn.Linear(7, 7)
            layer.register_forward_hook(
                lambda m, args, y, name=name: kept.update({name: (m, args, y)})
            )
            model.append(layer)
        with ft.fuzzy("ud", seed=0, exclude="1"):
            model(x)
            first = kept["old"]
            del model[1]
            model(x)
        for layer, args, y in (first, kept["new"]):
            assert torch.equal(y, nn.functional.linear(*args, layer.weight, layer.bias))

    def test_a_compiled_model_keeps_its_paths(self):
        model = Stack()
        compiled = torch.compile(model, backend="eager")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "a callable made by torch.compile runs eagerly")
            found, _ = stock_layers(model, run=compiled, exclude="encoder.1")
        assert found == {"encoder.1"}


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


class TestNesting:
    def test_an_exception_leaves_the_module(self):
        class Failing(nn.Module):
            def forward(self, x):
                raise KeyboardInterrupt

        x = randn(100)
        with ft.fuzzy("ud", seed=0, exclude=Failing):
            with pytest.raises(KeyboardInterrupt):
                Failing()(x)
            after = x + 0.1
        assert not torch.equal(after, x + 0.1)

    def test_an_exception_in_an_excluded_operation_is_that_of_stock_torch(self):
        with pytest.raises(RuntimeError) as stock:
            randn(3) + randn(4)
        with ft.fuzzy("ud", seed=0, exclude="aten.add"):
            with pytest.raises(RuntimeError) as found:
                randn(3) + randn(4)
            x = randn(100) * 0.1
        assert str(found.value) == str(stock.value)
        assert not torch.equal(x, randn(100) * 0.1)

    def test_nested_modes_have_scopes_of_their_own(self):
        layer, x = nn.Linear(7, 7), randn(20, 7)
        model = nn.Sequential(layer)
        with ft.fuzzy("ud", seed=0, exclude="0"):
            with ft.fuzzy("ud", seed=1) as inner:
                a = model(x)
            b = model(x)
        assert not torch.equal(a, layer(x))
        assert torch.equal(b, layer(x))
        assert inner.coverage.share(Verdict.EXCLUDED) == 0

    def test_a_mode_that_is_entered_inside_a_module_knows_the_modules_from_there(self):
        class Entering(nn.Module):
            def __init__(self, mode):
                super().__init__()
                self.layer, self.mode = nn.Sequential(nn.Linear(7, 7)), mode

            def forward(self, x):
                with self.mode:
                    return self.layer(x)

        x = randn(20, 7)
        model = Entering(ft.fuzzy("ud", seed=0, exclude="0"))
        assert torch.equal(model(x), model.layer(x))

    def test_a_mode_inside_itself_enters_a_module_once(self):
        layer, x = nn.Linear(7, 7), randn(20, 7)
        mode = ft.fuzzy("ud", seed=0, exclude=nn.Linear)
        with mode:
            with mode:
                a = layer(x)
            b = layer(x)
            c = layer.forward(x)
        assert torch.equal(a, layer(x)) and torch.equal(b, layer(x))
        assert not torch.equal(c, layer(x))

    def test_modes_left_in_another_order_leave_the_functions_of_each_other_alone(self):
        x = randn(100)
        first = ft.fuzzy("ud", seed=0, exclude=torch.exp)
        second = ft.fuzzy("ud", seed=0, exclude=torch.sin)
        first.__enter__()
        second.__enter__()
        y = x.sin()
        x.exp()
        first.__exit__(None, None, None)
        z = x.sin()
        second.__exit__(None, None, None)
        assert torch.equal(y, x.sin()) and torch.equal(z, x.sin())

    def test_another_thread_is_not_watched(self):
        layer, x, results = nn.Linear(7, 7), randn(20, 7), []

        def work():
            with ft.fuzzy("ud", seed=5):
                results.append(layer(x))

        with ft.fuzzy("ud", seed=0, exclude=nn.Linear):
            layer(x)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                other = threading.Thread(target=work)
                other.start()
            other.join()
        assert not torch.equal(results[0], layer(x))

    def test_an_ensemble_passes_a_scope_on(self):
        model, x = nn.Sequential(nn.Linear(7, 7), nn.Linear(7, 7)), randn(20, 7)

        def both():
            hidden = model[0](x)
            return hidden, model(x)

        found = ft.sample(both, n=3, seed=0, mode="ud", exclude=[model[0]])
        hidden, outputs = (leaf.values for leaf in found.leaves)
        assert (hidden == hidden[0]).all()
        assert not (outputs == outputs[0]).all()


class TestWords:
    @pytest.mark.parametrize(
        ("options", "error", "sentence"),
        [
            ({"exclude": 3}, TypeError, "exclude has 3: give the path of a module"),
            ({"include": ["a", None]}, TypeError, "include has None: give the path"),
            ({"exclude": dict}, TypeError, "exclude has <class 'dict'>"),
            ({"exclude": ""}, ValueError, "exclude has an empty pattern"),
            ({"exclude": len}, ValueError, "not a function of torch that can be watched"),
            ({"scopes": ["a"]}, TypeError, r"scopes is \['a'\]: give a mapping"),
            ({"scopes": {"a": "sr"}}, TypeError, "scopes gives 'sr' for 'a': give a fuzzytorch"),
            ({"scopes": {"a": None}}, TypeError, "goes into exclude"),
        ],
    )
    def test_what_selects_nothing_is_refused_in_a_sentence(self, options, error, sentence):
        with pytest.raises(error, match=sentence):
            ft.fuzzy(**options)

    @pytest.mark.parametrize("selector", ["encoder.9", nn.Conv2d, "aten.mm", torch.sin], ids=str)
    def test_a_selector_that_met_nothing_is_named_once(self, selector):
        mode, x = ft.fuzzy("ud", seed=0, exclude=selector), randn(20, 7)
        with pytest.warns(UserWarning, match="exclude: .* met nothing") as caught, mode:
            nn.Linear(7, 7)(x)
        assert [w.filename for w in caught] == [__file__]
        with mode:
            nn.Linear(7, 7)(x)

    def test_an_unmet_selector_is_not_named_after_an_exception_nor_without_work(self):
        with ft.fuzzy("ud", exclude="encoder"):
            pass
        with pytest.raises(RuntimeError), ft.fuzzy("ud", exclude="encoder"):
            (randn(3) * 0.1) @ randn(4)

    def test_without_a_scope_nothing_is_watched(self, monkeypatch):
        def watched(*args, **kwargs):
            raise AssertionError("a mode without a scope asked where it is")

        monkeypatch.setattr(Scope, "rounding", watched)
        monkeypatch.setattr(provenance, "listen", watched)
        with ft.fuzzy("ud", seed=0):
            assert nn.Module.__call__ is STOCK_CALL
            nn.Linear(7, 7)(randn(2, 7)).sum().backward()

    def test_the_headline_says_how_much_was_excluded(self):
        with ft.fuzzy("ud", seed=0, exclude="aten.mul") as mode:
            randn(100) * 0.1 + 0.1
        assert "50.00% ROUNDED, 50.00% EXCLUDED" in mode.coverage.headline()
