"""The reference backend equals a scalar definition of every primitive."""

from __future__ import annotations

import inspect
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from oracle import Oracle
from primitive_cases import CASES, SINGLE, Case, integers, normal, tiny

from fuzzytorch.backends.protocol import REDUCE_CHUNK, Backend, Geometry
from fuzzytorch.backends.reference import ReferenceBackend
from fuzzytorch.program import EXACT, ROUNDED, Program
from fuzzytorch.rounding import MODES, Rounding
from fuzzytorch.stream import Stream

BACKEND = ReferenceBackend()
STREAM = Stream(seed=11, replica=2, call=5)
ROUNDINGS = {
    **{mode: Rounding(mode) for mode in MODES},
    "sr-bfloat16": Rounding.of("sr", "bfloat16"),
    "ud-tf32": Rounding.of("ud", "tf32"),
    "cestac-float16": Rounding.of("cestac", "float16"),
    "rn-float8_e5m2": Rounding.of("rn", "float8_e5m2"),
}

every_case = pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.primitive}-{c.name}")
single_case = pytest.mark.parametrize("case", SINGLE, ids=lambda c: f"{c.primitive}-{c.name}")


def test_every_primitive_of_the_protocol_and_every_operation_has_a_case() -> None:
    methods = {name for name, _ in inspect.getmembers(Backend, inspect.isfunction)}
    assert {case.primitive for case in CASES} == {m for m in methods if not m.startswith("_")}
    assert set(ROUNDED) <= {case.name for case in CASES if case.primitive == "elementwise"}
    composite = inspect.getclosurevars(next(c for c in CASES if c.name == "composite").run)
    assert set(EXACT) <= {op for op, *_ in composite.nonlocals["program"].code}


@every_case
def test_a_primitive_equals_scalar_loops_over_fractions(case: Case) -> None:
    inputs = case.build(normal(1))
    # Every mode for single operations; longer cases tell coordinates and orders apart.
    names = ROUNDINGS if case in SINGLE else ("rn", "sr", "ud", "cestac", "sr-bfloat16")
    for name in names:
        rounding = ROUNDINGS[name]
        out = case.run(BACKEND, inputs, rounding, STREAM)
        expected = case.naive(Oracle(rounding, STREAM), inputs)
        wanted = np.array([float(v) for v in expected])
        np.testing.assert_array_equal(out.double().reshape(-1).numpy(), wanted, err_msg=name)


@every_case
@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "ud"])
def test_integers_stay_exact_in_every_mode_but_ud(case: Case, mode: str) -> None:
    inputs = case.build(integers(2))
    out = case.run(BACKEND, inputs, Rounding(mode), STREAM)
    assert torch.equal(out.double(), case.truth(inputs))


@single_case
@pytest.mark.parametrize("mode", ["rn", "sr", "cestac", "away"])
def test_one_operation_yields_one_of_the_two_neighbours_of_the_exact_result(
    case: Case, mode: str
) -> None:
    inputs = case.build(normal(3))
    low = case.run(BACKEND, inputs, Rounding("down"), STREAM)
    high = case.run(BACKEND, inputs, Rounding("up"), STREAM)
    inexact = low < high
    assert torch.equal(torch.nextafter(low, high)[inexact], high[inexact])
    out = case.run(BACKEND, inputs, Rounding(mode), STREAM)
    assert bool(((out == low) | (out == high)).all())


@single_case
def test_ud_yields_one_of_the_two_neighbours_of_the_nearest_result(case: Case) -> None:
    inputs = case.build(normal(3))
    nearest = case.run(BACKEND, inputs, Rounding("rn"), STREAM)
    out = case.run(BACKEND, inputs, Rounding("ud"), STREAM)
    up = torch.nextafter(nearest, torch.tensor(torch.inf))
    down = torch.nextafter(nearest, torch.tensor(-torch.inf))
    assert bool(((out == up) | (out == down)).all())
    assert bool((out == up).any())
    assert bool((out == down).any())


@every_case
def test_another_stream_gives_other_results_in_random_modes_and_the_same_in_others(
    case: Case,
) -> None:
    inputs = case.build(normal(4))
    for mode in MODES:
        rounding = Rounding(mode)
        first, second = (case.run(BACKEND, inputs, rounding, Stream(seed, 1, 1)) for seed in (0, 1))
        if rounding.draws and case.name not in ("sum-1", "prod-1"):
            assert not torch.equal(first, second), mode
        else:
            assert torch.equal(first, second), mode


