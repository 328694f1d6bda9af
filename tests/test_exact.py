"""What rounding reads: nearest and odd binary64 results against exact fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import exact_value

from fuzzytorch.backends import exact
from fuzzytorch.program import ARITY, ROUNDED

BINARY32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
SPECIALS = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -3.0, 2.0**-149, -(2.0**127)]


def _defined(operation: str, operands: tuple[float, ...]) -> bool:
    """Whether the exact result is a number."""
    return not (operation == "div" and operands[1] == 0) and not (
        operation == "sqrt" and operands[0] < 0
    )


def _result(operation: str, rows: list[tuple[float, ...]], odd: bool) -> list[float]:
    columns = tuple(torch.tensor(c, dtype=torch.float64) for c in zip(*rows, strict=True))
    return exact.result(operation, columns, odd).tolist()


def _is_odd(x: float) -> bool:
    return int(np.float64(x).view(np.int64)) % 2 == 1


@pytest.mark.parametrize("operation", ROUNDED)
@given(data=st.data())
@settings(derandomize=True, deadline=None, max_examples=150)
def test_results_are_the_nearest_and_the_odd_neighbour_of_the_exact_one(
    operation: str, data: st.DataObject
) -> None:
    operand = st.floats(allow_nan=False, allow_infinity=False) if operation == "round" else BINARY32
    row = st.tuples(*[operand] * ARITY[operation]).filter(lambda row: _defined(operation, row))
    rows = data.draw(st.lists(row, min_size=1, max_size=12))
    nearest, odd = (_result(operation, rows, odd) for odd in (False, True))
    for operands, n, o in zip(rows, nearest, odd, strict=True):
        x = exact_value(operation, [Fraction(v) for v in operands])
        assert n == float(x)
        if Fraction(n) == x:
            assert o == n
        else:
            assert _is_odd(o)
            below, above = (Fraction(math.nextafter(o, side)) for side in (-math.inf, math.inf))
            assert below < x < above


@pytest.mark.parametrize("operation", [op for op in ROUNDED if op not in ("round", "mul")])
def test_random_operands_meet_both_parities_and_both_sides(operation: str) -> None:
    generator = torch.Generator().manual_seed(1)
    columns = tuple(
        torch.ldexp(
            torch.randn(3000, generator=generator),
            torch.randint(-40, 41, (3000,), generator=generator),
        )
        .abs()
        .double()
        for _ in range(ARITY[operation])
    )
    nearest = exact.result(operation, columns, odd=False)
    odd = exact.result(operation, columns, odd=True)
    moved = odd.view(torch.int64) - nearest.view(torch.int64)
    assert moved.unique().tolist() == [-1, 0, 1]
    rows = zip(*(c.tolist() for c in columns), strict=True)
    for operands, n, o in zip(rows, nearest.tolist(), odd.tolist(), strict=True):
        x = exact_value(operation, [Fraction(v) for v in operands])
        assert n == float(x)
        assert (Fraction(o) > n) == (x > n and not _is_odd(n))
        assert (Fraction(o) < n) == (x < n and not _is_odd(n))


@pytest.mark.parametrize("exponent", [0, 1])
def test_the_root_of_every_binary32_significand_is_the_nearest_one(exponent: int) -> None:
    for start in range(2**23, 2**24, 2**20):
        a = torch.arange(start, start + 2**20, dtype=torch.float64) * 2.0 ** (exponent - 23)
        root = exact.result("sqrt", (a,), odd=False)
        assert np.array_equal(root.numpy(), np.sqrt(a.numpy()))


@pytest.mark.parametrize(
    ("operation", "operands", "bits_moved"),
    [
        ("add", (1.0, 2.0**-100), 1),
        ("add", (1.0, -(2.0**-100)), -1),
        ("sub", (-1.0, 2.0**-149), 1),
        ("fma", (2.0**-100, 2.0**-100, -(2.0**100)), -1),
        ("fma", (3.0, 5.0, 2.0**-149), 1),
        ("div", (1.0, 3.0), 0),
        ("mul", (1 + 2.0**-23, 1 + 2.0**-23), 0),
    ],
)
def test_the_tiniest_remainder_is_sticky(
    operation: str, operands: tuple[float, ...], bits_moved: int
) -> None:
    (nearest,), (odd,) = (_result(operation, [operands], odd) for odd in (False, True))
    patterns = np.array([nearest, odd]).view(np.int64)
    assert patterns[1] - patterns[0] == bits_moved


@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize("operation", ["add", "sub", "mul", "div", "sqrt"])
def test_zeros_infinities_and_nan_are_those_of_ieee_arithmetic(operation: str, odd: bool) -> None:
    pairs = np.array([(a, b) for a in SPECIALS for b in SPECIALS])
    operands = [pairs[:, i].copy() for i in range(ARITY[operation])]
    function = {"sub": "subtract", "mul": "multiply", "div": "divide"}.get(operation, operation)
    with np.errstate(all="ignore"):
        expected = getattr(np, function)(*operands)
    result = exact.result(operation, tuple(map(torch.from_numpy, operands)), odd).numpy()
    assert np.array_equal(np.isnan(result), np.isnan(expected))
    special = ~np.isfinite(expected) | (expected == 0)
    np.testing.assert_array_equal(result[special], expected[special])
    assert np.array_equal(
        np.signbit(result[special & ~np.isnan(expected)]),
        np.signbit(expected[special & ~np.isnan(expected)]),
    )
    number = np.isfinite(expected)
    unit = np.spacing(np.abs(expected[number]))
    assert np.all(np.abs(result[number] - expected[number]) <= unit)


@pytest.mark.parametrize("odd", [False, True])
def test_fused_multiply_add_treats_zeros_infinities_and_nan_as_its_two_steps_do(odd: bool) -> None:
    triples = torch.tensor(
        [(a, b, c) for a in SPECIALS for b in SPECIALS for c in SPECIALS], dtype=torch.float64
    )
    a, b, c = triples.unbind(1)
    expected, result = a * b + c, exact.result("fma", (a, b, c), odd)
    special = ~expected.isfinite() | (expected == 0)
    assert torch.equal(result.isnan(), expected.isnan())
    special &= ~expected.isnan()
    assert torch.equal(result[special], expected[special])
    assert torch.equal(result[special].signbit(), expected[special].signbit())


def test_anything_else_is_not_a_rounded_operation() -> None:
    with pytest.raises(ValueError, match="'min' of 2 operands is not a rounded operation"):
        exact.result("min", (torch.ones(1), torch.ones(1)), odd=False)
