"""The fast paths of ``nn.MultiheadAttention`` and ``nn.TransformerEncoderLayer``.

Stock torch composes them of other kernels without telling the dispatcher; here they are
composed of the same operations in the same order, each with its own row.
"""

from __future__ import annotations

from typing import Any

import torch

from fuzzytorch.active import stock
from fuzzytorch.ops.admission import admit
from fuzzytorch.ops.call import Call
from fuzzytorch.ops.exact import exact_rows
from fuzzytorch.table import Row, Verdict

aten = torch.ops.aten


def _admitted(call: Call, *args: Any) -> None:
    """Lets stock torch raise what it raises for dense arguments of a new signature."""
    if not args[0].is_nested:
        with stock():
            admit(call.overload, args, {})


def _projected(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, width: int, weight: torch.Tensor
) -> torch.Tensor:
    """Queries, keys and values side by side; equal inputs share one product, as in stock torch."""
    if key is value and query is key:
        return _product(query, weight)
    if key is value:
        own, shared = weight.split([width, 2 * width])
        return torch.cat([_product(query, own), _product(key, shared)], 2)
    weights = weight.chunk(3)
    pairs = zip((query, key, value), weights, strict=True)
    return torch.cat([_product(x, w) for x, w in pairs], 2)


def _product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    y = aten.mm.default(x.reshape(-1, x.shape[-1]), weight.t())
    return y.view(*x.shape[:-1], weight.shape[0])


def _affine(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    y = aten.addmm.default(bias, x.reshape(-1, x.shape[-1]), weight.t())
    return y.view(*x.shape[:-1], weight.shape[0])


def native_multi_head_attention(
    call: Call,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Projection, scores, softmax, context, projection; tensors are ``(batch, length, width)``.

    Nested tensors are taken sequence by sequence, where stock torch pads them.
    """
    parameters = (embed_dim, num_head, qkv_weight, qkv_bias, proj_weight, proj_bias)
    flags = (need_weights, average_attn_weights, mask_type)
    _admitted(call, query, key, value, *parameters, mask, *flags)
    if query.is_nested:
        if need_weights or mask is not None or query is not key or key is not value:
            return NotImplemented
        sequences = [_self_attention(x.unsqueeze(0), *parameters) for x in query.unbind()]
        return _renested([x.squeeze(0) for x in sequences]), None
    qkv = _projected(query, key, value, embed_dim, qkv_weight)
    context, weights = _attended(qkv, qkv_bias, num_head, mask, mask_type)
    y = _affine(context, proj_weight, proj_bias)
    if not need_weights:
        return y, None
    return y, weights.sum(1).div_(num_head) if average_attn_weights else weights


def _attended(
    qkv: torch.Tensor,
    bias: torch.Tensor,
    num_head: int,
    mask: torch.Tensor | None,
    mask_type: int | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Context ``(batch, length, width)`` and weights ``(batch, heads, length, length)``."""
    q, k, v = aten._transform_bias_rescale_qkv.default(qkv, bias, num_head)
    batch, heads, length, width = q.shape
    q, k, v = (x.reshape(batch * heads, -1, width) for x in (q, k, v))
    scores = aten.bmm.default(q, k.mT).view(batch, heads, length, -1)
    if mask is None:
        weights = aten._softmax.default(scores, -1, False)
    else:
        weights = aten._masked_softmax.default(scores, mask.to(torch.bool), 3, mask_type)
    context = aten.bmm.default(weights.view(batch * heads, length, -1), v)
    context = context.view(batch, heads, length, width).transpose(1, 2)
    return context.reshape(batch, length, heads * width), weights


def _self_attention(
    x: torch.Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> torch.Tensor:
    qkv = _product(x, qkv_weight)
    context, _ = _attended(qkv, qkv_bias, num_head, mask, mask_type)
    return _affine(context, proj_weight, proj_bias)


def _renested(sequences: list[torch.Tensor]) -> torch.Tensor:
    return aten._nested_tensor_from_tensor_list.default(sequences)


def transformer_encoder_layer(
    call: Call,
    src: torch.Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor,
    norm_weight_2: torch.Tensor,
    norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor,
    ffn_bias_1: torch.Tensor,
    ffn_weight_2: torch.Tensor,
    ffn_bias_2: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> torch.Tensor:
    """Attention and the two linear layers, each with its sum and its normalization."""
    attention = (embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias)
    norm_1, norm_2 = (norm_weight_1, norm_bias_1, eps), (norm_weight_2, norm_bias_2, eps)
    ffn = (ffn_weight_1, ffn_bias_1, ffn_weight_2, ffn_bias_2)
    masks = (mask, mask_type)
    _admitted(
        call, src, *attention, use_gelu, norm_first, eps, *norm_1[:2], *norm_2[:2], *ffn, *masks
    )
    sequences = list(src.unbind()) if src.is_nested else None
    if sequences is not None and mask is not None:
        return NotImplemented
    lengths = None if sequences is None else [len(s) for s in sequences]
    x = src if sequences is None else torch.cat(sequences).unsqueeze(0)
    y = _normalized(x, *norm_1) if norm_first else x
    if lengths is None:
        y = _self_attention(y, *attention, *masks)
    else:
        # Each token belongs to its own sequence in attention alone.
        y = torch.cat([_self_attention(s, *attention) for s in y.split(lengths, 1)], 1)
    x = y.add_(x)
    if not norm_first:
        x = _normalized(x, *norm_1)
    y = _normalized(x, *norm_2) if norm_first else x
    y = _fed_forward(y, *ffn, use_gelu).add_(x)
    if not norm_first:
        y = _normalized(y, *norm_2)
    return y if lengths is None else _renested(list(y.squeeze(0).split(lengths)))


def _normalized(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> torch.Tensor:
    return aten.native_layer_norm.default(x, [x.shape[-1]], weight, bias, eps)[0]


def _fed_forward(
    x: torch.Tensor,
    weight_1: torch.Tensor,
    bias_1: torch.Tensor,
    weight_2: torch.Tensor,
    bias_2: torch.Tensor,
    use_gelu: bool,
) -> torch.Tensor:
    flat = x.reshape(-1, x.shape[-1])
    hidden = aten._addmm_activation.default(bias_1, flat, weight_1.t(), use_gelu=use_gelu)
    return _affine(hidden.view(*x.shape[:-1], -1), weight_2, bias_2)


_NESTED = """
    _nested_tensor_from_mask_left_aligned.default _nested_from_padded.default
"""

ROWS: tuple[Row, ...] = (
    *exact_rows({"sequences of unequal length side by side: elements are copied": _NESTED}),
    Row(
        "aten._native_multi_head_attention.default",
        Verdict.LOWERED,
        native_multi_head_attention,
        "projection, products with the keys, softmax, products with the values, projection, in "
        "the order of stock torch; nested sequences one by one",
        any_dtype=True,
    ),
    Row(
        "aten._transformer_encoder_layer_fwd.default",
        Verdict.LOWERED,
        transformer_encoder_layer,
        "attention, sums, normalizations and linear layers in the order of stock torch; nested "
        "sequences one by one in attention",
        any_dtype=True,
    ),
)
