"""Laws of profiles: what is said of a module is what samples of it say, and nothing is changed."""

from __future__ import annotations

import gc
import json
import math
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import fuzzytorch as ft
from fuzzytorch.digits import significant
from fuzzytorch.locate import Profile, recorder

STOCK_CALL = nn.Module.__call__


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(autouse=True)
def _nothing_stays_behind() -> Iterator[None]:
    yield
    assert nn.Module.__call__ is STOCK_CALL
    assert torch._C._len_torch_dispatch_stack() == 0


def layers() -> nn.Sequential:
    """Three layers, the second of which cancels: its rows add up to almost nothing."""
    net = nn.Sequential(nn.Linear(30, 20), nn.Linear(20, 20), nn.Tanh())
    with torch.no_grad():
        for parameter, seed in zip(net.parameters(), range(4), strict=True):
            parameter.copy_(0.2 * randn(*parameter.shape, seed=seed))
        net[0].weight.abs_()
        net[0].bias.fill_(1000.0)
        net[1].weight.sub_(net[1].weight.mean(1, keepdim=True))
        net[1].bias.zero_()
    return net


X = randn(6, 30, seed=9)


def calls(profile: Profile) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for call in profile.calls:
        found.setdefault(call.place.path, []).append(call)
    return found


def test_the_digits_of_a_module_are_those_of_samples_of_its_results() -> None:
    net = layers()

    def run() -> list[torch.Tensor]:
        results = [X]
        for layer in net:
            results.append(layer(results[-1]))
        return results[1:]

    samples = ft.sample(run, n=7, seed=3)
    profile = ft.profile(run, n=7, seed=3)
    assert len(profile.calls) == 3
    before: Any = None
    for call, leaf in zip(profile.calls, samples.leaves, strict=True):
        expected = significant(leaf.values)
        assert call.samples == 7
        assert call.outputs.digits == pytest.approx(expected.overall, abs=1e-9)
        assert call.outputs.mean == pytest.approx(expected.digits.mean().item(), abs=1e-9)
        assert call.outputs.minimum == pytest.approx(expected.digits.min().item(), abs=1e-9)
        assert call.outputs.std == pytest.approx(expected.std.max().item(), rel=1e-9)
        assert call.outputs.elements == call.outputs.followed == leaf.values[0].numel()
        if before is not None:
            assert call.inputs == before
        before = call.outputs
    assert profile.calls[0].inputs.digits == pytest.approx(24 * math.log10(2))
    assert profile.calls[0].inputs.std == 0.0


def test_a_profile_changes_neither_the_samples_nor_their_coverage() -> None:
    net = layers()
    seen: list[torch.Tensor] = []

    def run() -> torch.Tensor:
        seen.append(net(X).detach().clone())
        return seen[-1]

    profile = ft.profile(run, n=4, seed=1)
    bits = torch.stack(seen)
    samples = ft.sample(run, n=4, seed=1)
    assert torch.equal(bits, samples.values)
    assert profile.coverage is not None
    assert profile.coverage.to_json() == samples.coverage.to_json()
    assert (profile.mode, profile.seed, profile.replicas) == ("sr", 1, (0, 1, 2, 3))


def test_the_layer_that_cancels_is_named_and_what_is_lost_adds_up() -> None:
    profile = ft.profile(lambda: layers()(X), n=5, seed=0)
    (worst,) = profile.worst()
    assert (worst.place.path, worst.place.kind, worst.number) == ("1", "Linear", 1)
    assert worst.own == worst.lost > 2.0
    assert "most digits are lost in 1 (Linear)" in profile.headline()
    # In a chain, every layer takes what the one before it returned.
    root, *parts = profile.calls
    assert root.place.path == ""
    assert [call.around for call in parts] == [0, 0, 0]
    assert root.lost == pytest.approx(sum(call.lost for call in parts), abs=1e-12)
    assert root.own == pytest.approx(0.0, abs=1e-12)


