"""Laws of float64 at the ends of its range: subnormals, underflow, and the largest numbers."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Final

import pytest
import torch
from oracle import exact_value

from fuzzytorch.backends import cpu
from fuzzytorch.backends.cpu import CpuBackend
from fuzzytorch.program import ARITY, Program
from fuzzytorch.rounding import MODES, Rounding
from fuzzytorch.stream import Stream

LARGEST: Final = 1.7976931348623157e308
SMALLEST: Final = 5e-324
OPERATIONS: Final = ("add", "sub", "mul", "div", "sqrt", "fma")
COUNT: Final = 60
REPLICAS: Final = 24


def magnitudes(seed: int, exponents: tuple[int, int]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    significand = 1 + torch.rand(COUNT, dtype=torch.float64, generator=generator)
    exponent = torch.randint(*exponents, (COUNT,), generator=generator)
    sign = 1 - 2 * torch.randint(0, 2, (COUNT,), generator=generator)
    return torch.ldexp(significand * sign, exponent)


RANGES: Final[dict[str, dict[str, tuple[tuple[int, int], ...]]]] = {
    "subnormal": {
        "add": ((-1074, -1020), (-1074, -1020)),
        "sub": ((-1074, -1020), (-1074, -1020)),
        "mul": ((-540, -500), (-560, -500)),
        "div": ((-560, -500), (500, 560)),
        "sqrt": ((-1074, -1020),),
        "fma": ((-540, -500), (-540, -500), (-1074, -1020)),
    },
    "largest": {
        "add": ((1021, 1024), (1021, 1024)),
        "sub": ((1021, 1024), (1021, 1024)),
        "mul": ((505, 515), (505, 515)),
        "div": ((505, 515), (-515, -505)),
        "sqrt": ((1020, 1024),),
        "fma": ((505, 512), (505, 512), (1020, 1024)),
    },
}
"""Exponents of the operands, so that results lie on both sides of the end of the range."""


def operands_of(operation: str, where: str) -> list[torch.Tensor]:
    values = [magnitudes(i, exponents) for i, exponents in enumerate(RANGES[where][operation])]
    return [x.abs() for x in values] if operation == "sqrt" else values


def around(exact: Fraction) -> tuple[float, float]:
    """The numbers of float64 (infinities included) just below and just above a fraction."""
    if abs(exact) > Fraction(LARGEST):
        return (LARGEST, math.inf) if exact > 0 else (-math.inf, -LARGEST)
    nearest = float(exact)
    if Fraction(nearest) == exact:
        return nearest, nearest
    if Fraction(nearest) < exact:
        return nearest, math.nextafter(nearest, math.inf)
    return math.nextafter(nearest, -math.inf), nearest


def run(operation: str, operands: list[torch.Tensor], mode: str, replica: int) -> torch.Tensor:
    program = Program(len(operands), 0, ((operation, *range(ARITY[operation])),))
    out = torch.empty_like(operands[0])
    stream = Stream(11, replica, 0)
    CpuBackend().elementwise(program, operands, (), out, Rounding.binary64(mode), stream)
    return out


@pytest.mark.parametrize("where", RANGES)
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "ud"])
@pytest.mark.parametrize("isa", cpu.available_isas())
def test_a_result_is_one_of_the_numbers_around_the_exact_one(isa, mode, operation, where):
    operands = operands_of(operation, where)
    before = cpu.isa()
    cpu.select_isa(isa)
    try:
        samples = torch.stack([run(operation, operands, mode, r) for r in range(REPLICAS)])
    finally:
        cpu.select_isa(before)
    for i in range(COUNT):
        exact = exact_value(operation, [Fraction(float(x[i])) for x in operands])
        low, high = around(exact)
        expected = {
            "up": {high},
            "down": {low},
            "zero": {low if exact > 0 else high},
            "away": {high if exact > 0 else low},
        }.get(mode, {low, high})
        residue = min(abs(exact), abs(Fraction(float(operands[0][i]))))
        if operation in ("mul", "fma"):
            residue = abs(exact)
        if operation not in ("add", "sub") and residue < 2.0**-969:
            # The error is below the smallest number, and lost: the nearest one is taken.
            expected = expected | {float(exact)}
        taken = set(samples[:, i].tolist())
        assert taken <= expected, (operation, [float(x[i]) for x in operands], taken, expected)
