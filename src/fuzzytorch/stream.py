"""Which random bits an operation consumes: the readable specification.

A :class:`Stream` is named by three integers: the *seed* of the run, the
*replica* (the realisation within an ensemble) and the *call* (the number of the
rounded primitive within the run).  A primitive asks for the draw at

    ``(row, block, column, step)``

four coordinates of its *logical* computation, which never depend on threads,
instruction set, memory layout or vector width.  Every primitive documents its
coordinates in :mod:`fuzzytorch.backends.protocol`.

Construction, with ``F_k(x) = aesenc(x, k)`` one round of AES (FIPS 197) on a
128-bit block:

1. ``key = H(seed, replica, call)``: ten rounds over ``seed || replica``, the
   exclusive or of ``call``, ten rounds more, under fixed round constants.
2. Sixteen neighbouring columns share a *group* ``g = column // 16`` that owns
   four blocks ``b = 0..3``.  Their states start at ``F_key^5(counter ^ key)``
   with ``counter = row + 2^64 (4 g + b + 2^40 block)``.
3. Each further state is ``F_key`` of the one before: one instruction yields
   128 bits, four independent blocks hide its latency.
4. The four blocks of a state hold sixteen 32-bit words ``w``.  A *uniform* draw
   of 29 bits for column ``c`` of the group at step ``t`` reads the ``t``-th state:
   the low 29 bits of ``w[2c]`` for ``c < 8`` and the high 29 bits of
   ``w[2(c-8)+1]`` otherwise, which are the two halves of 64-bit lanes.  A *bit*
   draw reads bit ``t mod 32`` of ``w[c]`` in state ``t // 32``.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Final

import torch

START_ROUNDS: Final = 5
KEY_ROUNDS: Final = 10
GROUP: Final = 16
"""Columns that share one 512-bit state."""

_GOLDEN: Final = (0x9E3779B97F4A7C15, 0xD1B54A32D192ED03)
_MASK64: Final = (1 << 64) - 1


@dataclasses.dataclass(frozen=True, slots=True)
class Stream:
    """The name of a random stream; see the module for the bits that it stands for.

    Attributes:
        seed, replica, call: integers in ``0 .. 2**64 - 1``.

    Raises:
        ValueError: an integer outside that range.
    """

    seed: int
    replica: int = 0
    call: int = 0

    def __post_init__(self) -> None:
        for name in ("seed", "replica", "call"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MASK64:
                raise ValueError(
                    f"{name}={value!r} is not a stream name: give an integer from 0 to 2**64 - 1."
                )

    def key(self) -> bytes:
        """The 128-bit key of the stream."""
        return _key(self.seed, self.replica, self.call)

    def states(self, rows: torch.Tensor, block: int | torch.Tensor, groups: int) -> torch.Tensor:
        """Starting states for every row and column group: uint8 ``rows.shape + (groups, 4, 16)``.

        Args:
            rows: int64 row numbers, any shape.
            block: one block number, or int64 of the shape of ``rows``.
            groups: number of column groups, starting with group 0.
        """
        key = torch.tensor(list(self.key()), dtype=torch.uint8, device=rows.device)
        lane = torch.arange(4 * groups, device=rows.device).view(groups, 4)
        low = rows[..., None, None].expand(*rows.shape, groups, 4)
        block = torch.as_tensor(block, device=rows.device).expand(rows.shape)
        high = lane | (block[..., None, None] << 40)
        shifts = torch.arange(0, 64, 8, device=rows.device)
        counter = torch.cat(
            [(low[..., None] >> shifts) & 255, (high[..., None] >> shifts) & 255], -1
        )
        state = counter.to(torch.uint8) ^ key
        for _ in range(START_ROUNDS):
            state = aesenc(state, key)
        return state

    def advance(self, states: torch.Tensor, rounds: int = 1) -> torch.Tensor:
        """The states ``rounds`` steps later."""
        key = torch.tensor(list(self.key()), dtype=torch.uint8, device=states.device)
        for _ in range(rounds):
            states = aesenc(states, key)
        return states


@functools.lru_cache(maxsize=256)
def _key(seed: int, replica: int, call: int) -> bytes:
    state = _block(seed | replica << 64)
    for i in range(KEY_ROUNDS):
        state = aesenc(state, _round_constant(i))
    state = state ^ _block(call)
    for i in range(KEY_ROUNDS):
        state = aesenc(state, _round_constant(KEY_ROUNDS + i))
    return bytes(state.tolist())


def uniform29(states: torch.Tensor) -> torch.Tensor:
    """29-bit draws of the sixteen columns of each group: int64 ``(..., groups, 16)``."""
    words = _words(states)
    low = words[..., 0::2] & ((1 << 29) - 1)
    high = words[..., 1::2] >> 3
    return torch.cat([low, high], -1)


def bits(states: torch.Tensor, step: int) -> torch.Tensor:
    """Single-bit draws at ``step``, from states ``step // 32``: int64 ``(..., groups, 16)``."""
    return (_words(states) >> (step % 32)) & 1


def aesenc(state: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """One round of AES encryption on uint8 blocks ``(..., 16)``: x86 AESENC, FIPS 197."""
    sbox, twice = _tables(state.device)
    shifted = sbox[state[..., _SHIFT_ROWS].long()]
    a = shifted.unflatten(-1, (4, 4))
    b, c, d = a.roll(-1, -1), a.roll(-2, -1), a.roll(-3, -1)
    mixed = twice[a.long()] ^ twice[b.long()] ^ b ^ c ^ d
    return mixed.flatten(-2) ^ key


_SHIFT_ROWS: Final = [(i + 4 * (i % 4)) % 16 for i in range(16)]


def _words(states: torch.Tensor) -> torch.Tensor:
    """The sixteen little-endian 32-bit words of each group: int64 ``(..., groups, 16)``."""
    octets = states.flatten(-2).unflatten(-1, (16, 4)).long()
    return octets[..., 0] | octets[..., 1] << 8 | octets[..., 2] << 16 | octets[..., 3] << 24


def _block(value: int) -> torch.Tensor:
    return torch.tensor(list(value.to_bytes(16, "little")), dtype=torch.uint8)


def _round_constant(i: int) -> torch.Tensor:
    low, high = ((i + 1) * g & _MASK64 for g in _GOLDEN)
    return _block(low | high << 64)


def _gf_multiply(a: int, b: int) -> int:
    product = 0
    while b:
        if b & 1:
            product ^= a
        a = a << 1 ^ (0x11B if a & 0x80 else 0)
        b >>= 1
    return product


@functools.cache
def _tables(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The substitution box of AES, and multiplication by two in its field."""
    sbox = []
    for x in range(256):
        inverse = next((y for y in range(256) if _gf_multiply(x, y) == 1), 0)
        affine = 0x63
        for shift in range(5):
            affine ^= (inverse << shift | inverse >> (8 - shift)) & 0xFF
        sbox.append(affine)
    twice = [_gf_multiply(x, 2) for x in range(256)]
    return (
        torch.tensor(sbox, dtype=torch.uint8, device=device),
        torch.tensor(twice, dtype=torch.uint8, device=device),
    )
