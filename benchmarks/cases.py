"""What is measured, and how slow each mode may be at it."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from timing import Call

import fuzzytorch as ft

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
from mnist_model import Net


class Bound(NamedTuple):
    """The most that each mode should take."""

    sr: float
    ud: float
    cestac: float
    rn: float


MODES = Bound._fields
TIMES, MICROSECONDS = "times stock torch", "microseconds"

SPEEDUP = 1.8
"""What two threads should gain over one."""

MEMORY = 1.3
"""The most peak memory of an inference, as a multiple of that of stock torch."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A row of the table.

    Attributes:
        name: says the operation or model and its size.
        build: allocates the operands and returns the call to measure.
        bound: of what the modes take, in ``unit``.
        unit: ``TIMES``, or ``MICROSECONDS`` where the work itself takes none to speak of.
        scaling: whether two threads are compared with one.
        needs: a package beside torch.
    """

    name: str
    build: Callable[[], Call]
    bound: Bound
    unit: str = TIMES
    scaling: bool = False
    needs: str | None = None


def _pure(
    function: Callable[..., Any], *shapes: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> Callable[[], Call]:
    def build() -> Call:
        tensors = [torch.randn(shape, dtype=dtype) for shape in shapes]
        return lambda: function(*tensors)

    return build


def _conv(size: int) -> Callable[[], Call]:
    def build() -> Call:
        x = torch.randn(1, 64, 64, 64, requires_grad=True)
        w = torch.randn(64, 64, size, size, requires_grad=True)
        with torch.no_grad():
            gradient = torch.randn_like(F.conv2d(x, w, padding=size // 2))

        def call() -> None:
            y = F.conv2d(x, w, padding=size // 2)
            torch.autograd.grad(y, (x, w), gradient)

        return call

    return build


def _without_gradients(net: torch.nn.Module, x: torch.Tensor) -> Call:
    def call() -> Any:
        with torch.no_grad():
            return net(x)

    return call


def inference(batch: int) -> Call:
    """An inference of the MNIST net."""
    return _without_gradients(Net().eval(), torch.randn(batch, 1, 28, 28))


def sampling(n: int) -> Call:
    """An ensemble of ``n`` inferences of the MNIST net, batch 64, without one of stock torch."""
    call = inference(64)
    return lambda: ft.sample(call, n=n, mode="sr", seed=0, reference=False)


def _training_step() -> Call:
    net, x, target = Net(), torch.randn(64, 1, 28, 28), torch.randint(10, (64,))
    optimizer = torch.optim.Adadelta(net.parameters(), lr=1.0)

    def call() -> None:
        optimizer.zero_grad()
        F.nll_loss(net(x), target).backward()
        optimizer.step()

    return call


WAVLM_BASE: dict[str, Any] = {}
WAVLM_LARGE: dict[str, Any] = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "feat_extract_norm": "layer",
    "do_stable_layer_norm": True,
}


def wavlm(configuration: dict[str, Any]) -> torch.nn.Module:
    """The speech model with random weights, ready for inference; nothing is downloaded."""
    import transformers

    return transformers.WavLMModel(transformers.WavLMConfig(**configuration)).eval()


def speech(configuration: dict[str, Any]) -> Call:
    """An inference of WavLM on a second of sound."""
    return _without_gradients(wavlm(configuration), torch.randn(1, 16_000))


MILLION = (1000, 1000)
SQUARE = ((1024, 1024), (1024, 1024))
_CONVOLUTION = Bound(9, 4.5, 4.5, 1.8)
_ARITHMETIC = Bound(3, 3, 3, 2)
_FUNCTION = Bound(4, 4, 4, 3)
_NETWORK = Bound(6, 4, 4, 2.5)
_SPEECH = Bound(9, 5, 5, 2.5)
_CALL = Bound(20, 20, 20, 20)
_base = functools.partial(speech, WAVLM_BASE)
_large = functools.partial(speech, WAVLM_LARGE)

CASES = (
    Case("mm 1024^3 float32", _pure(torch.mm, *SQUARE), Bound(9, 4.5, 4.5, 1.6), scaling=True),
    Case("conv2d 3x3 64->64, 64x64, fwd+bwd", _conv(3), _CONVOLUTION, scaling=True),
    Case("conv2d 5x5 64->64, 64x64, fwd+bwd", _conv(5), _CONVOLUTION, scaling=True),
    Case(
        "mm 1024^3 float64",
        _pure(torch.mm, *SQUARE, dtype=torch.float64),
        Bound(16, 4.5, 5, 1.6),
        scaling=True,
    ),
    Case("add 10^6", _pure(torch.add, MILLION, MILLION), _ARITHMETIC),
    Case("mul 10^6", _pure(torch.mul, MILLION, MILLION), _ARITHMETIC),
    Case("addcmul 10^6", _pure(torch.addcmul, MILLION, MILLION, MILLION), _ARITHMETIC),
    Case("exp 10^6", _pure(torch.exp, MILLION), _FUNCTION),
    Case("tanh 10^6", _pure(torch.tanh, MILLION), _FUNCTION),
    Case("gelu 10^6", _pure(F.gelu, MILLION), _FUNCTION),
    Case("sigmoid 10^6", _pure(torch.sigmoid, MILLION), _FUNCTION),
    Case("softmax 1000x1000", _pure(lambda x: x.softmax(-1), MILLION), _FUNCTION),
    Case("layer_norm 1000x1000", _pure(lambda x: F.layer_norm(x, (1000,)), MILLION), _FUNCTION),
    Case("sum 10^6", _pure(torch.sum, MILLION), _FUNCTION),
    Case("MNIST net, inference, batch 64", functools.partial(inference, 64), _NETWORK),
    Case("MNIST net, training step, batch 64", _training_step, _NETWORK),
    Case("WavLM base (94M), inference, 1 s", _base, _SPEECH, needs="transformers"),
    Case("WavLM large (315M), inference, 1 s", _large, _SPEECH, needs="transformers"),
    Case("call: add of 4", _pure(torch.add, (4,), (4,)), _CALL, MICROSECONDS),
    Case("call: sum of 4", _pure(torch.sum, (4,)), _CALL, MICROSECONDS),
    Case("call: mm 2x2", _pure(torch.mm, (2, 2), (2, 2)), _CALL, MICROSECONDS),
    Case("call: view, exact", _pure(lambda x: x.view(2, 2), (4,)), _CALL, MICROSECONDS),
)


@dataclasses.dataclass(frozen=True)
class Work:
    """A call whose peak memory is measured, with the attributes of a :class:`Case`."""

    name: str
    build: Callable[[], Call]
    needs: str | None = None


BATCHES = (64, 128, 256, 512)
SAMPLES = (2, 4, 8)
INFERENCES = tuple(
    Work(f"MNIST net, inference, batch {n}", functools.partial(inference, n)) for n in BATCHES
)
ENSEMBLES = tuple(
    Work(f"ft.sample of MNIST inference, n = {n}", functools.partial(sampling, n)) for n in SAMPLES
)
LARGEST = (
    INFERENCES[BATCHES.index(256)],
    Work("WavLM base (94M), inference, 1 s", _base, "transformers"),
)
"""Work whose memory in every mode is compared with stock torch's."""


def present(work: Case | Work) -> bool:
    """Whether the package that it needs is installed."""
    return work.needs is None or importlib.util.find_spec(work.needs) is not None


def chosen(cases: Iterable[Case], only: str) -> list[Case]:
    """The cases whose name contains one of the words, separated by commas; all without words."""
    words = [word for word in only.split(",") if word]
    return [c for c in cases if not words or any(word in c.name for word in words)]
