"""Laws of scope under exceptions, modes inside modes, threads and ensembles."""

from __future__ import annotations

import threading
import warnings

import pytest
import torch
from scoped_modules import randn
from torch import nn

import fuzzytorch as ft
from fuzzytorch.table import Verdict

pytestmark = pytest.mark.usefixtures("silent_scope")


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
