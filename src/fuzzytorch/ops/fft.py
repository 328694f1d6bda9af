"""Discrete Fourier transforms: butterflies on separate real and imaginary parts.

A transform of ``n`` points runs one stage per factor of ``n`` (decimation in time, with
results in natural order).  A stage multiplies by twiddle factors and combines: by
additions for radix 2 and 4, by products with cosines and sines for other small primes, by
a convolution of smooth length (Bluestein) for large ones.  Twiddle factors are computed in
binary64 and rounded once to the format of the operands, as libraries do.  Odd factors come
first, so that what is zero by the symmetry of real input stays zero.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Final

import torch

from fuzzytorch.ops.call import Call
from fuzzytorch.ops.dtypes import real_parts
from fuzzytorch.ops.formula import Formula, fma
from fuzzytorch.ops.layout import measured_layouts, placed
from fuzzytorch.ops.pointwise import ADD, DIV, SUB
from fuzzytorch.table import Row, Verdict

DIRECT: Final = 53
"""The largest prime factor that is transformed by its matrix."""

TWIDDLED: Final = Formula(lambda a, b, c, d: fma(a, c, -(b * d)))
TWIDDLED_IMAGINARY: Final = Formula(lambda a, b, c, d: fma(a, d, b * c))


def _times(call: Call, z: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Product of complex numbers whose parts lie along the first dimension."""
    out = torch.empty_like(z, memory_format=torch.contiguous_format)
    TWIDDLED(call, z[0], z[1], w[0], w[1], out=out[0])
    TWIDDLED_IMAGINARY(call, z[0], z[1], w[0], w[1], out=out[1])
    return out