@pytest.mark.parametrize("mode", ["sr", "ud"])
def test_chunks_of_a_long_reduction_are_rows_of_a_short_one_that_are_added_in_turn(
    mode: str,
) -> None:
    rounding, x = Rounding(mode), normal(14)(2, REDUCE_CHUNK + 40)
    out, whole, rest = torch.empty(2), torch.empty(4), torch.empty(4)
    BACKEND.reduce("sum", x, out, rounding, STREAM)
    # Chunk c of row r has stream row 2 r + c.
    first, second = x[:, :REDUCE_CHUNK], x[:, REDUCE_CHUNK:]
    BACKEND.reduce("sum", first.repeat_interleave(2, 0), whole, rounding, STREAM)
    BACKEND.reduce("sum", second.repeat_interleave(2, 0), rest, rounding, STREAM)
    oracle = Oracle(rounding, STREAM)
    for r in range(2):
        terms = (Fraction(whole[2 * r].item()), Fraction(rest[2 * r + 1].item()))
        assert out[r].item() == oracle.op("add", *terms, at=(2 * r, 4, 0, 1))


def _random_patterns(count: int, seed: int) -> torch.Tensor:
    """Binary32 numbers with uniform bit patterns: all binades, subnormals, Inf and NaN."""
    generator = torch.Generator().manual_seed(seed)
    patterns = torch.randint(-(2**31), 2**31, (count,), generator=generator)
    specials = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1.0, -1.0, 2.0**-149])
    pairs = specials.repeat_interleave(len(specials)), specials.repeat(len(specials))
    return torch.cat([patterns.to(torch.int32).view(torch.float32), pairs[seed % 2]])


@pytest.mark.parametrize("operation", ["add", "sub", "mul", "div", "sqrt"])
def test_rn_equals_the_binary32_arithmetic_of_the_processor_on_all_kinds_of_numbers(
    operation: str,
) -> None:
    a, b = _random_patterns(20000, 0), _random_patterns(20000, 1)
    inputs = (a,) if operation == "sqrt" else (a, b)
    program = Program(len(inputs), 0, ((operation, *range(len(inputs))),))
    out = torch.empty_like(a)
    BACKEND.elementwise(program, inputs, [], out, Rounding("rn"), STREAM)
    with np.errstate(all="ignore"):
        function = {"sub": "subtract", "mul": "multiply", "div": "divide"}.get(operation, operation)
        expected = getattr(np, function)(*(v.numpy() for v in inputs))
    nan = np.isnan(expected)
    assert np.array_equal(out.isnan().numpy(), nan)
    assert np.array_equal(out.numpy().view(np.int32)[~nan], expected.view(np.int32)[~nan])


def test_rn_scans_and_accumulations_equal_sequential_binary32_loops() -> None:
    x = normal(5)(3, 700)
    out = torch.empty_like(x)
    BACKEND.scan("sum", x, out, Rounding("rn"), STREAM)
    assert np.array_equal(out.numpy(), np.add.accumulate(x.numpy(), axis=1))
    index = torch.randint(0, 5, (300,), generator=torch.Generator().manual_seed(6))
    source, total = normal(7)(300, 4), normal(8)(5, 4)
    expected = total.numpy().copy()
    np.add.at(expected, index.numpy(), source.numpy())
    BACKEND.accumulate(index, source, total, Rounding("rn"), STREAM)
    assert np.array_equal(total.numpy(), expected)


@pytest.mark.parametrize("mode", MODES)
def test_memory_layout_changes_nothing(mode: str) -> None:
    rounding, fill = Rounding(mode), normal(9)
    for case in CASES:
        inputs = case.build(fill)
        strided = tuple(
            torch.stack([x, torch.full_like(x, torch.nan)], -1).transpose(0, -1)[0]
            if x.dim() == 1
            else x.transpose(0, -1).contiguous().transpose(0, -1)
            for x in inputs
        )
        plain = case.run(BACKEND, inputs, rounding, STREAM)
        assert torch.equal(plain, case.run(BACKEND, strided, rounding, STREAM)), case.name


def test_an_output_with_strides_receives_the_values_of_a_contiguous_one() -> None:
    x, y = normal(10)(7, 30), normal(11)(7, 30)
    program = Program(2, 0, (("mul", 0, 1),))
    plain, wide = torch.empty(7, 30), torch.zeros(30, 14)
    BACKEND.elementwise(program, [x, y], [], plain, Rounding("sr"), STREAM)
    BACKEND.elementwise(program, [x, y], [], wide[:, ::2].T, Rounding("sr"), STREAM)
    assert torch.equal(wide[:, ::2].T, plain)
    assert not wide[:, 1::2].any()


def test_a_prefix_of_rows_keeps_its_draws() -> None:
    a, b = normal(12)(1, 5, 40), normal(13)(1, 40, 6)
    whole, part = torch.empty(1, 5, 6), torch.empty(1, 3, 6)
    BACKEND.gemm(a, b, whole, Rounding("sr"), STREAM)
    BACKEND.gemm(a[:, :3], b, part, Rounding("sr"), STREAM)
    assert torch.equal(whole[:, :3], part)


