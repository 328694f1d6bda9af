"""A self-test of a backend: does every primitive round as its mode says, on this machine?

:func:`cases` yields every primitive with operands whose results are exact (small
integers) and operands whose results are not; :func:`check` holds three laws
against each: noise reaches every output element in ``sr``, ``rn`` equals stock
torch where results are exact, and exact results stay exact in ``sr``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

import torch
from torch.nn.grad import conv3d_weight

from fuzzytorch.backends.protocol import Backend, Geometry
from fuzzytorch.program import ARITY, ROUNDED, Program
from fuzzytorch.rounding import Rounding
from fuzzytorch.stream import Stream

REPLICAS: Final = 64
"""Runs in which an inexact element must take two values.

Single operations have a discarded fraction between 1/4 and 3/4, so that a working
``sr`` leaves one element alone with a probability below 2 * 0.75**64 = 2e-8.
"""

SEED: Final = 20210
"""Of the operands and of the noise: the self-test is the same wherever it runs."""

Tensors: TypeAlias = tuple[torch.Tensor, ...]


@dataclasses.dataclass(frozen=True)
class Case:
    """One primitive with operands.

    Attributes:
        primitive: the method of :class:`~fuzzytorch.backends.protocol.Backend`.
        name: what it is asked to do.
        run: ``run(backend, operands, rounding, stream)`` returns a new output.
        stock: the same by stock torch, in the dtype of the operands.
        exact: operands whose results and partial results are small integers.
        inexact: operands whose results are rounded.
        rounded: selects the output elements that are rounded at all.
    """

    primitive: str
    name: str
    run: Callable[[Backend, Tensors, Rounding, Stream], torch.Tensor]
    stock: Callable[..., torch.Tensor]
    exact: Tensors
    inexact: Tensors
    rounded: Callable[[torch.Tensor], torch.Tensor] = lambda out: out


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """The outcome of one law for one case; ``detail`` says what was seen when it failed."""

    law: str
    primitive: str
    name: str
    passed: bool
    detail: str = ""


def check(backend: Backend) -> tuple[Check, ...]:
    """Holds every law against every case; takes a fraction of a second on native kernels."""
    return tuple(
        Check(law, case.primitive, case.name, not detail, detail)
        for case in cases()
        for law, test in LAWS.items()
        for detail in [test(backend, case)]
    )


def _noise(backend: Backend, case: Case) -> str:
    rounding = Rounding("sr")
    outputs = [
        case.rounded(case.run(backend, case.inexact, rounding, Stream(SEED, replica)))
        for replica in range(REPLICAS)
    ]
    if not outputs[0].numel():
        return "there is no output element to look at"
    if not outputs[0].isfinite().all():
        return "finite operands gave NaN or Inf"
    still = ~(torch.stack(outputs) != outputs[0]).any(0)
    return f"{int(still.sum())} of {still.numel()} elements never change" if still.any() else ""


def _equals_stock(backend: Backend, case: Case, mode: str) -> str:
    output = case.run(backend, case.exact, Rounding(mode), Stream(SEED))
    wrong = output != case.stock(*case.exact)
    return f"{int(wrong.sum())} of {wrong.numel()} elements differ" if wrong.any() else ""


LAWS: Final[dict[str, Callable[[Backend, Case], str]]] = {
    "noise reaches the output in sr": _noise,
    "rn equals stock torch where exact": lambda backend, case: _equals_stock(backend, case, "rn"),
    "exact results stay exact in sr": lambda backend, case: _equals_stock(backend, case, "sr"),
}


def cases() -> Iterator[Case]:
    """All cases: every primitive, every rounded operation, every kind of reduction and scan."""
    generator = torch.Generator().manual_seed(SEED)
    for operation in ROUNDED:
        yield _elementwise(operation, generator)
    for kind, stock in _REDUCTIONS.items():
        yield _reduction(kind, stock, generator)
    for kind, stock in _SCANS.items():
        yield _scan(kind, stock)
    yield _gemm(generator)
    yield from _convolutions(generator)
    yield _accumulation(generator)


_ELEMENTS: Final = 1100
"""More than one tile, and not a multiple of any vector width."""

_ELEMENTWISE: Final[dict[str, Callable[..., torch.Tensor]]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "sqrt": torch.sqrt,
    "fma": lambda a, b, c: a * b + c,
    "round": torch.Tensor.float,
}

_REDUCTIONS: Final[dict[str, Callable[..., torch.Tensor]]] = {
    "sum": lambda x: x.sum(-1),
    "prod": lambda x: x.prod(-1),
    "sum_abs": lambda x: x.abs().sum(-1),
    "sum_squares": lambda x: (x * x).sum(-1),
    "dot": lambda x, y: (x * y).sum(-1),
}

_SCANS: Final[dict[str, Callable[..., torch.Tensor]]] = {
    "sum": lambda x: x.cumsum(-1),
    "prod": lambda x: x.cumprod(-1),
}


def _integers(generator: torch.Generator, *shape: int, low: int = -4, high: int = 5) -> Any:
    return torch.randint(low, high, shape, generator=generator).float()


def _reals(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=generator) + 0.5


def _elementwise(operation: str, generator: torch.Generator) -> Case:
    arity, stock = ARITY[operation], _ELEMENTWISE[operation]
    program = Program(arity, 0, ((operation, *range(arity)),))
    exact = tuple(_integers(generator, _ELEMENTS, low=1, high=100) for _ in range(arity))
    if operation == "div":
        exact = (exact[0] * exact[1], exact[1])
    if operation == "sqrt":
        exact = (exact[0] * exact[0],)
    # Of different sizes, since the difference of two close numbers is exact.
    many = tuple(_reals(generator, 8 * _ELEMENTS).double() / 3**i for i in range(arity))
    many = tuple(x.float().double() for x in many)
    if operation == "round":
        exact = (exact[0].double(),)
        many = (many[0] + 2.0**-25 * torch.rand(8 * _ELEMENTS, generator=generator).double(),)
    result = stock(*many) if operation != "round" else many[0]
    # |result| = m 2^e with 1/2 <= m < 1: binary32 keeps 24 bits of m.
    fraction = (torch.frexp(result).mantissa.abs() * 2.0**24).frac()
    chosen = ((fraction > 0.25) & (fraction < 0.75)).nonzero().flatten()[:_ELEMENTS]
    inexact = tuple(x[chosen] if operation == "round" else x[chosen].float() for x in many)

    def run(backend: Backend, xs: Tensors, rounding: Rounding, stream: Stream) -> torch.Tensor:
        out = torch.empty(xs[0].shape)
        backend.elementwise(program, xs, (), out, rounding, stream)
        return out

    return Case("elementwise", operation, run, stock, exact, inexact)


def _reduction(kind: str, stock: Callable[..., torch.Tensor], generator: torch.Generator) -> Case:
    count = 2 if kind == "dot" else 1
    shape = (19, 700)
    exact = tuple(_integers(generator, *shape) for _ in range(count))
    if kind == "prod":
        exact = (torch.where(torch.rand(shape, generator=generator) < 0.5, -1.0, 1.0),)
        exact[0][:, ::70] *= 2.0
    inexact = tuple(_reals(generator, *shape) for _ in range(count))

    def run(backend: Backend, xs: Tensors, rounding: Rounding, stream: Stream) -> torch.Tensor:
        out = torch.empty(xs[0].shape[0])
        backend.reduce(kind, xs[0], out, rounding, stream, *xs[1:])
        return out

    return Case("reduce", kind, run, stock, exact, inexact)


def _scan(kind: str, stock: Callable[..., torch.Tensor]) -> Case:
    rows, length = 19, 20
    exact = torch.ones(rows, length) if kind == "sum" else torch.full((rows, length), -1.0)
    exact[:, ::3] *= 2.0
    # The second element of the result has a discarded fraction of exactly 1/2.
    inexact = torch.full((rows, length), 0.25 + 2.0**-24 if kind == "sum" else 1.5)
    inexact[:, 0] = 1.0 + 2.0**-23

    def run(backend: Backend, xs: Tensors, rounding: Rounding, stream: Stream) -> torch.Tensor:
        out = torch.empty(xs[0].shape)
        backend.scan(kind, xs[0], out, rounding, stream)
        return out

    return Case("scan", kind, run, stock, (exact,), (inexact,), rounded=lambda out: out[:, 1:])


def _gemm(generator: torch.Generator) -> Case:
    # More than one block of K, and sizes that fill no register tile.
    def operands(draw: Callable[..., torch.Tensor]) -> Tensors:
        return draw(generator, 2, 5, 300), draw(generator, 2, 300, 19)

    def run(backend: Backend, xs: Tensors, rounding: Rounding, stream: Stream) -> torch.Tensor:
        out = torch.empty(xs[0].shape[0], xs[0].shape[1], xs[1].shape[2])
        backend.gemm(xs[0], xs[1], out, rounding, stream)
        return out

    return Case("gemm", "product", run, torch.bmm, operands(_integers), operands(_reals))


_GEOMETRY: Final[dict[str, Any]] = {
    "stride": (1, 2, 1),
    "padding": (0, 1, 2),
    "dilation": (1, 1, 2),
    "groups": 2,
}


def _convolutions(generator: torch.Generator) -> Iterator[Case]:
    window, image = (1, 3, 3), (1, 8, 9)
    weight, x = (6, 2, *window), (2, 4, *image)
    grad = tuple(torch.conv3d(torch.zeros(x), torch.zeros(weight), None, **_GEOMETRY).shape)

    def gradient(x: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
        return conv3d_weight(x, weight, grad, **_GEOMETRY)

    def transposed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.conv_transpose3d(x, w, None, **_GEOMETRY)

    def forward(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.conv3d(x, w, None, **_GEOMETRY)

    for primitive, stock, shapes in (
        ("conv", forward, (x, weight)),
        ("conv_transposed", transposed, (grad, weight)),
        ("conv_weight", gradient, (x, grad)),
    ):
        exact = tuple(_integers(generator, *shape) for shape in shapes)
        inexact = tuple(_reals(generator, *shape) for shape in shapes)
        yield Case(primitive, "of 3-D images", _convolve(primitive, stock), stock, exact, inexact)


def _convolve(
    primitive: str, stock: Callable[..., torch.Tensor]
) -> Callable[[Backend, Tensors, Rounding, Stream], torch.Tensor]:
    def run(backend: Backend, xs: Tensors, rounding: Rounding, stream: Stream) -> torch.Tensor:
        out = torch.empty(stock(*xs).shape)
        getattr(backend, primitive)(*xs, out, Geometry(**_GEOMETRY), rounding, stream)
        return out

    return run


def _accumulation(generator: torch.Generator) -> Case:
    rows, inner = 5, 7
    index = torch.arange(60) % rows

    def run(backend: Backend, xs: Tensors, rounding: Rounding, stream: Stream) -> torch.Tensor:
        out = torch.ones(rows, inner)
        backend.accumulate(index, xs[0], out, rounding, stream)
        return out

    def stock(source: torch.Tensor) -> torch.Tensor:
        return torch.ones(rows, inner).index_add(0, index, source)

    exact, inexact = _integers(generator, 60, inner), _reals(generator, 60, inner)
    return Case("accumulate", "additions", run, stock, (exact,), (inexact,))
