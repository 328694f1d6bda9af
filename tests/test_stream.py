"""The random bits: known answers, the meaning of coordinates, and a statistical battery."""

from __future__ import annotations

import functools
import itertools
import math

import pytest
import torch
from scipy import stats

from fuzzytorch.stream import Stream, aesenc, bits, uniform29

LEVEL = 1e-3
"""Probability that a perfect generator fails one test of the battery."""

SIZES = [pytest.param(64, id="quick"), pytest.param(2048, id="long", marks=pytest.mark.battery)]


def _octets(text: str) -> torch.Tensor:
    return torch.tensor(list(bytes.fromhex(text)), dtype=torch.uint8)


def _hex(block: torch.Tensor) -> str:
    return bytes(block.tolist()).hex()


def test_a_round_of_aes_is_the_one_of_fips_197() -> None:
    # Appendix B: start of round 1, round key, start of round 2; then the next round.
    state = _octets("193de3bea0f4e22b9ac68d2ae9f84808")
    state = aesenc(state, _octets("a0fafe1788542cb123a339392a6c7605"))
    assert _hex(state) == "a49c7ff2689f352b6b5bea43026a5049"
    state = aesenc(state, _octets("f2c295f27a96b9435935807a7359f67f"))
    assert _hex(state) == "aa8f5f0361dde3ef82d24ad26832469a"


@pytest.mark.parametrize(
    ("stream", "key"),
    [
        (Stream(0), "5ef7746bfce371c10f40f69c27959a29"),
        (Stream(1, 2, 3), "ed0dedbae8c48cc200507351019239d6"),
        (Stream(2**64 - 1, 2**64 - 1, 2**64 - 1), "f3196a8e8cf6f97468e55c1f784dc554"),
    ],
)
def test_keys_never_change(stream: Stream, key: str) -> None:
    assert stream.key().hex() == key


@pytest.mark.parametrize(
    ("row", "block", "first", "last", "later"),
    [
        (
            0,
            0,
            "af47f9b08d6d934d7722d5f1e6640a93",
            "a7822b3802fe1db057a85aa589372543",
            "f364c6182cdc215eba18c8c6a17673c0",
        ),
        (
            2**40 + 1,
            2**20,
            "e7be71a68d94efdad0d107ff8b76f2ac",
            "4bf2949c50d51c4ce21e8c022e4b6067",
            "d1145431c7504fa9cf9bd1a6abb2706d",
        ),
    ],
)
def test_states_never_change(row: int, block: int, first: str, last: str, later: str) -> None:
    stream = Stream(1, 2, 3)
    states = stream.states(torch.tensor([row]), block, 2)
    assert states.shape == (1, 2, 4, 16)
    assert _hex(states[0, 0, 0]) == first
    assert _hex(states[0, 1, 3]) == last
    assert _hex(stream.advance(states, 3)[0, 1, 3]) == later


