"""Laws of values that stock torch refuses, and of what calls leave in their arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import fuzzytorch as ft
from fuzzytorch.table import Verdict


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=dtype)


def refusal(call: Callable[[], Any]) -> tuple[type[Exception], str]:
    with pytest.raises((RuntimeError, ValueError, ArithmeticError)) as caught:
        call()
    return caught.type, str(caught.value)


REFUSED = {
    "softshrink": lambda d: F.softshrink(randn(3, dtype=d), -0.5),
    "celu": lambda d: F.celu(randn(3, dtype=d), 0.0),
    "celu_": lambda d: F.celu(randn(3, dtype=d), 0.0, inplace=True),
    "smooth_l1_loss": lambda d: F.smooth_l1_loss(randn(3, dtype=d), randn(3, dtype=d), beta=-1.0),
    "huber_loss": lambda d: F.huber_loss(randn(3, dtype=d), randn(3, dtype=d), delta=-1.0),
    "multi_margin_loss": lambda d: F.multi_margin_loss(
        randn(5, 4, dtype=d), torch.zeros(5, 4, dtype=torch.long)
    ),
    "multilabel_margin_loss": lambda d: F.multilabel_margin_loss(
        randn(5, 4, dtype=d), torch.zeros(4, dtype=torch.long)
    ),
    "polygamma_": lambda d: randn(3, dtype=d).polygamma_(-1),
    **{
        f"interpolate {mode} {shape}": lambda d, s=shape, m=mode: F.interpolate(
            randn(*s, dtype=d), size=[2] * (len(s) - 2), mode=m
        )
        for shape, mode in [
            ((1, 0, 3), "linear"),
            ((1, 2, 0), "linear"),
            ((1, 0, 3, 3), "bilinear"),
            ((1, 2, 3, 0), "bilinear"),
            ((1, 0, 3, 3), "bicubic"),
            ((1, 0, 3, 3, 3), "trilinear"),
        ]
    },
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", REFUSED)
def test_what_stock_torch_refuses_is_refused_in_its_words_every_time(
    name: str, dtype: torch.dtype
) -> None:
    expected = refusal(lambda: REFUSED[name](dtype))
    with ft.fuzzy("rn", seed=0):
        for _ in range(2):
            assert refusal(lambda: REFUSED[name](dtype)) == expected


def test_a_number_is_refused_after_another_one_was_taken() -> None:
    x = randn(4)
    with ft.fuzzy("rn", seed=0):
        F.softshrink(x, 0.5)
        F.celu(x, 0.5)
        with pytest.raises(RuntimeError, match="lambda must be in range"):
            F.softshrink(x, -0.5)
        with pytest.raises(RuntimeError, match="alpha cannot be 0"):
            F.celu(x, 0.0)


def test_there_is_no_absolute_value_in_place_of_a_complex_number() -> None:
    x = randn(4).to(torch.complex64)
    before = x.clone()
    expected = refusal(x.abs_)
    with ft.fuzzy("rn", seed=0):
        assert refusal(x.abs_) == expected
        assert torch.equal(x.exp_(), before.exp())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mode", ["rn", "sr"])
def test_slopes_that_are_drawn_are_those_of_stock_torch(mode: str, dtype: torch.dtype) -> None:
    def run() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        torch.manual_seed(3)
        x, noise = randn(64, dtype=dtype), torch.zeros(64, dtype=dtype)
        returned = torch.ops.aten.rrelu_with_noise_(x, noise, 0.1, 0.4, True)
        assert returned is x
        return x, noise, torch.get_rng_state()

    x, noise, state = run()
    with ft.fuzzy(mode, seed=0):
        ours = run()
    torch.testing.assert_close(ours[0], x)
    assert torch.equal(ours[1], noise)
    assert torch.equal(ours[2], state)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_polygamma_in_place_is_rounded_and_refuses_integers(dtype: torch.dtype) -> None:
    x = randn(8, dtype=dtype).abs() + 1
    expected = torch.polygamma(2, x)
    with ft.fuzzy("rn", seed=0, strict=True) as mode:
        ours = x.polygamma_(2)
        with pytest.raises(RuntimeError, match="can't be cast"):
            torch.ones(3, dtype=torch.long).polygamma_(2)
    assert ours is x
    torch.testing.assert_close(ours, expected)
    assert mode.coverage.share(Verdict.ROUNDED) == 1


@pytest.mark.parametrize(("shape", "dims"), [((3, 4), ()), ((1, 1), (0, 1))])
def test_a_transform_that_changes_nothing_is_a_copy(
    shape: tuple[int, ...], dims: tuple[int, ...]
) -> None:
    x = randn(*shape).to(torch.complex64)
    with ft.fuzzy("rn", seed=0):
        y = torch.fft.fft2(x, dim=dims)
    assert torch.equal(x, y)
    assert x.data_ptr() != y.data_ptr()
