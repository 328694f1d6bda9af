"""Mean and variance of every primitive over many draws, against closed forms.

Operands below keep every accumulation in one binade, so that its moments are known
exactly (:mod:`moments`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import pytest
import torch
from moments import UNIT, Array, Moments, chain, check, one_rounding

import fuzzytorch as ft
from fuzzytorch.backends import EXTENSION, backend_named
from fuzzytorch.backends.protocol import K_BLOCK, Backend, Geometry
from fuzzytorch.program import ARITY, ROUNDED, Program
from fuzzytorch.rounding import MODES, Rounding
from fuzzytorch.stream import Stream

pytest.importorskip(EXTENSION, reason="the native kernels were not built")

RANDOM_MODES: Final = tuple(mode for mode in MODES if Rounding(mode).draws)

REPLICAS: Final = 192
"""Realisations of every call; each has hundreds of independent elements."""


def draw(run: Callable[[Backend, Rounding, Stream], torch.Tensor], mode: str) -> Array:
    backend, rounding = backend_named("cpu"), Rounding(mode)
    replicas = [run(backend, rounding, Stream(12, r, 3)) for r in range(REPLICAS)]
    return torch.stack(replicas).flatten(1).numpy()


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    scale = torch.randint(-6, 7, shape, generator=generator)
    return torch.ldexp(torch.randn(shape, generator=generator), scale)


def terms(*shape: int, seed: int = 0) -> torch.Tensor:
    """Odd multiples of 2^-30, about 2^-14: they discard k/128 of the unit of [1, 2), k odd.

    Neither exact nor halfway to the next number, so that nearest rounding never
    depends on the parity of a total.
    """
    generator = torch.Generator().manual_seed(seed)
    odd = 2 * torch.randint(-(2**15), 2**15, shape, generator=generator) + 1
    return torch.ldexp(odd.float(), torch.tensor(-30))


START: Final = 1.5
"""A total that stays within [1, 2) when hundreds of terms are added."""

FACTOR: Final = 2.0**-10
"""A power of two: scaled operands whose products are again terms."""

OPERATIONS: Final[dict[str, Callable[..., Array]]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "sqrt": np.sqrt,
    "fma": lambda a, b, c: a * b + c,
    "round": lambda a: a,
}


@pytest.mark.parametrize("mode", RANDOM_MODES)
@pytest.mark.parametrize("operation", ROUNDED)
def test_one_operation_takes_its_two_neighbours_as_often_as_the_mode_says(
    operation: str, mode: str
) -> None:
    program = Program(ARITY[operation], 0, ((operation, *range(ARITY[operation])),))
    inputs = [normal(1090, seed=i) for i in range(program.inputs)]
    if operation == "sqrt":
        inputs = [inputs[0].abs()]
    if operation == "round":
        inputs = [inputs[0].double() * normal(1090, seed=9).double()]

    def run(backend: Backend, rounding: Rounding, stream: Stream) -> torch.Tensor:
        out = torch.empty(1090)
        backend.elementwise(program, inputs, [], out, rounding, stream)
        return out

    exact = OPERATIONS[operation](*(x.double().numpy() for x in inputs))
    check(draw(run, mode), one_rounding(exact, mode))


@pytest.mark.parametrize("mode", RANDOM_MODES)
def test_the_operations_of_a_program_draw_independently(mode: str) -> None:
    program = Program(3, 0, (("add", 0, 1), ("add", 3, 2)))
    start, first, second = torch.full((1090,), START), terms(1090), terms(1090, seed=1)

    def run(backend: Backend, rounding: Rounding, stream: Stream) -> torch.Tensor:
        out = torch.empty(1090)
        backend.elementwise(program, [start, first, second], [], out, rounding, stream)
        return out

    steps = torch.stack([first, second]).double().numpy()
    check(draw(run, mode), chain(start.numpy(), steps, mode))


@pytest.mark.parametrize("mode", RANDOM_MODES)
@pytest.mark.parametrize("kind", ["sum", "sum_abs", "sum_squares", "dot"])
def test_the_eight_lanes_of_a_short_reduction_are_a_chain(kind: str, mode: str) -> None:
    x = terms(300, 8)
    if kind == "sum_squares":
        # Squares of 13 bits are exact; the half makes them odd multiples of a quarter.
        x = torch.ldexp(2 * torch.randint(0, 2**7, (300, 8), generator=_generator()) + 1.0, _M13)
    y = torch.full((300, 8), FACTOR)
    x[:, 0] = {"sum_squares": 1.25, "sum_abs": -START}.get(kind, START)
    if kind == "dot":
        x[:, 1:] /= FACTOR
        x[:, 0] /= FACTOR

    def run(backend: Backend, rounding: Rounding, stream: Stream) -> torch.Tensor:
        out = torch.empty(300)
        backend.reduce(kind, x, out, rounding, stream, *([y] if kind == "dot" else []))
        return out

    a, b = x.double().numpy().T, y.double().numpy().T
    exact = {"sum": a, "sum_abs": abs(a), "sum_squares": a * a, "dot": a * b}[kind]
    if mode == "ud" and kind in ("sum_squares", "dot"):
        # The first product is moved, too; the others by a unit of their own, 2^-9 of a unit
        # of the total or less, which adds less than 2^-18 to the variance.
        expected = chain(np.zeros(300), exact, mode)
    else:
        expected = chain(exact[0], exact[1:], mode)
    check(draw(run, mode), expected)


_M13: Final = torch.tensor(-13)


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(5)


@pytest.mark.parametrize("mode", ["sr", "cestac"])
@pytest.mark.parametrize("kind", ["sum", "dot"])
def test_the_runs_of_all_lanes_of_a_long_reduction_are_chains(kind: str, mode: str) -> None:
    length = 32 * 16 * 4
    x, k = terms(24, length), torch.arange(length)
    # Runs and lanes start at +1.5 and -1.5 in turn, so that their totals cancel exactly.
    first = k // 32 % 16 == 0
    sign = 1.0 - 2.0 * ((k // 512 + k // 8) % 2)
    x[:, first] = START * sign[first]
    y = torch.full((24, length), FACTOR)
    if kind == "dot":
        x /= FACTOR

    def run(backend: Backend, rounding: Rounding, stream: Stream) -> torch.Tensor:
        out = torch.empty(24)
        backend.reduce(kind, x, out, rounding, stream, *([y] if kind == "dot" else []))
        return out

    exact = (x * (FACTOR if kind == "dot" else 1.0)).double().numpy()
    runs = exact.reshape(24, 4, 16, 32).transpose(2, 0, 1, 3).reshape(16, -1)
    parts = chain(runs[0], runs[1:], mode)
    check(draw(run, mode), Moments(*(m.reshape(24, -1).sum(1) for m in parts)), UNIT)


@pytest.mark.parametrize("mode", RANDOM_MODES)
def test_a_product_of_two_factors_is_one_rounding(mode: str) -> None:
    x = normal(900, 2)

    def run(backend: Backend, rounding: Rounding, stream: Stream) -> torch.Tensor:
        out = torch.empty(900)
        backend.reduce("prod", x, out, rounding, stream)
        return out

    check(draw(run, mode), one_rounding(x.double().numpy().prod(1), mode))


@pytest.mark.parametrize("mode", RANDOM_MODES)
@pytest.mark.parametrize("length", [2, 40, 300])
def test_a_running_sum_is_one_chain(length: int, mode: str) -> None:
    x = terms(200, length)
    x[:, 0] = START

    def run(backend: Backend, rounding: Rounding, stream: Stream) -> torch.Tensor:
        out = torch.empty(200, length)
        backend.scan("sum", x, out, rounding, stream)
        return out[:, -1]

    exact = x.double().numpy().T
    check(draw(run, mode), chain(exact[0], exact[1:], mode))


@pytest.mark.parametrize("mode", RANDOM_MODES)
def test_a_running_product_of_two_factors_is_one_rounding(mode: str) -> None:
    x = normal(900, 2)

    def run(backend: Backend, rounding: Rounding, stream: Stream) -> torch.Tensor:
        out = torch.empty(900, 2)
        backend.scan("prod", x, out, rounding, stream)
        return out[:, 1]

    check(draw(run, mode), one_rounding(x.double().numpy().prod(1), mode))


@pytest.mark.parametrize("mode", RANDOM_MODES)
@pytest.mark.parametrize(
    ("m", "k", "n"), [(30, 1, 33), (13, 2, 67), (13, 100, 35), (9, K_BLOCK, 67)]
)
def test_the_products_of_a_matrix_product_are_one_chain(m: int, k: int, n: int, mode: str) -> None:
    a, b = terms(2, m, k) / FACTOR, torch.full((2, k, n), FACTOR)
    a[:, :, 0], b[:, 0, :] = 1.0, START
    if k > 1:
        # Other columns, other terms: odd factors keep the products odd.
        b[:, 1:] *= 2 * torch.randint(0, 2, (2, k - 1, n), generator=_generator()) + 1.0
    else:
        a, b = normal(2, m, 1), normal(2, 1, n)

    def run(backend: Backend, rounding: Rounding, stream: Stream) -> torch.Tensor:
        out = torch.empty(2, m, n)
        backend.gemm(a, b, out, rounding, stream)
        return out

    products = a.double().mT.unsqueeze(3) * b.double().unsqueeze(2)
    steps = products.transpose(0, 1).flatten(1).numpy()
    check(draw(run, mode), chain(np.zeros(steps.shape[1]), steps, mode))


@pytest.mark.parametrize("mode", ["sr", "cestac"])
def test_blocks_of_a_long_matrix_product_are_chains_that_are_added(mode: str) -> None:
    a, b = terms(1, 12, 2 * K_BLOCK) / FACTOR, torch.full((1, 2 * K_BLOCK, 34), FACTOR)
    a[:, :, 0], a[:, :, K_BLOCK], b[:, ::K_BLOCK] = 1.0, -1.0, START

    def run(backend: Backend, rounding: Rounding, stream: Stream) -> torch.Tensor:
        out = torch.empty(1, 12, 34)
        backend.gemm(a, b, out, rounding, stream)
        return out

    products = (a.double().mT.unsqueeze(3) * b.double().unsqueeze(2))[0].flatten(1).numpy()
    # Their totals cancel up to a small multiple of a unit: the last addition is exact.
    halves = [chain(np.zeros(12 * 34), part, mode) for part in np.split(products, 2)]
    check(draw(run, mode), Moments(*(p + q for p, q in zip(*halves, strict=True))), UNIT)


@pytest.mark.parametrize("mode", RANDOM_MODES)
@pytest.mark.parametrize("groups", [1, 2])
def test_the_products_of_a_convolution_are_one_chain(groups: int, mode: str) -> None:
    x, weight = terms(2, 2 * groups, 1, 9, 11), torch.full((4, 2, 1, 2, 3), FACTOR)
    weight *= 2 * torch.randint(0, 4, weight.shape, generator=_generator()) + 1.0
    x /= FACTOR
    # The first channel of every group brings the total to 1.5 at its first tap.
    x[:, ::2], weight[:, 0], weight[:, 0, 0, 0, 0] = 1.0, 0.0, START

    def run(backend: Backend, rounding: Rounding, stream: Stream) -> torch.Tensor:
        out = torch.empty(2, 4, 1, 4, 9)
        geometry = Geometry((1, 2, 1), (0, 0, 0), (1, 1, 1), groups)
        backend.conv(x, weight, out, geometry, rounding, stream)
        return out

    windows = x.double()[:, :, 0].unfold(2, 2, 2).unfold(3, 3, 1)
    windows = windows.reshape(2, groups, 1, 2, 4, 9, 2, 3)
    taps = weight.double().reshape(1, groups, 4 // groups, 2, 1, 1, 2, 3)
    products = (windows * taps).permute(3, 6, 7, 0, 1, 2, 4, 5).reshape(12, -1).numpy()
    check(draw(run, mode), chain(np.zeros(products.shape[1]), products, mode))


@pytest.mark.parametrize("mode", RANDOM_MODES)
def test_the_products_of_a_transposed_convolution_are_one_chain(mode: str) -> None:
    # Kernel and stride are equal: every output position is reached by one tap.
    x, weight = terms(2, 20, 1, 4, 5) / FACTOR, torch.full((20, 3, 1, 2, 3), FACTOR)
    weight *= 2 * torch.randint(0, 4, weight.shape, generator=_generator()) + 1.0
    x[:, 0], weight[0] = 1.0, START

    def run(backend: Backend, rounding: Rounding, stream: Stream) -> torch.Tensor:
        out = torch.empty(2, 3, 1, 8, 15)
        geometry = Geometry((1, 2, 3), (0, 0, 0), (1, 1, 1), 1)
        backend.conv_transposed(x, weight, out, geometry, rounding, stream)
        return out

    spread = x.double()[:, :, 0].repeat_interleave(2, 2).repeat_interleave(3, 3)
    tiled = weight.double()[:, :, 0].repeat(1, 1, 4, 5)
    products = (spread.unsqueeze(2) * tiled).transpose(0, 1).reshape(20, -1).numpy()
    check(draw(run, mode), chain(np.zeros(products.shape[1]), products, mode))


@pytest.mark.parametrize("mode", RANDOM_MODES)
def test_the_products_of_the_gradient_of_a_weight_are_one_chain(mode: str) -> None:
    # Windows do not overlap: the first window alone brings the total to 1.5.
    x, grad = terms(2, 12, 1, 8, 15) / FACTOR, torch.full((2, 5, 1, 4, 5), FACTOR)
    grad *= 2 * torch.randint(0, 4, grad.shape, generator=_generator()) + 1.0
    x[0, :, :, :2, :3], grad[0, :, 0, 0, 0] = START, 1.0

    def run(backend: Backend, rounding: Rounding, stream: Stream) -> torch.Tensor:
        out = torch.empty(5, 12, 1, 2, 3)
        geometry = Geometry((1, 2, 3), (0, 0, 0), (1, 1, 1), 1)
        backend.conv_weight(x, grad, out, geometry, rounding, stream)
        return out

    windows = x.double()[:, :, 0].unfold(2, 2, 2).unfold(3, 3, 3)
    windows = windows.permute(0, 2, 3, 1, 4, 5).reshape(40, 1, 12, 2, 3)
    factors = grad.double().permute(0, 2, 3, 4, 1).reshape(40, 5, 1, 1, 1)
    products = (windows * factors).reshape(40, -1).numpy()
    check(draw(run, mode), chain(np.zeros(products.shape[1]), products, mode))


@pytest.mark.parametrize("mode", RANDOM_MODES)
def test_additions_to_the_same_row_are_one_chain(mode: str) -> None:
    index, source = torch.arange(120) * 7 % 3, terms(120, 65)

    def run(backend: Backend, rounding: Rounding, stream: Stream) -> torch.Tensor:
        out = torch.full((3, 65), START)
        backend.accumulate(index, source, out, rounding, stream)
        return out

    steps = torch.stack([source[index == r] for r in range(3)], 1).double().flatten(1).numpy()
    check(draw(run, mode), chain(np.full(195, START), steps, mode))


@pytest.mark.parametrize("mode", RANDOM_MODES)
@pytest.mark.parametrize("function", [torch.exp, torch.tanh, torch.log1p, torch.sin])
def test_a_transcendental_function_is_one_rounding_of_its_binary64_value(
    function: Callable[[torch.Tensor], torch.Tensor], mode: str
) -> None:
    x = torch.rand(700, generator=_generator()) + 0.5
    samples = []
    with ft.fuzzy(mode, seed=8):
        for _ in range(REPLICAS):
            samples.append(function(x))
    check(torch.stack(samples).numpy(), one_rounding(function(x.double()).numpy(), mode))


@pytest.mark.parametrize("exponent", [-20, 0, 1, 30])
def test_ud_moves_a_power_of_two_by_a_whole_unit_up_or_half_a_unit_down(exponent: int) -> None:
    x = torch.full((1000,), 2.0**exponent)
    unit = 2.0 ** (exponent - 23)
    with ft.fuzzy("ud", seed=3):
        y = torch.stack([x * 1.0 for _ in range(REPLICAS)]).double()
    assert set(y.unique().tolist()) == {2.0**exponent + unit, 2.0**exponent - unit / 2}
    moments = one_rounding(x.double().numpy(), "ud")
    assert moments.mean[0] == 2.0**exponent + unit / 4
    assert moments.variance[0] == (0.75 * unit) ** 2
    check(y.numpy(), moments)
