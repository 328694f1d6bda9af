"""The order and the draws of a reduction (see ``reduce`` of the protocol)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from fuzzytorch.backends.protocol import (
    REDUCE_CHUNK,
    REDUCE_FAN,
    REDUCE_LANES,
    REDUCTIONS,
    SQUARE_LANES,
)
from fuzzytorch.backends.rounded import Draws, keeps_binary64_range, rounded
from fuzzytorch.rounding import Rounding
from fuzzytorch.stream import Stream


class Reduction:
    """One call of ``reduce``."""

    def __init__(
        self,
        kind: str,
        x: torch.Tensor,
        y: torch.Tensor | None,
        rounding: Rounding,
        stream: Stream,
    ) -> None:
        if kind not in REDUCTIONS:
            raise ValueError(f"unknown reduction {kind!r}: choose one of {', '.join(REDUCTIONS)}.")
        if (kind == "dot") != (y is not None):
            raise ValueError(f"a second tensor belongs to dot and to no other kind, not {kind!r}.")
        self._kind = kind
        self._x = x.double().abs() if kind == "sum_abs" else x.double()
        self._y = self._x if kind == "sum_squares" else None if y is None else y.double()
        self._combine = "mul" if kind == "prod" else "add"
        self._rounding, self._stream = rounding, stream
        self._keeps_range = keeps_binary64_range(rounding) and kind != "prod"
        self._rows = torch.arange(x.shape[0], device=x.device)

    def total(self) -> torch.Tensor:
        length = self._x.shape[1]
        chunks = math.ceil(length / REDUCE_CHUNK)
        draws = self._draws(self._rows * chunks, 4, 1)
        total = self._chunk(0, chunks)
        for c in range(1, chunks):
            draw = _column(draws.at(c), slice(0, 1))
            last = c == chunks - 1
            total = self._join(total, self._chunk(c, chunks), draw, last)
        return total[:, 0]

    def _chunk(self, c: int, chunks: int) -> torch.Tensor:
        """The total of chunk ``c``: ``(rows, 1)``."""
        rows = self._rows * chunks + c
        length = min(REDUCE_CHUNK, self._x.shape[1] - c * REDUCE_CHUNK)
        lanes, add_lanes = (
            (SQUARE_LANES, self._single_chains)
            if self._kind == "sum_squares"
            else (REDUCE_LANES, self._lanes)
        )
        # Lanes below `long` hold one term more than the others.
        steps, long = divmod(length, lanes)
        parts = []
        if long:
            parts.append(add_lanes(c, rows, steps + 1, slice(0, long)))
        if steps:
            parts.append(add_lanes(c, rows, steps, slice(long, lanes)))
        return self._across_lanes(torch.cat(parts, -1), rows, last=chunks == 1)

    def _lanes(self, c: int, rows: torch.Tensor, steps: int, lanes: slice) -> torch.Tensor:
        """Totals of the lanes of a chunk, each of ``steps`` terms: ``(rows, lanes)``."""
        draws = [self._draws(rows, block, REDUCE_LANES) for block in range(3)]
        runs = math.ceil(steps / REDUCE_FAN)

        def second_chain(w: int) -> torch.Tensor:
            return self._chain(w * REDUCE_FAN, runs, run, draws[1], lanes)

        def run(u: int) -> torch.Tensor:
            first = u * REDUCE_FAN
            total = None
            for v in range(first, min(first + REDUCE_FAN, steps)):
                start = c * REDUCE_CHUNK + v * REDUCE_LANES
                place = slice(start + lanes.start, start + lanes.stop)
                total = self._add_term(total, place, _column(draws[0].at(v), lanes))
            assert total is not None
            return total

        return self._chain(0, math.ceil(runs / REDUCE_FAN), second_chain, draws[2], lanes)

    def _single_chains(self, c: int, rows: torch.Tensor, steps: int, lanes: slice) -> torch.Tensor:
        """The same for sums of squares, whose lanes are not cut into runs."""
        draws = self._draws(rows, 0, SQUARE_LANES)
        total = None
        for v in range(steps):
            start = c * REDUCE_CHUNK + v * SQUARE_LANES
            place = slice(start + lanes.start, start + lanes.stop)
            total = self._add_term(total, place, _column(draws.at(v), lanes))
        assert total is not None
        return total

    def _chain(
        self,
        first: int,
        end: int,
        term: Callable[[int], torch.Tensor],
        draws: Draws,
        lanes: slice,
    ) -> torch.Tensor:
        """Adds up to 16 totals of the level below, numbered from ``first``, below ``end``."""
        total = term(first)
        for step in range(first + 1, min(first + REDUCE_FAN, end)):
            total = self._join(total, term(step), _column(draws.at(step), lanes))
        return total

    def _across_lanes(self, x: torch.Tensor, rows: torch.Tensor, last: bool) -> torch.Tensor:
        """The total of ``(rows, lanes)``; ``last`` if no further chunk follows."""
        draws = self._draws(rows, 3, 8)
        lanes = x.shape[1]
        eight = x[:, :8].clone()
        for step in (1, 2, 3):
            draw = draws.at(step)
            present = slice(0, max(0, min(8, lanes - 8 * step)))
            other = x[:, 8 * step : 8 * step + present.stop]
            eight[:, present] = self._join(eight[:, present], other, _column(draw, present))
        total = eight[:, :1]
        for j in range(1, eight.shape[1]):
            draw = _column(draws.at(4 + j), slice(0, 1))
            total = self._join(total, eight[:, j : j + 1], draw, last and j == eight.shape[1] - 1)
        return total

    def _add_term(
        self, total: torch.Tensor | None, place: slice, draw: torch.Tensor | None
    ) -> torch.Tensor:
        x = self._x[:, place]
        ranged = not self._keeps_range or self._x.shape[1] == 1
        if self._y is None:
            return x if total is None else self._join(total, x, draw)
        y = self._y[:, place]
        if total is None:
            return rounded("mul", (x, y), draw, self._rounding, ranged)
        return rounded("fma", (x, y, total), draw, self._rounding, ranged)

    def _join(
        self,
        total: torch.Tensor,
        term: torch.Tensor,
        draw: torch.Tensor | None,
        last: bool = False,
    ) -> torch.Tensor:
        ranged = last or not self._keeps_range
        return rounded(self._combine, (total, term), draw, self._rounding, ranged)

    def _draws(self, rows: torch.Tensor, block: int, columns: int) -> Draws:
        return Draws(self._rounding, self._stream, rows, block, columns)


def _column(draw: torch.Tensor | None, columns: slice) -> torch.Tensor | None:
    return None if draw is None else draw[:, columns]
