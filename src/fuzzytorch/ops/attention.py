"""Attention: the fused kernel of the processor and its gradient, and the parts of its fast paths.

The order is that of the fused kernel of stock torch, except that a query meets all keys at
once, where stock takes them in blocks and rescales what it has when the maximum grows.
"""

from __future__ import annotations

import math
from typing import Any, Final

import torch

from fuzzytorch.ops.call import Call
from fuzzytorch.ops.formula import Formula, exp, fma
from fuzzytorch.ops.layout import laid_out
from fuzzytorch.ops.pointwise import ADD, DIV, FMA, LOG, MUL
from fuzzytorch.ops.softmax import EXP_OF_DIFFERENCE, softmax, softmax_backward
from fuzzytorch.table import Row, Verdict

LARGEST: Final = 2**22
"""Elements of the matrix of scores that are kept at a time; more queries are taken in parts."""

MASKED_SCORE = Formula(lambda product, mask, scale: fma(product, scale, mask))
BIASED_RESCALED = Formula(lambda x, bias, scale: (x + bias) * scale)
WEIGHT = Formula(lambda product, scale, log: exp(product * scale - log))
MASKED_WEIGHT = Formula(lambda product, mask, scale, log: exp(product * scale + mask - log))
SCORE_GRADIENT = Formula(lambda weight, grad, total: weight * (grad - total))


def _flat(x: torch.Tensor, heads: int) -> torch.Tensor:
    """``(batch * heads, length, width)``; each head of ``x`` serves a group of the heads."""
    group = heads // x.shape[1] if x.shape[1] else 1
    if group > 1:
        x = x.repeat_interleave(group, 1)
    return x.reshape(-1, *x.shape[2:])


