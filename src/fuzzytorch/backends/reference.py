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

from fuzzytorch.backends.functions import evaluate
from fuzzytorch.backends.protocol import K_BLOCK, SCAN_BLOCK, SCAN_ROWS, Geometry
from fuzzytorch.backends.reduction import Reduction
from fuzzytorch.backends.rounded import Draws, keeps_binary64_range, rounded
from fuzzytorch.backends.windows import Axis, conv_axes, phase_axes, windows
from fuzzytorch.program import EXACT, FUNCTIONS, LANES, TILE, Program
from fuzzytorch.rounding import Rounding
from fuzzytorch.stream import Stream


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
        first: int = 0,
    ) -> None:
        registers = [x.reshape(-1).double() for x in inputs]
        registers += [_scalar(value, out) for value in scalars]
        for block, (name, *sources) in enumerate(program.code):
            operation = str(name)
            operands = tuple(registers[int(r)] for r in sources)
            if operation in EXACT:
                registers.append(_EXACT[operation](*operands))
                continue
            if operation in FUNCTIONS:
                operation, operands = "round", (evaluate(operation, operands[0], out.dtype),)
            draw = _element_draws(out.numel(), rounding, stream, block, out.device, first)
            registers.append(rounded(operation, operands, draw, rounding))
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
        rows = out.numel()
        if rows == 0:
            return
        terms = x.reshape(rows, -1)
        others = None if y is None else y.reshape(rows, -1)
        reduction = Reduction(kind, terms, others, rounding, stream)
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
            if k % SCAN_BLOCK == 0:
                draws = Draws(rounding, stream, rows, k // SCAN_BLOCK, SCAN_ROWS)
            draw = draws.at(k % SCAN_BLOCK)
            draw = None if draw is None else draw.reshape(-1)[:count]
            prefixes.append(rounded(operation, (prefixes[-1], terms[:, k]), draw, rounding))
        if prefixes:
            _store(torch.stack(prefixes, -1), out)

    def gemm(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        out: torch.Tensor,
        rounding: Rounding,
        stream: Stream,
    ) -> None:
        rows = torch.arange(a.shape[0] * a.shape[1], device=a.device).view(a.shape[:2])
        _store(_matrix_product(a, b, rows, 0, rounding, stream), out)

    def conv(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        out: torch.Tensor,
        geometry: Geometry,
        rounding: Rounding,
        stream: Stream,
    ) -> None:
        axes = conv_axes(weight.shape[2:], out.shape[2:], geometry)
        groups = geometry.groups
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
        geometry: Geometry,
        rounding: Rounding,
        stream: Stream,
    ) -> None:
        stride, groups = geometry.stride, geometry.groups
        n, channels, *sizes = out.shape
        grouped = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
        blocks_per_phase = math.ceil(math.prod(grouped[0, :, 0].shape) / K_BLOCK)
        rows = torch.arange(channels, device=x.device).view(groups, -1)
        for f in range(math.prod(stride)):
            residue = _unravel(f, stride)
            axes = phase_axes(residue, weight.shape[2:], sizes, geometry)
            taps = torch.meshgrid(*(axis.taps.to(x.device) for axis in axes), indexing="ij")
            all_of = slice(None)
            present: tuple[slice | torch.Tensor, ...] = (all_of, all_of, all_of, *taps)
            a = grouped[present].transpose(1, 2).flatten(2)
            panel = _panel(x, axes, groups)
            product = _matrix_product(a, panel, rows, f * blocks_per_phase, rounding, stream)
            steps = [slice(r, None, s) for r, s in zip(residue, stride, strict=True)]
            places = (all_of, all_of, *steps)
            phase = out[places]
            _store(product.reshape(channels, n, *phase.shape[2:]).transpose(0, 1), phase)

    def conv_weight(
        self,
        x: torch.Tensor,
        grad: torch.Tensor,
        out: torch.Tensor,
        geometry: Geometry,
        rounding: Rounding,
        stream: Stream,
    ) -> None:
        axes = conv_axes(out.shape[2:], grad.shape[2:], geometry)
        groups = geometry.groups
        rows = torch.arange(out.shape[0], device=x.device).view(groups, -1)
        a = grad.transpose(0, 1).reshape(groups, out.shape[0] // groups, -1)
        panel = _panel(x, axes, groups).transpose(1, 2)
        chained = math.prod(out.shape[2:]) > 1
        _store(_matrix_product(a, panel, rows, 0, rounding, stream, chained), out)

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


def _matrix_product(
    a: torch.Tensor,
    b: torch.Tensor,
    rows: torch.Tensor,
    block: int,
    rounding: Rounding,
    stream: Stream,
    chained: bool = False,
) -> torch.Tensor:
    """The accumulation that ``gemm`` and all convolutions share.

    Args:
        a: ``(B, M, K)``.
        b: ``(B, K, N)``.
        rows: int64 ``(B, M)``, the stream rows of the outputs.
        block: the stream block of ``k = 0``.
        chained: whether a block continues the one before instead of starting from zero.

    Returns:
        float64 ``(B, M, N)``; +0 where ``K = 0``.
    """
    a, b = a.double(), b.double()
    length, columns = b.shape[1:]
    total = torch.zeros(*rows.shape, columns, dtype=torch.float64, device=a.device)
    last_start = (length - 1) // K_BLOCK * K_BLOCK
    for start in range(0, length, K_BLOCK):
        draws = Draws(rounding, stream, rows, block + start // K_BLOCK, columns)
        acc = total if chained else torch.zeros_like(total)
        for k in range(start, min(start + K_BLOCK, length)):
            last = (chained or last_start == 0) and k == length - 1
            ranged = last or not keeps_binary64_range(rounding)
            operands = (a[:, :, k, None], b[:, None, k, :], acc)
            acc = rounded("fma", operands, draws.at(k - start), rounding, ranged)
        if start == 0 or chained:
            total = acc
        else:
            ranged = start == last_start or not keeps_binary64_range(rounding)
            after = min(K_BLOCK, length - start)
            total = rounded("add", (total, acc), draws.at(after), rounding, ranged)
    return total


def _element_draws(
    count: int,
    rounding: Rounding,
    stream: Stream,
    block: int,
    device: torch.device,
    first: int = 0,
) -> torch.Tensor | None:
    """The draws of ``count`` elements in logical order: int64 ``(count,)``, or ``None``."""
    rows = first // TILE + torch.arange(math.ceil(count / TILE), device=device)
    draws = Draws(rounding, stream, rows, block, LANES)
    steps = [draw for step in range(TILE // LANES) if (draw := draws.at(step)) is not None]
    return torch.stack(steps, 1).reshape(-1)[:count] if steps else None


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


def _scalar(value: float, like: torch.Tensor) -> torch.Tensor:
    scalar = torch.tensor(value, dtype=torch.float64).to(like.dtype).double()
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
