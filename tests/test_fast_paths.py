"""Laws of the layers for which stock torch has fused kernels: they are perturbed step by step."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

import fuzzytorch as ft
from fuzzytorch.ops import attention
from fuzzytorch.table import Verdict

SAMPLES: Final = 12
"""Realisations; a value between two numbers whose rounding is a fair coin never varies in
2^-11 of all cases, and every output here is the end of hundreds of roundings."""


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


X: Final = normal(3, 7, 16)
LENGTHS: Final = [7, 5, 2]
PADDING: Final = torch.arange(7) >= torch.tensor(LENGTHS)[:, None]
CAUSAL: Final = nn.Transformer.generate_square_subsequent_mask(7)


def layer(kind: type[nn.Module], *args: Any, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    return kind(*args, **options)


def encoder_layer(**options: Any) -> nn.TransformerEncoderLayer:
    return layer(nn.TransformerEncoderLayer, 16, 4, 32, batch_first=True, **options)


def _packed(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y, _ = module(pack_padded_sequence(x, LENGTHS, batch_first=True))
    return y.data


def _cell(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = module(x[0])
    return y[0] if isinstance(y, tuple) else y


def _all_tensors(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y, (h, c) = module(x)
    return torch.cat([y.flatten(), h.flatten(), c.flatten()])


_RECURRENT: Final = {"batch_first": True, "bidirectional": True, "num_layers": 2}

LAYERS: Final[dict[str, tuple[Callable[[], nn.Module], Callable[..., torch.Tensor]]]] = {
    "attention with weights": (
        lambda: layer(nn.MultiheadAttention, 16, 4, batch_first=True),
        lambda m, x: torch.cat([y.flatten() for y in m(x, x, x)]),
    ),
    "attention without weights": (
        lambda: layer(nn.MultiheadAttention, 16, 4, batch_first=True),
        lambda m, x: m(x, x, x, need_weights=False)[0],
    ),
    "attention with padding": (
        lambda: layer(nn.MultiheadAttention, 16, 4, batch_first=True),
        lambda m, x: m(x, x, x, key_padding_mask=PADDING)[0],
    ),
    "attention with a causal mask": (
        lambda: layer(nn.MultiheadAttention, 16, 4, batch_first=True),
        lambda m, x: m(x, x, x, attn_mask=CAUSAL, need_weights=False)[0],
    ),
    "attention to another sequence": (
        lambda: layer(nn.MultiheadAttention, 16, 4, batch_first=True, dropout=0.1),
        lambda m, x: m(x[:, :4], x, x)[0],
    ),
    "encoder layer": (encoder_layer, lambda m, x: m(x)),
    "encoder layer, gelu, norm first": (
        # Where dropout leaves one sum of two numbers, twelve draws may well agree.
        lambda: encoder_layer(activation="gelu", norm_first=True, dropout=0.0),
        lambda m, x: m(x),
    ),
    "encoder layer with a mask": (encoder_layer, lambda m, x: m(x, src_mask=CAUSAL)),
    "encoder of two layers": (
        lambda: layer(nn.TransformerEncoder, encoder_layer(), 2),
        lambda m, x: m(x),
    ),
    "encoder with sequences of unequal length": (
        lambda: layer(nn.TransformerEncoder, encoder_layer(), 2),
        # The padding is zero where nested tensors are used, and arbitrary elsewhere.
        lambda m, x: m(x, src_key_padding_mask=PADDING)[~PADDING],
    ),
    "transformer": (
        lambda: layer(nn.Transformer, 16, 4, 1, 1, 32, batch_first=True),
        lambda m, x: m(x, x, tgt_mask=CAUSAL),
    ),
    "lstm": (lambda: layer(nn.LSTM, 16, 8, dropout=0.2, **_RECURRENT), _all_tensors),
    "lstm without bias": (lambda: layer(nn.LSTM, 16, 8, bias=False), _all_tensors),
    "lstm with a projection": (lambda: layer(nn.LSTM, 16, 8, proj_size=4), _all_tensors),
    "lstm of packed sequences": (lambda: layer(nn.LSTM, 16, 8, **_RECURRENT), _packed),
    "gru": (lambda: layer(nn.GRU, 16, 8, dropout=0.2, **_RECURRENT), lambda m, x: m(x)[0]),
    "gru of packed sequences": (lambda: layer(nn.GRU, 16, 8, **_RECURRENT), _packed),
    "rnn": (lambda: layer(nn.RNN, 16, 8, 2), lambda m, x: m(x)[0]),
    "rnn with relu": (
        # Positive inputs and weights, so that no output is a zero of the relu.
        lambda: _positive(layer(nn.RNN, 16, 8, 1, nonlinearity="relu")),
        lambda m, x: m(x.abs())[0],
    ),
    "lstm cell": (lambda: layer(nn.LSTMCell, 16, 8), _cell),
    "gru cell": (lambda: layer(nn.GRUCell, 16, 8), _cell),
    "bilinear": (lambda: layer(nn.Bilinear, 16, 16, 5), lambda m, x: m(x, x.flip(1))),
}


def _positive(module: nn.Module) -> nn.Module:
    for p in module.parameters():
        p.data.abs_()
    return module


CONTEXTS: Final[dict[str, tuple[bool, Callable[[], AbstractContextManager[Any]]]]] = {
    "train": (True, nullcontext),
    "eval": (False, nullcontext),
    "eval, no_grad": (False, torch.no_grad),
    "eval, inference_mode": (False, torch.inference_mode),
    "train, inference_mode": (True, torch.inference_mode),
}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Stock torch warns that nested tensors are a prototype, and LSTM with projections slow."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*nested tensors.*")
        warnings.filterwarnings("ignore", message="LSTM with projections.*")
        yield


def output(name: str, module: nn.Module, x: torch.Tensor, context: str = "train") -> torch.Tensor:
    train, entered = CONTEXTS[context]
    module.train(train)
    torch.manual_seed(1)
    with entered():
        return LAYERS[name][1](module, x)


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("name", LAYERS)
def test_every_output_element_scatters_and_every_operation_is_perturbed(
    name: str, context: str
) -> None:
    module = LAYERS[name][0]()
    with ft.fuzzy("sr", seed=0, strict=True) as mode:
        # Of an element close to a number of the format, twelve draws agree once in thousands.
        drawn = [output(name, module, X, context).detach().clone() for _ in range(4 * SAMPLES)]
    samples = torch.stack(drawn).double()
    # Dropped and masked weights are zero, and a query that sees one key weighs it with one.
    inexact = (samples[0] != 0) & (samples[0] != 1)
    assert bool((samples.std(0)[inexact] > 0).all())
    assert inexact.double().mean() > 0.7
    assert mode.coverage.share(Verdict.ROUNDED) + mode.coverage.share(Verdict.LOWERED) == 1


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("name", LAYERS)
def test_nearest_rounding_agrees_with_stock_torch_in_both_directions(
    name: str, context: str
) -> None:
    module = LAYERS[name][0]()

    def run() -> list[torch.Tensor]:
        module.zero_grad()
        x = X.clone().requires_grad_()
        y = output(name, module, x, context)
        if not y.requires_grad:
            return [y]
        (y * normal(*y.shape)).sum().backward()
        grads = [p.grad for p in module.parameters()]
        return [y, x.grad, *(torch.zeros(0) if g is None else g.clone() for g in grads)]

    stock = run()
    with ft.fuzzy("rn", seed=0):
        ours = run()
    torch.testing.assert_close(ours, stock, check_stride=True, atol=2e-5, rtol=2e-5)


def _attention(**options: Any) -> Callable[..., torch.Tensor]:
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options)


ATTENTIONS: Final = {
    "plain": _attention(),
    "causal": _attention(is_causal=True),
    "bool mask": _attention(attn_mask=normal(5, 9) > -0.5),
    "float mask": _attention(attn_mask=normal(5, 9)),
    "mask that hides everything from one query": _attention(
        attn_mask=torch.arange(5)[:, None] != torch.full((1, 9), 2)
    ),
    "scale": _attention(scale=0.7),
    "dropout": _attention(dropout_p=0.3),
}
BACKENDS: Final = {"fused": SDPBackend.FLASH_ATTENTION, "math": SDPBackend.MATH}


@pytest.mark.parametrize("heads", [4, 2], ids=["as many keys as queries", "grouped queries"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention_agrees_with_stock_torch_and_scatters(
    name: str, backend: str, heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    operands = [normal(2, 4, 5, 8), normal(2, heads, 9, 8), normal(2, heads, 9, 8) * 0.5]
    options = {"enable_gqa": True} if heads != 4 else {}
    attend = F.scaled_dot_product_attention
    if options:
        monkeypatch.setattr(
            F, "scaled_dot_product_attention", lambda *a, **k: attend(*a, **k, **options)
        )

    def run() -> list[torch.Tensor]:
        torch.manual_seed(0)
        leaves = [x.clone().requires_grad_() for x in operands]
        with sdpa_kernel([BACKENDS[backend], SDPBackend.MATH], set_priority=True):
            y = ATTENTIONS[name](*leaves)
        (y * normal(*y.shape)).sum().backward()
        return [y.detach(), *(x.grad for x in leaves)]

    stock = run()
    with ft.fuzzy("rn", seed=0):
        torch.testing.assert_close(run(), stock, check_stride=True)
    # More queries than fit are taken in parts; nothing but the order of two sums changes.
    monkeypatch.setattr(attention, "LARGEST", 2 * 4 * 9 * 2)
    with ft.fuzzy("rn", seed=0):
        torch.testing.assert_close(run(), stock, check_stride=True)
    with ft.fuzzy("sr", seed=0, strict=True) as mode:
        samples = [run() for _ in range(SAMPLES)]
    assert mode.coverage.share(Verdict.ROUNDED) == 1
    for drawn in map(torch.stack, zip(*samples, strict=True)):
        # With a causal mask the last four keys are seen by nobody, and the first query copies.
        assert (drawn.double().std(0) > 0)[drawn[0] != 0].double().mean() > 0.6


@pytest.mark.parametrize("name", ["encoder layer", "attention without weights"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_layers_keep_their_dtype_and_scatter(name: str, dtype: torch.dtype) -> None:
    module = LAYERS[name][0]().to(dtype)
    for context in ("eval", "eval, no_grad"):
        stock = output(name, module, X.to(dtype), context)
        with ft.fuzzy("sr", seed=0) as mode:
            drawn = [output(name, module, X.to(dtype), context).detach() for _ in range(SAMPLES)]
        assert mode.coverage.share(Verdict.ROUNDED) == 1
        assert drawn[0].dtype == dtype
        samples = torch.stack(drawn).double()
        assert (samples.std(0) > 0).double().mean() > 0.9
        # Ten roundings of the largest value, each of at most one unit in the last place.
        bound = 10 * torch.finfo(dtype).eps * float(stock.detach().double().abs().max())
        torch.testing.assert_close(samples.mean(0), stock.double(), atol=bound, rtol=0)


@pytest.mark.parametrize("name", ["lstm", "encoder layer", "attention without weights", "gru"])
def test_the_mean_of_many_realisations_is_the_binary64_result(name: str) -> None:
    module = LAYERS[name][0]()
    wide = copy.deepcopy(module).double()
    truth = output(name, wide, X.double(), "eval")
    with ft.fuzzy("sr", seed=0):
        drawn = [output(name, module, X, "eval, no_grad") for _ in range(64)]
    samples = torch.stack(drawn).double()
    deviation = samples.std(0)
    # The quantile 7 has a probability of 1e-9 on 63 degrees of freedom; the bias of a chain of
    # roundings is of second order, far below an ulp of the largest output.
    slack = 2.0**-24 * truth.abs().max()
    assert bool(((samples.mean(0) - truth).abs() <= 7 * deviation / 8 + slack).all())


@pytest.mark.parametrize("inside", ["forward", "backward"])
def test_the_two_directions_of_an_lstm_may_run_on_different_sides_of_a_mode(inside: str) -> None:
    module, modes = layer(nn.LSTM, 16, 8, **_RECURRENT), {"rn": 1e-5, "sr": 1e-4}

    def gradients(forward: Any, backward: Any) -> list[torch.Tensor]:
        module.zero_grad()
        with forward:
            y = module(X)[0]
        with backward:
            (y * normal(*y.shape)).sum().backward()
        return [p.grad.clone() for p in module.parameters()]

    stock = gradients(nullcontext(), nullcontext())
    for name, bound in modes.items():
        mode = ft.fuzzy(name, seed=0)
        sides = (mode, nullcontext()) if inside == "forward" else (nullcontext(), mode)
        torch.testing.assert_close(gradients(*sides), stock, atol=bound, rtol=bound)


def test_padded_and_packed_sequences_scatter_alike() -> None:
    module = layer(nn.LSTM, 16, 8, **_RECURRENT).eval()
    with ft.fuzzy("rn", seed=0):
        packed, _ = module(pack_padded_sequence(X, LENGTHS, batch_first=True))
        padded, _ = pad_packed_sequence(packed, batch_first=True)
        alone, _ = module(X[2:, :2])
    torch.testing.assert_close(padded[2:, :2], alone)


W: Final = normal(16, 7) * 0.125

TRANSFORMS: Final[dict[str, Callable[[torch.Tensor], Any]]] = {
    "vmap": torch.func.vmap(lambda x: torch.tanh(x @ W).sum(-1)),
    "grad": torch.func.grad(lambda x: torch.tanh(x @ W).sum()),
    "vmap of grad": torch.func.vmap(torch.func.grad(lambda x: torch.tanh(x @ W).sum())),
    "jvp": lambda x: torch.func.jvp(lambda y: torch.tanh(y @ W), (x,), (x.flip(0),))[1],
    "vjp": lambda x: torch.func.vjp(lambda y: torch.tanh(y @ W), x)[1](torch.ones(3, 7, 7))[0],
    "jacrev": lambda x: torch.func.jacrev(lambda y: torch.tanh(y @ W))(x[0, 0]),
    "jacfwd": lambda x: torch.func.jacfwd(lambda y: torch.tanh(y @ W))(x[0, 0]),
    "hessian": lambda x: torch.func.hessian(lambda y: torch.tanh(y @ W).sum())(x[0, 0]),
    "vmap of attention": torch.func.vmap(
        lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None])
    ),
    "functional_call": lambda x: torch.func.functional_call(
        nn.Linear(16, 16), {"weight": X[0].mT @ X[0], "bias": X[0, 0]}, (x,)
    ),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_of_functions_work_and_are_perturbed(name: str) -> None:
    stock = TRANSFORMS[name](X)
    with ft.fuzzy("rn", seed=0):
        torch.testing.assert_close(TRANSFORMS[name](X), stock)
    with ft.fuzzy("sr", seed=0, strict=True) as mode:
        samples = torch.stack([TRANSFORMS[name](X) for _ in range(SAMPLES)])
    assert (samples.double().std(0) > 0).double().mean() > 0.9
    assert mode.coverage.share(Verdict.ROUNDED) == 1


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpoints_compute_again_under_the_mode(reentrant: bool) -> None:
    module = layer(nn.Sequential, nn.Linear(16, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 4))

    def gradient() -> torch.Tensor:
        torch.manual_seed(0)
        module.zero_grad()
        x = X.clone().requires_grad_()
        checkpoint(module, x, use_reentrant=reentrant).square().sum().backward()
        return module[0].weight.grad.clone()

    stock = gradient()
    with ft.fuzzy("rn", seed=0):
        torch.testing.assert_close(gradient(), stock)
    with ft.fuzzy("sr", seed=0, strict=True) as mode:
        samples = torch.stack([gradient() for _ in range(SAMPLES)])
    assert bool((samples.double().std(0) > 0).all())
    assert mode.coverage.share(Verdict.ROUNDED) == 1
    forward = next(r for r in mode.coverage.records if r.name == "aten.addmm.default")
    # Two products of the pass and two of the pass again, the second of which may stop early.
    assert forward.calls >= 3 * SAMPLES


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_products_and_convolutions_scatter_without_gradients(context: Any) -> None:
    image, weight = normal(2, 4, 8, 8), normal(6, 4, 3, 3)
    calls = (
        lambda: F.linear(X, normal(5, 16), normal(5)),
        lambda: torch.matmul(X, normal(16, 5)),
        lambda: F.conv2d(image, weight, normal(6), padding=1),
        lambda: F.conv_transpose2d(image, weight.transpose(0, 1), normal(6)),
        lambda: torch.einsum("bij,bkj->bik", X, X),
    )
    for call in calls:
        with context(), ft.fuzzy("sr", seed=0, strict=True) as mode:
            samples = torch.stack([call() for _ in range(SAMPLES)])
        # An element of few terms, as in the corner of a transposed convolution, may lie so near
        # to a number of the format that twelve draws agree.
        assert (samples.double().std(0) > 0).double().mean() > 0.99
        assert mode.coverage.share(Verdict.ROUNDED) == 1


def _refused(call: Callable[[], Any]) -> tuple[type[Exception], str]:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        call()
    return caught.type, str(caught.value)


aten = torch.ops.aten
WEIGHTS: Final = (normal(48, 16), normal(48), normal(16, 16), normal(16))
REFUSED: Final[dict[str, Callable[[], Any]]] = {
    "attention with dropout in the kernel": lambda: (
        aten._scaled_dot_product_flash_attention_for_cpu(*[normal(1, 2, 3, 4)] * 3, 0.5)
    ),
    "attention of unequal widths": lambda: aten._scaled_dot_product_flash_attention_for_cpu(
        normal(1, 2, 3, 4), normal(1, 2, 3, 5), normal(1, 2, 3, 5)
    ),
    "heads that do not divide the width": lambda: aten._native_multi_head_attention(
        X, X, X, 16, 3, *WEIGHTS
    ),
    "an input of another width": lambda: aten._native_multi_head_attention(
        X[..., :9], X[..., :9], X[..., :9], 16, 4, *WEIGHTS
    ),
    "an index outside of the table": lambda: F.embedding_bag(torch.tensor([[1, 9]]), normal(4, 3)),
    "a grid of another batch": lambda: F.grid_sample(
        normal(2, 3, 4, 4), normal(3, 4, 4, 2), align_corners=False
    ),
    "an image without dimensions": lambda: F.interpolate(normal(4, 4), size=3, mode="linear"),
    "an lstm of another width": lambda: nn.LSTM(5, 3)(X),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_stock_torch_refuses_is_refused_in_its_words(name: str) -> None:
    stock = _refused(REFUSED[name])
    with ft.fuzzy("sr", seed=0):
        assert _refused(REFUSED[name]) == stock
