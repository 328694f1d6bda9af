"""The laws of every rounding mode and format."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from oracle import round_fraction

from fuzzytorch.rounding import MODES, PRESETS, UNIFORM_BITS, Rounding, round_to_format
from fuzzytorch.stream import Stream, bits, uniform29

THRESHOLD = 1 << UNIFORM_BITS
SMALLEST = 2.0**-149
LARGEST = (2.0 - 2.0**-23) * 2.0**127


def _round(
    s: list[float], draw: int | None, rounding: Rounding, ranged: bool = True
) -> list[float]:
    x = torch.tensor(s, dtype=torch.float64)
    draws = None if draw is None else torch.full(x.shape, draw, dtype=torch.int64)
    return round_to_format(x, draws, rounding, ranged).tolist()


def _draws_of(rounding: Rounding) -> list[int | None]:
    """Draws that reach every outcome."""
    if rounding.draws_uniform:
        return [0, 1, THRESHOLD // 2, THRESHOLD - 1]
    return [0, 1] if rounding.draws_bit else [None]


def _positive_numbers(rounding: Rounding) -> torch.Tensor:
    """All positive numbers of a narrow format, increasing: float64."""
    tiny = 2.0 ** (rounding.emin - rounding.precision + 1)
    half = 2 ** (rounding.precision - 1)
    subnormal = torch.arange(1, half, dtype=torch.float64) * tiny
    significand = torch.arange(half, 2 * half, dtype=torch.float64) / half
    exponents = torch.arange(rounding.emin, rounding.emax + 1, dtype=torch.float64)
    normal = (torch.exp2(exponents)[:, None] * significand).flatten()
    numbers = torch.cat([subnormal, normal])
    return numbers[numbers <= rounding.largest]


def _around(numbers: torch.Tensor) -> torch.Tensor:
    """Numbers, the midpoints between them, and the neighbours of these, with both signs."""
    middle = (numbers[1:] + numbers[:-1]) / 2
    points = torch.cat([torch.zeros(1), numbers, middle, numbers[:1] / 2]).float()
    up, down = torch.tensor(torch.inf), torch.tensor(-torch.inf)
    near = torch.cat([points, torch.nextafter(points, up), torch.nextafter(points, down)])
    return torch.cat([near, -near])


@pytest.mark.parametrize(
    ("preset", "dtype"),
    [
        ("float16", torch.float16),
        ("bfloat16", torch.bfloat16),
        ("float8_e5m2", torch.float8_e5m2),
        ("float8_e4m3", torch.float8_e4m3fn),
    ],
)
def test_rn_equals_the_casts_of_torch_at_and_around_every_number_and_midpoint(
    preset: str, dtype: torch.dtype
) -> None:
    rounding = Rounding.of("rn", preset)
    x = _around(_positive_numbers(rounding))
    special = torch.tensor([LARGEST, -LARGEST, torch.inf, -torch.inf, torch.nan, 0.0, -0.0])
    x = torch.cat([x, special])
    expected = x.to(dtype).double()
    if preset == "float8_e4m3":
        # The format has no Inf and torch saturates; the mode overflows half a
        # gap beyond the largest number, as in every other format.
        expected = torch.where(x.abs() > 448 + 16, x.double().sign() * torch.inf, expected)
    result = round_to_format(x.double(), None, rounding)
    assert torch.equal(result.isnan(), x.isnan())
    number = ~x.isnan()
    assert torch.equal(result[number], expected[number])
    assert torch.equal(result[number].signbit(), expected[number].signbit())


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "ud"])
@pytest.mark.parametrize("preset", [p for p in PRESETS if p != "binary32"])
def test_numbers_of_the_format_stay_exact_in_every_mode_but_ud(mode: str, preset: str) -> None:
    rounding = Rounding.of(mode, preset)
    numbers = _positive_numbers(rounding)
    numbers = torch.cat([numbers, -numbers, torch.tensor([0.0, torch.inf, -torch.inf])])
    for draw in _draws_of(rounding):
        draws = None if draw is None else torch.full(numbers.shape, draw, dtype=torch.int64)
        assert torch.equal(round_to_format(numbers, draws, rounding), numbers)


@pytest.mark.parametrize("preset", [p for p in PRESETS if p != "binary32"])
def test_ud_takes_every_number_of_the_format_to_the_next_and_to_the_previous(preset: str) -> None:
    rounding = Rounding.of("ud", preset)
    numbers = _positive_numbers(rounding)
    line = torch.cat([torch.zeros(1), numbers, torch.tensor([torch.inf])]).double()
    for sign in (1, -1):
        down, up = (
            round_to_format(sign * numbers, torch.full(numbers.shape, d), rounding) for d in (0, 1)
        )
        assert torch.equal(down, sign * line[:-2])
        assert torch.equal(up, sign * line[2:])


@st.composite
def _formats(draw: st.DrawFn, mode: str) -> Rounding:
    emin = draw(st.integers(-126, 100))
    emax = draw(st.integers(emin, 127))
    precision = draw(st.integers(2, 24))
    custom = Rounding(mode, precision, emin, emax)
    return draw(st.sampled_from([Rounding(mode), custom, Rounding.of(mode, "float8_e4m3")]))


@pytest.mark.parametrize("mode", MODES)
@given(data=st.data())
@settings(derandomize=True, deadline=None, max_examples=300)
def test_every_mode_follows_its_definition_on_fractions(mode: str, data: st.DataObject) -> None:
    rounding = data.draw(_formats(mode))
    scale = st.integers(rounding.emin - 30, rounding.emax + 2)
    significand = st.integers(-(2**53) + 1, 2**53 - 1)
    sparse = st.integers(-64, 64)
    # Results of operations on binary32 reach from 2^-298 to 2^257.
    anything = st.floats(2.0**-298, 2.0**257) | st.floats(-(2.0**257), -(2.0**-298))
    value = st.builds(lambda m, e: math.ldexp(m, e - m.bit_length()), significand | sparse, scale)
    s = data.draw(value | anything)
    draws = st.integers(0, THRESHOLD - 1) if rounding.draws_uniform else st.integers(0, 1)
    draw = data.draw(draws) if rounding.draws else None
    expected = round_fraction(Fraction(s), draw, rounding)
    assert _round([s], draw, rounding) == [expected]
    assert math.copysign(1, _round([s], draw, rounding)[0]) == math.copysign(1, s)


@given(
    s=st.floats(2.0**-290, 2.0**300) | st.floats(-(2.0**300), -(2.0**-290)),
    draw=st.integers(0, THRESHOLD - 1),
)
@example(s=2.0**-200 * (1 + 2.0**-52), draw=THRESHOLD - 1)
@example(s=2.0**200 * (1 + 2.0**-52), draw=THRESHOLD - 1)
@settings(derandomize=True, deadline=None, max_examples=300)
def test_without_range_sr_keeps_24_bits_at_any_exponent(s: float, draw: int) -> None:
    (result,) = _round([s], draw, Rounding("sr"), ranged=False)
    assert result == round_fraction(Fraction(s), draw, Rounding("sr"), ranged=False)
    assert math.isfinite(result)
    assert result != 0


# low + f * gap, exactly representable in binary64 with f a multiple of 2^-29.
LOWS: dict[str, float] = {
    "inside a binade": 1.5,
    "at a power of two": 1.0,
    "below a power of two": 2.0 - 2.0**-23,
    "large": 2.0**100 * 1.25,
    "smallest normal": 2.0**-126,
    "subnormal": 3 * SMALLEST,
    "below the smallest subnormal": 0.0,
}


def _gap(low: float) -> float:
    exponent = max(math.frexp(low)[1] - 1, -126) if low else -126
    return 2.0 ** (exponent - 23)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("name", LOWS)
@given(numerator=st.integers(1, THRESHOLD - 1))
@settings(derandomize=True, deadline=None, max_examples=30)
def test_sr_rounds_up_for_exactly_the_fraction_of_all_draws(
    name: str, sign: int, numerator: int
) -> None:
    low, gap = LOWS[name], _gap(LOWS[name])
    s = sign * (low + numerator / THRESHOLD * gap)
    # The draws 2^29 - numerator and above go up: numerator out of 2^29 of them.
    assert _round([s], THRESHOLD - numerator, Rounding("sr")) == [sign * (low + gap)]
    assert _round([s], THRESHOLD - numerator - 1, Rounding("sr")) == [sign * low]


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("fraction", [1 / 1024, 1 / 4, 1 / 2, 0.999])
@pytest.mark.parametrize("name", LOWS)
def test_sr_is_unbiased_over_the_draws_of_a_stream(name: str, fraction: float, sign: int) -> None:
    low, gap = LOWS[name], _gap(LOWS[name])
    draws = uniform29(Stream(28).states(torch.arange(1563), 0, 4)).flatten()[:100_000]
    s = torch.full(draws.shape, sign * (low + fraction * gap), dtype=torch.float64)
    result = round_to_format(s, draws, Rounding("sr"))
    up = result == sign * (low + gap)
    assert bool((up | (result == sign * low)).all())
    standard_error = math.sqrt(fraction * (1 - fraction) / len(draws))
    assert abs(up.double().mean().item() - fraction) < 4 * standard_error


@pytest.mark.parametrize(
    ("s", "shrunk", "grown"),
    [
        (LARGEST, LARGEST - 2.0**104, math.inf),
        (SMALLEST, 0.0, 2 * SMALLEST),
        (-LARGEST, -(LARGEST - 2.0**104), -math.inf),
        (1.0, 1.0 - 2.0**-24, 1.0 + 2.0**-23),
        (2.0**-126, 2.0**-126 - SMALLEST, 2.0**-126 + SMALLEST),
        # Nearest carries into the next binade before the step is taken.
        (2.0 - 2.0**-40, 2.0 - 2.0**-23, 2.0 + 2.0**-22),
    ],
)
def test_ud_gives_each_neighbour_half_of_the_time(s: float, shrunk: float, grown: float) -> None:
    draws = bits(Stream(29).states(torch.arange(200), 0, 1), 0).flatten()
    result = round_to_format(torch.full(draws.shape, s, dtype=torch.float64), draws, Rounding("ud"))
    grows = result == grown
    assert bool((grows | (result == shrunk)).all())
    # 3200 fair coins: 4 standard deviations.
    assert abs(grows.sum().item() - len(draws) / 2) < 4 * math.sqrt(len(draws)) / 2


@pytest.mark.parametrize("draw", [0, 1])
def test_ud_leaves_zero_infinity_and_nan_untouched_also_when_rounding_made_them(draw: int) -> None:
    s = [0.0, -0.0, math.inf, -math.inf, SMALLEST / 4, -SMALLEST / 4, 2 * LARGEST, -2 * LARGEST]
    result = _round([*s, math.nan], draw, Rounding("ud"))
    assert result[:-1] == [0.0, 0.0, math.inf, -math.inf, 0.0, 0.0, math.inf, -math.inf]
    assert [math.copysign(1, v) for v in result[:-1]] == [1, -1] * 4
    assert math.isnan(result[-1])


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("mode", MODES)
def test_beyond_the_largest_number_each_mode_goes_where_it_points(mode: str, preset: str) -> None:
    rounding = Rounding.of(mode, preset)
    largest = rounding.largest
    expected: dict[str, Callable[[int, int | None], bool]] = {
        "zero": lambda sign, draw: False,
        "up": lambda sign, draw: sign > 0,
        "down": lambda sign, draw: sign < 0,
        "cestac": lambda sign, draw: draw == (sign > 0),
    }
    for sign in (1, -1):
        for draw in _draws_of(rounding):
            infinite = expected.get(mode, lambda sign, draw: True)(sign, draw)
            target = sign * (math.inf if infinite else largest)
            assert _round([sign * 4 * largest], draw, rounding) == [target]


@given(s=st.floats(-(2.0**257), 2.0**257), draw=st.integers(0, THRESHOLD - 1))
@settings(derandomize=True, deadline=None, max_examples=200)
def test_modes_mirror_at_zero(s: float, draw: int) -> None:
    mirror = {"up": "down", "down": "up"}
    for mode in MODES:
        rounding, mirrored = Rounding(mode), Rounding(mirror.get(mode, mode))
        mine = draw if rounding.draws_uniform else draw & 1 if rounding.draws_bit else None
        other = 1 - mine if mode == "cestac" else mine
        assert _round([-s], other, mirrored) == [-v for v in _round([s], mine, rounding)]


@pytest.mark.parametrize("mode", MODES)
def test_modes_draw_what_they_say(mode: str) -> None:
    rounding = Rounding(mode)
    s = torch.rand(4000, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 1
    limit = THRESHOLD if rounding.draws_uniform else 2
    seen = {
        tuple(round_to_format(s, torch.full(s.shape, d), rounding).tolist())
        for d in (0, limit // 2, limit - 1)
    }
    assert (len(seen) > 1) == rounding.draws
    assert rounding.draws == (rounding.draws_uniform or rounding.draws_bit)
    assert rounding.reads_exact == (mode != "sr")
    assert MODES[rounding.code] == mode


def test_presets_are_the_published_formats() -> None:
    expected = {
        "binary32": torch.float32,
        "bfloat16": torch.bfloat16,
        "float16": torch.float16,
        "float8_e5m2": torch.float8_e5m2,
        "float8_e4m3": torch.float8_e4m3fn,
    }
    assert set(PRESETS) == {*expected, "tf32"}
    for name, dtype in expected.items():
        rounding, info = Rounding.of("sr", name), torch.finfo(dtype)
        assert rounding.largest == info.max
        assert 2.0**rounding.emin == info.smallest_normal
        assert 2.0 ** (1 - rounding.precision) == info.eps
    tf32 = Rounding.of("sr", "tf32")
    assert (tf32.precision, tf32.emin, tf32.emax) == (11, -126, 127)
    assert [name for name in PRESETS if Rounding.of("sr", name).is_binary32] == ["binary32"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "nearest"}, "unknown rounding mode 'nearest': choose one of rn, sr, ud"),
        ({"precision": 25}, "precision 25 is impossible: binary32 tensors hold 2 to 24 bits"),
        ({"precision": 1}, "precision 1 is impossible"),
        ({"precision": 8.0}, "precision must be an integer, not 8.0"),
        ({"emin": True}, "emin must be an integer, not True"),
        ({"emin": -127}, "the exponent range -127..127 is impossible"),
        ({"emin": 3, "emax": 2}, "the exponent range 3..2 is impossible"),
        ({"largest": math.inf}, "largest=inf lies outside the format"),
        ({"largest": 0.0}, "largest=0.0 lies outside the format"),
    ],
)
def test_an_impossible_rounding_is_refused_with_a_sentence(
    arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message.replace("..", r"\.\.")):
        Rounding(**arguments)


def test_an_unknown_preset_is_refused_with_the_list_of_presets() -> None:
    with pytest.raises(ValueError, match="unknown format 'fp8': choose one of binary32, tf32"):
        Rounding.of("sr", "fp8")
