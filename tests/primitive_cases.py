"""Every primitive on small inputs: how to run it, and what the scalar oracle says.

A case builds its inputs from ``fill(*shape)``, which decides whether values are
normal deviates over several binades or integers that keep every operation exact.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import torch
from oracle import Number, Oracle, fractions, indices

from fuzzytorch.backends.protocol import Geometry
from fuzzytorch.program import Program
from fuzzytorch.rounding import Rounding
from fuzzytorch.stream import Stream

Fill = Callable[..., torch.Tensor]
Inputs = tuple[torch.Tensor, ...]


@dataclasses.dataclass(frozen=True)
class Case:
    """One primitive with its parameters.

    Attributes:
        primitive: the method of the backend.
        name: how tests call the case.
        build: ``build(fill)`` gives the tensor inputs.
        run: ``run(backend, inputs, rounding, stream)`` gives the output.
        naive: ``naive(oracle, inputs)`` gives its values in logical order.
        truth: ``truth(inputs)`` gives the result of binary64 torch.
    """

    primitive: str
    name: str
    build: Callable[[Fill], Inputs]
    run: Callable[[Any, Inputs, Rounding, Stream], torch.Tensor]
    naive: Callable[[Oracle, Inputs], list[Number]]
    truth: Callable[[Inputs], torch.Tensor]


def normal(seed: int) -> Fill:
    """Normal deviates times powers of two from 2^-6 to 2^6."""
    generator = torch.Generator().manual_seed(seed)

    def fill(*shape: int) -> torch.Tensor:
        scale = torch.randint(-6, 7, shape, generator=generator)
        return torch.ldexp(torch.randn(shape, generator=generator), scale)

    return fill


def tiny(seed: int) -> Fill:
    """Normal deviates around 2^-73, whose products are subnormal."""
    fill = normal(seed)
    return lambda *shape: torch.ldexp(fill(*shape), torch.tensor(-73))


def integers(seed: int) -> Fill:
    """Values from -2, -1, 1, 2: sums, products and quotients of them stay exact."""
    generator = torch.Generator().manual_seed(seed)

    def fill(*shape: int) -> torch.Tensor:
        values = torch.tensor([-2.0, -1.0, 1.0, 2.0])
        return values[torch.randint(0, 4, shape, generator=generator)]

    return fill


def _elementwise(name: str, program: Program, count: int, truth: Callable[..., Any]) -> Case:
    scalars = [2.0, 0.5][: program.scalars]
    stored = any(op == "round" for op, *_ in program.code)

    def build(fill: Fill) -> Inputs:
        values = [fill(count) for _ in range(program.inputs)]
        if name == "sqrt":
            return tuple(v * v for v in values)
        return tuple(v.double() * fill(count).double() for v in values) if stored else tuple(values)

    def run(backend: Any, x: Inputs, rounding: Rounding, stream: Stream) -> torch.Tensor:
        out = torch.empty(count)
        backend.elementwise(program, x, scalars, out, rounding, stream)
        return out

    def naive(oracle: Oracle, x: Inputs) -> list[Number]:
        columns = [fractions(v) for v in x]
        return [
            _interpret(oracle, program, [*(c[i] for c in columns), *map(Fraction, scalars)], i)
            for i in range(count)
        ]

    return Case(
        "elementwise", name, build, run, naive, lambda x: truth(*(v.double() for v in x), *scalars)
    )


def _interpret(oracle: Oracle, program: Program, registers: list[Number], i: int) -> Number:
    exact: dict[str, Callable[..., Number]] = {
        "neg": lambda a: -a,
        "abs": abs,
        "min": min,
        "max": max,
        "copysign": lambda a, b: -abs(a) if b < 0 else abs(a),
        "select": lambda a, b, c: b if a > 0 else c,
    }
    for block, (name, *sources) in enumerate(program.code):
        operands = [registers[r] for r in sources]
        if name in exact:
            registers.append(exact[name](*operands))
        else:
            at = (i // 1024, block, i % 64, i % 1024 // 64)
            registers.append(oracle.op(name, *operands, at=at))
    return registers[-1]


def _single(operation: str, arity: int, truth: Callable[..., Any]) -> Case:
    program = Program(arity, 0, ((operation, *range(arity)),))
    return _elementwise(operation, program, 70, truth)


_COMPOSITE = Program(
    2,
    2,
    (
        ("mul", 0, 2),
        ("abs", 4),
        ("max", 5, 1),
        ("fma", 6, 3, 0),
        ("neg", 7),
        ("copysign", 8, 1),
        ("min", 9, 0),
        ("select", 0, 10, 7),
    ),
)


def _composite(a: torch.Tensor, b: torch.Tensor, s: float, t: float) -> torch.Tensor:
    fused = torch.maximum((a * s).abs(), b) * t + a
    return torch.where(a > 0, torch.minimum(torch.copysign(fused, b), a), fused)


def _reduce(kind: str, rows: int, length: int) -> Case:
    def build(fill: Fill) -> Inputs:
        x = fill(rows, length)
        return (x, fill(rows, length)) if kind == "dot" else (x,)

    def run(backend: Any, x: Inputs, rounding: Rounding, stream: Stream) -> torch.Tensor:
        out = torch.empty(rows)
        backend.reduce(kind, x[0], out, rounding, stream, *x[1:])
        return out

    def naive(oracle: Oracle, x: Inputs) -> list[Number]:
        first, second = x[0].abs() if kind == "sum_abs" else x[0], x[-1]
        return [
            oracle.reduce(kind, fractions(first[r]), fractions(second[r]), r) for r in range(rows)
        ]

    def truth(x: Inputs) -> torch.Tensor:
        a, b = x[0].double(), x[-1].double()
        terms = {"sum_abs": a.abs(), "sum_squares": a * a, "dot": a * b}.get(kind, a)
        return terms.prod(1) if kind == "prod" else terms.sum(1)

    return Case("reduce", f"{kind}-{length}", build, run, naive, truth)


def _scan(kind: str, rows: int, length: int) -> Case:
    def run(backend: Any, x: Inputs, rounding: Rounding, stream: Stream) -> torch.Tensor:
        out = torch.empty(rows, length)
        backend.scan(kind, x[0], out, rounding, stream)
        return out

    def naive(oracle: Oracle, x: Inputs) -> list[Number]:
        values = []
        for r in range(rows):
            for k, term in enumerate(fractions(x[0][r])):
                at = (r // 16, k // 256, r % 16, k % 256)
                operation = "mul" if kind == "prod" else "add"
                values.append(term if k == 0 else oracle.op(operation, values[-1], term, at=at))
        return values

    return Case(
        "scan",
        f"{kind}-{length}",
        lambda fill: (fill(rows, length),),
        run,
        naive,
        lambda x: getattr(x[0].double(), f"cum{kind}")(1),
    )


def _gemm(batch: int, m: int, k: int, n: int) -> Case:
    def run(backend: Any, x: Inputs, rounding: Rounding, stream: Stream) -> torch.Tensor:
        out = torch.empty(batch, m, n)
        backend.gemm(*x, out, rounding, stream)
        return out

    def naive(oracle: Oracle, x: Inputs) -> list[Number]:
        return [
            oracle.products(
                list(zip(fractions(x[0][i, j]), fractions(x[1][i, :, c]), strict=True)),
                i * m + j,
                c,
            )
            for i, j, c in indices((batch, m, n))
        ]

    return Case(
        "gemm",
        f"{batch}x{m}x{k}x{n}",
        lambda fill: (fill(batch, m, k), fill(batch, k, n)),
        run,
        naive,
        lambda x: x[0].double() @ x[1].double(),
    )


@dataclasses.dataclass(frozen=True)
class Convolution:
    """The shapes and settings of a convolution."""

    x: tuple[int, ...]
    weight: tuple[int, ...]
    stride: tuple[int, ...] = (1, 1, 1)
    padding: tuple[int, ...] = (0, 0, 0)
    dilation: tuple[int, ...] = (1, 1, 1)
    groups: int = 1

    @property
    def out(self) -> tuple[int, ...]:
        spatial = zip(
            self.x[2:], self.weight[2:], self.stride, self.padding, self.dilation, strict=True
        )
        return (
            self.x[0],
            self.weight[0],
            *((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in spatial),
        )

    @property
    def geometry(self) -> Geometry:
        return Geometry(self.stride, self.padding, self.dilation, self.groups)

    def source(self, position: Sequence[int], tap: Sequence[int]) -> tuple[int, ...] | None:
        """The input position that an output position reads through a tap, if it is inside."""
        terms = zip(position, self.stride, self.padding, tap, self.dilation, strict=True)
        place = tuple(j * s - p + t * d for j, s, p, t, d in terms)
        inside = all(0 <= i < n for i, n in zip(place, self.x[2:], strict=True))
        return place if inside else None


GEOMETRIES = (
    Convolution((1, 4, 1, 6, 7), (4, 2, 1, 3, 2), (1, 2, 1), (0, 1, 1), (1, 1, 2), 2),
    Convolution((2, 2, 3, 4, 3), (2, 2, 2, 2, 2), (2, 1, 2), (1, 0, 1), (1, 2, 1)),
    Convolution((2, 1, 1, 8, 7), (2, 1, 1, 2, 2), (1, 3, 3)),
    Convolution((1, 29, 1, 3, 3), (1, 29, 1, 3, 3)),
    Convolution((1, 1, 1, 2, 3), (70, 1, 1, 2, 2), (1, 1, 1), (0, 1, 0)),
    Convolution((1, 1, 1, 1, 3), (150, 1, 1, 1, 2), (1, 1, 2)),
    Convolution((2, 1, 1, 10, 10), (1, 1, 1, 1, 1)),
    Convolution((3, 2, 1, 10, 11), (2, 1, 1, 2, 1), (1, 1, 1), (0, 0, 0), (1, 1, 1), 2),
)


def _conv(g: Convolution, number: int) -> Case:
    def run(backend: Any, x: Inputs, rounding: Rounding, stream: Stream) -> torch.Tensor:
        out = torch.empty(g.out)
        backend.conv(*x, out, g.geometry, rounding, stream)
        return out

    def naive(oracle: Oracle, x: Inputs) -> list[Number]:
        image, weight = x
        values = []
        for n, o, *position in indices(g.out):
            pairs = []
            for c, *tap in indices(g.weight[1:]):
                channel = o // (g.weight[0] // g.groups) * g.weight[1] + c
                place = g.source(position, tap)
                pixel = 0.0 if place is None else image[(n, channel, *place)].item()
                pairs.append((Fraction(pixel), Fraction(weight[(o, c, *tap)].item())))
            column = _ravel((n, *position), (g.out[0], *g.out[2:]))
            values.append(oracle.products(pairs, o, column))
        return values

    return Case(
        "conv",
        f"conv-{number}",
        lambda fill: (fill(*g.x), fill(*g.weight)),
        run,
        naive,
        lambda x: torch.conv3d(*(v.double() for v in x), None, *dataclasses.astuple(g.geometry)),
    )


def _conv_transposed(g: Convolution, number: int) -> Case:
    def run(backend: Any, x: Inputs, rounding: Rounding, stream: Stream) -> torch.Tensor:
        out = torch.full(g.x, torch.nan)
        backend.conv_transposed(*x, out, g.geometry, rounding, stream)
        return out

    def naive(oracle: Oracle, x: Inputs) -> list[Number]:
        grad, weight = x
        per_group = g.weight[0] // g.groups
        blocks = math.ceil(per_group * math.prod(g.weight[2:]) / 192)
        values = []
        for n, channel, *position in indices(g.x):
            residue = [i % s for i, s in zip(position, g.stride, strict=True)]
            pairs = []
            for o, *tap in indices((per_group, *g.weight[2:])):
                terms = zip(position, g.padding, tap, g.dilation, g.stride, strict=True)
                place = [divmod(i + p - t * d, s) for i, p, t, d, s in terms]
                if any(rest for _, rest in place):
                    continue
                output = channel // g.weight[1] * per_group + o
                where = [j for j, _ in place]
                inside = all(0 <= j < size for j, size in zip(where, g.out[2:], strict=True))
                pixel = grad[(n, output, *where)].item() if inside else 0.0
                factor = weight[(output, channel % g.weight[1], *tap)].item()
                pairs.append((Fraction(pixel), Fraction(factor)))
            sizes = zip(g.x[2:], residue, g.stride, strict=True)
            phase = (g.x[0], *(math.ceil((size - r) / s) for size, r, s in sizes))
            within = [i // s for i, s in zip(position, g.stride, strict=True)]
            f = _ravel(residue, g.stride)
            values.append(oracle.products(pairs, channel, _ravel((n, *within), phase), f * blocks))
        return values

    def truth(x: Inputs) -> torch.Tensor:
        grad, weight = (v.double() for v in x)
        return torch.nn.grad.conv3d_input(g.x, weight, grad, *dataclasses.astuple(g.geometry))

    return Case(
        "conv_transposed",
        f"conv_transposed-{number}",
        lambda fill: (fill(*g.out), fill(*g.weight)),
        run,
        naive,
        truth,
    )


def _conv_weight(g: Convolution, number: int) -> Case:
    def run(backend: Any, x: Inputs, rounding: Rounding, stream: Stream) -> torch.Tensor:
        out = torch.empty(g.weight)
        backend.conv_weight(*x, out, g.geometry, rounding, stream)
        return out

    def naive(oracle: Oracle, x: Inputs) -> list[Number]:
        image, grad = x
        values = []
        for o, c, *tap in indices(g.weight):
            channel = o // (g.weight[0] // g.groups) * g.weight[1] + c
            pairs = []
            for n, *position in indices((g.out[0], *g.out[2:])):
                place = g.source(position, tap)
                pixel = 0.0 if place is None else image[(n, channel, *place)].item()
                pairs.append((Fraction(grad[(n, o, *position)].item()), Fraction(pixel)))
            column = _ravel((c, *tap), g.weight[1:])
            chained = math.prod(g.weight[2:]) > 1
            values.append(oracle.products(pairs, o, column, chained=chained))
        return values

    def truth(x: Inputs) -> torch.Tensor:
        image, grad = (v.double() for v in x)
        return torch.nn.grad.conv3d_weight(image, g.weight, grad, *dataclasses.astuple(g.geometry))

    return Case(
        "conv_weight",
        f"conv_weight-{number}",
        lambda fill: (fill(*g.x), fill(*g.out)),
        run,
        naive,
        truth,
    )


def _accumulate(count: int, inner: int, rows: int) -> Case:
    index = torch.randint(0, rows, (count,), generator=torch.Generator().manual_seed(3))

    def run(backend: Any, x: Inputs, rounding: Rounding, stream: Stream) -> torch.Tensor:
        out = x[1].clone()
        backend.accumulate(index, x[0], out, rounding, stream)
        return out

    def naive(oracle: Oracle, x: Inputs) -> list[Number]:
        total = [fractions(row) for row in x[1]]
        for i, target in enumerate(index.tolist()):
            for j, term in enumerate(fractions(x[0][i])):
                e = i * inner + j
                at = (e // 1024, 0, e % 64, e % 1024 // 64)
                total[target][j] = oracle.op("add", total[target][j], term, at=at)
        return [value for row in total for value in row]

    return Case(
        "accumulate",
        f"{count}x{inner}",
        lambda fill: (fill(count, inner), fill(rows, inner)),
        run,
        naive,
        lambda x: x[1].double().index_add(0, index, x[0].double()),
    )


def _ravel(index: Sequence[int], shape: Sequence[int]) -> int:
    flat = 0
    for i, n in zip(index, shape, strict=True):
        flat = flat * n + i
    return flat


SINGLE = (
    _single("add", 2, torch.add),
    _single("sub", 2, torch.sub),
    _single("mul", 2, torch.mul),
    _single("div", 2, torch.div),
    _single("sqrt", 1, torch.sqrt),
    _single("fma", 3, lambda a, b, c: a * b + c),
    _single("round", 1, lambda a: a),
    _reduce("sum", 40, 2),
    _reduce("prod", 40, 2),
    _reduce("sum_squares", 40, 1),
    _reduce("dot", 40, 1),
    _gemm(2, 3, 1, 18),
)
"""Cases in which every output is the result of one rounded operation."""

CASES = (
    *SINGLE,
    _elementwise("composite", _COMPOSITE, 1090, _composite),
    *(_reduce(kind, 12, n) for kind in ("sum", "dot", "prod") for n in (1, 5, 31, 45)),
    *(_reduce(kind, 2, 560) for kind in ("sum", "sum_abs", "sum_squares", "dot")),
    _reduce("sum", 1, 8725),
    _scan("sum", 18, 20),
    _scan("sum", 2, 300),
    _scan("prod", 2, 30),
    _gemm(1, 2, 192, 2),
    _gemm(2, 2, 193, 1),
    _gemm(1, 1, 400, 2),
    *(_conv(g, i) for i, g in enumerate(GEOMETRIES)),
    *(_conv_transposed(g, i) for i, g in enumerate(GEOMETRIES)),
    *(_conv_weight(g, i) for i, g in enumerate(GEOMETRIES)),
    _accumulate(5, 7, 40),
    _accumulate(150, 9, 4),
)
"""Every primitive, at sizes that cross each of its blocks."""
