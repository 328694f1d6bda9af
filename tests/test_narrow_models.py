"""Laws of recurrent layers in every dtype, and of networks under autocast."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import pytest
import torch
from accumulation_laws import BACKEND
from test_real_models import weakly_covered
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import fuzzytorch as ft
from fuzzytorch.ops.recurrent import LSTM

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
NARROW = (torch.bfloat16, torch.float16)

LAYERS = {
    "LSTM": nn.LSTM,
    "LSTM with projections": functools.partial(nn.LSTM, proj_size=2),
    "GRU": nn.GRU,
    "tanh": functools.partial(nn.RNN, nonlinearity="tanh"),
    "relu": functools.partial(nn.RNN, nonlinearity="relu"),
}

SHAPES: tuple[dict[str, Any], ...] = (
    {"batch_first": True},
    {"bias": False, "bidirectional": True},
    {"num_layers": 2, "bidirectional": True, "dropout": 0.25},
)

FORMS = ("batch", "single", "packed")

STATES = {
    "training": torch.enable_grad,
    "evaluation": torch.no_grad,
    "inference": torch.inference_mode,
}


def calls(layer, dtype):
    """What a recurrent layer can be asked for: names and functions."""
    for options, form in itertools.product(SHAPES, FORMS):
        torch.manual_seed(0)
        net = LAYERS[layer](5, 4, **options).to(dtype)
        x = torch.randn(3, 3, 5).to(dtype)
        if form == "single":
            x = x[0]
        elif form == "packed":
            first = options.get("batch_first", False)
            x = nn.utils.rnn.pack_padded_sequence(x, [3, 2, 1], batch_first=first)
        for state in STATES if options is SHAPES[-1] else ("training",):
            yield (options, form, state), functools.partial(recurrent, net, x, state)


def recurrent(net, x, state):
    """Output and last states of a layer, then the gradients of its parameters if there are any."""
    torch.manual_seed(2)
    net.train(state == "training").zero_grad()
    with STATES[state]():
        output, last = net(x)
        output = output.data if isinstance(output, nn.utils.rnn.PackedSequence) else output
        results = [output, *(last if isinstance(last, tuple) else (last,))]
        if output.requires_grad:
            sum(y.square().sum() for y in results).backward()
    return [y.detach() for y in results] + [p.grad for p in net.parameters() if p.grad is not None]


NEAREST = {torch.float32: 16, torch.float64: 16, torch.bfloat16: 2, torch.float16: 2}
"""How far nearest rounding may be from stock torch, in units of the epsilon of a dtype.

Sums in another order, and in 16 bits a last store that meets a tie now and then.
"""


def distance(a, b, dtype=None):
    """The distances of tensors, relative to ``b``, in units of the epsilon of a dtype or of b's."""
    for x, y in zip(a, b, strict=True):
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        off = (x.double() - y.double()).norm()
        yield float(off / (y.double().norm() + 1e-30) / torch.finfo(dtype or y.dtype).eps)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layer", LAYERS)
def test_a_recurrent_layer_is_rounded_throughout_in_every_dtype(layer, dtype) -> None:
    for name, call in calls(layer, dtype):
        stock = call()
        with ft.fuzzy("rn", seed=0, backend=BACKEND, strict=True) as mode:
            nearest = call()
        assert not weakly_covered(mode.coverage), name
        assert max(distance(nearest, stock)) <= NEAREST[dtype], name
        with ft.fuzzy("sr", seed=0, backend=BACKEND, strict=True) as mode:
            drawn = call()
        assert not weakly_covered(mode.coverage), name
        # Roundings are a random walk.
        assert max(distance(drawn, stock)) <= math.sqrt(mode.coverage.operations), name
        assert not torch.equal(drawn[0], nearest[0]), name


class Layers(TorchDispatchMode):
    """Notes mode and batch sizes of the layers that oneDNN runs."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, list[int]]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.mkldnn_rnn_layer.default:
            self.seen.append((args[9], args[8]))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("layer", LAYERS)
def test_torch_asks_onednn_for_nothing_but_lstms_of_whole_batches(layer) -> None:
    with Layers() as layers:
        for dtype in DTYPES:
            for _, call in calls(layer, dtype):
                call()
    assert all(seen == (LSTM, []) for seen in layers.seen)
    assert bool(layers.seen) == (layer == "LSTM")


class Images(nn.Sequential):
    """Convolution, normalization, pooling, a class."""

    def __init__(self) -> None:
        super().__init__(
            *(
                nn.Conv2d(3, 8, 3, padding=1, bias=False),
                nn.BatchNorm2d(8),
                nn.SiLU(),
                nn.AvgPool2d(2),
            ),
            *(nn.Conv2d(8, 8, 3), nn.GroupNorm(2, 8), nn.GELU(), nn.AdaptiveAvgPool2d(2)),
            *(nn.Flatten(), nn.Linear(32, 5)),
        )


class Words(nn.Sequential):
    """Embedding, two layers of a transformer, a class for every word."""

    def __init__(self) -> None:
        # Not ReLU, whose slope jumps where noise changes a sign.
        layer = nn.TransformerEncoderLayer(16, 2, 32, 0.1, "gelu", batch_first=True)
        encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        super().__init__(nn.Embedding(20, 16), encoder, nn.Linear(16, 5))


NETWORKS = {
    "CNN": lambda: (Images(), torch.randn(4, 3, 12, 12)),
    "transformer": lambda: (Words(), torch.randint(20, (4, 7))),
}
"""Networks and their inputs."""


def step(net, x, dtype, training):
    """Outputs of all modules in order, loss, and gradients, under autocast."""
    found = []
    hooks = [
        module.register_forward_hook(lambda *call: found.append(call[-1].detach()))
        for module in net.modules()
        if not list(module.children())
    ]
    torch.manual_seed(1)
    net.train(training).zero_grad()
    with torch.autocast("cpu", dtype), torch.set_grad_enabled(training):
        y = net(x).view(-1, 5)
        loss = nn.functional.cross_entropy(y, torch.arange(len(y)) % 5)
    if training:
        # Scaled as one does, so that no gradient underflows.
        (loss * 2**10).backward()
    for hook in hooks:
        hook.remove()
    return [*found, loss.detach()] + [p.grad for p in net.parameters() if p.grad is not None]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("name", NETWORKS)
def test_autocast_is_rounded_throughout_in_the_dtypes_of_stock_torch(name, dtype, training) -> None:
    torch.manual_seed(0)
    net, x = NETWORKS[name]()
    stock = step(net, x, dtype, training)
    assert {y.dtype for y in stock} == {dtype, torch.float32}
    for mode in ("rn", "sr", "ud"):
        with ft.fuzzy(mode, seed=0, backend=BACKEND, strict=True) as run:
            found = step(net, x, dtype, training)
        assert not weakly_covered(run.coverage)
        bound = NEAREST[dtype] if mode == "rn" else math.sqrt(run.coverage.operations)
        assert max(distance(found, stock, dtype)) <= bound
        assert mode == "rn" or not torch.equal(found[-1], stock[-1])