@pytest.mark.parametrize("primitive", ["gemm", "reduce"])
def test_an_accumulation_in_sr_survives_an_overflow_that_other_modes_and_formats_report(
    primitive: str,
) -> None:
    a, b = torch.tensor([[2.0**100, -(2.0**100), 1.0]]), torch.tensor([[2.0**100, 2.0**100, 3.0]])
    results = {}
    for name in ("sr", "rn", "sr-bfloat16"):
        out, rounding = torch.empty(1), ROUNDINGS[name]
        if primitive == "gemm":
            BACKEND.gemm(a[None], b.T[None], out.view(1, 1, 1), rounding, STREAM)
        else:
            a_dot, b_dot = (v.repeat_interleave(32, 1) for v in (a, b))
            BACKEND.reduce("dot", a_dot, out, rounding, STREAM, b_dot)
        results[name] = out.item()
    survivor = 3.0 if primitive == "gemm" else 96.0
    assert results == {"sr": survivor, "rn": torch.inf, "sr-bfloat16": torch.inf}


@pytest.mark.parametrize(
    "case",
    [
        case
        for case in CASES
        if case.primitive in ("gemm", "conv", "conv_transposed", "conv_weight")
        or case.name.startswith(("dot", "sum_squares"))
    ],
    ids=lambda case: f"{case.primitive}-{case.name}",
)
def test_sr_rounds_subnormal_results_of_products_in_the_last_operation_only(case: Case) -> None:
    inputs = case.build(tiny(15))
    out = case.run(BACKEND, inputs, Rounding("sr"), STREAM)
    expected = case.naive(Oracle(Rounding("sr"), STREAM), inputs)
    assert bool(((out != 0) & (out.abs() < 2.0**-126)).any())
    assert out.double().reshape(-1).tolist() == [float(v) for v in expected]


def test_the_addition_of_the_last_chunk_is_the_one_that_applies_the_range() -> None:
    x, y = torch.zeros(8, REDUCE_CHUNK + 1), torch.zeros(8, REDUCE_CHUNK + 1)
    x[:, 0], y[:, 0] = 3 * 2.0**-75, 2.0**-75
    out = torch.empty(8)
    BACKEND.reduce("dot", x, out, Rounding("sr"), STREAM, y)
    oracle, product = Oracle(Rounding("sr"), STREAM), Fraction(3, 2**150)
    wanted = [oracle.op("add", product, Fraction(0), at=(2 * r, 4, 0, 1)) for r in range(8)]
    assert out.double().tolist() == [float(v) for v in wanted]
    assert set(wanted) == {Fraction(1, 2**149), Fraction(2, 2**149)}


def test_a_product_that_underflows_on_its_way_is_lost_in_sr_as_in_every_mode() -> None:
    x, out = torch.tensor([[2.0**-100, 2.0**-100, 2.0**120, 2.0**120]]), torch.empty(1)
    for mode in ("rn", "sr"):
        BACKEND.reduce("prod", x, out, Rounding(mode), STREAM)
        assert out.item() == 0


@pytest.mark.parametrize("mode", MODES)
def test_a_sum_beyond_the_largest_number_overflows_in_the_last_operation_as_in_any_other(
    mode: str,
) -> None:
    largest = Rounding().largest
    out = torch.empty(1)
    BACKEND.reduce("sum", torch.full((1, 2), largest), out, Rounding(mode), STREAM)
    outcomes = {"zero": {largest}, "down": {largest}, "cestac": {largest, torch.inf}}
    assert out.item() in outcomes.get(mode, {torch.inf})


@pytest.mark.parametrize("mode", MODES)
def test_infinities_and_nan_spread_as_in_stock_torch(mode: str) -> None:
    x = torch.tensor([[1.0, torch.inf, 0.0, -2.0], [torch.nan, 1.0, -torch.inf, 0.0]])
    out = torch.empty(1, 2, 2)
    BACKEND.gemm(x[None], x.T[None], out, Rounding(mode), STREAM)
    assert torch.equal(out.isnan(), (x @ x.T)[None].isnan())
    image, weight = torch.ones(1, 1, 1, 1, 2), torch.full((1, 1, 1, 1, 3), torch.inf)
    padded = torch.empty(1, 1, 1, 1, 2)
    BACKEND.conv(
        image, weight, padded, Geometry((1, 1, 1), (0, 0, 1), (1, 1, 1), 1), Rounding(mode), STREAM
    )
    # The product of the padding with Inf is NaN, as for a padded image in stock torch.
    assert bool(padded.isnan().all())