def radices(n: int) -> tuple[int, ...]:
    """Factors of ``n``: odd primes in decreasing order, then a 2 where one is left, then fours."""
    odd, twos = [], 0
    while n % 2 == 0:
        n, twos = n // 2, twos + 1
    p = 3
    while n > 1:
        p = p if p * p <= n else n
        while n % p == 0:
            n //= p
            odd.append(p)
        p += 2
    return (*reversed(odd), *[2] * (twos % 2), *[4] * (twos // 2))


def _roots(exponents: torch.Tensor, n: int, sign: int, dtype: torch.dtype) -> torch.Tensor:
    """``exp(sign * 2 pi i * exponents / n)``, parts first, rounded once from binary64."""
    # Eighths of the circle keep the arguments small and the symmetries exact.
    octant, rest = torch.div(8 * (exponents % n), n, rounding_mode="floor"), 8 * (exponents % n)
    rest = rest - octant * n
    mirrored = octant % 2 == 1
    angle = torch.where(mirrored, n - rest, rest).double() * (math.pi / (4 * n))
    c, s = angle.cos(), angle.sin()
    quarter = octant // 2
    c, s = torch.where(mirrored, s, c), torch.where(mirrored, c, s)
    real = torch.stack([c, -s, -c, s])
    imaginary = torch.stack([s, c, -s, -c])
    pick = quarter.unsqueeze(0)
    parts = [real.gather(0, pick)[0], imaginary.gather(0, pick)[0] * sign]
    return torch.stack(parts).to(dtype)


@functools.lru_cache(maxsize=256)
def _twiddles(r: int, length: int, sign: int, dtype: torch.dtype) -> torch.Tensor:
    """``w[s, 0, k] = exp(sign 2 pi i s k / (r length))`` for ``s`` from 1, parts first."""
    s, k = torch.arange(1, r).unsqueeze(1), torch.arange(length)
    return _roots(s * k, r * length, sign, dtype).unsqueeze(2)


@functools.lru_cache(maxsize=256)
def _matrices(r: int, sign: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines ``(h + 1, h + 1)`` and sines ``(h, h)`` of a transform of ``r = 2h + 1`` points."""
    q = torch.arange(r // 2 + 1)
    c, s = _roots(q.unsqueeze(1) * q, r, sign, dtype)
    return c, s[1:, 1:]


@functools.lru_cache(maxsize=64)
def _chirp(n: int, sign: int, dtype: torch.dtype) -> tuple[int, torch.Tensor, torch.Tensor]:
    """The length of the convolution, the chirp, and the transform of its conjugate over it."""
    padded = next(m for m in range(2 * n - 1, 4 * n) if max(radices(m)) <= 5)
    k = torch.arange(n)
    chirp = _roots(k * k, 2 * n, sign, torch.float64)
    kernel = torch.zeros(2, padded, dtype=torch.float64)
    kernel[:, :n] = chirp
    kernel[:, padded - n + 1 :] = chirp[:, 1:].flip(1)
    kernel[1].neg_()
    spectrum = torch.view_as_real(torch.fft.fft(torch.complex(*kernel)) / padded).movedim(-1, 0)
    return padded, chirp.to(dtype), spectrum.to(dtype)


def _bluestein(call: Call, y: torch.Tensor, sign: int) -> torch.Tensor:
    """The transform over the last dimension of ``y`` as a convolution with a chirp."""
    n = y.shape[-1]
    padded, chirp, spectrum = _chirp(n, sign, y.dtype)
    modulated = torch.nn.functional.pad(_times(call, y, chirp), (0, padded - n))
    product = _times(call, _transform(call, modulated, -1), spectrum)
    return _times(call, _transform(call, product, 1)[..., :n], chirp)


def _butterfly(call: Call, y: torch.Tensor, sign: int) -> torch.Tensor:
    """The transform over dimension 2 of ``y`` ``(2, B, r, m, L)``, as ``(2, B, m, r, L)``."""
    _, batch, r, m, length = y.shape
    if r > DIRECT:
        moved = y.permute(0, 1, 3, 4, 2)
        return _bluestein(call, moved, sign).transpose(3, 4)
    if r in (2, 4):
        out = torch.empty(2, batch, m, r, length, dtype=y.dtype)
        targets = [out[:, :, :, q] for q in range(r)]
        terms = [y[:, :, s] for s in range(r)]
        (_sum_and_difference if r == 2 else _four)(call, terms, targets, sign)
        return out
    return _odd(call, y.permute(2, 0, 1, 3, 4), sign).permute(1, 2, 3, 0, 4)


def _odd(call: Call, y: torch.Tensor, sign: int) -> torch.Tensor:
    """The transform over the first dimension of ``y`` ``(r, 2, ...)``, by pairs of opposite terms.

    Cosines meet the sums of the pairs, sines their differences.
    """
    r = y.shape[0]
    cosines, sines = _matrices(r, sign, y.dtype)
    first, second = y[1 : r // 2 + 1], y[r // 2 + 1 :].flip(0)
    even = torch.cat([y[:1], ADD(call, first, second)])
    odd = SUB(call, first, second)
    even = call.gemm(cosines, even.flatten(1)).view(even.shape)
    odd = call.gemm(sines, odd.flatten(1)).view(odd.shape)
    turned = torch.stack([-odd[:, 1], odd[:, 0]], 1)
    out = torch.empty(y.shape, dtype=y.dtype)
    out[0] = even[0]
    ADD(call, even[1:], turned, out=out[1 : r // 2 + 1])
    SUB(call, even[1:].flip(0), turned.flip(0), out=out[r // 2 + 1 :])
    return out


def _sum_and_difference(
    call: Call, terms: list[torch.Tensor], targets: list[torch.Tensor], sign: int = 1
) -> None:
    ADD(call, *terms, out=targets[0])
    SUB(call, *terms, out=targets[1])


def _four(call: Call, terms: list[torch.Tensor], targets: list[torch.Tensor], sign: int) -> None:
    even = torch.empty(2, *terms[0].shape, dtype=terms[0].dtype)
    odd = torch.empty_like(even)
    _sum_and_difference(call, [terms[0], terms[2]], [even[0], even[1]])
    _sum_and_difference(call, [terms[1], terms[3]], [odd[0], odd[1]])
    _sum_and_difference(call, [even[0], odd[0]], [targets[0], targets[2]])
    # The second odd term turns by a quarter: (a, b) * i = (-b, a).
    a, b = odd[1]
    turned = torch.stack([-b, a] if sign > 0 else [b, -a])
    _sum_and_difference(call, [even[1], turned], [targets[1], targets[3]])


def _transform(call: Call, x: torch.Tensor, sign: int) -> torch.Tensor:
    """The unscaled transform over the last dimension of ``x`` ``(2, ..., n)``, parts first."""
    n = x.shape[-1]
    batch = x[0].numel() // n
    y = x.reshape(2, batch, n, 1)
    length = 1
    for r in radices(n):
        rest = n // (length * r)
        y = y.reshape(2, batch, r, rest, length)
        if length > 1:
            turned = torch.empty_like(y)
            turned[:, :, 0] = y[:, :, 0]
            w = _twiddles(r, length, sign, y.dtype)
            z = y[:, :, 1:]
            TWIDDLED(call, z[0], z[1], w[0], w[1], out=turned[0, :, 1:])
            TWIDDLED_IMAGINARY(call, z[0], z[1], w[0], w[1], out=turned[1, :, 1:])
            y = turned
        y = _butterfly(call, y, sign).reshape(2, batch, rest, r * length)
        length *= r
    return y.reshape(x.shape)


def _scaled(call: Call, z: torch.Tensor, normalization: int, points: int) -> torch.Tensor:
    """Divided by the square root of the number of points (1) or by the number (2), once."""
    if normalization == 0 or points == 1:
        return z
    return DIV(call, z, math.sqrt(points) if normalization == 1 else points)


def _along(call: Call, z: torch.Tensor, dims: Any, sign: int) -> torch.Tensor:
    """Transforms over dimensions of a complex tensor given parts first, one after the other."""
    for d in dims:
        if z.shape[d + 1] > 1 and z.numel() > 0:
            moved = z.movedim(d + 1, -1)
            z = _transform(call, moved, sign).movedim(-1, d + 1)
    return z


def _parts_first(x: torch.Tensor) -> torch.Tensor:
    return real_parts(x).movedim(-1, 0)


def _complex(z: torch.Tensor) -> torch.Tensor:
    # A copy also of one number, whose memory is that of the operand.
    return torch.view_as_complex(z.movedim(0, -1).clone(memory_format=torch.contiguous_format))


def c2c(
    call: Call, x: torch.Tensor, dim: list[int], normalization: int, forward: bool
) -> torch.Tensor:
    """Complex to complex, one dimension after the other, the last first."""
    if not dim:
        return x.clone()
    (layout,) = measured_layouts(call.overload, x, dim, normalization, forward)
    dims = [d % x.dim() for d in dim]
    z = _along(call, _parts_first(x), reversed(dims), -1 if forward else 1)
    z = _scaled(call, z, normalization, math.prod(x.shape[d] for d in dims))
    return placed(_complex(z), layout)


def r2c(
    call: Call, x: torch.Tensor, dim: list[int], normalization: int, onesided: bool
) -> torch.Tensor:
    """Real to complex: the last dimension first, of which half is computed and mirrored."""
    (layout,) = measured_layouts(call.overload, x, dim, normalization, onesided)
    dims = [d % x.dim() for d in dim]
    last, n = dims[-1], x.shape[dims[-1]]
    z = _along(call, torch.stack([x, torch.zeros_like(x)]), [last], -1)
    half = z.narrow(last + 1, 0, n // 2 + 1).clone()
    half[1].select(last, 0).zero_()
    if n % 2 == 0:
        half[1].select(last, n // 2).zero_()
    half = _along(call, half, reversed(dims[:-1]), -1)
    half = _scaled(call, half, normalization, math.prod(x.shape[d] for d in dims))
    return placed(_complex(half if onesided else _mirrored(half, dims, n)), layout)


def _mirrored(half: torch.Tensor, dims: list[int], n: int) -> torch.Tensor:
    """All frequencies from the first half: those left are conjugates of opposite ones."""
    last = dims[-1] + 1
    rest = half.narrow(last, 1, n - half.shape[last]).flip(last)
    for d in dims[:-1]:
        rest = rest.flip(d + 1).roll(1, d + 1)
    return torch.cat([half, torch.stack([rest[0], -rest[1]])], last)


def c2r(
    call: Call, x: torch.Tensor, dim: list[int], normalization: int, last_dim_size: int
) -> torch.Tensor:
    """Complex to real: the last dimension last, from the half of it that is given."""
    (layout,) = measured_layouts(call.overload, x, dim, normalization, last_dim_size)
    dims = [d % x.dim() for d in dim]
    last, n = dims[-1], last_dim_size
    half = _along(call, _parts_first(x), dims[:-1], 1).narrow(last + 1, 0, n // 2 + 1).clone()
    # Libraries do not read what is zero for real output.
    half[1].select(last, 0).zero_()
    if n % 2 == 0:
        half[1].select(last, n // 2).zero_()
    real = _along(call, _mirrored(half, [last], n), [last], 1)[0]
    points = math.prod(layout[0][d] for d in dims)
    return placed(_scaled(call, real, normalization, points), layout)


_WHY: Final = "every twiddle product, every sum of a butterfly, and the scaling"

ROWS: tuple[Row, ...] = (
    Row("aten._fft_r2c.default", Verdict.ROUNDED, r2c, _WHY),
    Row("aten._fft_c2r.default", Verdict.ROUNDED, c2r, _WHY, operands="complex"),
    Row("aten._fft_c2c.default", Verdict.ROUNDED, c2c, _WHY, operands="complex"),
)
