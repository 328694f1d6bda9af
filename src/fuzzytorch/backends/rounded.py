"""One rounded scalar operation at its coordinates: all that the reference backend ever rounds."""

from __future__ import annotations

import math

import torch

from fuzzytorch.backends import exact
from fuzzytorch.rounding import (
    Rounding,
    round_approximate,
    round_to_binary64,
    round_to_format,
)
from fuzzytorch.stream import GROUP, Stream, bits, uniform29

_BITS_PER_STATE = 32


def rounded(
    operation: str,
    operands: tuple[torch.Tensor, ...],
    draw: torch.Tensor | None,
    rounding: Rounding,
    ranged: bool = True,
) -> torch.Tensor:
    """One rounded scalar operation per element.

    Args:
        operation: one of :data:`fuzzytorch.program.ROUNDED`.
        operands: float64 tensors of one shape.
        draw: int64 of that shape, from :class:`Draws`; ``None`` if the mode draws nothing.
        rounding: mode and format.
        ranged: whether the exponent range applies (see :mod:`fuzzytorch.backends.protocol`).

    Returns:
        float64 of the same shape.
    """
    if rounding.is_binary64:
        y = _to_binary64(operation, operands, draw, rounding)
    else:
        s = exact.result(operation, operands, odd=rounding.reads_exact)
        y = round_to_format(s, draw, rounding, ranged)
    if rounding.mode not in ("down", "cestac"):
        return y
    zero = exact.cancels(operation, operands)
    if zero is None:
        return y
    # In cestac the draw 0 rounds down.
    downward = zero if draw is None else zero & (draw == 0)
    return torch.where(downward, -0.0, y)


def _to_binary64(
    operation: str,
    operands: tuple[torch.Tensor, ...],
    draw: torch.Tensor | None,
    rounding: Rounding,
) -> torch.Tensor:
    if operation == "round":
        return round_approximate(operands[0], draw, rounding)
    if operation == "fma" and rounding.mode in ("rn", "ud"):
        s, error = exact.fused_nearest(*operands), torch.zeros_like(operands[0])
    else:
        s, error = exact.split(operation, operands)
    return round_to_binary64(s, error, draw, rounding)


class Draws:
    """The draws of some rows and of columns ``0 .. columns - 1`` in one block.

    Args:
        rounding: decides between 29-bit integers, single bits and nothing.
        stream: the stream of the call.
        rows: int64 row numbers, any shape.
        block: one block number.
        columns: number of columns.
    """

    def __init__(
        self, rounding: Rounding, stream: Stream, rows: torch.Tensor, block: int, columns: int
    ) -> None:
        self._rounding, self._stream, self._columns = rounding, stream, columns
        self._position = 0
        if rounding.draws:
            self._states = stream.states(rows, block, math.ceil(columns / GROUP))

    def at(self, step: int) -> torch.Tensor | None:
        """int64 ``rows.shape + (columns,)``, or ``None``; steps are asked for in rising order."""
        if not self._rounding.draws:
            return None
        position = step if self._rounding.draws_uniform else step // _BITS_PER_STATE
        if position < self._position:
            raise ValueError(f"the draws of step {step} have already been passed.")
        self._states = self._stream.advance(self._states, position - self._position)
        self._position = position
        if self._rounding.draws_uniform:
            words = uniform29(self._states)
        else:
            words = bits(self._states, step)
        return words.flatten(-2)[..., : self._columns]


def keeps_binary64_range(rounding: Rounding) -> bool:
    """Whether an accumulation applies the exponent range to its last operation only."""
    return rounding.mode == "sr" and rounding.is_binary32
