"""Laws of the transcendental functions that elementwise programs evaluate."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import mpmath
import pytest
import torch

from fuzzytorch.backends import cpu, function_constants
from fuzzytorch.backends.cpu import CpuBackend
from fuzzytorch.backends.functions import evaluate
from fuzzytorch.backends.reference import ReferenceBackend
from fuzzytorch.ops.call import ROUND, Call
from fuzzytorch.ops.pieces import PIECE
from fuzzytorch.program import FUNCTIONS, Program
from fuzzytorch.rounding import MODES, Rounding
from fuzzytorch.stream import Stream

ROOT = Path(__file__).parents[1]
STREAM = Stream(2026, 5, 17)
INF, NAN = math.inf, math.nan
TINY, LARGEST = 5e-324, sys.float_info.max

# Intervals of arguments, and powers of two down to which magnitudes are tried.
INTERVALS = {
    "exp": [(-1, 1), (-20, 20), (-708, 709)],
    "expm1": [(-1, 1), (-3, 3), (-40, 40), (40, 709)],
    "log": [(0.5, 2), (0.99, 1.01), (1e-300, 1e-280), (1e200, 1e300)],
    "log1p": [(-1, 1), (-0.4, 0.5), (0, 1e9)],
    "tanh": [(-0.7, 0.7), (0.5, 1.5), (-20, 20)],
    "erf": [(-0.25, 0.25), (0.15, 0.5), (-3, 3), (3, 6)],
}
KEEPS_SMALL = ("expm1", "log1p", "tanh", "erf")

UNITS = 1.3
"""Units in the last place by which a value may miss the function: the derivation of the worst
one, tanh at 0.625, adds half a unit of the sum to 0.8 of the quotient."""


def arguments(name: str, count: int = 400) -> torch.Tensor:
    generator = torch.Generator().manual_seed(FUNCTIONS.index(name))
    parts = [
        torch.rand(count, generator=generator, dtype=torch.float64) * (high - low) + low
        for low, high in INTERVALS[name]
    ]
    if name in KEEPS_SMALL:
        scale = torch.randint(-900, 0, (count,), generator=generator)
        parts.append(torch.ldexp(torch.randn(count, generator=generator).double(), scale))
        parts[-1] = parts[-1][parts[-1].abs() < 0.9]
    return torch.cat(parts)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_miss_the_function_by_little_more_than_a_unit_in_the_last_place(name: str) -> None:
    x = arguments(name)
    function = getattr(mpmath, name)
    with mpmath.workprec(140):
        values = evaluate(name, x, torch.float64).tolist()
        for argument, value in zip(x.tolist(), values, strict=True):
            exact = function(mpmath.mpf(argument))
            missing = abs(mpmath.mpf(value) - exact) / math.ulp(float(exact))
            assert missing <= UNITS, f"{name}({argument!r}) = {value!r}: {float(missing)} ulp"


RELATIVE = 2.0**-45
"""Relative error of a value that is going to be rounded to binary32: ``exp`` has 2^-45.8 of the
polynomial and, in arguments beyond 64, 2^-46.5 of their remainder."""


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_for_binary32_miss_the_function_by_less_than_2_to_the_minus_45(name: str) -> None:
    x = arguments(name, 2000).float().double()
    x = torch.cat([x, x.clamp(-87.3, 88.7)]) if name == "exp" else x
    function = getattr(mpmath, name)
    with mpmath.workprec(140):
        values = evaluate(name, x, torch.float32).tolist()
        for argument, value in zip(x.tolist(), values, strict=True):
            exact = function(mpmath.mpf(argument))
            if 2.0**-126 <= abs(exact) < 2.0**128:
                missing = abs(mpmath.mpf(value) / exact - 1)
                assert missing <= RELATIVE, f"{name}({argument!r}) = {value!r}: {float(missing)}"


ODD = ((0.0, 0.0), (-0.0, -0.0), (TINY, TINY), (-1e-310, -1e-310))
EXACTLY = {
    "exp": ((0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, 0.0), (710.0, INF), (-746.0, 0.0)),
    "expm1": (*ODD, (INF, INF), (-INF, -1.0), (-40.0, -1.0), (-1e300, -1.0)),
    "log": ((1.0, 0.0), (0.0, -INF), (-0.0, -INF), (INF, INF), (-TINY, NAN), (-INF, NAN)),
    "log1p": (*ODD, (-1.0, -INF), (INF, INF), (-1.5, NAN), (-INF, NAN)),
    "tanh": (*ODD, (20.0, 1.0), (-1e300, -1.0), (INF, 1.0), (-INF, -1.0)),
    "erf": ((0.0, 0.0), (-0.0, -0.0), (6.0, 1.0), (-1e300, -1.0), (INF, 1.0), (-INF, -1.0)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_exact_values_poles_and_saturation(name: str, dtype: torch.dtype) -> None:
    x, wanted = torch.tensor([*EXACTLY[name], (NAN, NAN)], dtype=torch.float64).unbind(1)
    y = evaluate(name, x.contiguous(), dtype)
    assert torch.equal(y.isnan(), wanted.isnan())
    number = ~wanted.isnan()
    assert torch.equal(y[number], wanted[number])
    assert torch.equal(y[number].signbit(), wanted[number].signbit())


def test_the_ends_of_the_range() -> None:
    x = torch.tensor([709.782712893384, -708.3, -744.4, -745.1], dtype=torch.float64)
    assert torch.allclose(evaluate("exp", x, torch.float64), torch.exp(x), rtol=1e-15, atol=TINY)
    subnormal = torch.tensor([TINY, 1e-310, 2.0**-1022, LARGEST], dtype=torch.float64)
    assert torch.allclose(
        evaluate("log", subnormal, torch.float64), torch.log(subnormal), rtol=1e-15, atol=0
    )
    logs = torch.tensor([math.log1p(v) for v in subnormal.tolist()], dtype=torch.float64)
    assert torch.allclose(evaluate("log1p", subnormal, torch.float64), logs, rtol=1e-15, atol=0)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_rounded_as_its_binary64_value_is(
    name: str, dtype: torch.dtype, mode: str
) -> None:
    x = arguments(name).to(dtype)
    rounding = Rounding(mode) if dtype == torch.float32 else Rounding.binary64(mode)
    actual, expected = torch.empty_like(x), torch.empty_like(x)
    CpuBackend().elementwise(Program(1, 0, ((name, 0),)), [x], (), actual, rounding, STREAM)
    value = evaluate(name, x.double(), dtype)
    CpuBackend().elementwise(
        Program(1, 0, (("round", 0),)), [value], (), expected, rounding, STREAM
    )
    assert torch.equal(actual, expected)


@pytest.fixture(params=cpu.available_isas())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    before = cpu.isa()
    cpu.select_isa(request.param)
    yield request.param
    cpu.select_isa(before)


@pytest.mark.parametrize("mode", ["rn", "sr", "ud"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_instruction_set_has_the_bits_of_the_specification(
    name: str, mode: str, isa: str
) -> None:
    generator = torch.Generator().manual_seed(7)
    bits = torch.randint(-(2**31), 2**31, (5003,), generator=generator).int().view(torch.float32)
    special = [0.0, -0.0, 1e-45, 2.0**-126, 5.9, 6.0, 19.1, 88.8, 104.0, 709.2, 709.79, INF, NAN]
    signed = torch.tensor([*special, *(-x for x in special)])
    x = torch.cat([signed, bits, *(arguments(name).float() * scale for scale in (1, 0.1))])
    # Counts around the sixteen lanes and the groups that are evaluated together.
    for count in (1, 17, 63, 64, 65, 1025, x.numel()):
        actual, expected = torch.empty(count), torch.empty(count)
        for backend, out in ((CpuBackend(), actual), (ReferenceBackend(), expected)):
            program = Program(1, 0, ((name, 0),))
            backend.elementwise(program, [x[:count]], (), out, Rounding(mode), STREAM)
        assert torch.equal(actual.isnan(), expected.isnan())
        number = ~expected.isnan()
        assert torch.equal(actual[number].view(torch.int32), expected[number].view(torch.int32))


def test_native_code_has_the_constants_of_the_specification() -> None:
    text = (ROOT / "native" / "function_constants.h").read_text()
    native = [float.fromhex(x) for x in re.findall(r"-?0x[0-9a-f.]+p[+-]\d+|-?0x0\.0p\+0", text)]
    specified: list[float] = []
    for name, value in vars(function_constants).items():
        if name.isupper():
            specified += value if isinstance(value, tuple) else [value]
    assert native == specified


def call(mode: str, backend: object) -> Call:
    return Call(None, Rounding(mode), backend, lambda: STREAM)  # type: ignore[arg-type]


SHAPES = {
    "contiguous": torch.empty(2 * PIECE + 1029),
    "channels last": torch.empty(4, 70, 30, 20).to(memory_format=torch.channels_last),
    "transposed": torch.empty(500, 300).t(),
    "rows of odd length": torch.empty(301, 517)[:, ::2],
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("mode", ["sr", "ud"])
@pytest.mark.parametrize("layout", SHAPES)
def test_a_function_in_pieces_is_that_of_the_whole(layout: str, mode: str, threads: int) -> None:
    x = torch.empty_like(SHAPES[layout]).uniform_(-9, 9, generator=torch.Generator().manual_seed(3))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        actual = call(mode, CpuBackend()).via_binary64(torch.asinh, x)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(actual, call(mode, ReferenceBackend()).via_binary64(torch.asinh, x))
    whole = torch.empty_like(x, memory_format=torch.contiguous_format)
    wide = x.double().contiguous().asinh()
    CpuBackend().elementwise(ROUND, [wide], (), whole, Rounding(mode), STREAM)
    assert torch.equal(actual, whole)
    assert actual.stride() == torch.empty_like(x).stride()


def test_pieces_of_broadcast_operands() -> None:
    generator = torch.Generator().manual_seed(4)
    a, b = torch.randn(400, 1, generator=generator), torch.randn(333, generator=generator)
    actual = call("sr", CpuBackend()).via_binary64(torch.atan2, a, b)
    wide = torch.atan2(a.double(), b.double())
    whole = torch.empty(400, 333)
    CpuBackend().elementwise(ROUND, [wide], (), whole, Rounding("sr"), STREAM)
    assert torch.equal(actual, whole)


PEAK = r"""
import re, sys, torch, fuzzytorch
from contextlib import nullcontext
from pathlib import Path

def used():
    # The peak that getrusage knows is inherited from the process that started this one.
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])

torch.set_num_threads(1)
# The second one fills what importing has used for a while.
x, other = torch.ones(2**24), torch.ones(2**24)
with nullcontext() if sys.argv[1] == "stock" else fuzzytorch.fuzzy("sr", seed=1):
    torch.sin(torch.ones(3))
    before = used()
    y = torch.sin(x)
    print(used() - before)
"""


def peak(what: str) -> int:
    """Memory in bytes that the sine of 64 MB takes at most."""
    printed = subprocess.run(
        [sys.executable, "-c", PEAK, what], capture_output=True, text=True, check=True
    )
    return int(printed.stdout) * 1024


def test_a_function_in_pieces_takes_little_more_memory_than_stock_torch() -> None:
    size = 64 * 2**20
    assert peak("stock") > 0.9 * size
    assert peak("fuzzy") < peak("stock") + 0.3 * 2 * size
