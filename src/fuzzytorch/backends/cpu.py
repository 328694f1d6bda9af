"""The native backend: PRISM kernels on the processor, bit for bit the reference.

Tensors are handed over as addresses, sizes and strides; the kernels work with any
layout and never see torch.  As many threads are used as torch itself uses.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

from fuzzytorch import _prism
from fuzzytorch.program import Program
from fuzzytorch.rounding import Rounding
from fuzzytorch.stream import Stream

REDUCTIONS = ("sum", "prod", "sum_abs", "sum_squares", "dot")
"""Kinds of reduction; their positions are the codes that native kernels know."""


def isa() -> str:
    """Name of the instruction set in use."""
    return _prism.isa()


def available_isas() -> tuple[str, ...]:
    """Instruction sets that this machine can run, best first."""
    return tuple(_prism.available_isas())


def select_isa(name: str) -> None:
    """Uses an instruction set from now on: the same bits, another speed.

    Raises:
        ValueError: an instruction set that this machine cannot run.
    """
    _prism.select_isa(name)


class CpuBackend:
    """Native kernels; see :class:`~fuzzytorch.backends.protocol.Backend`."""

    name = "cpu"

    def elementwise(
        self,
        program: Program,
        inputs: Sequence[torch.Tensor],
        scalars: Sequence[float],
        out: torch.Tensor,
        rounding: Rounding,
        stream: Stream,
    ) -> None:
        _prism.elementwise(
            _context(rounding, stream),
            *_encoded(program),
            tuple([_view(x) for x in inputs]),
            tuple([x.dtype == torch.float64 for x in inputs]),
            tuple(scalars),
            _view(out),
        )

    def reduce(
        self,
        kind: str,
        x: torch.Tensor,
        out: torch.Tensor,
        rounding: Rounding,
        stream: Stream,
        y: torch.Tensor | None = None,
    ) -> None:
        _prism.reduce(
            _context(rounding, stream),
            REDUCTIONS.index(kind),
            _view(x),
            None if y is None else _view(y),
            _view(out),
        )

    def scan(
        self, kind: str, x: torch.Tensor, out: torch.Tensor, rounding: Rounding, stream: Stream
    ) -> None:
        _prism.scan(_context(rounding, stream), kind == "prod", _view(x), _view(out))

    def gemm(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        out: torch.Tensor,
        rounding: Rounding,
        stream: Stream,
    ) -> None:
        _prism.gemm(_context(rounding, stream), _view(a), _view(b), _view(out))

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
        geometry = tuple(stride), tuple(padding), tuple(dilation), groups
        _prism.conv(_context(rounding, stream), _view(x), _view(weight), _view(out), *geometry)

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
        geometry = tuple(stride), tuple(padding), tuple(dilation), groups
        _prism.conv_transposed(
            _context(rounding, stream), _view(x), _view(weight), _view(out), *geometry
        )

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
        geometry = tuple(stride), tuple(padding), tuple(dilation), groups
        _prism.conv_weight(_context(rounding, stream), _view(x), _view(grad), _view(out), *geometry)

    def accumulate(
        self,
        index: torch.Tensor,
        source: torch.Tensor,
        out: torch.Tensor,
        rounding: Rounding,
        stream: Stream,
    ) -> None:
        index = index.contiguous()
        _prism.accumulate(_context(rounding, stream), index.data_ptr(), _view(source), _view(out))


def _view(x: torch.Tensor) -> tuple[int, torch.Size, tuple[int, ...]]:
    return x.data_ptr(), x.shape, x.stride()


def _context(rounding: Rounding, stream: Stream) -> tuple[object, int, int, int, int]:
    return (
        _native_rounding(rounding),
        stream.seed,
        stream.replica,
        stream.call,
        torch.get_num_threads(),
    )


@functools.lru_cache(maxsize=256)
def _native_rounding(rounding: Rounding) -> _prism.Rounding:
    return _prism.Rounding(rounding.code, rounding.precision, rounding.emin, rounding.largest)


@functools.lru_cache(maxsize=1024)
def _encoded(program: Program) -> tuple[tuple[int, ...]]:
    return (program.encoded,)
