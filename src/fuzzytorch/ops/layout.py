"""Strides of results, as stock torch chooses them: its meta kernels are asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fuzzytorch.ops.call import Call


def laid_out(
    call: Call, results: Sequence[torch.Tensor], *args: Any, **kwargs: Any
) -> tuple[torch.Tensor, ...]:
    """Copies of the results of a call with the shapes and strides of stock torch.

    Args:
        results: contiguous or not, with as many elements as stock torch returns.
        args, kwargs: those of the call.
    """
    meta = call.overload(*(_meta(x) for x in args), **{n: _meta(x) for n, x in kwargs.items()})
    metas = meta if isinstance(meta, (list, tuple)) else (meta,)
    copies = []
    for y, like in zip(results, metas, strict=True):
        out = torch.empty_strided(like.shape, like.stride(), dtype=y.dtype, device=y.device)
        copies.append(out.copy_(y.reshape(like.shape)))
    return tuple(copies)


def _meta(x: Any) -> Any:
    if not isinstance(x, torch.Tensor):
        return x
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
