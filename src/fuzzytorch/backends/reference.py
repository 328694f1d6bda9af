"""The reference backend: every primitive in plain torch, slow and obvious, on any device.

It is the specification that native kernels equal bit for bit.  Loops run over
steps, blocks, lanes and instructions; elements are always handled together.
Values are float64 tensors that hold numbers of the target format (or of
binary32, where nothing has been rounded yet).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from fuzzytorch.backends import exact
from fuzzytorch.backends.protocol import (
    K_BLOCK,
    REDUCE_CHUNK,
    REDUCE_FAN,
    REDUCE_LANES,
    SCAN_ROWS,
)
from fuzzytorch.backends.windows import Axis, conv_axes, phase_axes, windows
from fuzzytorch.program import LANES, ROUNDED, TILE, Program
from fuzzytorch.rounding import Rounding, round_to_format
from fuzzytorch.stream import GROUP, Stream, bits, uniform29

_BITS_PER_STATE = 32


def rounded(
    operation: str,
    operands: tuple[torch.Tensor, ...],
    draw: torch.Tensor | None,
    rounding: Rounding,
    ranged: bool = True,
) -> torch.Tensor:
    """One rounded scalar operation per element: all that this backend ever rounds.

    Args:
        operation: one of :data:`fuzzytorch.program.ROUNDED`.
        operands: float64 tensors of one shape.
        draw: int64 of that shape, from :class:`Draws`; ``None`` if the mode draws nothing.
        rounding: mode and format.
        ranged: whether the exponent range applies (see :mod:`fuzzytorch.backends.protocol`).

    Returns:
        float64 of the same shape.
    """
    s = exact.result(operation, operands, odd=rounding.reads_exact)
    return round_to_format(s, draw, rounding, ranged)


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


class ReferenceBackend:
    """The primitives of :class:`~fuzzytorch.backends.protocol.Backend`, documented there."""

    name = "reference"

    def elementwise(
        self,
        program: Program,
        inputs: Sequence[torch.Tensor],
        scalars: Sequence[float],
        out: torch.Tensor,
        rounding: Rounding,
        stream: Stream,
    ) -> None:
        registers = [x.reshape(-1).double() for x in inputs]
        registers += [_binary32(value, out) for value in scalars]
        for block, (operation, *sources) in enumerate(program.code):
            operands = tuple(registers[r] for r in sources)
            if operation in ROUNDED:
                draw = _element_draws(out.numel(), rounding, stream, block, out.device)
                registers.append(rounded(operation, operands, draw, rounding))
            else:
                registers.append(_EXACT[operation](*operands))
        _store(registers[-1], out)

    def reduce(
        self,
        kind: str,
        x: torch.Tensor,
        out: torch.Tensor,
        rounding: Rounding,
        stream: Stream,
        y: torch.Tensor | None = None,
    ) -> None:
        reduction = _Reduction(kind, x, y, rounding, stream)
        _store(reduction.total(), out)

    def scan(
        self, kind: str, x: torch.Tensor, out: torch.Tensor, rounding: Rounding, stream: Stream
    ) -> None:
        if kind not in ("sum", "prod"):
            raise ValueError(f"unknown scan {kind!r}: choose sum or prod.")
        operation = "add" if kind == "sum" else "mul"
        count, length = x.shape
        rows = torch.arange(math.ceil(count / SCAN_ROWS), device=x.device)
        terms = x.double()
        prefixes = [terms[:, 0]] if length else []
        draws = Draws(rounding, stream, rows, 0, SCAN_ROWS)
        for k in range(1, length):
            if k % K_BLOCK == 0:
                draws = Draws(rounding, stream, rows, k // K_BLOCK, SCAN_ROWS)
            draw = draws.at(k % K_BLOCK)
            draw = None if draw is None else draw.reshape(-1)[:count]
            prefixes.append(rounded(operation, (prefixes[-1], terms[:, k]), draw, rounding))
        if prefixes:
            _store(torch.stack(prefixes, -1), out)

    def gemm(
        self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, rounding: Rounding, stream: Stream
    ) -> None:
        rows = torch.arange(a.shape[0] * a.shape[1], device=a.device).view(a.shape[:2])
        _store(_matrix_product(a, b, rows, 0, rounding, stream), out)

    def conv(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        out: torch.Tensor,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        groups: int,
        rounding: Rounding,
        stream: Stream,
    ) -> None:
        axes = conv_axes(weight.shape[2:], out.shape[2:], stride, padding, dilation)
        a = weight.reshape(groups, weight.shape[0] // groups, -1)
        rows = torch.arange(weight.shape[0], device=x.device).view(groups, -1)
        panel = _panel(x, axes, groups)
        product = _matrix_product(a, panel, rows, 0, rounding, stream)
        n, o, *sizes = out.shape
        _store(product.reshape(o, n, *sizes).transpose(0, 1), out)

    def conv_transposed(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        out: torch.Tensor,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        groups: int,
        rounding: Rounding,
        stream: Stream,
    ) -> None:
        n, channels, *sizes = out.shape
        grouped = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
        blocks_per_phase = math.ceil(math.prod(grouped[0, :, 0].shape) / K_BLOCK)
        rows = torch.arange(channels, device=x.device).view(groups, -1)
        for f in range(math.prod(stride)):
            residue = _unravel(f, stride)
            axes = phase_axes(residue, weight.shape[2:], sizes, stride, padding, dilation)
            taps = torch.meshgrid(*(axis.taps.to(x.device) for axis in axes), indexing="ij")
            a = grouped[(..., *taps)].transpose(1, 2).flatten(2)
            panel = _panel(x, axes, groups)
            product = _matrix_product(a, panel, rows, f * blocks_per_phase, rounding, stream)
            phase = out[(..., *(slice(r, None, s) for r, s in zip(residue, stride, strict=True)))]
            _store(product.reshape(channels, n, *phase.shape[2:]).transpose(0, 1), phase)

    def conv_weight(
        self,
        x: torch.Tensor,
        grad: torch.Tensor,
        out: torch.Tensor,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        groups: int,
        rounding: Rounding,
        stream: Stream,
    ) -> None:
        axes = conv_axes(out.shape[2:], grad.shape[2:], stride, padding, dilation)
        rows = torch.arange(out.shape[0], device=x.device).view(groups, -1)
        a = grad.transpose(0, 1).reshape(groups, out.shape[0] // groups, -1)
        panel = _panel(x, axes, groups).transpose(1, 2)
        _store(_matrix_product(a, panel, rows, 0, rounding, stream), out)

    def accumulate(
        self,
        index: torch.Tensor,
        source: torch.Tensor,
        out: torch.Tensor,
        rounding: Rounding,
        stream: Stream,
    ) -> None:
        draw = _element_draws(source.numel(), rounding, stream, 0, out.device)
        draw = None if draw is None else draw.view(source.shape)
        total, terms = out.double(), source.double()
        # The k-th additions to all the rows are independent of each other, and
        # come after the additions before the k-th: together that is the order of i.
        rank = _occurrence(index)
        for k in range(int(rank.max()) + 1 if rank.numel() else 0):
            now = rank == k
            target = index[now]
            chosen = None if draw is None else draw[now]
            total[target] = rounded("add", (total[target], terms[now]), chosen, rounding)
        _store(total, out)


class _Reduction:
    """One call of ``reduce``."""

    _KINDS = ("sum", "prod", "sum_abs", "sum_squares", "dot")

    def __init__(
        self,
        kind: str,
        x: torch.Tensor,
        y: torch.Tensor | None,
        rounding: Rounding,
        stream: Stream,
    ) -> None:
        if kind not in self._KINDS:
            raise ValueError(f"unknown reduction {kind!r}: choose one of {', '.join(self._KINDS)}.")
        if (kind == "dot") != (y is not None):
            raise ValueError(f"a second tensor belongs to dot and to no other kind, not {kind!r}.")
        self._x = x.double().abs() if kind == "sum_abs" else x.double()
        self._y = self._x if kind == "sum_squares" else None if y is None else y.double()
        self._combine = "mul" if kind == "prod" else "add"
        self._rounding, self._stream = rounding, stream
        self._keeps_range = _keeps_binary64_range(rounding) and kind != "prod"
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
        # Lanes below `long` hold one term more than the others.
        steps, long = divmod(length, REDUCE_LANES)
        parts = []
        if long:
            parts.append(self._lanes(c, rows, steps + 1, slice(0, long)))
        if steps:
            parts.append(self._lanes(c, rows, steps, slice(long, REDUCE_LANES)))
        return self._across_lanes(torch.cat(parts, -1), rows, last=chunks == 1)

    def _lanes(self, c: int, rows: torch.Tensor, steps: int, lanes: slice) -> torch.Tensor:
        """Totals of the lanes of a chunk, each of ``steps`` terms: ``(rows, lanes)``."""
        levels = [self._draws(rows, block, REDUCE_LANES) for block in range(3)]
        runs = math.ceil(steps / REDUCE_FAN)
        total = second = run = None
        for u in range(runs):
            for v in range(u * REDUCE_FAN, min((u + 1) * REDUCE_FAN, steps)):
                start = c * REDUCE_CHUNK + v * REDUCE_LANES
                term = slice(start + lanes.start, start + lanes.stop)
                run = self._add_term(run, term, _column(levels[0].at(v), lanes))
            second = self._join(second, run, _column(levels[1].at(u), lanes))
            run = None
            if u % REDUCE_FAN == REDUCE_FAN - 1 or u == runs - 1:
                w = u // REDUCE_FAN
                total = self._join(total, second, _column(levels[2].at(w), lanes))
                second = None
        return total

    def _across_lanes(self, x: torch.Tensor, rows: torch.Tensor, last: bool) -> torch.Tensor:
        """The total of ``(rows, lanes)``; ``last`` if no further chunk follows."""
        draws = self._draws(rows, 4 - 1, 8)
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
        self, run: torch.Tensor | None, term: slice, draw: torch.Tensor | None
    ) -> torch.Tensor:
        x = self._x[:, term]
        if self._y is None:
            return self._join(run, x, draw)
        y = self._y[:, term]
        ranged = not self._keeps_range or self._x.shape[1] == 1
        if run is None:
            return rounded("mul", (x, y), draw, self._rounding, ranged)
        return rounded("fma", (x, y, run), draw, self._rounding, ranged)

    def _join(
        self,
        total: torch.Tensor | None,
        term: torch.Tensor,
        draw: torch.Tensor | None,
        last: bool = False,
    ) -> torch.Tensor:
        if total is None:
            return term
        ranged = last or not self._keeps_range
        return rounded(self._combine, (total, term), draw, self._rounding, ranged)

    def _draws(self, rows: torch.Tensor, block: int, columns: int) -> Draws:
        return Draws(self._rounding, self._stream, rows, block, columns)


def _matrix_product(
    a: torch.Tensor,
    b: torch.Tensor,
    rows: torch.Tensor,
    block: int,
    rounding: Rounding,
    stream: Stream,
) -> torch.Tensor:
    """The accumulation that ``gemm`` and all convolutions share.

    Args:
        a: ``(B, M, K)``.
        b: ``(B, K, N)``.
        rows: int64 ``(B, M)``, the stream rows of the outputs.
        block: the stream block of ``k = 0``.

    Returns:
        float64 ``(B, M, N)``; +0 where ``K = 0``.
    """
    a, b = a.double(), b.double()
    length, columns = b.shape[1:]
    total = torch.zeros(*rows.shape, columns, dtype=torch.float64, device=a.device)
    last_start = (length - 1) // K_BLOCK * K_BLOCK
    for start in range(0, length, K_BLOCK):
        draws = Draws(rounding, stream, rows, block + start // K_BLOCK, columns)
        acc = torch.zeros_like(total)
        for k in range(start, min(start + K_BLOCK, length)):
            last = last_start == 0 and k == length - 1
            ranged = last or not _keeps_binary64_range(rounding)
            operands = (a[:, :, k, None], b[:, None, k, :], acc)
            acc = rounded("fma", operands, draws.at(k - start), rounding, ranged)
        if start == 0:
            total = acc
        else:
            ranged = start == last_start or not _keeps_binary64_range(rounding)
            total = rounded("add", (total, acc), draws.at(K_BLOCK), rounding, ranged)
    return total


def _keeps_binary64_range(rounding: Rounding) -> bool:
    """Whether an accumulation applies the exponent range to its last operation only."""
    return rounding.mode == "sr" and rounding.is_binary32


def _element_draws(
    count: int, rounding: Rounding, stream: Stream, block: int, device: torch.device
) -> torch.Tensor | None:
    """The draws of ``count`` elements in logical order: int64 ``(count,)``, or ``None``."""
    if not rounding.draws:
        return None
    rows = torch.arange(math.ceil(count / TILE), device=device)
    draws = Draws(rounding, stream, rows, block, LANES)
    tiles = torch.stack([draws.at(step) for step in range(TILE // LANES)], 1)
    return tiles.reshape(-1)[:count]


def _panel(x: torch.Tensor, axes: Sequence[Axis], groups: int) -> torch.Tensor:
    """Windows as a matrix: ``(groups, (channel, taps...), (n, positions...))``."""
    n, channels = x.shape[:2]
    gathered = windows(x, axes).reshape(n, groups, channels // groups, *_sizes(axes))
    return gathered.flatten(2, 5).permute(1, 2, 0, 3, 4, 5).flatten(2)


def _sizes(axes: Sequence[Axis]) -> list[int]:
    return [len(axis.taps) for axis in axes] + [axis.source.shape[1] for axis in axes]


def _occurrence(index: torch.Tensor) -> torch.Tensor:
    """How many equal entries come before each entry: int64 ``(n,)``."""
    order = torch.argsort(index, stable=True)
    values = index[order]
    first = torch.searchsorted(values, values)
    rank = torch.empty_like(index)
    rank[order] = torch.arange(len(index), device=index.device) - first
    return rank


def _unravel(f: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """The row-major multi-index number ``f`` within ``sizes``."""
    reversed_index = []
    for size in reversed(sizes):
        f, remainder = divmod(f, size)
        reversed_index.append(remainder)
    return tuple(reversed(reversed_index))


def _column(draw: torch.Tensor | None, columns: slice) -> torch.Tensor | None:
    return None if draw is None else draw[:, columns]


def _binary32(value: float, like: torch.Tensor) -> torch.Tensor:
    scalar = torch.tensor(value, dtype=torch.float64).float().double()
    return scalar.to(like.device).expand(like.numel())


def _store(values: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(values.reshape(out.shape))


def _minimum(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.where(a.isnan() | (a < b), a, b)


def _maximum(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.where(a.isnan() | (a > b), a, b)


_EXACT: dict[str, Callable[..., torch.Tensor]] = {
    "neg": torch.neg,
    "abs": torch.abs,
    "min": _minimum,
    "max": _maximum,
    "copysign": torch.copysign,
    "select": lambda a, b, c: torch.where(a > 0, b, c),
}