def _parts(heads: int, queries: int, keys: int) -> list[slice]:
    """Ranges of queries whose scores fit into memory together."""
    size = max(1, LARGEST // max(1, heads * keys))
    return [slice(i, min(i + size, queries)) for i in range(0, queries, size)]


def _mask(
    mask: torch.Tensor | None, shape: tuple[int, int, int, int], part: slice
) -> torch.Tensor | None:
    """The rows of a mask that belong to a part, for every head: ``(batch * heads, rows, keys)``."""
    if mask is None:
        return None
    return mask.expand(shape)[:, :, part].reshape(shape[0] * shape[1], -1, shape[3])


def _future(part: slice, keys: int) -> torch.Tensor:
    """Which keys lie after each query of a part."""
    return torch.arange(keys) > torch.arange(part.start, part.stop)[:, None]


def flash_attention(
    call: Call,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, ...]:
    """Attention and the logarithm of the sum of every row of weights."""
    options = {"attn_mask": attn_mask, "scale": scale}
    if dropout_p != 0 or 0 in (*query.shape, *key.shape, *value.shape):
        # Stock torch refuses the one and computes nothing in the other.
        return call.overload(query, key, value, dropout_p, is_causal, **options)
    batch, heads, queries, width = query.shape
    keys = key.shape[2]
    scale = 1.0 / math.sqrt(width) if scale is None else scale
    q, k, v = (_flat(x, heads) for x in (query, key, value))
    contexts, logarithms = [], []
    for part in _parts(q.shape[0], queries, keys):
        mask = _mask(attn_mask, (batch, heads, queries, keys), part)
        scores = call.gemm(q[:, part], k.mT)
        if mask is None:
            scores = MUL(call, scores, scale, out=scores)
        else:
            scores = MASKED_SCORE(call, scores, mask, scale, out=scores)
        if is_causal:
            scores.masked_fill_(_future(part, keys), -math.inf)
        # A query that may look at no key gets zeros, as in stock torch.
        largest = scores.amax(-1, keepdim=True)
        largest.masked_fill_(largest == -math.inf, 0.0)
        powers = EXP_OF_DIFFERENCE(call, scores, largest, out=scores)
        total = call.reduce("sum", powers, [-1], keepdim=True)
        total.masked_fill_(total == 0, 1.0)
        inverse = DIV(call, 1.0, total)
        contexts.append(MUL(call, call.gemm(powers, v), inverse))
        logarithms.append(ADD(call, largest, LOG(call, total)))
    results = (torch.cat(contexts, 1), torch.cat(logarithms, 1))
    return laid_out(call, results, query, key, value, dropout_p, is_causal, **options)


def flash_attention_backward(
    call: Call,
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, ...]:
    """Gradients of query, key and value; the weights are computed again from the logarithms."""
    args = (grad, query, key, value, out, logsumexp, dropout_p, is_causal)
    options = {"attn_mask": attn_mask, "scale": scale}
    if dropout_p != 0 or 0 in (*query.shape, *key.shape, *value.shape):
        # Stock torch refuses the one and computes nothing in the other.
        return call.overload(*args, **options)
    batch, heads, queries, width = query.shape
    own, keys = key.shape[1], key.shape[2]
    scale = 1.0 / math.sqrt(width) if scale is None else scale
    q, k, v, g, y = (_flat(x, heads) for x in (query, key, value, grad, out))
    log = logsumexp.reshape(-1, queries, 1)
    totals = call.reduce("dot", g, [-1], keepdim=True, y=y)
    grad_q, grad_k, grad_v = [], None, None
    for part in _parts(q.shape[0], queries, keys):
        mask = _mask(attn_mask, (batch, heads, queries, keys), part)
        scores = call.gemm(q[:, part], k.mT)
        if mask is None:
            weights = WEIGHT(call, scores, scale, log[:, part], out=scores)
        else:
            weights = MASKED_WEIGHT(call, scores, mask, scale, log[:, part], out=scores)
        if is_causal:
            weights.masked_fill_(_future(part, keys), 0.0)
        slopes = SCORE_GRADIENT(call, weights, call.gemm(g[:, part], v.mT), totals[:, part])
        grad_q.append(MUL(call, call.gemm(slopes, k), scale))
        # The queries of all heads that share a key are one chain.
        slopes, weights, q_part, g_part = (
            x.reshape(batch * own, -1, x.shape[-1])
            for x in (slopes, weights, q[:, part], g[:, part])
        )
        product, values = call.gemm(slopes.mT, q_part), call.gemm(weights.mT, g_part)
        if grad_k is None or grad_v is None:
            grad_k, grad_v = MUL(call, product, scale, out=product), values
        else:
            grad_k = FMA(call, product, scale, grad_k, out=grad_k)
            grad_v = ADD(call, grad_v, values, out=grad_v)
    assert grad_k is not None and grad_v is not None
    return laid_out(call, (torch.cat(grad_q, 1), grad_k, grad_v), *args, **options)


def _spread(mask: torch.Tensor, x: torch.Tensor, mask_type: int | None) -> torch.Tensor:
    """A mask in the shape of the scores: 0 for one of positions, 1 for one of keys, 2 for all."""
    if mask_type == 1 and mask.dim() == 2:
        mask = mask.view(mask.shape[0], 1, 1, mask.shape[1])
    return mask.expand(x.shape)


def masked_softmax(
    call: Call,
    x: torch.Tensor,
    mask: torch.Tensor,
    dim: int | None = None,
    mask_type: int | None = None,
) -> torch.Tensor:
    """Softmax in which the elements under the mask have no weight."""
    scores = x.masked_fill(_spread(mask, x, mask_type), -math.inf)
    return softmax(call, scores, -1 if dim is None else dim, False)


def masked_softmax_backward(
    call: Call,
    grad: torch.Tensor,
    y: torch.Tensor,
    mask: torch.Tensor,
    dim: int | None = None,
) -> torch.Tensor:
    dim = y.dim() - 1 if dim is None else dim
    masked = mask.expand(y.shape)
    grad, y = grad.masked_fill(masked, 0.0), y.masked_fill(masked, 0.0)
    return softmax_backward(call, grad, y, dim, y.dtype)


def transform_bias_rescale_qkv(
    call: Call, qkv: torch.Tensor, bias: torch.Tensor, num_heads: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values of every head, with bias; queries divided by the root of width."""
    batch, length, triple = qkv.shape
    width = triple // (3 * num_heads)
    parts = qkv.view(batch, length, 3, num_heads, width).permute(2, 0, 3, 1, 4).contiguous()
    biases = bias.view(3, 1, num_heads, 1, width)
    q = BIASED_RESCALED(call, parts[0], biases[0], 1.0 / math.sqrt(width) if width else 1.0)
    return q, ADD(call, parts[1], biases[1]), ADD(call, parts[2], biases[2])


def _row(name: str, function: Any, why: str) -> Row:
    return Row(f"aten.{name}.default", Verdict.ROUNDED, function, why)


ROWS: tuple[Row, ...] = (
    _row(
        "_scaled_dot_product_flash_attention_for_cpu",
        flash_attention,
        "products with the keys, scale and mask, exponential of the difference to the maximum, "
        "sum, products with the values, product with its reciprocal, logarithm; all keys at once "
        "(stock torch: blocks of keys, rescaled)",
    ),
    _row(
        "_scaled_dot_product_flash_attention_for_cpu_backward",
        flash_attention_backward,
        "the weights again, the sums of grad * output, four products, differences and scale; all "
        "keys at once (stock torch: blocks of keys)",
    ),
    _row(
        "_masked_softmax",
        masked_softmax,
        "difference to the maximum, exponential (once, from binary64), sum, division",
    ),
    _row(
        "_masked_softmax_backward",
        masked_softmax_backward,
        "every fused multiply-add of the sum, the difference, the product",
    ),
    _row(
        "_transform_bias_rescale_qkv",
        transform_bias_rescale_qkv,
        "the sums with the bias, the product of queries with 1/sqrt(width)",
    ),
)
