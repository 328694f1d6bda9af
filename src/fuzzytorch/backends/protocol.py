"""What a backend computes: the primitives, their order of operations, their draws.

Every primitive rounds each scalar operation it performs; ``(row, block, column,
step)`` are the coordinates of the draw in the stream of the call (see
:mod:`fuzzytorch.stream`).  Logical order is row-major order of the tensors as
given, never memory order.  Tensors are all float32 or all float64, on the device of the
backend, with any strides, unless said otherwise; ``out`` is written in place and never
overlaps an input (except in ``elementwise``, where an identical view may).

Inside an accumulation (``gemm``, ``conv*``, ``reduce``), ``sr`` to binary32 keeps
the exponent range of binary64 and applies the range of binary32 to the last
operation that forms each output element (``ranged`` in
:func:`~fuzzytorch.rounding.round_to_format`); every other mode and format, and
``reduce`` of kind ``prod``, applies the range to every operation.

Signs of zero are those of IEEE 754: a sum that is zero by cancellation is -0 in
``down``, and in ``cestac`` where the draw is 0; else it is +0.  Where operands
give NaN in IEEE 754, the result is NaN; its payload means nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final, Protocol

import torch

from fuzzytorch.program import Program
from fuzzytorch.rounding import Rounding
from fuzzytorch.stream import Stream

K_BLOCK = 192
"""Products that ``gemm`` and ``conv*`` accumulate from zero before they join the total."""

REDUCE_LANES = 32
"""Interleaved chains of a reduction."""

SQUARE_LANES = 8
"""Interleaved chains of a sum of squares."""

REDUCE_FAN = 16
"""Terms added at one level of a reduction before their total moves up."""

REDUCE_CHUNK = REDUCE_LANES * REDUCE_FAN**3
"""Elements of one reduction that are totalled independently of the others (131072)."""

SCAN_ROWS = 16
"""Neighbouring rows of a scan that share a state."""

SCAN_BLOCK = 256
"""Steps of a scan between two starts of its generator."""


REDUCTIONS: Final = ("sum", "prod", "sum_abs", "sum_squares", "dot")
"""Kinds of ``reduce``; their positions are the codes that native kernels know."""


@dataclasses.dataclass(frozen=True, slots=True)
class Geometry:
    """How a convolution moves over its input, in the three dimensions of a volume.

    Attributes:
        stride, padding, dilation: of depth, height and width.
        groups: into how many parts the channels are cut.
    """

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


class Backend(Protocol):
    """The primitives; :mod:`~fuzzytorch.backends.reference` is their definition."""

    name: str

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
        """Runs a program on every element.

        Inputs are already expanded to the shape of ``out``; an input read by
        ``round`` is float64, the others have the dtype of ``out``.  Element ``i - first`` in
        logical order, where ``first`` is a multiple of 1024:
        row ``i // 1024``, column ``i % 64``, step ``(i % 1024) // 64``, block = index
        of the instruction in the code (exact ones count).  The range applies to
        every operation.  Functions have the values of :mod:`fuzzytorch.backends.functions`,
        which are rounded as ``round`` does it.  ``min`` is ``a if a < b else b`` and ``max`` is
        ``a if a > b else b`` (of two zeros the second), but NaN if either is NaN;
        ``select`` takes ``c`` where ``a`` is NaN.
        """

    def reduce(
        self,
        kind: str,
        x: torch.Tensor,
        out: torch.Tensor,
        rounding: Rounding,
        stream: Stream,
        y: torch.Tensor | None = None,
    ) -> None:
        """Reduces the trailing dimensions of ``x`` to ``out`` ``(rows,)``.

        ``x`` has as many leading elements as ``out``; the remaining ``K >= 1`` ones per
        row, in logical order, are its terms.

        Kinds: ``sum``; ``prod``; ``sum_abs``; ``sum_squares`` (``fma(x, x, acc)``); ``dot``
        (``fma(x, y, acc)``, ``y`` of the shape of ``x``).  A row is cut into chunks of
        131072 elements; chunk ``c`` of row ``r`` has stream row ``r * chunks + c``.
        Within a chunk, element ``k`` belongs to lane ``k % 32`` (the column) at step
        ``v = k // 32``:

        * block 0: each lane chains its terms in runs of 16 steps (``v // 16``); the
          first term of a run is taken as it is (``sum_squares`` and ``dot`` round the
          product, at the same draw); draw step ``v``.
        * block 1: the total of run ``u`` is added to a second chain, which restarts
          every 16 runs; its first term is taken as it is; draw step ``u``.
        * block 2: totals of the second chain likewise, draw step ``u // 16``.
          A chain that is incomplete at the end of the chunk moves up as it is.
        * block 3: with ``L`` lanes that hold a term, lane ``j < 8`` adds lanes ``j+8``,
          ``j+16``, ``j+24`` in turn (column ``j``, step 1, 2, 3), then lanes 0 to 7 are
          chained (column 0, step ``4 + j`` for adding lane ``j >= 1``); lanes without
          a term are skipped.
        * block 4: chunk totals are chained in order: row ``r * chunks``, column 0,
          step ``c`` for adding chunk ``c >= 1``.

        ``sum_squares`` differs: within a chunk, element ``k`` belongs to lane ``k % 8`` (the
        column), each lane is a single chain (block 0, step ``k // 8``), and block 3 chains
        the lanes.  (Stock torch adds so, with one vector register as accumulator.)

        Blocks 1 to 4 add, or multiply for ``prod``; a total that is the first of its
        chain is taken as it is.  In ``sr`` to binary32 the last operation of these is
        the ranged one, of ``prod`` all are.  Where no operation happens at all
        (``K = 1`` in ``sum``, ``prod`` and ``sum_abs``), the term is returned unrounded.
        """

    def scan(
        self, kind: str, x: torch.Tensor, out: torch.Tensor, rounding: Rounding, stream: Stream
    ) -> None:
        """Running ``sum`` or ``prod`` along the last dimension of ``x`` ``(rows, K)``.

        One sequential chain per row; element 0 is copied.  Row ``r``: stream row
        ``r // 16``, column ``r % 16``, block ``k // 256``, step ``k % 256``.  The range
        applies to every operation.
        """

    def gemm(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        out: torch.Tensor,
        rounding: Rounding,
        stream: Stream,
    ) -> None:
        """``out[i] = a[i] @ b[i]`` for ``(B, M, K)``, ``(B, K, N)``, ``(B, M, N)``, ``K >= 1``.

        Output ``(i, m, n)``: row ``i * M + m``, column ``n``.  Product ``k`` is accumulated
        as ``acc = fma(a, b, acc)`` with ``acc = 0`` at the start of every block of 192
        (block ``k // 192``, step ``k % 192``).  The first block is the total; each further
        block is added to it (its block number, step = products in that block).
        """

    def conv(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        out: torch.Tensor,
        geometry: Geometry,
        rounding: Rounding,
        stream: Stream,
    ) -> None:
        """Convolution without bias of ``(N, C, D, H, W)`` by ``(O, C/groups, kd, kh, kw)``.

        The order of ``gemm`` over ``k`` = row-major ``(c, kd, kh, kw)``; positions in the
        padding contribute the product with zero.  Output ``(n, o, d, h, w)``: row ``o``,
        column = row-major ``(n, d, h, w)``.
        """

    def conv_transposed(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        out: torch.Tensor,
        geometry: Geometry,
        rounding: Rounding,
        stream: Stream,
    ) -> None:
        """Transposed convolution of ``(N, O, D, H, W)`` by ``(O, C/groups, kd, kh, kw)``.

        Also the gradient of ``conv`` with respect to its input.  ``out`` is
        ``(N, C, ...)``.  The output is cut into ``phases`` by its position modulo the
        stride; phase ``f`` = row-major ``(d % sd, h % sh, w % sw)`` of residues ``r``.
        The taps of a phase are the ``t`` with ``(r + padding - t * dilation) % stride == 0``
        in every dimension (positions outside the input contribute the product with
        zero); ``k`` runs over row-major ``(o, taps)``, taps increasing, in blocks of 192.
        Output channel ``c``: row ``c``; column = row-major ``(n, d // sd, h // sh, w // sw)``
        within the phase; block ``f * ceil(O/groups * kd*kh*kw / 192) + k // 192``.  A phase
        without taps yields +0 without a draw.
        """

    def conv_weight(
        self,
        x: torch.Tensor,
        grad: torch.Tensor,
        out: torch.Tensor,
        geometry: Geometry,
        rounding: Rounding,
        stream: Stream,
    ) -> None:
        """Gradient of ``conv`` with respect to its weight, ``out`` ``(O, C/groups, kd, kh, kw)``.

        Over ``k`` = row-major ``(n, d, h, w)`` of ``grad``; row ``o``, column = row-major
        ``(c, kd, kh, kw)``.  Kernels of several taps accumulate in one chain, as stock
        kernels do: a block of 192 continues from the one before.  Kernels of one tap have
        the order of ``gemm``.
        """

    def accumulate(
        self,
        index: torch.Tensor,
        source: torch.Tensor,
        out: torch.Tensor,
        rounding: Rounding,
        stream: Stream,
    ) -> None:
        """``out[index[i]] += source[i]`` one addition after the other, in the order of ``i``.

        ``index`` int64 ``(n,)``, ``source`` ``(n, inner)``, ``out`` contiguous
        ``(rows, inner)``, already holding what is added to.  The addition of
        element ``j`` of ``source[i]`` has the coordinates of element
        ``i * inner + j`` in ``elementwise``, block 0.  The range applies to every
        operation.  Indices are within ``0 .. rows - 1``.
        """