def test_exact_operations_follow_their_definitions_on_zeros_and_nan() -> None:
    nan, inf = torch.nan, torch.inf
    a = torch.tensor([0.0, -0.0, 1.0, nan, 1.0, -inf, nan])
    b = torch.tensor([-0.0, 0.0, nan, 1.0, 2.0, inf, nan])
    expected = {
        ("min", 0, 1): [-0.0, 0.0, nan, nan, 1.0, -inf, nan],
        ("max", 0, 1): [-0.0, 0.0, nan, nan, 2.0, inf, nan],
        ("neg", 0): [-0.0, 0.0, -1.0, nan, -1.0, inf, nan],
        ("abs", 1): [0.0, 0.0, nan, 1.0, 2.0, inf, nan],
        ("copysign", 0, 1): [-0.0, 0.0, 1.0, nan, 1.0, inf, nan],
        ("select", 0, 0, 1): [-0.0, 0.0, 1.0, 1.0, 1.0, inf, nan],
    }
    assert {op for op, *_ in expected} == set(EXACT)
    for instruction, values in expected.items():
        out = torch.empty_like(a)
        BACKEND.elementwise(Program(2, 0, (instruction,)), [a, b], [], out, Rounding("sr"), STREAM)
        wanted = torch.tensor(values)
        assert torch.equal(out.isnan(), wanted.isnan()), instruction
        number = ~wanted.isnan()
        assert torch.equal(out[number], wanted[number]), instruction
        assert torch.equal(out[number].signbit(), wanted[number].signbit()), instruction


@pytest.mark.parametrize("instruction", [("add", 0, 1), ("sub", 0, 2), ("fma", 0, 3, 1)])
@pytest.mark.parametrize("mode", MODES)
def test_a_sum_that_cancels_has_the_sign_that_ieee_arithmetic_gives_it(
    mode: str, instruction: tuple[str | int, ...]
) -> None:
    count = 400
    a = torch.tensor([1.5, 0.0, -0.0, 0.0, -0.0])[:, None].expand(5, count)
    b = torch.tensor([-1.5, -0.0, 0.0, 0.0, -0.0])[:, None].expand(5, count)
    out = torch.empty(5, count)
    program = Program(4, 0, (instruction,))
    BACKEND.elementwise(program, [a, b, -b, torch.ones(5, count)], [], out, Rounding(mode), STREAM)
    assert not out.any()
    shares = out.signbit().double().mean(1).tolist()
    if mode == "cestac":
        # Fair coins: 4 standard deviations.
        assert all(abs(share - 0.5) < 4 * 0.5 / math.sqrt(count) for share in shares[:3])
    else:
        assert shares[:3] == [float(mode == "down")] * 3
    assert shares[3:] == [0.0, 1.0]


def test_scalars_are_binary32_values() -> None:
    out = torch.empty(1)
    BACKEND.elementwise(
        Program(1, 1, (("mul", 0, 1),)), [torch.ones(1)], [0.1], out, Rounding("away"), STREAM
    )
    assert torch.equal(out, torch.tensor([0.1]))


def test_the_dot_product_of_1_to_100_with_ones_is_5050_in_every_replica() -> None:
    x, out = torch.arange(1.0, 101.0)[None], torch.empty(1)
    for replica in range(20):
        stream = Stream(0, replica)
        BACKEND.reduce("dot", x, out, Rounding("sr"), stream, torch.ones_like(x))
        assert out.item() == 5050.0


def test_empty_inputs_are_left_alone() -> None:
    out = torch.empty(0, 3)
    BACKEND.elementwise(Program(1, 0, (("neg", 0),)), [out], [], out, Rounding("sr"), STREAM)
    BACKEND.scan("sum", out, out, Rounding("sr"), STREAM)
    BACKEND.reduce("sum", out, torch.empty(0), Rounding("sr"), STREAM)
    BACKEND.gemm(out[None], torch.ones(1, 3, 2), torch.empty(1, 0, 2), Rounding("sr"), STREAM)
    total = torch.ones(2, 3)
    BACKEND.accumulate(torch.empty(0, dtype=torch.int64), out, total, Rounding("ud"), STREAM)
    assert torch.equal(total, torch.ones(2, 3))


def test_an_unknown_kind_and_a_missing_operand_are_errors_that_name_the_choices() -> None:
    x, out = torch.ones(1, 3), torch.empty(1)
    with pytest.raises(ValueError, match="unknown reduction 'mean': choose one of sum, prod"):
        BACKEND.reduce("mean", x, out, Rounding("sr"), STREAM)
    with pytest.raises(ValueError, match="a second tensor belongs to dot"):
        BACKEND.reduce("dot", x, out, Rounding("sr"), STREAM)
    with pytest.raises(ValueError, match="unknown scan 'dot': choose sum or prod"):
        BACKEND.scan("dot", x, torch.empty(1, 3), Rounding("sr"), STREAM)
