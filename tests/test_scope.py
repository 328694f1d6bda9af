"""Laws of scope: what is excluded is stock to the bit, the rest is rounded, both ways."""

from __future__ import annotations

import warnings

import pytest
import torch
from scoped_modules import COARSE, STOCK_CALL, UP, Recorded, Stack, randn, stock_layers
from torch import nn

import fuzzytorch as ft
from fuzzytorch import provenance
from fuzzytorch.scope import Scope
from fuzzytorch.table import Verdict

pytestmark = pytest.mark.usefixtures("silent_scope")


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
