"""Laws of in-place and ``out=`` variants: values of the functional form, checks of stock torch."""

from __future__ import annotations

import warnings

import pytest
import torch

import fuzzytorch as ft


def randn(*shape, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


BINARY = ["add", "sub", "mul", "div"]
FUNCTIONS = {
    "mm": (torch.mm, lambda: (randn(5, 7), randn(7, 6, seed=1))),
    "sum": (torch.sum, lambda: (randn(9, 8), (1,))),
    "exp": (torch.exp, lambda: (randn(40),)),
    "addcmul": (torch.addcmul, lambda: (randn(40), randn(40, seed=1), randn(40, seed=2))),
    "cumsum": (torch.cumsum, lambda: (randn(12, 5), 0)),
    **{n: (getattr(torch, n), lambda: (randn(33), randn(33, seed=1))) for n in BINARY},
}


def same_bits(a, b):
    return torch.equal(a.contiguous().view(torch.int32), b.contiguous().view(torch.int32))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_out_takes_the_bits_of_the_functional_form(name):
    function, arguments = FUNCTIONS[name]
    with ft.fuzzy("sr", seed=1):
        expected = function(*arguments())
    out = torch.full_like(expected, 7.0)
    with ft.fuzzy("sr", seed=1):
        returned = function(*arguments(), out=out)
    assert returned is out
    assert same_bits(out, expected)


@pytest.mark.parametrize("name", BINARY)
def test_in_place_takes_the_bits_of_the_functional_form_and_returns_its_operand(name):
    x, y = randn(50), randn(50, seed=1)
    with ft.fuzzy("sr", seed=1):
        expected = getattr(x, name)(y)
    with ft.fuzzy("sr", seed=1):
        returned = getattr(x, f"{name}_")(y)
    assert returned is x
    assert same_bits(x, expected)


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("shift", [1, 5])
def test_a_target_that_overlaps_an_operand_is_refused_as_in_stock_torch(name, shift):
    x = randn(3000)
    before = x.clone()
    with pytest.raises(RuntimeError) as stock:
        getattr(x[shift:], f"{name}_")(x[:-shift])
    with ft.fuzzy("sr", seed=1), pytest.raises(RuntimeError, match="single memory") as ours:
        getattr(x[shift:], f"{name}_")(x[:-shift])
    assert str(ours.value) == str(stock.value)
    assert same_bits(x, before)


def test_an_operand_may_be_the_target_itself():
    x = randn(3000)
    with ft.fuzzy("sr", seed=1):
        expected = x * x
    with ft.fuzzy("sr", seed=1):
        x.mul_(x)
    assert same_bits(x, expected)


def test_a_transposed_view_of_the_target_is_no_identical_view():
    x = randn(30, 30)
    with ft.fuzzy("sr", seed=1), pytest.raises(RuntimeError, match="single memory"):
        x.add_(x.t())


def test_out_may_be_strided_and_keeps_what_lies_between():
    x, y, whole = randn(6, 5), randn(6, 5, seed=1), torch.full((6, 10), 7.0)
    with ft.fuzzy("sr", seed=1):
        expected = x + y
    with ft.fuzzy("sr", seed=1):
        torch.add(x, y, out=whole[:, ::2])
    assert same_bits(whole[:, ::2], expected)
    assert (whole[:, 1::2] == 7).all()


def calls_that_stock_refuses():
    x, y = randn(4), randn(4, seed=1)
    yield "in-place into integers", lambda: torch.ones(4, dtype=torch.long).add_(y)
    yield "in-place scalar into integers", lambda: torch.ones(4, dtype=torch.long).mul_(0.5)
    yield "out of integers", lambda: torch.add(x, y, out=torch.empty(4, dtype=torch.long))
    yield "in-place broadcast of the target", lambda: randn(1).add_(y)
    yield "in-place result too large", lambda: randn(4).mul_(randn(3, 4))
    yield "several elements at one address", lambda: torch.ones(1).expand(4).add_(y)
    yield "shapes that do not broadcast", lambda: x + randn(3)
    yield (
        "out= of another dtype in a product",
        lambda: torch.mm(randn(2, 2), randn(2, 2), out=torch.empty(2, 2, dtype=torch.float64)),
    )
    yield "a leaf that requires a gradient", lambda: x.clone().requires_grad_().add_(y)


@pytest.mark.parametrize(
    "call", [pytest.param(call, id=name) for name, call in calls_that_stock_refuses()]
)
def test_what_stock_torch_refuses_is_refused_with_the_same_type(call):
    with pytest.raises(RuntimeError):
        call()
    with ft.fuzzy("sr", seed=1), pytest.raises(RuntimeError):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.ones(4, dtype=torch.long).add_(randn(4)),
        lambda: torch.add(randn(4), randn(4), out=torch.empty(4, dtype=torch.long)),
        lambda: randn(4).mul_(randn(3, 4)),
    ],
)
def test_a_result_that_does_not_fit_is_refused_in_the_words_of_stock_torch(call):
    with pytest.raises(RuntimeError) as stock:
        call()
    with ft.fuzzy("sr", seed=1), pytest.raises(RuntimeError) as fuzzy:
        call()
    assert str(fuzzy.value) == str(stock.value)