def test_draws_never_change() -> None:
    stream = Stream(1, 2, 3)
    states = stream.states(torch.tensor([5]), 7, 1)
    assert uniform29(states)[0, 0].tolist() == [
        337439993, 175474366, 528854807, 334969134, 253267091, 220997990, 248308106, 266824871,
        382913325, 399511802, 399679488, 131651231, 279534501, 228762652, 176293594, 236822383,
    ]  # fmt: skip
    words = {0: 17177, 1: 62964, 31: 5995, 32: 37723, 256: 44135}
    for step, word in words.items():
        draws = bits(stream.advance(states, step // 32), step)[0, 0].tolist()
        assert sum(bit << column for column, bit in enumerate(draws)) == word


def test_starting_states_are_rounds_of_the_counter_under_the_key() -> None:
    stream, row, block, group, b = Stream(9, 8, 7), 2**33 + 5, 300, 2, 3
    counter = row + (4 * group + b + block * 2**40 << 64)
    key = torch.tensor(list(stream.key()), dtype=torch.uint8)
    state = torch.tensor(list(counter.to_bytes(16, "little")), dtype=torch.uint8) ^ key
    for _ in range(5):
        state = aesenc(state, key)
    assert torch.equal(stream.states(torch.tensor([row]), block, 3)[0, group, b], state)


def test_draws_are_the_documented_bits_of_the_sixteen_words() -> None:
    states = Stream(4).states(torch.arange(50), 1, 2)
    for row, group in itertools.product(range(50), range(2)):
        octets = bytes(states[row, group].flatten().tolist())
        words = [int.from_bytes(octets[4 * i : 4 * i + 4], "little") for i in range(16)]
        low = [words[2 * c] % 2**29 for c in range(8)]
        high = [words[2 * c + 1] >> 3 for c in range(8)]
        assert uniform29(states)[row, group].tolist() == low + high
        for step in (0, 17, 31, 32 + 17):
            expected = [word >> step % 32 & 1 for word in words]
            assert bits(states, step)[row, group].tolist() == expected


def test_a_state_depends_on_its_own_coordinates_only() -> None:
    stream, rows = Stream(3, 1, 4), torch.tensor([[7, 0], [2, 9]])
    blocks = torch.tensor([[1, 1], [0, 5]])
    many = stream.states(rows, blocks, 5)
    for place in itertools.product(range(2), range(2)):
        alone = stream.states(rows[place].view(1), int(blocks[place]), 2)
        assert torch.equal(many[place][:2], alone[0])


def test_advancing_twice_is_advancing_by_the_sum() -> None:
    stream = Stream(3)
    states = stream.states(torch.arange(4), 0, 1)
    assert torch.equal(
        stream.advance(stream.advance(states, 3), 4),
        stream.advance(states, 7),
    )
    assert torch.equal(stream.advance(states, 0), states)


def test_neighbouring_names_and_coordinates_never_share_a_starting_state() -> None:
    names = [Stream(*name) for name in itertools.product((0, 1, 2**63), repeat=3)]
    seen: set[str] = set()
    for stream in names:
        for block in (0, 1, 255):
            states = stream.states(torch.arange(6), block, 3).reshape(-1, 16)
            seen.update(map(_hex, states))
    assert len(seen) == len(names) * 3 * 6 * 3 * 4


@pytest.mark.parametrize("name", ["seed", "replica", "call"])
@pytest.mark.parametrize("value", [-1, 2**64, 1.0, True, None])
def test_a_name_that_is_no_64_bit_integer_is_refused_with_a_sentence(
    name: str, value: object
) -> None:
    with pytest.raises(ValueError, match=f"{name}=.* is not a stream name: give an integer from 0"):
        Stream(**{"seed": 0, name: value})


@functools.lru_cache(maxsize=2)
def _uniform(size: int, stream: Stream) -> torch.Tensor:
    """Draws at (block, row, step, column): int64 ``(2, size, 32, 64)``."""
    blocks = []
    for block in range(2):
        states, steps = stream.states(torch.arange(size), block, 4), []
        for _ in range(32):
            steps.append(uniform29(states).flatten(1))
            states = stream.advance(states)
        blocks.append(torch.stack(steps, 1))
    return torch.stack(blocks)


@functools.lru_cache(maxsize=2)
def _bits(size: int, stream: Stream) -> torch.Tensor:
    """Bits at (block, row, step, column): int64 ``(2, size, 96, 64)``."""
    blocks = []
    for block in range(2):
        states, steps = stream.states(torch.arange(size), block, 4), []
        for step in range(96):
            if step and step % 32 == 0:
                states = stream.advance(states)
            steps.append(bits(states, step).flatten(1))
        blocks.append(torch.stack(steps, 1))
    return torch.stack(blocks)


_AXES = ("block", "row", "step", "column")
SHIFTS = {
    "next block": {"block": 1},
    "next row": {"row": 1},
    "second next row": {"row": 2},
    "next step": {"step": 1},
    "second next step": {"step": 2},
    "sixteenth step": {"step": 16},
    "next column": {"column": 1},
    "fourth column": {"column": 4},
    "other half of the lane": {"column": 8},
    "next group": {"column": 16},
    "next row and step": {"row": 1, "step": 1},
    "next step and column": {"step": 1, "column": 1},
}
NAMES = {"seed": Stream(1, 1, 1), "replica": Stream(0, 2, 1), "call": Stream(0, 1, 2)}
BASE = Stream(0, 1, 1)


def _shifted(
    x: torch.Tensor, shift: dict[str, int], disjoint: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pairs of draws whose coordinates differ by ``shift``.

    With ``disjoint`` no draw belongs to two pairs, as a chi-square of pairs needs.
    """
    left, right = x, x
    for i, (axis, distance) in enumerate(shift.items()):
        d = _AXES.index(axis)
        places = torch.arange(x.shape[d] - distance)
        if disjoint and i == 0:
            places = places[places // distance % 2 == 0]
        left, right = left.index_select(d, places), right.index_select(d, places + distance)
    return left.flatten(), right.flatten()


def _assert_normal(z: torch.Tensor | list[float]) -> None:
    """All of some standard normal deviates are of a size that chance explains."""
    z = torch.as_tensor(z, dtype=torch.float64)
    limit = stats.norm.isf(LEVEL / 2 / z.numel())
    assert z.numel() > 0
    assert z.abs().max().item() < limit


def _assert_uniform(counts: torch.Tensor) -> None:
    """Counts of equally likely bins have a chi-square that is neither too large nor too small."""
    expected = counts.sum() / counts.numel()
    chi_square = ((counts - expected) ** 2 / expected).sum().item()
    p = stats.chi2.sf(chi_square, counts.numel() - 1)
    assert LEVEL / 2 < p < 1 - LEVEL / 2


def _assert_unrelated(a: torch.Tensor, b: torch.Tensor) -> None:
    """Two series of 29-bit draws have no correlation, as numbers and bit by bit."""
    n = a.numel()
    u, v = ((x + 0.5) / 2**29 - 0.5 for x in (a, b))
    correlation = 12 * (u * v).sum() / math.sqrt(n)
    differing = torch.stack([((a ^ b) >> i & 1).sum() for i in range(29)])
    _assert_normal([correlation.item(), *((differing - n / 2) / math.sqrt(n / 4)).tolist()])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("low_bit", range(0, 22, 3))
def test_eight_bits_of_a_draw_are_uniform(low_bit: int, size: int) -> None:
    values = _uniform(size, BASE).flatten() >> low_bit & 255
    _assert_uniform(torch.bincount(values, minlength=256))


@pytest.mark.parametrize("size", SIZES)
def test_every_bit_is_balanced_in_every_column(size: int) -> None:
    draws = _uniform(size, BASE)
    ones = torch.stack([(draws >> i & 1).sum((0, 1, 2)) for i in range(29)])
    n = draws[..., 0].numel()
    _assert_normal((ones - n / 2) / math.sqrt(n / 4))
    flips = _bits(size, BASE)
    _assert_normal((flips.sum((0, 1)) - 2 * size / 2) / math.sqrt(2 * size / 4))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("shift", SHIFTS)
def test_draws_at_neighbouring_coordinates_are_unrelated(shift: str, size: int) -> None:
    a, b = _shifted(_uniform(size, BASE), SHIFTS[shift])
    _assert_unrelated(a, b)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("bit", [0, 13, 25])
@pytest.mark.parametrize("shift", SHIFTS)
def test_pairs_of_neighbouring_draws_fill_the_square(shift: str, bit: int, size: int) -> None:
    a, b = (x >> bit & 15 for x in _shifted(_uniform(size, BASE), SHIFTS[shift], disjoint=True))
    _assert_uniform(torch.bincount(a * 16 + b, minlength=256))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", NAMES)
def test_streams_with_neighbouring_names_are_unrelated(name: str, size: int) -> None:
    _assert_unrelated(_uniform(size, BASE).flatten(), _uniform(size, NAMES[name]).flatten())
    a, b = _bits(size, BASE), _bits(size, NAMES[name])
    n = a[..., 0].numel()
    _assert_normal(((a ^ b).sum((0, 1, 2)) - n / 2) / math.sqrt(n / 4))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("shift", [*SHIFTS, "next state"])
def test_single_bits_at_neighbouring_coordinates_are_unrelated(shift: str, size: int) -> None:
    distance = {"step": 32} if shift == "next state" else SHIFTS[shift]
    a, b = _shifted(_bits(size, BASE), distance)
    _assert_normal([((a ^ b).sum().item() - a.numel() / 2) / math.sqrt(a.numel() / 4)])


@pytest.mark.parametrize("size", SIZES)
def test_draws_repeat_as_often_as_birthdays(size: int) -> None:
    draws = _uniform(size, Stream(5))[0].flatten()[: 2**20]
    n = len(draws)
    repeats = n - len(draws.unique())
    expected = n - 2**29 * -math.expm1(n * math.log1p(-(2.0**-29)))
    low, high = stats.poisson.interval(1 - LEVEL, expected)
    assert low <= repeats <= high
