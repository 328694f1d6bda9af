"""Laws of dtypes: conversions round once, 16-bit tensors round twice, results keep their dtype."""

from __future__ import annotations

import pytest
import torch

import fuzzytorch as ft
from fuzzytorch.rounding import MODES
from fuzzytorch.table import Verdict

NARROW = [torch.float16, torch.bfloat16]


def randn(*shape, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def every_value(dtype):
    return torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)


def neighbours(x, dtype):
    """The numbers of a dtype just below and just above float64 values (equal where exact)."""
    nearest = x.to(dtype)
    down = torch.where(nearest.double() > x, nextafter(nearest, -1), nearest)
    up = torch.where(nearest.double() < x, nextafter(nearest, 1), nearest)
    return down, up


def nextafter(x, sign):
    """The next number of the dtype, for finite values that are not zero."""
    bits = {2: torch.int16, 4: torch.int32}[x.element_size()]
    step = torch.where(x > 0, sign, -sign).to(bits)
    return (x.view(bits) + step).view(x.dtype)


def same(a, b):
    return a.dtype == b.dtype and torch.equal(a.nan_to_num(nan=7.0), b.nan_to_num(nan=7.0))


class TestConversions:
    @pytest.mark.parametrize("dtype", [torch.float32, *NARROW])
    def test_a_narrowing_conversion_takes_one_of_the_two_neighbours(self, dtype):
        x = randn(5000, dtype=torch.float64)
        down, up = neighbours(x, dtype)
        with ft.fuzzy("sr", seed=0):
            y = x.to(dtype)
        assert y.dtype == dtype
        assert ((y == down) | (y == up)).all()
        assert (y != x.to(dtype)).any()
        with ft.fuzzy("up", seed=0):
            assert torch.equal(x.to(dtype), up)
        with ft.fuzzy("down", seed=0):
            assert torch.equal(x.to(dtype), down)

    @pytest.mark.parametrize("dtype", NARROW)
    def test_in_rn_it_is_the_cast_of_stock_torch(self, dtype):
        halves = every_value(dtype).float()
        x = torch.cat([halves, halves * 1.0009, halves * (1 + 2.0**-9), randn(10000) * 100])
        with ft.fuzzy("rn", seed=0):
            assert same(x.to(dtype), x.to(dtype).clone())
            ours = x.to(dtype)
        assert same(ours, x.to(dtype))

    def test_from_binary64_in_rn_it_is_the_cast_of_stock_torch(self):
        x = randn(10000, dtype=torch.float64) * 10.0 ** torch.arange(-50, 50).repeat(100)
        with ft.fuzzy("rn", seed=0):
            ours = x.float()
        assert same(ours, x.float())

    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("dtype", NARROW)
    def test_widening_is_exact(self, mode, dtype):
        x = every_value(dtype)
        with ft.fuzzy(mode, seed=0) as fuzzy:
            y, z = x.float(), x.double()
        assert same(y, x.float())
        assert same(z, x.double())
        assert fuzzy.coverage.operations == 0

    @pytest.mark.parametrize("mode", MODES)
    def test_integers_that_the_format_holds_are_exact(self, mode):
        n = torch.tensor([0, 1, -7, 2**24, -(2**24)])
        with ft.fuzzy(mode, seed=0):
            assert torch.equal(n.float(), torch.tensor([0.0, 1.0, -7.0, 2.0**24, -(2.0**24)]))
            assert torch.empty(0, dtype=torch.long).float().shape == (0,)
            assert (torch.tensor([True, False]).float() == torch.tensor([1.0, 0.0])).all()

    def test_integers_that_the_format_does_not_hold_are_rounded(self):
        n = torch.full((4000,), 2**24 + 1)
        with ft.fuzzy("sr", seed=0):
            y = n.float()
        assert set(y.tolist()) == {2.0**24, 2.0**24 + 2}
        # Five standard errors of 4000 draws with probability 1/2.
        assert abs((y == 2.0**24).double().mean() - 0.5) < 5 * 0.5 / 4000**0.5

    def test_a_copy_into_another_dtype_rounds_and_one_into_the_same_does_not(self):
        x = randn(1000, dtype=torch.float64)
        target = torch.empty(1000)
        with ft.fuzzy("up", seed=0):
            target.copy_(x)
            same_dtype = torch.empty(1000).copy_(target)
        assert torch.equal(target, neighbours(x, torch.float32)[1])
        assert torch.equal(same_dtype, target)

    def test_a_conversion_keeps_the_memory_format_that_is_asked_for(self):
        x = randn(2, 3, 4, 5, dtype=torch.float64)
        for layout in (torch.channels_last, torch.contiguous_format, torch.preserve_format):
            for source in (x, x.to(memory_format=torch.channels_last), x.transpose(1, 3)):
                with ft.fuzzy("rn", seed=0):
                    y = source.to(torch.float32, memory_format=layout)
                stock = source.to(torch.float32, memory_format=layout)
                assert y.stride() == stock.stride()
                assert torch.equal(y, stock)

    def test_gradients_pass_through_a_conversion(self):
        x = randn(10, dtype=torch.float64).requires_grad_()
        with ft.fuzzy("sr", seed=0):
            x.float().sum().backward()
        assert torch.equal(x.grad, torch.ones(10, dtype=torch.float64))

    def test_a_virtual_format_narrows_what_a_conversion_stores(self):
        x = randn(1000, dtype=torch.float64)
        with ft.fuzzy("down", seed=0, format="bfloat16"):
            y, z = x.float(), x.half()
        assert torch.equal(y.bfloat16(), neighbours(x, torch.bfloat16)[0])
        assert torch.equal(y, y.bfloat16().float())
        normal = x.abs() > torch.finfo(torch.float16).tiny
        assert torch.equal(z.float()[normal], y[normal])

    def test_a_virtual_range_narrows_what_a_conversion_stores(self):
        x = randn(1000, dtype=torch.float64) * 2.0**-4
        with ft.fuzzy("rn", seed=0, precision=4, emin=-5):
            y = x.half().double()
        quantum = 2.0 ** (-5 - 3)
        small = x.abs() < 2.0**-5
        assert small.any()
        assert torch.equal(y[small], (x[small] / quantum).round() * quantum)


