"""Strides of results, as stock torch chooses them: its meta kernels are asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from fuzzytorch.ops.call import Call

_KEPT: Final = 2**12
_layouts: dict[Any, tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]] = {}
"""Shapes and strides of results by call: some meta kernels take longer than the row."""


def laid_out(
    call: Call, results: Sequence[torch.Tensor], *args: Any, **kwargs: Any
) -> tuple[torch.Tensor, ...]:
    """Copies of the results of a call with the shapes and strides of stock torch.

    Args:
        results: contiguous or not, with as many elements as stock torch returns.
        args, kwargs: those of the call.
    """
    key = (call.overload, *map(_key, args), *((n, _key(x)) for n, x in kwargs.items()))
    layouts = _layouts.get(key)
    if layouts is None:
        meta = call.overload(*map(_meta, args), **{n: _meta(x) for n, x in kwargs.items()})
        metas = meta if isinstance(meta, (list, tuple)) else (meta,)
        if len(_layouts) >= _KEPT:
            _layouts.clear()
        layouts = _layouts[key] = tuple((tuple(y.shape), y.stride()) for y in metas)
    copies = []
    for y, (shape, strides) in zip(results, layouts, strict=True):
        out = torch.empty_strided(shape, strides, dtype=y.dtype, device=y.device)
        copies.append(out.copy_(y.reshape(shape)))
    return tuple(copies)


def _key(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return (x.shape, x.stride(), x.dtype)
    return tuple(x) if isinstance(x, list) else x


def _meta(x: Any) -> Any:
    if not isinstance(x, torch.Tensor):
        return x
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
