"""What a rounding is: the readable specification of every mode and format.

A :class:`Rounding` says *how* the exact result of a scalar operation becomes a
number of the target format.  It is an immutable value; the random bits come
from a :class:`~fuzzytorch.stream.Stream`.

With ``q`` the distance between neighbouring numbers of the format around ``s``,
``|s| = (k + f) q`` with an integer ``k`` and a discarded fraction ``0 <= f < 1``,
a mode only decides whether ``k`` or ``k + 1`` is taken (``ud`` then moves the
nearest number to one of its two neighbours):

========== ===================================================================
``rn``     ``k + 1`` if ``f > 1/2``, or ``f = 1/2`` and ``k`` is odd (IEEE 754)
``sr``     ``k + 1`` with probability ``f``: unbiased, exact results stay exact
           (Connolly, Higham, Mary 2021; ``average`` of Verrou)
``ud``     ``rn``, then the next number up or down in magnitude, each with
           probability 1/2, also when exact; 0, Inf and NaN untouched (PRISM)
``cestac`` toward plus or minus infinity, each with probability 1/2, when
           inexact (CESTAC; ``random`` of Verrou)
``zero``   ``k``
``away``   ``k + 1`` when inexact
``up``     toward plus infinity
``down``   toward minus infinity
========== ===================================================================

``sr`` reads the binary64 result (nearest) of the operation: a fraction below
2^-29 of an ulp is not seen, so that a probability is wrong by at most 2^-29.
Every other mode reads the *exact* result, represented by rounding it to odd in
binary64 (:mod:`fuzzytorch.backends.exact`), which keeps every comparison of
``f`` with 0 and 1/2 true for precisions up to 51.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from typing import Final

import torch

MODES: Final = ("rn", "sr", "ud", "cestac", "zero", "away", "up", "down")
"""The rounding modes; their positions are the codes that native kernels know."""

UNIFORM_BITS: Final = 29
"""Random bits that decide one stochastic rounding (53 - 24)."""

_FORMATS: Final = {
    # name: (precision, emin, emax, largest or NaN for the IEEE value)
    "binary32": (24, -126, 127, math.nan),
    "tf32": (11, -126, 127, math.nan),
    "bfloat16": (8, -126, 127, math.nan),
    "float16": (11, -14, 15, math.nan),
    "float8_e5m2": (3, -14, 15, math.nan),
    # The all-ones code is NaN (OCP 8-bit specification), so 448 is the largest.
    "float8_e4m3": (4, -6, 8, 448.0),
}
PRESETS: Final = tuple(_FORMATS)
"""Names of the formats that :func:`Rounding.of` accepts."""


@dataclasses.dataclass(frozen=True, slots=True)
class Rounding:
    """A rounding mode together with the format that it rounds to.

    Attributes:
        mode: one of :data:`MODES`.
        precision: bits of the significand, the leading one included: 2 to 24, or the 53
            of :meth:`binary64`.
        emin: exponent of the smallest normal number (``-126`` in binary32).
        emax: exponent of the largest number (``127`` in binary32).
        largest: the largest finite number; beyond it lies Inf.  NaN, the default, means
            ``(2 - 2**(1 - precision)) * 2**emax``.

    Raises:
        ValueError: an unknown mode, or a format that binary32 cannot hold.
    """

    mode: str = "sr"
    precision: int = 24
    emin: int = -126
    emax: int = 127
    largest: float = math.nan

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(
                f"unknown rounding mode {self.mode!r}: choose one of {', '.join(MODES)}."
            )
        for name in ("precision", "emin", "emax"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool):
                raise ValueError(f"{name} must be an integer, not {value!r}.")
        if self.is_binary64:
            object.__setattr__(self, "largest", sys.float_info.max)
            return
        if not 2 <= self.precision <= 24:
            raise ValueError(
                f"precision {self.precision} is impossible: binary32 tensors hold 2 to 24 bits."
            )
        if not -126 <= self.emin <= self.emax <= 127:
            raise ValueError(
                f"the exponent range {self.emin}..{self.emax} is impossible: "
                "it must be increasing and lie within the -126..127 of binary32."
            )
        ieee = (2.0 - 2.0 ** (1 - self.precision)) * 2.0**self.emax
        if math.isnan(self.largest):
            object.__setattr__(self, "largest", ieee)
        elif not 2.0**self.emin <= self.largest <= ieee:
            raise ValueError(
                f"largest={self.largest!r} lies outside the format: "
                f"it must be between 2**emin and {ieee!r}."
            )

    @classmethod
    def of(
        cls,
        mode: str = "sr",
        format: str = "binary32",
        precision: int | None = None,
        emin: int | None = None,
        emax: int | None = None,
    ) -> Rounding:
        """The rounding of a preset format (:data:`PRESETS`) under a mode.

        ``precision``, ``emin`` and ``emax`` replace those of the format, whose largest number is
        then the IEEE 754 one.
        """
        if format not in _FORMATS:
            raise ValueError(f"unknown format {format!r}: choose one of {', '.join(PRESETS)}.")
        p, low, high, largest = _FORMATS[format]
        if precision is None and emin is None and emax is None:
            return cls(mode, p, low, high, largest)
        return cls(
            mode,
            p if precision is None else precision,
            low if emin is None else emin,
            high if emax is None else emax,
        )

    @classmethod
    def binary64(cls, mode: str) -> Rounding:
        """The rounding of float64 tensors to their own format."""
        return cls(mode, 53, -1022, 1023)

    @property
    def is_binary64(self) -> bool:
        """True when the target is binary64, which no wider type can hold the results of."""
        return (self.precision, self.emin, self.emax) == (53, -1022, 1023)

    @property
    def code(self) -> int:
        """The number of the mode in native code."""
        return MODES.index(self.mode)

    @property
    def is_binary32(self) -> bool:
        """True when the target is binary32 itself, not a narrower virtual format."""
        ieee32 = (2.0 - 2.0**-23) * 2.0**127
        return (self.precision, self.emin, self.largest) == (24, -126, ieee32)

    @property
    def draws_uniform(self) -> bool:
        """True when an operation consumes a 29-bit integer."""
        return self.mode == "sr"

    @property
    def draws_bit(self) -> bool:
        """True when an operation consumes one bit."""
        return self.mode in ("ud", "cestac")

    @property
    def draws(self) -> bool:
        """True when the mode is random at all."""
        return self.draws_uniform or self.draws_bit

    @property
    def reads_exact(self) -> bool:
        """True when the mode must see the exact result and not its binary64 neighbour."""
        return self.mode != "sr"


def round_to_format(
    s: torch.Tensor, draw: torch.Tensor | None, rounding: Rounding, ranged: bool = True
) -> torch.Tensor:
    """Rounds binary64 results to the format: the definition that all kernels equal.

    Args:
        s: float64, any shape: the result of an operation, nearest in binary64
            for ``sr`` and rounded to odd otherwise.
        draw: int64, the shape of ``s``: 29-bit integers for ``sr``, single bits
            for ``ud`` and ``cestac``; ``None`` in modes that draw nothing.
        rounding: mode and format.
        ranged: whether the exponent range applies.  ``False`` only inside an
            accumulation in ``sr`` to binary32, which keeps 24 bits but the
            exponents of binary64 until the accumulated value is stored.

    Returns:
        float64 of the same shape, each a number of the format (or Inf, NaN).
    """
    p = rounding.precision
    exponent = ((s.view(torch.int64) >> 52) & 0x7FF) - 1023
    if ranged:
        exponent = exponent.clamp(min=rounding.emin)
    # -900 stands for "zero": no operation on binary32 reaches so low.
    q = ((exponent.clamp(min=-900) - (p - 1) + 1023) << 52).view(torch.float64)
    scaled = s.abs() / q
    k = scaled.floor()
    f = scaled - k
    up = _takes_upper(s, k, f, draw, rounding)
    k = torch.where(up, k + 1, k)
    if rounding.mode == "ud":
        assert draw is not None
        infinite = k * q > rounding.largest
        k = torch.where(infinite, torch.inf, _neighbour(k, exponent, draw, p, rounding.emin))
    y = torch.copysign(k * q, s)
    if ranged:
        y = torch.where(y.abs() > rounding.largest, _overflow(y, draw, rounding), y)
    return torch.where(torch.isfinite(s), y, s)


def round_to_binary64(
    s: torch.Tensor, error: torch.Tensor, draw: torch.Tensor | None, rounding: Rounding
) -> torch.Tensor:
    """Rounds to binary64 a result that is known as ``s`` plus ``error``.

    The exact result lies between ``s`` and its neighbour on the side of ``error``; the
    distance of the two is the ``gap``.  ``sr`` takes the neighbour when
    ``draw / 2^29 * gap < |error|``.

    Args:
        s: float64, any shape: the nearest binary64 result.
        error: float64, the exact result less ``s``; NaN stands for "does not matter".
        draw: as in :func:`round_to_format`.
        rounding: mode; the format is binary64.

    Returns:
        float64 of the same shape.
    """
    pattern = s.view(torch.int64)
    if rounding.mode == "ud":
        assert draw is not None
        return _next_in_magnitude(s, draw == 1)
    grows = torch.signbit(error) == torch.signbit(s)
    neighbour = torch.where(grows, pattern + 1, pattern - 1).view(torch.float64)
    match rounding.mode:
        case "rn":
            return s
        case "sr":
            assert draw is not None
            fraction = draw.double() * 2.0**-UNIFORM_BITS
            moves = fraction * (neighbour - s).abs() < error.abs()
        case _:
            upward = _rounds_upward(s, draw, rounding)
            moves = torch.where(upward, error > 0, error < 0)
    return torch.where(moves, neighbour, s)


def round_approximate(
    s: torch.Tensor, draw: torch.Tensor | None, rounding: Rounding
) -> torch.Tensor:
    """Rounds a binary64 value that approximates the exact result to about one ulp.

    Nothing is known of the fraction that a transcendental function of binary64 leaves.
    ``sr`` takes it as uniform within half an ulp: a step up or down with probability
    1/8 each.  ``ud`` and ``cestac`` and the directed modes step as if it were not zero.
    A value whose last 24 bits are zero passes for an exact result (but in ``ud``).

    Args:
        s: float64, any shape.
        draw, rounding: as in :func:`round_to_binary64`.

    Returns:
        float64 of the same shape.
    """
    looks_exact = (s.view(torch.int64) & 0xFFFFFF) == 0
    match rounding.mode:
        case "rn":
            return s
        case "ud":
            assert draw is not None
            return _next_in_magnitude(s, draw == 1)
        case "sr":
            assert draw is not None
            up = draw >= 7 << UNIFORM_BITS - 3
            stays = looks_exact | (~up & (draw >= 1 << UNIFORM_BITS - 3))
        case _:
            up = _rounds_upward(s, draw, rounding) != torch.signbit(s)
            stays = looks_exact
    return torch.where(stays, s, _next_in_magnitude(s, up))


def _rounds_upward(s: torch.Tensor, draw: torch.Tensor | None, rounding: Rounding) -> torch.Tensor:
    """Where a directed mode goes toward plus infinity."""
    match rounding.mode:
        case "cestac":
            assert draw is not None
            return draw == 1
        case "zero":
            return torch.signbit(s)
        case "away":
            return ~torch.signbit(s)
        case "up":
            return torch.ones_like(s, dtype=torch.bool)
    return torch.zeros_like(s, dtype=torch.bool)


def _next_in_magnitude(s: torch.Tensor, grows: torch.Tensor) -> torch.Tensor:
    """The next binary64 number in magnitude; 0, Inf and NaN stay."""
    pattern = s.view(torch.int64)
    moved = torch.where(grows, pattern + 1, pattern - 1).view(torch.float64)
    return torch.where(torch.isfinite(s) & (s != 0), moved, s)


def _takes_upper(
    s: torch.Tensor, k: torch.Tensor, f: torch.Tensor, draw: torch.Tensor | None, rounding: Rounding
) -> torch.Tensor:
    match rounding.mode:
        case "rn" | "ud":
            return (f > 0.5) | ((f == 0.5) & (k.remainder(2) == 1))
        case "sr":
            assert draw is not None
            threshold = 1 << UNIFORM_BITS
            return (f * threshold).floor() + draw >= threshold
        case "cestac":
            return (f > 0) & ((draw == 1) != torch.signbit(s))
        case "zero":
            return torch.zeros_like(f, dtype=torch.bool)
        case "away":
            return f > 0
        case "up":
            return (f > 0) & ~torch.signbit(s)
        case "down":
            return (f > 0) & torch.signbit(s)
    raise AssertionError(rounding.mode)


def _neighbour(
    k: torch.Tensor, exponent: torch.Tensor, draw: torch.Tensor, p: int, emin: int
) -> torch.Tensor:
    """``k`` moved to the next number of the format: draw 1 grows, draw 0 shrinks."""
    # Numbers just below a power of two lie twice as dense as those above it,
    # except at 2^emin; k = 2^p (a carry) has the wide spacing above.
    top, carried = 2.0 ** (p - 1), 2.0**p
    grows = torch.where(k == carried, k + 2, k + 1)
    narrow = (k == top) & (exponent > emin)
    shrinks = torch.where(narrow, k - 0.5, k - 1)
    return torch.where(k == 0, k, torch.where(draw == 1, grows, shrinks))


def _overflow(y: torch.Tensor, draw: torch.Tensor | None, rounding: Rounding) -> torch.Tensor:
    infinite = torch.copysign(torch.full_like(y, math.inf), y)
    largest = torch.copysign(torch.full_like(y, rounding.largest), y)
    match rounding.mode:
        case "zero":
            return largest
        case "up":
            return torch.where(torch.signbit(y), largest, infinite)
        case "down":
            return torch.where(torch.signbit(y), infinite, largest)
        case "cestac":
            assert draw is not None
            return torch.where((draw == 1) != torch.signbit(y), infinite, largest)
    return infinite
