"""What a row may use: the primitives, with broadcasting, allocation and counting done.

A :class:`Call` is made by the dispatch mode for one aten call and handed to the
function of its row.  Each primitive that it runs takes the next stream of the
run, so that the bits depend on the sequence of rounded primitives alone.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from fuzzytorch.backends.protocol import Backend, Geometry
from fuzzytorch.ops.pieces import pieces
from fuzzytorch.program import Program
from fuzzytorch.rounding import Rounding
from fuzzytorch.stream import Stream

ROUND = Program(1, 0, (("round", 0),))
"""Stores a binary64 tensor in the format: one rounding per element."""

EXACT_INTEGER = 2**53
"""Integers up to this magnitude are binary64 numbers."""


def binary32(value: Any) -> float:
    """A Python number as torch converts it for a float32 operation: nearest binary32."""
    if isinstance(value, int) and abs(value) > EXACT_INTEGER:
        return torch.tensor(value).to(torch.float32).item()
    return ctypes.c_float(value).value


@functools.cache
def rounding_in(dtype: torch.dtype, run: Rounding) -> Rounding:
    """The rounding of operations on tensors of a dtype.

    Args:
        dtype: float32 or float64.
        run: what the run rounds float32 tensors to.  binary32 itself means that every
            dtype keeps its own format; a narrower format holds for both.
    """
    if dtype == torch.float64 and run.is_binary32:
        return Rounding.binary64(run.mode)
    return run


class Call:
    """One aten call under the mode.

    Attributes:
        overload: the aten overload that was called.
        dtype: float32 or float64: what the row computes in and returns; for complex operands
            the dtype of the parts.
        run_rounding: mode and format of the run, those of float32 tensors.
        rounding: mode and format of every operation on tensors of ``dtype``.
        out: the tensor that an in-place or ``out=`` variant writes, or ``None``.  A
            row may hand it to its last primitive; otherwise the result is copied.
        operations: scalar floating-point operations rounded so far in this call.
        coarse: whether a row computed this call in binary64 and rounded its result only,
            although it claims more for others.
    """

    __slots__ = (
        "_next_stream",
        "backend",
        "coarse",
        "dtype",
        "operations",
        "out",
        "overload",
        "rounding",
        "run_rounding",
    )

    def __init__(
        self,
        overload: Any,
        rounding: Rounding,
        backend: Backend,
        next_stream: Callable[[], Stream],
        out: torch.Tensor | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.overload = overload
        self.dtype = dtype
        self.run_rounding = rounding
        self.rounding = rounding if dtype == torch.float32 else rounding_in(dtype, rounding)
        self.backend = backend
        self._next_stream = next_stream
        self.out = out
        self.operations = 0
        self.coarse = False

    def number(self, value: Any) -> float:
        """A Python number as torch converts it for an operation on tensors of ``dtype``."""
        return binary32(value) if self.dtype == torch.float32 else float(value)

    def operand(self, x: Any) -> Any:
        """A tensor converted to ``dtype``, a number by :meth:`number`."""
        if not isinstance(x, torch.Tensor):
            return self.number(x)
        return x if x.dtype == self.dtype else x.to(self.dtype)

    def inner(self, dtype: torch.dtype, run: Rounding) -> Call:
        """A call for part of this one, in another dtype or format; it counts on its own."""
        return Call(self.overload, run, self.backend, self._next_stream, dtype=dtype)

    def stored(self, y: torch.Tensor, dtype: torch.dtype, run: Rounding) -> torch.Tensor:
        """A tensor rounded once as a run of rounding ``run`` rounds tensors of ``dtype``.

        Args:
            y: float32 or float64.
            dtype: float32 or float64, that of the result.
        """
        inner = self.inner(dtype, run)
        rounded = inner.round(y)
        self.operations += inner.operations
        return rounded

    def elementwise(
        self,
        program: Program,
        *inputs: torch.Tensor,
        scalars: Sequence[float] = (),
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Runs a program on broadcast inputs; strides as stock torch chooses them.

        Inputs of integer or bool dtype are converted to ``dtype`` first, as torch does.
        ``out`` may be one of the inputs; it is ignored where its shape or dtype do
        not fit, so that a row can pass ``call.out`` without a test.
        """
        inputs = tuple(self._input(x, program, i) for i, x in enumerate(inputs))
        shape = _shape(inputs)
        if out is None or out.shape != shape or out.dtype != self.dtype:
            out = _empty(shape, inputs, self.dtype)
        if out.numel() > 0:
            operands = [x if x.shape == shape else x.expand(shape) for x in inputs]
            self.backend.elementwise(
                program, operands, scalars, out, self.rounding, self._next_stream()
            )
            self.operations += program.roundings * out.numel()
        return out

    def round(self, y: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """One rounding of a float64 tensor into ``dtype``.

        Where that is binary64 itself, ``y`` is taken for known to about one ulp
        (:func:`~fuzzytorch.rounding.round_approximate`).
        """
        return self.elementwise(ROUND, y, out=out)

    def _input(self, x: torch.Tensor, program: Program, register: int) -> torch.Tensor:
        if ("round", register) in program.code:
            return x.to(torch.float64)
        return x if x.dtype == self.dtype else x.to(self.dtype)

    def via_binary64(
        self,
        function: Callable[..., torch.Tensor],
        *inputs: Any,
        out: torch.Tensor | None = None,
        **keywords: Any,
    ) -> torch.Tensor:
        """An elementwise function of stock torch on values widened to float64, rounded once.

        Works on one piece of the tensors (broadcast) after the other, each made contiguous:
        the value must not depend on the layout.  ``out`` as in :meth:`elementwise`.
        """
        tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
        shape = _shape(tensors)
        if out is None or out.shape != shape or out.dtype != self.dtype:
            like = tensors[0]
            same = like.shape == shape and not like.is_contiguous()
            out = (
                torch.empty_like(like, dtype=self.dtype)
                if same
                else torch.empty(shape, dtype=self.dtype, device=like.device)
            )
        if out.numel() == 0:
            return out
        stream = self._next_stream()
        operands = [x.expand(shape) for x in tensors]
        for first, (piece, *parts) in pieces([out, *operands], torch.get_num_threads()):
            part = iter(parts)
            arguments = [_wide(next(part)) if isinstance(x, torch.Tensor) else x for x in inputs]
            y = function(*arguments, **keywords)
            self.backend.elementwise(ROUND, (y,), (), piece, self.rounding, stream, first)
        self.operations += out.numel()
        return out

    def reduce(
        self,
        kind: str,
        x: torch.Tensor,
        dims: Sequence[int] | None = None,
        keepdim: bool = False,
        y: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Reduces over ``dims`` (all where ``None`` or empty); kinds as in the protocol.

        An empty reduction yields the neutral element.  Terms are taken in logical
        order of the reduced dimensions.
        """
        x = x if x.dtype == self.dtype else x.to(self.dtype)
        reduced = sorted(d % max(x.dim(), 1) for d in dims) if dims else list(range(x.dim()))
        if x.dim() == 0:
            reduced = []
        kept = [d for d in range(x.dim()) if d not in reduced]
        rows = math.prod(x.shape[d] for d in kept)
        terms = math.prod(x.shape[d] for d in reduced)
        out = torch.empty(rows, dtype=self.dtype, device=x.device)
        if terms == 0:
            out.fill_(1.0 if kind == "prod" else 0.0)
        elif rows > 0:
            order = kept + reduced
            other = None if y is None else y.expand(x.shape).permute(order)
            self.backend.reduce(
                kind, x.permute(order), out, self.rounding, self._next_stream(), other
            )
            self.operations += rows * _reduction_operations(kind, terms)
        shape = [1 if d in reduced else x.shape[d] for d in range(x.dim())]
        return out.view(shape if keepdim else [x.shape[d] for d in kept])

    def scan(self, kind: str, x: torch.Tensor, dim: int) -> torch.Tensor:
        """Running ``sum`` or ``prod`` along ``dim``, sequentially."""
        if x.dim() == 0 or x.numel() == 0:
            return x.clone()
        moved = x.movedim(dim, -1)
        matrix = moved.reshape(-1, moved.shape[-1])
        out = torch.empty_like(matrix, memory_format=torch.contiguous_format)
        self.backend.scan(kind, matrix, out, self.rounding, self._next_stream())
        self.operations += out.numel() - out.shape[0]
        return out.view(moved.shape).movedim(-1, dim)

    def gemm(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """``a @ b`` for two matrices, or for two batches of matrices of equal batch size."""
        batched = a.dim() == 3
        a3, b3 = (a, b) if batched else (a.unsqueeze(0), b.unsqueeze(0))
        batch, m, k = a3.shape
        n = b3.shape[2]
        out = torch.empty(batch, m, n, dtype=self.dtype, device=a.device)
        if k == 0:
            out.zero_()
        elif out.numel() > 0:
            # A product with very few columns fills the lanes of a kernel from its rows.
            # The choice rests on n alone, so that more rows keep the draws of the fewer.
            if n <= 4:
                self.backend.gemm(b3.mT, a3.mT, out.mT, self.rounding, self._next_stream())
            else:
                self.backend.gemm(a3, b3, out, self.rounding, self._next_stream())
            self.operations += 2 * batch * m * n * k
        return out if batched else out[0]

    def conv(
        self,
        form: str,
        x: torch.Tensor,
        weight: torch.Tensor,
        out: torch.Tensor,
        geometry: Geometry,
        operations: int,
    ) -> torch.Tensor:
        """One of the forms ``conv``, ``conv_transposed``, ``conv_weight`` into ``out``.

        Tensors are five-dimensional ``(N, C, D, H, W)``; ``operations`` is
        what to count.
        """
        if out.numel() > 0:
            primitive = getattr(self.backend, form)
            primitive(x, weight, out, geometry, self.rounding, self._next_stream())
            self.operations += operations
        return out

    def accumulate(
        self, index: torch.Tensor, source: torch.Tensor, out: torch.Tensor
    ) -> torch.Tensor:
        """``out[index[i]] += source[i]`` in the order of ``i``; ``out`` is ``(rows, inner)``."""
        if source.numel() > 0:
            self.backend.accumulate(index, source, out, self.rounding, self._next_stream())
            self.operations += source.numel()
        return out


def _shape(tensors: Sequence[torch.Tensor]) -> torch.Size:
    shape = tensors[0].shape
    for x in tensors[1:]:
        if x.shape != shape:
            # As torch.broadcast_shapes, which is Python and slower than many a kernel.
            shape = torch._C._infer_size(shape, x.shape)
    return shape


def _wide(x: torch.Tensor) -> torch.Tensor:
    """Floating-point tensors in float64, contiguous."""
    if not x.is_floating_point():
        return x
    return x.to(torch.float64, memory_format=torch.contiguous_format)


def _empty(
    shape: Sequence[int], inputs: Sequence[torch.Tensor], dtype: torch.dtype
) -> torch.Tensor:
    """The output that stock torch would allocate for an elementwise operation."""
    if all(x.is_contiguous() for x in inputs if x.shape == shape):
        return torch.empty(shape, dtype=dtype, device=inputs[0].device)
    metas = [torch.empty_strided(x.shape, x.stride(), device="meta") for x in inputs]
    result = metas[0]
    for meta in metas[1:]:
        result = torch.where(torch.empty((), dtype=torch.bool, device="meta"), result, meta)
    if len(metas) == 1:
        result = torch.neg(result)
    return torch.empty_strided(result.shape, result.stride(), dtype=dtype, device=inputs[0].device)


def _reduction_operations(kind: str, terms: int) -> int:
    """Scalar operations of one row: a fused multiply-add counts as two."""
    return 2 * terms - 1 if kind in ("sum_squares", "dot") else terms - 1
