"""The constants of the transcendental functions, computed with mpmath.

    python tools/function_coefficients.py

writes ``src/fuzzytorch/backends/function_constants.py`` and
``native/function_constants.h``, which hold the same binary64 numbers.  Fits interpolate at
Chebyshev nodes in 60 digits, which comes within a factor of two of the best polynomial; the
short one of exp, which has no factor of two to spare, is the best one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path

import mpmath as mp

ROOT = Path(__file__).resolve().parents[1]

ERF_INTERVALS = 16
ERF_STEP = mp.mpf(25) / 64
"""Distance of the points around which erf is expanded: 15.5 of them reach beyond 6."""

ERF_TERMS = 13
EXP_TERMS = 10
EXP_SHORT_TERMS = 8
LOG_TERMS = 7

HEADER = "Written by tools/function_coefficients.py: change that and run it again."

Table = dict[str, tuple[str, list[float]]]


def nodes(low: mp.mpf, high: mp.mpf, count: int) -> list[mp.mpf]:
    middle, half = (low + high) / 2, (high - low) / 2
    return [middle + half * mp.cos(mp.pi * (2 * i + 1) / (2 * count)) for i in range(count)]


def polynomial(
    function: Callable[[mp.mpf], mp.mpf], low: mp.mpf, high: mp.mpf, terms: int
) -> list[mp.mpf]:
    """The coefficients, constant first, of the interpolating polynomial."""
    at = nodes(low, high, terms)
    system = mp.matrix([[x**i for i in range(terms)] for x in at])
    return list(mp.lu_solve(system, mp.matrix([function(x) for x in at])))


def short_exp(highest: mp.mpf, terms: int) -> list[mp.mpf]:
    """The q of least relative error of ``1 + r + r^2 q(r)`` from exp(r) for ``|r| <= highest``.

    (Remez: the error is made equal, with changing sign, at points that move to its extrema.)
    """
    grid = [highest * i / 1000 for i in range(-1000, 1001)]
    points = [highest * mp.cos(mp.pi * i / terms + mp.mpf(1) / 50) for i in range(terms + 1)]
    q: list[mp.mpf] = []
    for _ in range(8):
        rows = [
            [*(x ** (j + 2) / mp.exp(x) for j in range(terms)), mp.mpf(-1) ** i]
            for i, x in enumerate(points)
        ]
        excess = mp.matrix([(mp.expm1(x) - x) / mp.exp(x) for x in points])
        q = list(mp.lu_solve(mp.matrix(rows), excess))[:terms]
        errors = [(1 + x + x * x * mp.polyval(q[::-1], x)) / mp.exp(x) - 1 for x in grid]
        pairs = [(x, error) for x, error in zip(grid, errors, strict=True) if error != 0]
        runs = [list(run) for _, run in itertools.groupby(pairs, key=lambda pair: pair[1] > 0)]
        points = [max(run, key=lambda pair: abs(pair[1]))[0] for run in runs]
    return q


def tanh_ratio(highest: mp.mpf) -> tuple[list[mp.mpf], list[mp.mpf]]:
    """``tanh(x) / x - 1 = z P(z) / Q(z)`` with ``z = x^2``, P quadratic, Q cubic and monic."""

    def excess(z: mp.mpf) -> mp.mpf:
        root = mp.sqrt(z)
        return mp.tanh(root) / root - 1

    at = nodes(mp.mpf(0), highest**2, 6)
    system = mp.matrix([[z, z**2, z**3, *(-excess(z) * z**i for i in range(3))] for z in at])
    solved = list(mp.lu_solve(system, mp.matrix([excess(z) * z**3 for z in at])))
    return solved[:3], solved[3:]


def erf_point(interval: int) -> mp.mpf:
    """A binary64 number near ``interval * step`` whose erf is a binary64 number to 2^-62.

    (Gal's accurate tables: the value of the function at the point then needs no second part.)
    """
    value, point = float(mp.erf(interval * ERF_STEP)), interval * ERF_STEP
    while True:
        for _ in range(3):
            slope = 2 / mp.sqrt(mp.pi) * mp.exp(-(point**2))
            point -= (mp.erf(point) - value) / slope
        nearest = mp.mpf(float(point))
        if abs(mp.erf(nearest) - value) <= mp.mpf(2) ** -62:
            return nearest
        value = math.nextafter(value, 0.0)


def erf_row(interval: int) -> list[float]:
    """The point, erf there, and the terms of ``(erf(point + d) - erf(point)) / d - 1`` in d."""
    point = erf_point(interval)
    value = mp.erf(point)
    low, high = ((interval + side) * ERF_STEP - point for side in (-mp.mpf(0.5), mp.mpf(0.5)))
    terms = polynomial(lambda d: (mp.erf(point + d) - value) / d - 1, low, high, ERF_TERMS)
    return [float(x) for x in (point, value, *terms)]


def split_ln2() -> list[float]:
    """ln 2 as a number of 32 bits, whose product with an exponent is exact, and the rest."""
    high = mp.floor(mp.log(2) * mp.mpf(2) ** 32) / mp.mpf(2) ** 32
    return [float(high), float(mp.log(2) - high)]


def tables() -> Table:
    reduced = mp.log(2) / 2 * mp.mpf("1.0001")
    exp = polynomial(lambda r: (mp.expm1(r) - r) / r**2, -reduced, reduced, EXP_TERMS)
    short = short_exp(reduced, EXP_SHORT_TERMS)
    largest = ((mp.sqrt(2) - 1) / (mp.sqrt(2) + 1)) ** 2 * mp.mpf("1.0001")
    log = polynomial(
        lambda z: (2 * mp.atanh(mp.sqrt(z)) / mp.sqrt(z) - 2) / z, mp.mpf(0), largest, LOG_TERMS
    )
    numerator, denominator = tanh_ratio(mp.mpf(5) / 8)
    rows = [erf_row(i) for i in range(ERF_INTERVALS)]
    return {
        "LOG2_E": ("1 / ln 2", [float(1 / mp.log(2))]),
        "LN2": ("ln 2, 32 bits and the rest", split_ln2()),
        "LN2_NEAREST": ("ln 2, nearest", [float(mp.log(2))]),
        "EXP": ("(exp(r) - 1 - r) / r^2", [float(x) for x in exp]),
        "EXP_SHORT": ("the same with fewer terms", [float(x) for x in short]),
        "LOG": ("(log((1 + s) / (1 - s)) / s - 2) / s^2 in s^2", [float(x) for x in log]),
        "TANH_P": ("numerator of tanh", [float(x) for x in numerator]),
        "TANH_Q": ("denominator of tanh, its leading term is 1", [float(x) for x in denominator]),
        "TWO_OVER_ROOT_PI": ("2 / sqrt(pi)", [float(2 / mp.sqrt(mp.pi))]),
        "ERF_SCALE": ("intervals of erf per unit", [float(1 / ERF_STEP)]),
        "ERF": (
            "point, value, and terms in the distance: sixteen intervals each",
            [row[i] for i in range(ERF_TERMS + 2) for row in rows],
        ),
    }


def python_module(values: Table) -> str:
    lines = [f'"""Constants of the transcendental functions.\n\n{HEADER}\n"""', ""]
    lines += ["from __future__ import annotations", ""]
    for name, (meaning, numbers) in values.items():
        literals = [f'float.fromhex("{x.hex()}")' for x in numbers]
        lines += [f"# {meaning}"]
        if len(literals) == 1:
            lines += [f"{name} = {literals[0]}"]
        else:
            lines += [f"{name} = (", *(f"    {x}," for x in literals), ")"]
    return "\n".join(lines) + "\n"


def native_header(values: Table) -> str:
    lines = ["// Constants of the transcendental functions.", f"// {HEADER}", "#pragma once", ""]
    lines += ["// clang-format off", "namespace prism {", ""]
    for name, (meaning, numbers) in values.items():
        camel = "k" + "".join(part.capitalize() for part in name.split("_"))
        lines += [f"// {meaning}"]
        if len(numbers) == 1:
            lines += [f"constexpr double {camel} = {numbers[0].hex()};"]
        else:
            lines += [f"alignas(64) constexpr double {camel}[] = {{"]
            lines += [*(f"    {x.hex()}," for x in numbers), "};"]
    return "\n".join([*lines, "", "}  // namespace prism", ""])


def main() -> None:
    mp.mp.dps = 60
    values = tables()
    module = ROOT / "src" / "fuzzytorch" / "backends" / "function_constants.py"
    module.write_text(python_module(values))
    (ROOT / "native" / "function_constants.h").write_text(native_header(values))


if __name__ == "__main__":
    main()
