"""Laws of what a mode leaves alone: random numbers, integers, layouts, aliasing, state."""

from __future__ import annotations

import pytest
import torch

import fuzzytorch as ft
from fuzzytorch.rounding import MODES
from fuzzytorch.table import Verdict


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def verdicts(mode, name):
    return {r.verdict: r.calls for r in mode.coverage.records if r.name == name}


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


def test_nearest_rounding_changes_no_random_stream_state_dtype_stride_or_nan() -> None:
    def train() -> tuple[list[torch.Tensor], dict[str, torch.Tensor], torch.Tensor]:
        torch.manual_seed(5)
        net = torch.nn.Sequential(
            torch.nn.Conv2d(2, 4, 3),
            torch.nn.BatchNorm2d(4),
            torch.nn.Dropout(),
            torch.nn.Flatten(),
            torch.nn.Linear(4 * 36, 3),
        )
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        x = torch.randn(6, 2, 8, 8).contiguous(memory_format=torch.channels_last)
        y = net(x)
        y.square().mean().backward()
        optimizer.step()
        spoilt = x.clone()
        spoilt[0, 0, 0, 0], spoilt[1, 0, 0, 0] = torch.nan, torch.inf
        hidden = [net[0](spoilt), net[0](spoilt) - net[0](spoilt), torch.rand(3), y]
        return hidden, net.state_dict(), torch.get_rng_state()

    stock, state, generator = train()
    with ft.fuzzy("rn"):
        ours, ours_state, ours_generator = train()
    assert torch.equal(ours_generator, generator)
    assert torch.equal(ours[2], stock[2])
    assert list(ours_state) == list(state)
    pairs = [*zip(ours, stock, strict=True), *((ours_state[k], state[k]) for k in state)]
    for a, b in pairs:
        assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
        assert torch.equal(a.isnan(), b.isnan())
        torch.testing.assert_close(a, b, equal_nan=True)
    assert bool(stock[1].isnan().any())
