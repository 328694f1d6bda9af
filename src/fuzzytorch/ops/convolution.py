"""Convolutions of one to three dimensions, transposed or not, and their gradients.

All are five-dimensional to a backend: missing dimensions are inserted as views.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from fuzzytorch.backends.protocol import Geometry
from fuzzytorch.ops.call import Call
from fuzzytorch.ops.convolution_layout import empty, formats
from fuzzytorch.ops.pointwise import ADD
from fuzzytorch.table import Row, Verdict


def _triple(values: Sequence[int], dimensions: int, missing: int) -> tuple[int, ...]:
    """The values of ``dimensions`` spatial dimensions, with ``missing`` for those before them."""
    given = tuple(values) * dimensions if len(values) == 1 else tuple(values)
    return (missing,) * (3 - dimensions) + given


def _geometry(
    dimensions: int,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Geometry:
    return Geometry(
        _triple(stride, dimensions, 1),
        _triple(padding, dimensions, 0),
        _triple(dilation, dimensions, 1),
        groups,
    )


def _volume(x: torch.Tensor) -> torch.Tensor:
    """The five-dimensional view of a batch of signals, images or volumes."""
    while x.dim() < 5:
        x = x.unsqueeze(2)
    return x


def _run(
    call: Call,
    form: str,
    x: torch.Tensor,
    other: torch.Tensor,
    out: torch.Tensor,
    geometry: Geometry,
) -> torch.Tensor:
    """One primitive into ``out``; zeros where there is nothing to accumulate."""
    if x.numel() == 0 or other.numel() == 0:
        return out.zero_()
    # Multiply-adds: every output with every weight in its reach; for the transposed
    # form every input, for the weight every position of the gradient.
    if form == "conv":
        products = out.numel() * math.prod(other.shape[1:])
    elif form == "conv_transposed":
        products = x.numel() * math.prod(other.shape[1:])
    else:
        products = out.numel() * other.shape[0] * math.prod(other.shape[2:])
    call.conv(form, _volume(x), _volume(other), _volume(out), geometry, 2 * products)
    return out


def _output_shape(
    x: torch.Tensor,
    weight: torch.Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> list[int]:
    sizes, taps = x.shape[2:], weight.shape[2:]
    axes = range(len(sizes))
    stride, padding, dilation, extra = (
        list(v) * len(sizes) if len(v) == 1 else list(v)
        for v in (stride, padding, dilation, output_padding)
    )
    reach = [dilation[i] * (taps[i] - 1) + 1 for i in axes]
    if transposed:
        spatial = [(sizes[i] - 1) * stride[i] - 2 * padding[i] + reach[i] + extra[i] for i in axes]
        return [x.shape[0], weight.shape[1] * groups, *spatial]
    spatial = [(sizes[i] + 2 * padding[i] - reach[i]) // stride[i] + 1 for i in axes]
    return [x.shape[0], weight.shape[0], *spatial]


def convolution(
    call: Call,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    *_flags: bool,
) -> torch.Tensor:
    shape = _output_shape(x, weight, stride, padding, dilation, transposed, output_padding, groups)
    asked = (stride, padding, dilation, transposed, output_padding, groups)
    chosen = formats(x, weight, bias, None, asked, shape)
    out = empty(shape, chosen.output, x)
    geometry = _geometry(x.dim() - 2, stride, padding, dilation, groups)
    _run(call, "conv_transposed" if transposed else "conv", x, weight, out, geometry)
    if bias is not None:
        ADD(call, out, bias.view(-1, *[1] * (x.dim() - 2)), out=out)
    return out


def convolution_backward(
    call: Call,
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[torch.Tensor | None, ...]:
    geometry = _geometry(x.dim() - 2, stride, padding, dilation, groups)
    asked = (stride, padding, dilation, transposed, output_padding, groups)
    chosen = formats(x, weight, None, bias_sizes, asked, grad.shape)
    grad_x = grad_weight = grad_bias = None
    if output_mask[0]:
        form = "conv" if transposed else "conv_transposed"
        grad_x = _run(call, form, grad, weight, empty(x.shape, chosen.x, x), geometry)
    if output_mask[1]:
        # The transposed convolution is the gradient of a convolution of its output,
        # so the two tensors change places.
        wide, narrow = (grad, x) if transposed else (x, grad)
        out = empty(weight.shape, chosen.weight, x)
        grad_weight = _run(call, "conv_weight", wide, narrow, out, geometry)
    if output_mask[2]:
        grad_bias = call.reduce("sum", grad, [0, *range(2, grad.dim())])
    return grad_x, grad_weight, grad_bias


def conv_tbc(
    call: Call, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, pad: int = 0
) -> torch.Tensor:
    signal, kernel = x.permute(1, 2, 0), weight.permute(2, 1, 0)
    y = convolution(call, signal, kernel, bias, [1], [pad], [1], False, [0], 1)
    return y.permute(2, 0, 1).contiguous()


def _row(name: str, function: Any, why: str) -> Row:
    return Row(f"aten.{name}", Verdict.ROUNDED, function, why)


_FORWARD = "every fused multiply-add, then the addition of the bias"

ROWS: tuple[Row, ...] = (
    _row("convolution.default", convolution, _FORWARD),
    _row("_convolution.default", convolution, _FORWARD),
    _row("conv_tbc.default", conv_tbc, _FORWARD),
    _row(
        "convolution_backward.default",
        convolution_backward,
        "every fused multiply-add of both gradients, every addition of the gradient of the bias",
    ),
)
