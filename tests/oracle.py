"""A second definition of rounding and of every primitive: fractions and scalar loops.

It shares no arithmetic with the package: numbers are ``fractions.Fraction`` (or
the floats Inf and NaN), one output element is computed at a time, and each rounded
operation looks up its own draw by coordinates.  Only the random bits come from
:class:`fuzzytorch.stream.Stream`, which has known answers of its own.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterable, Sequence
from fractions import Fraction

import torch

from fuzzytorch.rounding import Rounding
from fuzzytorch.stream import Stream, bits, uniform29

Number = Fraction | float
Pairs = Sequence[tuple[Number, Number]]


def exact_value(operation: str, operands: Sequence[Fraction]) -> Fraction:
    """The exact result; a root that is no fraction is replaced by one within 2^-500 of it."""
    match operation, operands:
        case "add", (a, b):
            return a + b
        case "sub", (a, b):
            return a - b
        case "mul", (a, b):
            return a * b
        case "div", (a, b):
            return a / b
        case "fma", (a, b, c):
            return a * b + c
        case "round", (a,):
            return a
        case "sqrt", (a,):
            scale = 2**500
            root = math.isqrt(a.numerator * a.denominator * scale**2)
            inexact = root * root != a.numerator * a.denominator * scale**2
            # Half a unit stands for all the digits that follow.
            return (root + Fraction(int(inexact), 2)) / (scale * a.denominator)
    raise AssertionError(operation)


def spacing(magnitude: Fraction, rounding: Rounding, ranged: bool = True) -> Fraction:
    """The distance from ``magnitude`` to the next number above in its binade."""
    if magnitude == 0:
        exponent = rounding.emin
    else:
        n, d = magnitude.numerator, magnitude.denominator
        exponent = n.bit_length() - d.bit_length()
        if magnitude < Fraction(2) ** exponent:
            exponent -= 1
    if ranged:
        exponent = max(exponent, rounding.emin)
    return Fraction(2) ** (exponent - rounding.precision + 1)


def below(magnitude: Fraction, rounding: Rounding, ranged: bool = True) -> Fraction:
    """The largest number of the format up to ``magnitude``."""
    q = spacing(magnitude, rounding, ranged)
    return magnitude // q * q


def round_fraction(x: Fraction, draw: int | None, rounding: Rounding, ranged: bool = True) -> float:
    """The definition of every mode, in words of the table of :mod:`fuzzytorch.rounding`."""
    mode, sign = rounding.mode, -1 if x < 0 else 1
    if mode == "sr":
        x = Fraction(float(x))
    magnitude = abs(x)
    q = spacing(magnitude, rounding, ranged)
    low = below(magnitude, rounding, ranged)
    high, f = low + q, (magnitude - low) / q
    nearest = low if f < Fraction(1, 2) or (2 * f == 1 and (low / q) % 2 == 0) else high
    outward = (draw == 1) == (sign > 0)
    choice = {
        "rn": nearest,
        "ud": nearest,
        "zero": low,
        "sr": high if draw is not None and math.floor(f * 2**29) + draw >= 2**29 else low,
        "cestac": high if f and outward else low,
        "away": high if f else low,
        "up": high if f and sign > 0 else low,
        "down": high if f and sign < 0 else low,
    }[mode]
    if mode == "ud" and choice and choice <= rounding.largest:
        if draw == 1:
            choice += spacing(choice, rounding, ranged)
        else:
            choice = below(choice - spacing(choice, rounding, ranged) / 4, rounding, ranged)
    if ranged and choice > Fraction(rounding.largest):
        infinite = {
            "zero": False,
            "up": sign > 0,
            "down": sign < 0,
            "cestac": outward,
        }.get(mode, True)
        return sign * (math.inf if infinite else rounding.largest)
    return sign * float(choice)


@functools.cache
def _state(stream: Stream, row: int, block: int, group: int, position: int) -> torch.Tensor:
    if position == 0:
        return stream.states(torch.tensor([row]), block, group + 1)[0, group]
    return stream.advance(_state(stream, row, block, group, position - 1))


@dataclasses.dataclass(frozen=True)
class Oracle:
    """The primitives, one output element after the other."""

    rounding: Rounding
    stream: Stream

    @property
    def late(self) -> bool:
        """Whether accumulations apply the exponent range to their last operation only."""
        return self.rounding == Rounding("sr")

    def draw(self, row: int, block: int, column: int, step: int) -> int | None:
        group, place = divmod(column, 16)
        if self.rounding.draws_uniform:
            return int(uniform29(_state(self.stream, row, block, group, step))[place])
        if self.rounding.draws_bit:
            return int(bits(_state(self.stream, row, block, group, step // 32), step)[place])
        return None

    def op(
        self,
        operation: str,
        *operands: Number,
        at: tuple[int, int, int, int],
        ranged: bool = True,
    ) -> Number:
        if any(isinstance(v, float) for v in operands):
            return _beyond_fractions(operation, *map(float, operands))
        x = exact_value(operation, operands)
        y = round_fraction(x, self.draw(*at), self.rounding, ranged)
        return Fraction(y) if math.isfinite(y) else y

    def products(
        self, pairs: Pairs, row: int, column: int, block: int = 0, chained: bool = False
    ) -> Number:
        """The accumulation of ``gemm`` and the convolutions."""
        starts = range(0, len(pairs), 192)
        total = Fraction(0)
        for b, start in enumerate(starts):
            acc, terms = total if chained else Fraction(0), pairs[start : start + 192]
            for k, (x, y) in enumerate(terms):
                final = (chained or len(starts) == 1) and start + k == len(pairs) - 1
                at = (row, block + b, column, k)
                acc = self.op("fma", x, y, acc, at=at, ranged=final or not self.late)
            if b == 0 or chained:
                total = acc
            else:
                final = b == len(starts) - 1
                at = (row, block + b, column, len(terms))
                total = self.op("add", total, acc, at=at, ranged=final or not self.late)
        return total

    def reduce(self, kind: str, xs: Sequence[Number], ys: Sequence[Number], r: int) -> Number:
        join = "mul" if kind == "prod" else "add"
        late = self.late and kind != "prod"
        chunks = math.ceil(len(xs) / 131072)
        total = None
        for c in range(chunks):
            row = r * chunks + c
            pairs = list(zip(xs, ys, strict=True))[c * 131072 : (c + 1) * 131072]
            add_lane, n = (self._squares, 8) if kind == "sum_squares" else (self._lane, 32)
            lanes = [add_lane(kind, pairs[j::n], row, j, len(xs) > 1) for j in range(n)]
            lanes = [lane for lane in lanes if lane is not None]
            for j in range(min(8, len(lanes))):
                for step, other in enumerate(lanes[j + 8 :: 8], 1):
                    at = (row, 3, j, step)
                    lanes[j] = self.op(join, lanes[j], other, at=at, ranged=not late)
            here = lanes[0]
            for j in range(1, min(8, len(lanes))):
                final = chunks == 1 and j == min(8, len(lanes)) - 1
                at = (row, 3, 0, 4 + j)
                here = self.op(join, here, lanes[j], at=at, ranged=final or not late)
            if total is None:
                total = here
            else:
                at, final = (r * chunks, 4, 0, c), c == chunks - 1
                total = self.op(join, total, here, at=at, ranged=final or not late)
        return total

    def _squares(
        self, kind: str, pairs: Pairs, row: int, column: int, joined: bool
    ) -> Number | None:
        """A lane of a sum of squares: one chain."""
        ranged = not self.late or not joined
        acc: Number | None = None
        for v, (x, y) in enumerate(pairs):
            terms = (x, y) if acc is None else (x, y, acc)
            name = "mul" if acc is None else "fma"
            acc = self.op(name, *terms, at=(row, 0, column, v), ranged=ranged)
        return acc

    def _lane(self, kind: str, pairs: Pairs, row: int, column: int, joined: bool) -> Number | None:
        """A lane as three nested chains: of terms, of runs of 16, of 16 such runs."""
        join = "mul" if kind == "prod" else "add"
        ranged = not self.late or kind == "prod" or not joined
        chains: list[Number | None] = [None, None, None]
        for v, (x, y) in enumerate(pairs):
            at, acc = (row, 0, column, v), chains[0]
            if kind == "dot" and acc is None:
                chains[0] = self.op("mul", x, y, at=at, ranged=ranged)
            elif kind == "dot":
                chains[0] = self.op("fma", x, y, acc, at=at, ranged=ranged)
            else:
                chains[0] = x if acc is None else self.op(join, acc, x, at=at, ranged=ranged)
            end = v == len(pairs) - 1
            for level, size in ((1, 16), (2, 256)):
                if (v + 1) % size == 0 or end:
                    acc, term = chains[level], chains[level - 1]
                    if acc is not None:
                        at = (row, level, column, v // size)
                        term = self.op(join, acc, term, at=at, ranged=ranged)
                    chains[level] = term
                    chains[level - 1] = None
        return chains[2]


def _beyond_fractions(operation: str, *v: float) -> float:
    """IEEE arithmetic with at least one Inf or NaN among the operands: never rounded."""
    match operation:
        case "add":
            return v[0] + v[1]
        case "mul":
            return v[0] * v[1]
        case "fma":
            return v[0] * v[1] + v[2]
    raise AssertionError(operation)


def fractions(x: torch.Tensor) -> list[Fraction]:
    """The values of a tensor in logical order."""
    return [Fraction(v) for v in x.double().reshape(-1).tolist()]


def indices(shape: Iterable[int]) -> Iterable[tuple[int, ...]]:
    """All multi-indices of a shape, row-major."""
    return itertools.product(*(range(n) for n in shape))
