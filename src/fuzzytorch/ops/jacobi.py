"""Jacobi rotations: Hermitian eigenproblems, singular values, and orthonormal vectors.

Vectors are rows ``(batch, count, parts, length)``: one part for real numbers, the real and
the imaginary one for complex numbers.  A round rotates disjoint pairs of neighbouring rows
with one program each and exchanges them, so that the next round, which begins one row
later, meets new pairs: after as many rounds as there are rows, a *sweep*, every pair has
met once and the order is reversed (odd-even transposition).  Nothing is gathered.

What is compared with a tolerance to decide whether a pair is rotated is computed without
the mode: it chooses between operations and enters no result.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Final

import torch

from fuzzytorch.ops.call import Call
from fuzzytorch.ops.dtypes import real_parts
from fuzzytorch.ops.formula import Formula, Register, fma, maximum, minimum, select, sqrt
from fuzzytorch.ops.matrix_steps import UPDATE
from fuzzytorch.ops.pointwise import ADD, DIV, MUL, SQRT

SWEEPS: Final = 40
"""Sweeps after which rotations end in any case; matrices of 256 rows need ten."""

ROTATED: Final = Formula(lambda s, tau, x, y: fma(-s, fma(tau, x, y), x))
PHASED: Final = Formula(
    lambda s, tau, c, d, x, y, turned: fma(-s, fma(tau, x, fma(c, y, d * turned)), x)
)
TANGENT: Final = Formula(lambda p, q, size: _tangent((q - p) / size))
"""Of the angle for two elements of the diagonal and the one beside it, without its sign."""
HALF: Final = Formula(lambda t: t / (1.0 + sqrt(fma(t, t, 1.0))))
SINE: Final = Formula(lambda half: 2.0 * half / fma(half, half, 1.0))
"""From the rounded tangent of half the angle, so that both belong to one angle: what they do not
agree about stretches vectors."""
LENGTH: Final = Formula(lambda a, b: _length(maximum(abs(a), abs(b)), minimum(abs(a), abs(b))))
TIMES_PHASE: Final = Formula(lambda c, d, x, turned: fma(c, x, d * turned))
HEIGHT: Final = Formula(lambda length, size: 1.0 / (length * (length + size)))


def _tangent(doubled: Register) -> Register:
    """Of the smaller of both angles, from twice the cotangent of the doubled angle."""
    return 2.0 / (abs(doubled) + sqrt(fma(doubled, doubled, 4.0)))


def _length(larger: Register, smaller: Register) -> Register:
    """Of a complex number, without squares that could vanish."""
    ratio = smaller / larger
    return select(larger, larger * sqrt(fma(ratio, ratio, 1.0)), 0.0)


@dataclasses.dataclass(frozen=True, slots=True)
class Pairs:
    """Rotations of one round.

    Attributes:
        first, second: the rows of the pairs.
        sine, half: sine, and tangent of half the angle, ``(batch, pairs)``.
        phase: both parts of the number that makes the product of a pair real,
            ``(batch, 2, pairs)``; ``None`` for real numbers.
    """

    first: slice
    second: slice
    sine: torch.Tensor
    half: torch.Tensor
    phase: torch.Tensor | None


def vectors(x: torch.Tensor) -> torch.Tensor:
    """The rows of matrices ``(batch, count, length)`` as vectors, contiguous."""
    if x.is_complex():
        return real_parts(x).transpose(-2, -1).contiguous()
    return x.unsqueeze(-2).contiguous()


def matrices(x: torch.Tensor) -> torch.Tensor:
    """The inverse of :func:`vectors`."""
    if x.shape[-2] == 1:
        return x.squeeze(-2)
    return torch.view_as_complex(x.transpose(-2, -1).contiguous())


def turned(x: torch.Tensor) -> torch.Tensor:
    """Vectors times the imaginary unit."""
    return torch.cat([-x[..., 1:, :], x[..., :1, :]], -2)


def unit(call: Call) -> float:
    """The distance of 1 from the next number of the format."""
    return 2.0 ** (1 - call.rounding.precision)


def _rounds(n: int) -> Iterator[tuple[slice, slice]]:
    """The pairs of every round of a sweep."""
    for r in range(n):
        start = r % 2
        stop = start + (n - start) // 2 * 2
        if stop > start:
            yield slice(start, stop, 2), slice(start + 1, stop, 2)


def _choose(
    call: Call,
    pairs: tuple[slice, slice],
    diagonal: torch.Tensor,
    product: torch.Tensor,
    active: torch.Tensor,
) -> tuple[Pairs, torch.Tensor, torch.Tensor]:
    """The rotations that make products vanish, the tangents and the sizes of the products.

    Args:
        diagonal: of the Hermitian matrix, ``(batch, n)``.
        product: its elements of the pairs, ``(batch, parts, pairs)``.
        active: which pairs are to be rotated, ``(batch, pairs)``.
    """
    size, phase = product[:, 0].contiguous(), None
    if product.shape[1] == 2:
        size = LENGTH(call, size, product[:, 1])
        one = torch.tensor([1.0, 0.0], dtype=size.dtype).view(1, 2, 1)
        phase = DIV(call, product.contiguous(), size.unsqueeze(1))
        phase = torch.where(active.unsqueeze(1), phase, one)
        phase[:, 1].neg_()
    # Of operands that are not contiguous the strides of the result are asked of torch first.
    p, q = (diagonal[:, rows].contiguous() for rows in pairs)
    opposite = (q < p) != (size < 0)
    t = TANGENT(call, p, q, size)
    t = torch.where(active, torch.where(opposite, -t, t), 0.0)
    half = HALF(call, t)
    return Pairs(*pairs, SINE(call, half), half, phase), t, size


def _rotate(
    call: Call, x: torch.Tensor, pairs: Pairs, dim: int = 1, conjugate: bool = False
) -> torch.Tensor:
    """The pairs of rows (or of the columns, ``dim=3``) rotated and exchanged."""
    out = torch.empty_like(x)
    rows, results = x.transpose(1, dim), out.transpose(1, dim)

    def along(y: torch.Tensor) -> torch.Tensor:
        return y[:, :, None, None].transpose(1, dim)

    p, q = rows[:, pairs.first].transpose(1, dim), rows[:, pairs.second].transpose(1, dim)
    new_p = results[:, pairs.second].transpose(1, dim)
    new_q = results[:, pairs.first].transpose(1, dim)
    s, tau = along(pairs.sine), along(pairs.half)
    if pairs.phase is None:
        ROTATED(call, s, tau, p, q, out=new_p)
        ROTATED(call, -s, -tau, q, p, out=new_q)
    else:
        c, d = (along(y) for y in pairs.phase.unbind(1))
        d = -d if conjugate else d
        PHASED(call, s, tau, c, d, p, q, turned(q), out=new_p)
        PHASED(call, -s, -tau, c, -d, q, p, turned(p), out=new_q)
    start, stop = pairs.first.start, pairs.first.stop
    results[:, :start] = rows[:, :start]
    results[:, stop:] = rows[:, stop:]
    return out


def hermitian(
    call: Call, a: torch.Tensor, with_vectors: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Eigenvalues ``(batch, n)``, in no order, and eigenvectors of Hermitian matrices.

    Rotations end where no element off the diagonal exceeds an eighth of the unit of the
    format times the Frobenius norm, divided by n.  Changes of the diagonal are totalled over
    a sweep before they are added to it (Rutishauser): one chain of all changes would
    scatter with the root of their number.

    Args:
        a: ``(batch, n, parts, n)``.
    """
    batch, n = a.shape[:2]
    norm = a.double().square().sum((1, 2, 3)).sqrt()
    tolerance = (unit(call) / 8 / n * norm).view(batch, 1)
    diagonal = a[:, :, 0].diagonal(dim1=1, dim2=2).clone()
    v = None
    if with_vectors:
        v = torch.zeros_like(a)
        v[:, :, 0].diagonal(dim1=1, dim2=2).fill_(1.0)
    for _ in range(SWEEPS):
        off = a.abs()
        off.diagonal(dim1=1, dim2=3).zero_()
        done = ~(off.amax((1, 2, 3)) > tolerance[:, 0])
        if bool(done.all()):
            break
        before = diagonal, a, v
        state = torch.stack([diagonal, torch.zeros_like(diagonal)], 1)
        for p, q in _rounds(n):
            product = a[:, p, :, q].diagonal(dim1=1, dim2=3)
            active = product.double().norm(dim=1) > tolerance
            pairs, t, size = _choose(call, (p, q), state[:, 0], product, active)
            t, size = t.unsqueeze(1), size.unsqueeze(1)
            size = torch.where(active.unsqueeze(1), size, 0.0)
            changed = state.clone()
            UPDATE(call, t, size, state[:, :, p], out=changed[:, :, q])
            UPDATE(call, -t, size, state[:, :, q], out=changed[:, :, p])
            state = changed
            a = _rotate(call, _rotate(call, a, pairs, conjugate=True), pairs, dim=3)
            for first, second in ((p, q), (q, p)):
                here = a[:, first, :, second].diagonal(dim1=1, dim2=3)
                here.copy_(torch.where(active.unsqueeze(1), 0.0, here))
            if v is not None:
                v = _rotate(call, v, pairs)
        diagonal = ADD(call, diagonal.flip(1), state[:, 1])
        diagonal, a = _kept(done, before[0], diagonal), _kept(done, before[1], a)
        v = None if v is None or before[2] is None else _kept(done, before[2], v)
    return diagonal, v


