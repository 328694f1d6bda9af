"""Native kernels equal the reference backend bit for bit, on every instruction set."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from fuzzytorch.backends import cpu
from fuzzytorch.backends.protocol import REDUCTIONS, Geometry
from fuzzytorch.backends.reference import ReferenceBackend
from fuzzytorch.program import ARITY, EXACT, FUNCTIONS, Program
from fuzzytorch.rounding import MODES, PRESETS, Rounding
from fuzzytorch.stream import Stream

REFERENCE = ReferenceBackend()
NATIVE = cpu.CpuBackend()
ISAS = cpu.available_isas()
STREAM = Stream(2026, 3, 41)
GUARD = 16

Run = Callable[[Any, torch.Tensor, Rounding, Stream], None]


@pytest.fixture(autouse=True)
def _restore_instruction_set() -> Iterator[None]:
    before = cpu.isa()
    yield
    cpu.select_isa(before)


@dataclasses.dataclass(frozen=True)
class Target:
    """What kernels round to, and the dtype of the tensors that they work on."""

    rounding: Rounding
    dtype: torch.dtype = torch.float32

    def deviates(self, seed: int, *shape: int, spread: int = 0) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        exponent = torch.randint(-spread, spread + 1, shape, generator=generator)
        return torch.ldexp(torch.randn(shape, generator=generator, dtype=self.dtype), exponent)

    def edges(self, seed: int, count: int) -> torch.Tensor:
        """Deviates over eighty binades, with every special value and pair of them in front."""
        x = self.deviates(seed, count, spread=40)
        pairs = torch.cartesian_prod(SPECIAL, SPECIAL)[:, seed % 2][:count]
        x[: len(pairs)] = pairs.to(self.dtype)
        return x

    def empty(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=self.dtype)


SPECIAL = torch.tensor(
    [0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-45, -3e-42, 3.4028235e38, 1.2e-38, 1.0, -1.5]
)


def bit_patterns(x: torch.Tensor) -> torch.Tensor:
    """The bits of values, with one pattern for all NaN."""
    integers = {4: torch.int32, 8: torch.int64}[x.element_size()]
    nan = torch.tensor(torch.nan, dtype=x.dtype).view(integers)
    return torch.where(x.isnan(), nan, x.view(integers))


def assert_equal_everywhere(run: Run, like: torch.Tensor, target: Target, places: int = 1) -> None:
    """Compares the reference with each instruction set, writing into guarded memory."""
    rounding = target.rounding
    expected = like.clone()
    run(REFERENCE, expected, rounding, STREAM)
    for name in ISAS:
        cpu.select_isa(name)
        assert cpu.isa() == name
        memory = torch.full((like.numel() * places + 2 * GUARD,), 777.0, dtype=like.dtype)
        inside = memory[GUARD : GUARD + like.numel() * places].view(*like.shape, places)
        actual = inside[..., 0]
        actual.copy_(like)
        run(NATIVE, actual, rounding, STREAM)
        message = f"{name} differs from the reference under {rounding}"
        assert torch.equal(bit_patterns(actual.clone()), bit_patterns(expected)), message
        assert (memory[:GUARD] == 777.0).all() and (memory[-GUARD:] == 777.0).all()
        assert (inside[..., 1:] == 777.0).all(), f"{name} wrote between the elements"


def _named(targets: dict[str, Target]) -> Any:
    return pytest.mark.parametrize("target", list(targets.values()), ids=list(targets))


def _narrow(mode: str, format: str, dtype: torch.dtype = torch.float32) -> Target:
    return Target(Rounding.of(mode, format), dtype)


def _binary64(mode: str) -> Target:
    return Target(Rounding.binary64(mode), torch.float64)


every_target = _named(
    {f"{m}-{f}": _narrow(m, f) for m, f in itertools.product(MODES, PRESETS)}
    | {f"{m}-binary64": _binary64(m) for m in MODES}
    | {f"{m}-bfloat16-in-float64": _narrow(m, "bfloat16", torch.float64) for m in MODES}
)
# Narrow formats share one kernel, which the elementwise laws go through in full.
few_targets = _named(
    {m: _narrow(m, "binary32") for m in MODES}
    | {"sr-float16": _narrow("sr", "float16"), "ud-bfloat16": _narrow("ud", "bfloat16")}
    | {f"{m}-binary64": _binary64(m) for m in MODES}
    | {"sr-float16-in-float64": _narrow("sr", "float16", torch.float64)}
)
POLICIES = ("rn", "sr", "ud", "cestac", "away")
one_mode_per_policy = _named(
    {m: _narrow(m, "binary32") for m in POLICIES}
    | {f"{m}-binary64": _binary64(m) for m in POLICIES}
    | {"sr-tf32-in-float64": _narrow("sr", "tf32", torch.float64)}
)


@every_target
@pytest.mark.parametrize(
    ("operation", "arity"),
    [("add", 2), ("sub", 2), ("mul", 2), ("div", 2), ("sqrt", 1), ("fma", 3)],
)
def test_each_operation_on_special_values_and_eighty_binades(
    operation: str, arity: int, target: Target
) -> None:
    program = Program(arity, 0, ((operation, *range(arity)),))
    a, b = target.edges(0, 400), target.edges(1, 400)
    operands = [a, b, torch.where(a.isfinite() & b.isfinite(), -a * b, a)][:arity]
    assert_equal_everywhere(
        lambda backend, out, r, s: backend.elementwise(program, operands, (), out, r, s),
        target.empty(400),
        target,
    )


@pytest.mark.parametrize("operation", EXACT)
@pytest.mark.parametrize(
    "target", [_narrow("sr", "binary32"), _binary64("sr")], ids=["binary32", "binary64"]
)
def test_operations_without_rounding_on_special_values(operation: str, target: Target) -> None:
    program = Program(ARITY[operation], 0, ((operation, *range(ARITY[operation])),))
    operands = [target.edges(0, 400), target.edges(1, 400), target.edges(2, 400).flip(0)][
        : ARITY[operation]
    ]
    assert_equal_everywhere(
        lambda backend, out, r, s: backend.elementwise(program, operands, (), out, r, s),
        target.empty(400),
        target,
    )


# Where a function leaves its range, saturates, or changes its branch.
TURNS = (
    *(0.625, 1.0, 6.0, 19.1, 20.0, 40.0, 62.5, 88.72, 104.0, 708.0, 709.78, 709.79, 745.2, 746.0),
    *(25.0 / 128.0, 0.70710678, 1.41421357, 1.0 - 2.0**-24, 2.0**-25, 2.0**-54, 1e300, 5e-324),
    *(1.0 - 2.0**-53, 2.2250738585072014e-308, 1e-310, 709.782712893384, 1.7976931348623157e308),
)


@every_target
@pytest.mark.parametrize("operation", FUNCTIONS)
def test_functions_on_special_values_and_where_they_turn(operation: str, target: Target) -> None:
    program = Program(1, 0, ((operation, 0),))
    turns = torch.tensor(TURNS, dtype=torch.float64).to(target.dtype)
    edges, usual = target.edges(0, 400), target.deviates(1, 400)
    x = torch.cat([edges, turns, -turns, usual, usual.abs()])
    assert_equal_everywhere(
        lambda backend, out, r, s: backend.elementwise(program, [x], (), out, r, s),
        torch.empty_like(x),
        target,
    )


@every_target
def test_storing_binary64_values_of_any_magnitude(target: Target) -> None:
    program = Program(1, 0, (("round", 0),))
    x = target.deviates(5, 600, spread=30).double() * torch.exp2(
        torch.linspace(-320, 300, 600).double()
    )
    x[:9] = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 5e-324, 1e308, -1e-310, 1.0])
    assert_equal_everywhere(
        lambda backend, out, r, s: backend.elementwise(program, [x], (), out, r, s),
        target.empty(600),
        target,
    )


PROGRAM = Program(
    2,
    2,
    (
        ("abs", 0),
        ("mul", 4, 2),
        ("neg", 5),
        ("add", 6, 3),
        ("max", 7, 1),
        ("copysign", 8, 0),
        ("select", 0, 9, 1),
        ("fma", 10, 1, 0),
        ("min", 11, 1),
    ),
)


@few_targets
@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 63, 64, 65, 67, 1023, 1024, 1025, 2100])
def test_programs_at_odd_sizes(count: int, target: Target) -> None:
    a, b = target.edges(2, count), target.deviates(3, count, spread=3)
    assert_equal_everywhere(
        lambda backend, out, r, s: backend.elementwise(PROGRAM, [a, b], (0.1, 1 / 3), out, r, s),
        target.empty(count),
        target,
    )


@one_mode_per_policy
def test_programs_on_strided_transposed_and_broadcast_operands(target: Target) -> None:
    a = target.deviates(4, 23, 7, 11).permute(2, 0, 1)[:, ::2]
    b = target.deviates(5, 7).expand(11, 12, 7)
    assert_equal_everywhere(
        lambda backend, out, r, s: backend.elementwise(PROGRAM, [a, b], (0.1, 3.0), out, r, s),
        target.empty(11, 12, 7),
        target,
        places=3,
    )


KINDS = REDUCTIONS


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 31, 32, 33, 64, 65, 511, 512, 513, 700, 1057])
@few_targets
def test_reductions_at_odd_lengths(kind: str, length: int, target: Target) -> None:
    x, y = target.deviates(6, 3, length), target.deviates(7, 3, length)
    second = (y,) if kind == "dot" else ()
    assert_equal_everywhere(
        lambda backend, out, r, s: backend.reduce(kind, x, out, r, s, *second),
        target.empty(3),
        target,
        places=2,
    )


@one_mode_per_policy
def test_a_reduction_of_several_chunks_over_strided_dimensions(target: Target) -> None:
    x = target.deviates(8, 300, 2, 900).permute(1, 2, 0)
    assert_equal_everywhere(
        lambda backend, out, r, s: backend.reduce("sum", x, out, r, s), target.empty(2), target
    )


@one_mode_per_policy
@pytest.mark.parametrize("kind", ["sum", "dot"])
@pytest.mark.parametrize(("rows", "length"), [(37, 75), (16, 64), (2, 1300)])
def test_reductions_over_leading_dimensions(
    kind: str, rows: int, length: int, target: Target
) -> None:
    x, y = target.deviates(20, length, rows).t(), target.deviates(21, length, 2 * rows).t()[::2]
    second = (y,) if kind == "dot" else ()
    assert_equal_everywhere(
        lambda backend, out, r, s: backend.reduce(kind, x, out, r, s, *second),
        target.empty(rows),
        target,
    )


@few_targets
@pytest.mark.parametrize("kind", ["sum", "prod"])
@pytest.mark.parametrize("shape", [(1, 1), (18, 5), (3, 256), (17, 300)])
def test_scans(kind: str, shape: tuple[int, int], target: Target) -> None:
    x = target.deviates(9, shape[1], shape[0]).t()
    assert_equal_everywhere(
        lambda backend, out, r, s: backend.scan(kind, x, out, r, s), target.empty(*shape), target
    )


@few_targets
@pytest.mark.parametrize(
    ("batch", "m", "k", "n"),
    [(1, 1, 1, 1), (1, 3, 5, 7), (2, 9, 300, 17), (1, 15, 33, 67), (3, 8, 16, 16), (1, 2, 2100, 5)],
)
def test_matrix_products(batch: int, m: int, k: int, n: int, target: Target) -> None:
    a, b = target.deviates(10, batch, m, k), target.deviates(11, batch, k, n)
    assert_equal_everywhere(
        lambda backend, out, r, s: backend.gemm(a, b, out, r, s),
        target.empty(batch, m, n),
        target,
    )


@one_mode_per_policy
def test_matrix_products_of_transposed_and_strided_matrices(target: Target) -> None:
    a = target.deviates(12, 2, 37, 22)[:, :, ::2].transpose(1, 2)
    b = target.deviates(13, 2, 29, 37).transpose(1, 2)
    assert_equal_everywhere(
        lambda backend, out, r, s: backend.gemm(a, b, out, r, s),
        target.empty(2, 11, 29),
        target,
        places=2,
    )


GEOMETRIES = [
    Geometry((1, 1, 1), (0, 0, 0), (1, 1, 1), 1),
    Geometry((1, 1, 1), (1, 1, 1), (1, 1, 1), 1),
    Geometry((1, 2, 1), (0, 1, 2), (1, 1, 2), 2),
    Geometry((2, 1, 3), (1, 1, 1), (1, 2, 1), 4),
]


@one_mode_per_policy
@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("form", ["conv", "conv_transposed", "conv_weight"])
@pytest.mark.parametrize("channels_last", [False, True])
def test_convolutions(form: str, geometry: Geometry, target: Target, channels_last: bool) -> None:
    layout = torch.channels_last_3d if channels_last else torch.contiguous_format
    x = target.deviates(14, 2, 4, 3, 5, 18).to(memory_format=layout)
    weight = target.deviates(15, 8, 4 // geometry.groups, 2, 3, 3).to(memory_format=layout)
    result = torch.nn.functional.conv3d(x, weight, None, *dataclasses.astuple(geometry))
    grad = target.deviates(16, *result.shape).to(memory_format=layout)
    operands, like = {
        "conv": ((x, weight), result),
        "conv_transposed": ((grad, weight), x),
        "conv_weight": ((x, grad), weight),
    }[form]
    assert_equal_everywhere(
        lambda backend, out, r, s: getattr(backend, form)(*operands, out, geometry, r, s),
        target.empty(*like.shape),
        target,
    )


@few_targets
@pytest.mark.parametrize(("count", "inner"), [(1, 1), (40, 37), (300, 1), (9, 1100)])
def test_accumulation_into_repeated_rows(count: int, inner: int, target: Target) -> None:
    generator = torch.Generator().manual_seed(17)
    index = torch.randint(0, 5, (count,), generator=generator)
    source, start = target.deviates(18, inner, count).t(), target.deviates(19, 5, inner)

    def run(backend: Any, out: torch.Tensor, r: Rounding, s: Stream) -> None:
        backend.accumulate(index, source, out, r, s)

    assert_equal_everywhere(run, start, target)


def test_more_instruction_sets_than_the_baseline_are_compared_where_they_exist() -> None:
    assert ISAS[-1] == "baseline"
    assert len(set(ISAS)) == len(ISAS)


def test_an_impossible_instruction_set_is_named_with_the_possible_ones() -> None:
    with pytest.raises(ValueError, match=f"sve.*{ISAS[0]}"):
        cpu.select_isa("sve")
