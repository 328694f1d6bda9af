"""The native backend: PRISM kernels on the processor, bit for bit the reference.

Tensors are handed over as addresses, sizes and strides; the kernels work with any
layout and never see torch.  As many threads are used as torch itself uses.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch

from fuzzytorch import _prism
from fuzzytorch.backends.protocol import REDUCTIONS, Geometry
from fuzzytorch.program import Program
from fuzzytorch.rounding import Rounding
from fuzzytorch.stream import Stream


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
        first: int = 0,
    ) -> None:
        _kernel("elementwise", out)(
            _context(rounding, stream),
            *_encoded(program),
            tuple([_view(x) for x in inputs]),
            tuple([x.dtype == torch.float64 for x in inputs]),
            tuple(scalars),
            _view(out),
            first,
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
        _kernel("reduce", out)(
            _context(rounding, stream),
            REDUCTIONS.index(kind),
            _view(x),
            None if y is None else _view(y),
            _view(out),
        )

    def scan(
        self, kind: str, x: torch.Tensor, out: torch.Tensor, rounding: Rounding, stream: Stream
    ) -> None:
        _kernel("scan", out)(_context(rounding, stream), kind == "prod", _view(x), _view(out))

    def gemm(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        out: torch.Tensor,
        rounding: Rounding,
        stream: Stream,
    ) -> None:
        _kernel("gemm", out)(_context(rounding, stream), _view(a), _view(b), _view(out))

    def conv(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        out: torch.Tensor,
        geometry: Geometry,
        rounding: Rounding,
        stream: Stream,
    ) -> None:
        _convolve("conv", x, weight, out, geometry, rounding, stream)

    def conv_transposed(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        out: torch.Tensor,
        geometry: Geometry,
        rounding: Rounding,
        stream: Stream,
    ) -> None:
        _convolve("conv_transposed", x, weight, out, geometry, rounding, stream)

    def conv_weight(
        self,
        x: torch.Tensor,
        grad: torch.Tensor,
        out: torch.Tensor,
        geometry: Geometry,
        rounding: Rounding,
        stream: Stream,
    ) -> None:
        _convolve("conv_weight", x, grad, out, geometry, rounding, stream)

    def accumulate(
        self,
        index: torch.Tensor,
        source: torch.Tensor,
        out: torch.Tensor,
        rounding: Rounding,
        stream: Stream,
    ) -> None:
        index = index.contiguous()
        _kernel("accumulate", out)(
            _context(rounding, stream), index.data_ptr(), _view(source), _view(out)
        )


def _convolve(
    primitive: str,
    x: torch.Tensor,
    other: torch.Tensor,
    out: torch.Tensor,
    geometry: Geometry,
    rounding: Rounding,
    stream: Stream,
) -> None:
    _kernel(primitive, out)(
        _context(rounding, stream),
        _view(x),
        _view(other),
        _view(out),
        geometry.stride,
        geometry.padding,
        geometry.dilation,
        geometry.groups,
    )


_SUFFIX = {torch.float32: "32", torch.float64: "64"}


def _kernel(primitive: str, out: torch.Tensor) -> Callable[..., None]:
    """The kernel of a primitive for the element type of its output."""
    return _KERNELS[primitive, out.dtype]


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


_KERNELS: dict[tuple[str, torch.dtype], Callable[..., None]] = {
    (primitive, dtype): getattr(_prism, primitive + suffix)
    for dtype, suffix in _SUFFIX.items()
    for primitive in (
        "elementwise",
        "reduce",
        "scan",
        "gemm",
        "conv",
        "conv_transposed",
        "conv_weight",
        "accumulate",
    )
}