def test_out_is_resized_as_in_stock_torch_with_its_warning():
    x, y = randn(3, 4), randn(3, 4, seed=1)
    with ft.fuzzy("rn", seed=1):
        silent = torch.add(x, y, out=torch.empty(0))
        with pytest.warns(UserWarning, match="resized"):
            loud = torch.add(x, y, out=torch.ones(5))
    assert torch.equal(silent, x + y)
    assert torch.equal(loud, x + y)


def test_out_of_a_wider_dtype_holds_the_rounded_result():
    x, y = randn(100), randn(100, seed=1)
    with ft.fuzzy("sr", seed=1):
        expected = x + y
    with ft.fuzzy("sr", seed=1):
        out = torch.add(x, y, out=torch.empty(100, dtype=torch.float64))
    assert out.dtype == torch.float64
    assert torch.equal(out, expected.double())


def test_several_results_go_to_several_targets():
    x = randn(20, 30)
    with ft.fuzzy("rn", seed=1):
        std, mean = torch.empty(20), torch.empty(20)
        returned = torch.ops.aten.var_mean.correction_out(x, [1], out0=std, out1=mean)
    assert returned[0] is std
    assert returned[1] is mean
    torch.testing.assert_close(std, x.var(1))
    torch.testing.assert_close(mean, x.mean(1))


def test_an_in_place_operation_marks_its_operand_as_changed():
    x = randn(4).requires_grad_()
    with ft.fuzzy("rn", seed=1):
        y = x * 1.0
        z = y.exp()
        z.add_(1.0)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            z.sum().backward()


@pytest.mark.parametrize("seed", range(3))
def test_lists_of_tensors_are_lowered_to_the_operation_of_each(seed):
    xs, ys = [randn(5), randn(3, 2)], [randn(5, seed=1), randn(3, 2, seed=2)]
    with ft.fuzzy("sr", seed=seed) as mode:
        sums = torch._foreach_add(xs, ys)
    with ft.fuzzy("sr", seed=seed):
        expected = [x + y for x, y in zip(xs, ys, strict=True)]
    assert all(same_bits(a, b) for a, b in zip(sums, expected, strict=True))
    assert mode.coverage.operations == 11


def foreach_overloads():
    """In-place forms of one list and of two, which exist for most operations."""
    for name in ("add", "sub", "mul", "div", "maximum"):
        yield f"_foreach_{name}_", (lambda: [randn(4), randn(2, 3)],)
        yield f"_foreach_{name}_", (lambda: [randn(4, seed=1), randn(2, 3, seed=2)],)
    for name in ("sqrt", "exp", "neg", "reciprocal", "abs", "zero"):
        yield f"_foreach_{name}_", ()


@pytest.mark.parametrize(("name", "others"), list(foreach_overloads()))
def test_lists_of_tensors_hold_in_rn_what_stock_torch_computes(name, others):
    stock = [randn(4).abs(), randn(2, 3).abs()]
    fuzzy = [x.clone() for x in stock]
    getattr(torch, name)(stock, *(other() for other in others))
    with ft.fuzzy("rn", seed=0), warnings.catch_warnings():
        warnings.simplefilter("error")
        getattr(torch, name)(fuzzy, *(other() for other in others)) if others else getattr(
            torch, name
        )(fuzzy)
    for a, b in zip(stock, fuzzy, strict=True):
        torch.testing.assert_close(a, b)