CALLS = {
    "add": lambda x: x + x.flip(0),
    "scalar": lambda x: x * 0.1,
    "exp": lambda x: x.exp(),
    "sum": lambda x: x.sum(1),
    "mean": lambda x: x.mean(1),
    "mm": lambda x: x @ x.t(),
    "softmax": lambda x: x.softmax(1),
    "layer_norm": lambda x: torch.nn.functional.layer_norm(x, (x.shape[1],)),
    "gelu": lambda x: torch.nn.functional.gelu(x),
}


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("name", CALLS)
class TestNarrow:
    def test_results_keep_the_dtype_and_shape_of_stock_torch(self, name, dtype):
        x = randn(20, 30, dtype=dtype)
        stock = CALLS[name](x)
        with ft.fuzzy("rn", seed=0):
            y = CALLS[name](x)
        assert (y.dtype, y.shape, y.stride()) == (stock.dtype, stock.shape, stock.stride())
        precision = torch.finfo(dtype).eps
        torch.testing.assert_close(y, stock, rtol=2 * precision, atol=2 * precision)

    def test_results_scatter_between_neighbours_of_the_16_bit_format(self, name, dtype):
        x = randn(20, 30, dtype=dtype)
        with ft.fuzzy("sr", seed=0) as mode:
            y = torch.stack([CALLS[name](x).double() for _ in range(12)])
        assert mode.coverage.share(Verdict.ROUNDED) == 1
        assert (y.std(0) > 0).double().mean() > 0.5
        exact = CALLS[name](x.double())
        precision = torch.finfo(dtype).eps
        assert ((y - exact).abs() <= 2 * precision * (1 + exact.abs())).all()


@pytest.mark.parametrize("dtype", NARROW)
def test_an_elementwise_operation_on_16_bits_rounds_to_one_of_two_neighbours(dtype):
    x, y = randn(4000, dtype=dtype), randn(4000, seed=1, dtype=dtype)
    # A product of two 11-bit significands is exact in binary32, so that only the store rounds.
    down, up = neighbours(x.double() * y.double(), dtype)
    with ft.fuzzy("sr", seed=0):
        z = x * y
    normal = (x.double() * y.double()).abs() > torch.finfo(dtype).tiny
    assert ((z == down) | (z == up))[normal].all()
    with ft.fuzzy("up", seed=0):
        assert torch.equal((x * y)[normal], up[normal])


@pytest.mark.parametrize("dtype", NARROW)
def test_an_in_place_operation_on_16_bits_stores_in_its_operand(dtype):
    x = randn(500, dtype=dtype)
    with ft.fuzzy("sr", seed=0):
        expected = x * 0.3
    with ft.fuzzy("sr", seed=0):
        returned = x.mul_(0.3)
    assert returned is x
    assert torch.equal(x, expected)


@pytest.mark.parametrize("other", [torch.float32, torch.float64, torch.long])
@pytest.mark.parametrize("dtype", [torch.float32, *NARROW])
@pytest.mark.parametrize("shape", [(), (8,)])
def test_mixed_dtypes_promote_as_in_stock_torch(dtype, other, shape):
    x = randn(8, dtype=dtype)
    y = (randn(*shape, seed=1) * 10).to(other)
    stock = x + y
    with ft.fuzzy("rn", seed=0) as mode:
        z = x + y
    assert mode.coverage.share(Verdict.ROUNDED) == 1
    assert z.dtype == stock.dtype
    torch.testing.assert_close(z, stock)


@pytest.mark.parametrize(
    ("a", "b"), [(torch.float32, torch.bfloat16), (torch.float32, torch.long)], ids=str
)
def test_a_product_of_two_dtypes_is_refused_as_in_stock_torch(a, b):
    x, y = torch.ones(3, 3).to(a), torch.ones(3, 3).to(b)
    with pytest.raises(RuntimeError) as stock:
        x @ y
    with ft.fuzzy("rn", seed=0), pytest.raises(RuntimeError) as fuzzy:
        x @ y
    assert str(fuzzy.value) == str(stock.value)


def test_autocast_runs_its_conversions_under_the_mode():
    layer, x = torch.nn.Linear(30, 20), randn(4, 30)
    with ft.fuzzy("sr", seed=0) as mode, torch.autocast("cpu", torch.bfloat16):
        y = torch.stack([layer(x).detach() for _ in range(5)])
    assert y.dtype == torch.bfloat16
    assert y.float().std(0).gt(0).any()
    assert mode.coverage.share(Verdict.ROUNDED) == 1


def test_a_scaled_training_step_is_rounded():
    layer = torch.nn.Linear(5, 3)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=3.0, growth_interval=1)
    with ft.fuzzy("sr", seed=0) as mode:
        scaler.scale(layer(randn(4, 5)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 6.0
    assert mode.coverage.share(Verdict.ROUNDED) == 1
