"""Laws of float64 tensors: rounded in binary64, whatever they are mixed with."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from oracle import exact_value
from torch.nn import functional as F

import fuzzytorch as ft
from fuzzytorch.backends.reference import ReferenceBackend
from fuzzytorch.program import ARITY, Program
from fuzzytorch.rounding import MODES, Rounding
from fuzzytorch.stream import Stream
from fuzzytorch.table import Verdict

UNIT = 2.0**-52
"""The distance between float64 numbers of [1, 2)."""

RANDOM = ("sr", "ud", "cestac")
OPERATIONS = ("add", "sub", "mul", "div", "sqrt", "fma")
REPLICAS = 400


def randn(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=dtype)


def neighbours(exact):
    """The float64 numbers just below and just above a fraction, equal where it is one."""
    nearest = float(exact)
    if Fraction(nearest) == exact:
        return nearest, nearest
    if Fraction(nearest) < exact:
        return nearest, math.nextafter(nearest, math.inf)
    return math.nextafter(nearest, -math.inf), nearest


def probability(exact, low, high, mode):
    """That the larger of the two neighbours is taken."""
    if mode == "cestac":
        return 0.5
    return float((exact - Fraction(low)) / (Fraction(high) - Fraction(low)))


def draw(operation, operands, mode):
    """One rounded operation per element in ``REPLICAS`` realisations."""
    program = Program(len(operands), 0, ((operation, *range(len(operands))),))
    samples = []
    for replica in range(REPLICAS):
        out = torch.empty_like(operands[0])
        stream = Stream(7, replica, 0)
        ReferenceBackend().elementwise(program, operands, (), out, Rounding.binary64(mode), stream)
        samples.append(out)
    return torch.stack(samples)


def operands_of(operation):
    values = [randn(40, seed=seed).abs() + 0.1 for seed in range(ARITY[operation])]
    if operation == "fma":
        # Cancellation leaves the error of the product.
        values[2][:10] = -(values[0] * values[1])[:10]
    return values


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("mode", ["sr", "cestac"])
def test_the_upper_neighbour_has_the_probability_of_the_definition(operation, mode):
    operands = operands_of(operation)
    samples = draw(operation, operands, mode)
    total, expected, variance = 0.0, 0.0, 0.0
    for i in range(samples.shape[1]):
        exact = exact_value(operation, [Fraction(float(x[i])) for x in operands])
        low, high = neighbours(exact)
        taken = samples[:, i]
        assert ((taken == low) | (taken == high)).all()
        if low == high:
            continue
        p = probability(exact, low, high, mode)
        count = int((taken == high).sum())
        # Six standard errors, and one draw for a probability near 0 or 1.
        assert abs(count - REPLICAS * p) <= 6 * (REPLICAS * p * (1 - p)) ** 0.5 + 1
        total, expected = total + count, expected + REPLICAS * p
        variance += REPLICAS * p * (1 - p)
    assert variance > 0
    assert abs(total - expected) <= 5 * variance**0.5


@pytest.mark.parametrize("operation", OPERATIONS)
def test_ud_takes_each_neighbour_of_the_nearest_number_half_of_the_time(operation):
    operands = operands_of(operation)
    samples = draw(operation, operands, "ud")
    nearest = draw(operation, operands, "rn")[0]
    grown = (samples.view(torch.int64) - nearest.view(torch.int64)).double()
    moving = nearest != 0
    assert (grown[:, moving].abs() == 1).all()
    count = grown[:, moving].numel()
    assert abs(float(grown[:, moving].sum())) <= 5 * count**0.5


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "ud"])
def test_exact_results_stay_exact(mode):
    x = torch.arange(-20.0, 20.0, dtype=torch.float64)
    with ft.fuzzy(mode, seed=1):
        results = (x + 0.5, x * 3.0, x / 4.0, (x * x).sqrt(), x @ x, x.sum(), x.exp2())
    stock = (x + 0.5, x * 3.0, x / 4.0, (x * x).sqrt(), x @ x, x.sum(), x.exp2())
    for ours, theirs in zip(results, stock, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("function", [torch.exp, torch.sinh])
def test_a_function_moves_up_or_down_once_in_eight_times_each(function):
    x = randn(8000).abs() + 0.5
    with ft.fuzzy("rn"):
        nearest = function(x)
    with ft.fuzzy("sr", seed=2):
        steps = function(x).view(torch.int64) - nearest.view(torch.int64)
    assert set(steps.unique().tolist()) == {-1, 0, 1}
    for step in (-1, 1):
        count = int((steps == step).sum())
        assert abs(count - 1000) <= 5 * (8000 * 7 / 64) ** 0.5


CALLS = {
    "add": lambda x: x + x.flip(0) / 3.0,
    "scalar": lambda x: x * 0.1,
    "exp": torch.exp,
    "sum": lambda x: x.sum(1),
    "mean": lambda x: x.mean(0),
    "var": lambda x: x.var(1),
    "std": lambda x: x.std(),
    "norm": lambda x: x.norm(dim=1),
    "cumsum": lambda x: x.cumsum(1),
    "mm": lambda x: x @ x.t(),
    "softmax": lambda x: x.softmax(1),
    "logsumexp": lambda x: x.logsumexp(1),
    "layer_norm": lambda x: F.layer_norm(x, (x.shape[1],)),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "conv": lambda x: F.conv1d(x[None], x[:6, :9].reshape(2, -1, 1).expand(2, 27, 1)[:, :20]),
    "pool": lambda x: F.avg_pool2d(x[None], 3, 2, 1),
    "mse": lambda x: F.mse_loss(x, x.flip(0)),
    "index_add": lambda x: x.index_add(0, torch.arange(20) % 15, x * 1.1),
}


@pytest.mark.parametrize("name", CALLS)
class TestCalls:
    def test_in_rn_it_is_stock_torch_within_its_own_error(self, name):
        x = randn(20, 30)
        stock = CALLS[name](x)
        with ft.fuzzy("rn", seed=0):
            y = CALLS[name](x)
        assert (y.dtype, y.shape, y.stride()) == (stock.dtype, stock.shape, stock.stride())
        torch.testing.assert_close(y, stock, rtol=1e-13, atol=1e-14)

    def test_in_sr_it_scatters_in_the_last_digits_around_the_result(self, name):
        x = randn(20, 30)
        with ft.fuzzy("sr", seed=0) as mode:
            y = torch.stack([CALLS[name](x) for _ in range(32)])
        assert mode.coverage.share(Verdict.ROUNDED) == 1
        deviation, stock = y.std(0), CALLS[name](x)
        assert (deviation > 0).double().mean() > 0.5
        assert (deviation < 1e-13 * (1 + stock.abs())).all()
        # Nearest rounding of stock torch is itself off by some deviations, and by half a unit
        # of an operand of about 1 where the draws hardly vary.
        error = (y.mean(0) - stock).abs()
        assert (error <= (5 / 32**0.5 + 6) * deviation + 2 * UNIT * (1 + stock.abs())).all()


def test_a_narrow_format_holds_for_float64_tensors_too():
    x = randn(500)
    with ft.fuzzy("sr", seed=0, format="bfloat16"):
        y = x * 1.5
    assert torch.equal(y, y.bfloat16().double())
    assert ((y - x * 1.5).abs() <= 2.0**-7 * (x * 1.5).abs()).all()


@pytest.mark.parametrize("other", [torch.float16, torch.bfloat16, torch.float32, torch.long])
@pytest.mark.parametrize("shape", [(), (200,)])
def test_what_meets_a_float64_tensor_is_widened_exactly(other, shape):
    x, y = randn(200), (randn(*shape, seed=1) * 10).to(other)
    with ft.fuzzy("sr", seed=3) as mode:
        z = x + y
        widened = x + y.double()
    assert z.dtype == torch.float64
    assert mode.coverage.share(Verdict.ROUNDED) == 1
    exact = x + y.double()
    assert ((z - exact).abs() <= 2 * UNIT * exact.abs().clamp(min=1e-3)).all()
    assert (z != widened).any(), "the two calls draw differently"
    with ft.fuzzy("sr", seed=3):
        assert torch.equal(x + y.double(), z)


def test_a_float64_number_does_not_widen_a_float32_tensor():
    x = randn(100, dtype=torch.float32)
    with ft.fuzzy("rn", seed=0):
        y = x * torch.tensor(0.1, dtype=torch.float64)
    assert torch.equal(y, x * 0.1)


KEYWORDS = {
    "sum": lambda x: x.sum(dtype=torch.float64),
    "mean": lambda x: x.mean(0, dtype=torch.float64),
    "prod": lambda x: x[:, :3].prod(1, dtype=torch.float64),
    "cumsum": lambda x: x.cumsum(0, dtype=torch.float64),
    "softmax": lambda x: x.softmax(1, dtype=torch.float64),
    "norm": lambda x: torch.linalg.vector_norm(x, dtype=torch.float64),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", KEYWORDS)
def test_a_dtype_that_is_asked_for_converts_the_operands_first(name, dtype):
    x = randn(20, 30).to(dtype)
    stock = KEYWORDS[name](x)
    with ft.fuzzy("sr", seed=0) as mode:
        y = torch.stack([KEYWORDS[name](x) for _ in range(8)])
    assert y.dtype == stock.dtype == torch.float64
    assert mode.coverage.share(Verdict.ROUNDED) == 1
    torch.testing.assert_close(y, stock.expand_as(y), rtol=1e-13, atol=1e-13)
    # Sums of some float32 numbers of like size are float64 numbers.
    exact = name in ("sum", "cumsum") or (name, dtype) == ("prod", torch.bfloat16)
    assert (y != stock).any() != exact


def test_a_narrower_dtype_that_is_asked_for_rounds_the_operands_under_the_mode():
    x = torch.full((1,), 1 + 2.0**-24, dtype=torch.float64)
    with ft.fuzzy("up", seed=0):
        assert x.sum(dtype=torch.float32) == 1 + 2.0**-23
    with ft.fuzzy("down", seed=0):
        assert x.sum(dtype=torch.float32) == 1


def test_a_float32_operand_written_in_place_takes_one_more_rounding():
    x, y = torch.ones(1), torch.full((1,), 2.0**-24, dtype=torch.float64)
    with ft.fuzzy("up", seed=0):
        assert x.clone().add_(y) == 1 + 2.0**-23
        assert torch.add(x, y, out=torch.empty(1)) == 1 + 2.0**-23
    with ft.fuzzy("down", seed=0):
        assert x.clone().add_(y) == 1


def test_integers_beyond_2_to_the_53_are_rounded_when_they_become_float64():
    n = torch.full((2000,), 2**53 + 1)
    with ft.fuzzy("sr", seed=0):
        y = n.double()
    assert set(y.tolist()) == {2.0**53, 2.0**53 + 2}
    assert abs(int((y == 2.0**53).sum()) - 1000) <= 5 * 500**0.5
    m = torch.tensor([2**53, -(2**53), 3 * 2**60, 7])
    with ft.fuzzy("away", seed=0):
        assert torch.equal(
            m.double(), torch.tensor([2.0**53, -(2.0**53), 3.0 * 2**60, 7.0]).double()
        )


def test_integers_become_the_default_dtype():
    n = torch.arange(1, 50)
    torch.set_default_dtype(torch.float64)
    try:
        with ft.fuzzy("sr", seed=0) as mode:
            y, z = n / 3, n.sqrt()
    finally:
        torch.set_default_dtype(torch.float32)
    assert y.dtype == z.dtype == torch.float64
    assert mode.coverage.share(Verdict.ROUNDED) == 1
    torch.testing.assert_close(y, n.double() / 3, rtol=4 * UNIT, atol=0.0)


def test_a_coarse_operation_rounds_its_float64_result():
    x = randn(6, 6)
    x = x + x.mT

    def values():
        return torch.linalg.eigvals(x).real.sort().values

    with ft.fuzzy("sr", seed=0) as mode:
        y = torch.stack([values() for _ in range(20)])
    assert mode.coverage.share(Verdict.UNCOVERED) == 0
    assert mode.coverage.share(Verdict.COARSE) > 0
    assert (y.std(0) > 0).any()
    torch.testing.assert_close(y, values().expand_as(y), rtol=1e-14, atol=0.0)


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1),
        torch.nn.BatchNorm2d(8),
        torch.nn.GELU(),
        torch.nn.MaxPool2d(2),
        torch.nn.GroupNorm(2, 8),
        torch.nn.SiLU(),
        torch.nn.AdaptiveAvgPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(32, 6),
        torch.nn.LayerNorm(6),
    ).double()


def train(optimizer_class, **options):
    net, x = network(), randn(5, 3, 8, 8)
    optimizer = optimizer_class(net.parameters(), lr=1e-2, **options)
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(net(x), torch.arange(5)).backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in net.state_dict().values()])


@pytest.mark.parametrize("mode", ["rn", *RANDOM])
@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        (torch.optim.SGD, {"momentum": 0.9}),
        (torch.optim.AdamW, {}),
        (torch.optim.Adam, {"fused": True}),
    ],
    ids=["sgd", "adamw", "fused-adam"],
)
def test_a_training_in_float64_is_rounded_throughout(mode, optimizer, options):
    stock = train(optimizer, **options)
    with ft.fuzzy(mode, seed=0) as fuzzy:
        first, second = train(optimizer, **options), train(optimizer, **options)
    assert fuzzy.coverage.share(Verdict.ROUNDED) == 1
    assert {r.verdict for r in fuzzy.coverage.records} <= {
        Verdict.ROUNDED,
        Verdict.LOWERED,
        Verdict.EXACT,
    }
    # Gradients about zero are divided by their own size in Adam, which magnifies their noise.
    torch.testing.assert_close(first, stock, rtol=1e-6, atol=1e-8)
    assert (first != second).any() == (mode != "rn")


def test_float64_kernels_give_the_bits_of_the_reference():
    def run(backend):
        with ft.fuzzy("sr", seed=4, backend=backend):
            y = network()(randn(2, 3, 8, 8)[:, :, :4, :4])
            y.sum().backward()
        return y.detach()

    assert torch.equal(run("cpu"), run("reference"))
