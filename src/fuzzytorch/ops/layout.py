"""Where stock torch puts the results of an operation: shapes, strides and dtypes."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from fuzzytorch.ops.call import Call

Layout = tuple[torch.Size, tuple[int, ...], torch.dtype]
"""Shape, strides and dtype of one result."""


def stock_layouts(overload: Any, *args: Any, **kwargs: Any) -> tuple[Layout, ...]:
    """The layouts of the results of a call, as the meta kernel of stock torch gives them.

    They are kept: some meta kernels take longer than the row.
    """
    return _layouts(
        overload, "meta", _frozen(args), tuple((n, _frozen(x)) for n, x in kwargs.items())
    )


def measured_layouts(overload: Any, *args: Any) -> tuple[Layout, ...]:
    """The layouts of the results of a call, from one of stock torch on zeros.

    For operations whose meta kernels answer for other devices.
    """
    return _layouts(overload, "cpu", _frozen(args), ())


def placed(y: torch.Tensor, layout: Layout) -> torch.Tensor:
    """A tensor of the same values in a layout; itself where it fits."""
    shape, strides, dtype = layout
    if y.shape == shape and y.stride() == strides and y.dtype == dtype:
        return y
    return torch.empty_strided(shape, strides, dtype=dtype, device=y.device).copy_(y)


def laid_out(
    call: Call, results: Sequence[torch.Tensor], *args: Any, **kwargs: Any
) -> tuple[torch.Tensor, ...]:
    """The results of a call in the shapes and strides of stock torch, their own dtypes kept.

    Args:
        results: contiguous or not, with as many elements as stock torch returns.
        args, kwargs: those of the call.
    """
    layouts = stock_layouts(call.overload, *args, **kwargs)
    return tuple(
        placed(y.reshape(shape), (shape, strides, y.dtype))
        for y, (shape, strides, _) in zip(results, layouts, strict=True)
    )


def _frozen(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return _Meta(x)
    return tuple(_frozen(y) for y in x) if isinstance(x, (list, tuple)) else x


class _Meta:
    """What is known of a tensor without its values; equal for equal layouts."""

    __slots__ = ("layout",)

    def __init__(self, x: torch.Tensor) -> None:
        self.layout = (x.shape, x.stride(), x.dtype)

    def __hash__(self) -> int:
        return hash(self.layout)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Meta) and self.layout == other.layout

    def tensor(self, device: str) -> torch.Tensor:
        shape, strides, dtype = self.layout
        return torch.empty_strided(shape, strides, dtype=dtype, device=device).zero_()


@functools.lru_cache(maxsize=4096)
def _layouts(overload: Any, device: str, args: Any, kwargs: Any) -> tuple[Layout, ...]:
    result = overload(*_thawed(args, device), **{n: _thawed(x, device) for n, x in kwargs})
    results = result if isinstance(result, (list, tuple)) else (result,)
    return tuple((y.shape, y.stride(), y.dtype) for y in results)


def _thawed(x: Any, device: str) -> Any:
    if isinstance(x, _Meta):
        return x.tensor(device)
    return tuple(_thawed(y, device) for y in x) if isinstance(x, tuple) else x