class Cancelling(nn.Module):
    """What is lost here is lost in no module inside."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(30, 8)

    def forward(self, x: torch.Tensor, *, offset: float) -> dict[str, torch.Tensor]:
        y = self.inner(x)
        return {"difference": (y + offset) * 1.1 - 1.1 * offset}


def test_what_a_module_loses_between_those_that_it_calls_is_its_own() -> None:
    net = nn.ModuleDict({"a": Cancelling()})
    profile = ft.profile(lambda: net["a"](X, offset=1e4), n=5, seed=0)
    (worst,) = profile.worst()
    assert worst.place.kind == "Cancelling"
    assert str(worst.place) == "(Cancelling)"
    assert worst.own > 2.0


def test_every_call_of_a_module_has_an_entry_and_a_shared_one_both_paths() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = self.second = nn.Linear(30, 30)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.first(self.second(x) * 0.3)

    profile = ft.profile(lambda: Twice()(X), n=3, seed=0)
    shared = calls(profile)["first = second"]
    assert [call.number for call in shared] == [1, 2]
    assert shared[1].inputs.digits < shared[0].inputs.digits == pytest.approx(24 * math.log10(2))


def test_two_trees_of_modules_are_told_apart() -> None:
    a, b = nn.Sequential(nn.Linear(30, 30)), nn.Sequential(nn.Linear(30, 30))
    profile = ft.profile(lambda: b(a(X)), n=2, seed=0)
    places = [(call.place.root, call.place.path, call.number) for call in profile.calls]
    assert places == [
        ("Sequential", "", 1),
        ("Sequential", "0", 1),
        ("Sequential#2", "", 1),
        ("Sequential#2", "0", 1),
    ]


def test_a_module_that_checkpointing_calls_again_keeps_its_place() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.Sequential(nn.Linear(30, 30), nn.Tanh())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.block, x, use_reentrant=False)

    net, x = Outer(), X.clone().requires_grad_()
    profile = ft.profile(lambda: net(x).sum().backward(), n=2, seed=0)
    assert {call.place.root for call in profile.calls} == {"Outer"}
    assert [call.number for call in calls(profile)["block.0"]] == [1, 2]


def test_no_activation_is_kept() -> None:
    net = layers()
    alive: list[weakref.ref[torch.Tensor]] = []
    kept: list[int] = []

    def run() -> None:
        gc.collect()
        kept.append(sum(ref() is not None for ref in alive))
        x = X
        for layer in net:
            x = layer(x)
            alive.append(weakref.ref(x))

    ft.profile(run, n=3, seed=0)
    assert kept == [0, 0, 0]
    assert len(alive) == 9


def test_of_a_large_tensor_as_many_elements_are_followed_as_asked_and_nan_counted_in_all() -> None:
    x = torch.ones(1000, 30)
    x[::7, 3] = math.nan
    x[5, 4] = -math.inf
    profile = ft.profile(lambda: nn.Identity()(x * 0.1), n=3, seed=0, elements=64)
    (call,) = profile.calls
    assert (call.outputs.followed, call.outputs.elements) == (64, 30_000)
    assert call.outputs.nan == 3 * int(x.isnan().sum())
    assert call.outputs.inf == 3
    assert call.outputs.digits == pytest.approx(7.0, abs=0.3)
    assert "64 elements" in profile.text()
    header = profile.text().splitlines()[3]
    assert header.split()[-2:] == ["NaN", "Inf"]


def test_positions_are_spread_over_all_stretches_and_over_all_columns() -> None:
    positions = recorder.stratified(32 * 4096, 4096)
    assert positions is not None
    assert np.array_equal(positions // 32, np.arange(4096))
    assert set(positions % 32) == set(range(32))
    assert recorder.stratified(10, 10) is None


def test_calls_beyond_the_budget_are_left_out_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "BUDGET", 400)
    profile = ft.profile(lambda: layers()(X), n=2, seed=0)
    # The input of the first two calls has 180 elements each, the output of the second 120.
    assert [call.place.path for call in profile.calls] == ["", "0"]
    assert any("2 calls are left out" in note for note in profile.notes)


def test_tensors_of_another_shape_are_left_out_and_said() -> None:
    rows = iter([3, 4, 3])
    layer = nn.Linear(30, 2)
    profile = ft.profile(lambda: layer(X[: next(rows)]), n=3, seed=0)
    (call,) = profile.calls
    assert call.samples == 2
    assert any("other shapes in some samples" in note for note in profile.notes)


def test_integers_go_in_unmeasured() -> None:
    table = nn.Embedding(5, 3)
    profile = ft.profile(lambda: table(torch.tensor([1, 2])), n=2, seed=0)
    (call,) = profile.calls
    assert call.inputs.digits is None
    assert call.lost is call.own is None
    assert call.outputs.std == 0.0
    assert profile.worst() == ()
    assert profile.headline() == "no call of a module loses digits."


def test_complex_and_narrow_tensors_are_measured_within_what_their_dtype_holds() -> None:
    x = randn(8, 2, seed=2)

    def run() -> None:
        nn.Identity()(torch.view_as_complex(x * 0.1))
        nn.Identity()((x * 0.1).half())
        nn.Identity()((x * 0.1).to(torch.float8_e5m2))

    wide, half, eighth = ft.profile(run, n=4, seed=0).calls
    assert 6.5 < wide.outputs.digits < 7.3
    assert wide.outputs.elements == 8
    assert half.outputs.digits <= 11 * math.log10(2)
    assert eighth.outputs.digits <= 3 * math.log10(2)


def test_a_run_that_raises_counts_as_far_as_it_came() -> None:
    runs = iter(range(10))
    net = layers()

    def run() -> None:
        y = net[0](X)
        if next(runs) == 1:
            raise ArithmeticError("planted")
        net[1](y)

    profile = ft.profile(run, n=4, seed=0)
    assert [call.samples for call in profile.calls] == [4, 3]
    assert "1 of 4 samples failed" in profile.text()
    assert "planted" in profile.text()


@pytest.mark.parametrize("error", [ArithmeticError("planted"), KeyboardInterrupt()])
def test_an_exception_inside_a_module_leaves_nothing_behind(error: BaseException) -> None:
    class Raising(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise error

    net = nn.Sequential(nn.Linear(30, 3), Raising())
    with pytest.raises((RuntimeError, KeyboardInterrupt)):
        ft.profile(lambda: net(X), n=2, seed=0)
    assert nn.Module.__call__ is STOCK_CALL
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())


def test_what_hooks_and_scopes_do_belongs_to_the_module() -> None:
    net = nn.Sequential(nn.Linear(30, 3))
    handle = net[0].register_forward_hook(lambda m, args, y: y * 0.0)
    profile = ft.profile(lambda: net(X), n=2, seed=0, exclude="0")
    handle.remove()
    assert calls(profile)["0"][0].outputs.std == 0.0
    assert profile.coverage is not None
    assert profile.coverage.headline().startswith("0% ROUNDED")


def test_a_profile_is_a_value_for_json() -> None:
    profile = ft.profile(lambda: layers()(X), n=2, seed=0)
    value = json.loads(json.dumps(profile.to_json(), allow_nan=False))
    again = Profile.from_json(value)
    assert again.calls == profile.calls
    assert again.to_json() == profile.to_json()
    assert again.text() == profile.text() == str(profile)
    assert value["calls"][0]["lost"] == profile.calls[0].lost


def test_the_text_shows_as_many_calls_as_asked_in_their_order() -> None:
    profile = ft.profile(lambda: layers()(X), n=3, seed=0)
    lines = profile.text(most=2).splitlines()
    chosen = profile.worst(2)
    expected_order = [str(call.place) for call in profile.calls if call in chosen]
    assert [line.split()[0] for line in lines[4:6]] == expected_order
    assert "2 of 4 calls are not shown" in profile.text(most=2)
    row = next(line for line in profile.text().splitlines() if line.startswith("1 "))
    call = calls(profile)["1"][0]
    numbers = [float(cell) for cell in row.split()[3:]]
    out = call.outputs
    expected = [call.inputs.digits, out.digits, call.lost, call.own, out.minimum]
    assert numbers[:-1] == pytest.approx(expected, abs=0.005)
    assert numbers[-1] == pytest.approx(out.std, rel=0.05)


@pytest.mark.parametrize("elements", [0, -1, True, 2.5])
def test_following_nothing_is_refused(elements: Any) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        ft.profile(lambda: None, n=2, elements=elements)


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(TypeError, match="cannot be called"):
        ft.profile(torch.ones(2), n=2)  # type: ignore[arg-type]


def test_the_page_on_locating_shows_what_the_example_prints() -> None:
    root = Path(__file__).resolve().parents[1]
    command = [sys.executable, str(root / "examples" / "locate.py")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    page = (root / "docs" / "locate.md").read_text("utf-8")
    first, second = done.stdout.split("\n\n10 samples, mode sr, seed 0\nverdict")
    assert f"```\n{first}\n```" in page
    assert f"```\n10 samples, mode sr, seed 0\nverdict{second}```" in page


def test_modules_inside_transforms_of_functions_are_not_followed_and_do_not_fail() -> None:
    layer = nn.Linear(30, 3)

    def run() -> None:
        torch.func.vmap(layer)(X)
        torch.func.grad(lambda x: layer(x).sum())(X)
        layer(X)

    with torch.no_grad():
        profile = ft.profile(run, n=2, seed=0)
    assert profile.failures == ()
    assert [call.outputs.digits is None for call in profile.calls] == [True, True, False]