def _kept(done: torch.Tensor, before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """What a sweep made of a batch; of matrices that needed none, what they were before."""
    return torch.where(done.view(-1, *[1] * (after.dim() - 1)), before, after)


def one_sided(
    call: Call, g: torch.Tensor, with_vectors: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Makes vectors orthogonal to each other by rotations of pairs (Hestenes).

    A sweep leaves the square of the cosines that it met, and its own roundings.  Rotations end
    where the former are negligible and the latter at most half a unit of the format in the root
    mean square, or do not fall any further.  A vector that is shorter than the square of the
    unit times all of them counts as zero.

    Args:
        g: ``(batch, k, parts, m)``.

    Returns:
        Norms ``(batch, k)``, in no order; the vectors; the coefficients of the rotations
        ``(batch, k, parts, k)``, in whose combinations the given vectors yield these.
    """
    batch, k, parts, m = g.shape
    x = g
    if with_vectors:
        v = g.new_zeros(batch, k, parts, k)
        v[:, :, 0].diagonal(dim1=1, dim2=2).fill_(1.0)
        x = torch.cat([g, v], -1)
    total = g.double().square().sum((1, 2, 3)).sqrt().unsqueeze(1)
    negligible = unit(call) ** 2 * total
    before = torch.full((batch,), torch.inf, dtype=torch.float64)
    for _ in range(SWEEPS):
        lengths = x[..., :m].double().square().sum((2, 3)).sqrt()
        deviation = _deviation(x[..., :m], lengths > negligible)
        fallen = (deviation <= unit(call) / 2) & (before <= math.sqrt(unit(call)) / 8)
        stalled = (deviation <= math.sqrt(unit(call))) & (deviation > 0.9 * before)
        done = fallen | stalled | ~(deviation > unit(call) / 64)
        if bool(done.all()):
            break
        before, start = deviation, x
        for p, q in _rounds(k):
            own, other = x[:, p, :, :m], x[:, q, :, :m]
            squares = call.reduce("sum_squares", x[..., :m], [2, 3])
            products = [call.reduce("dot", own, [2, 3], y=other)]
            if parts == 2:
                products.append(call.reduce("dot", own, [2, 3], y=-turned(other)))
            product = torch.stack(products, 1)
            shorter = torch.minimum(squares[:, p], squares[:, q]).double().sqrt()
            active = (product != 0).any(1) & (shorter > negligible)
            pairs, _, _ = _choose(call, (p, q), squares, product, active)
            x = _rotate(call, x, pairs)
        x = _kept(done, start, x)
    g = x[..., :m]
    single = (g != 0).sum((2, 3)) <= 1
    root = SQRT(call, call.reduce("sum_squares", g, [2, 3]))
    values = torch.where(single, g.abs().amax((2, 3)), root) if m > 0 else root
    return values, g, x[..., m:] if with_vectors else None


def _deviation(x: torch.Tensor, counted: torch.Tensor) -> torch.Tensor:
    """The root mean square of the cosines between different vectors of each matrix, binary64."""
    y = torch.where(counted[..., None, None], x.double(), 0.0)
    y = matrices(torch.nn.functional.normalize(y.flatten(2), dim=2, eps=1e-300).view(y.shape))
    gram = y.conj() @ y.mT
    gram.diagonal(dim1=1, dim2=2).zero_()
    return gram.abs().square().mean((1, 2)).sqrt()


def orthonormal(call: Call, x: torch.Tensor) -> torch.Tensor:
    """The first factor of a QR factorization of vectors, with a positive diagonal of R.

    Householder reflections ``I - tau v v^H`` with real ``tau``.

    Args:
        x: ``(batch, count, parts, m)``, ``count <= m``.
    """
    count, parts = x.shape[1:3]
    x = x.contiguous().clone()
    q = torch.zeros_like(x)
    reflectors = []
    for j in range(count):
        column = x[:, j, :, j:]
        alpha = column[..., 0]
        size = alpha[:, 0].abs() if parts == 1 else LENGTH(call, *alpha.unbind(1))
        below = (column[..., 1:] != 0).any((1, 2))
        length = SQRT(call, call.reduce("sum_squares", column, [1, 2]))
        length = torch.where(below, length, size)
        direction = _direction(call, alpha, size)
        v = column.clone()
        v[..., 0] = UPDATE(call, length.unsqueeze(1), -direction, alpha)
        tau = torch.where(below, HEIGHT(call, length, size), 0.0)
        _reflect(call, x[:, j + 1 :, :, j:], v, tau)
        reflectors.append((v, tau))
        # The reflection takes the column to minus its direction, whose sign is taken back.
        sign = torch.where(below, -1.0, 1.0).unsqueeze(1)
        q[:, j, :, j] = direction * sign
    for j in reversed(range(count)):
        _reflect(call, q[:, j:, :, j:], *reflectors[j])
    return q


def _direction(call: Call, alpha: torch.Tensor, size: torch.Tensor) -> torch.Tensor:
    """``alpha / |alpha|`` ``(batch, parts)``, 1 for zero."""
    one = torch.zeros_like(alpha)
    one[:, 0] = 1.0
    if alpha.shape[1] == 1:
        return one.copysign(alpha)
    return torch.where((size == 0).unsqueeze(1), one, DIV(call, alpha, size.unsqueeze(1)))


def _reflect(call: Call, x: torch.Tensor, v: torch.Tensor, tau: torch.Tensor) -> None:
    """``x -= (tau v^H x) v`` in place for vectors ``x`` and one ``v`` ``(batch, parts, m)``."""
    if x.numel() == 0:
        return
    parts = [v] if v.shape[1] == 1 else [v, turned(v)]
    flat = torch.stack([part.flatten(1) for part in parts], 2)
    sums = call.gemm(x.flatten(2), flat)
    sums = MUL(call, sums, tau[:, None, None])
    for i, part in enumerate(parts):
        UPDATE(call, sums[:, :, i, None, None], part.unsqueeze(1), x, out=x)
