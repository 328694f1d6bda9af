"""Conversions between dtypes: a narrower floating-point dtype costs one rounding."""

from __future__ import annotations

from typing import Any

import torch

from fuzzytorch.ops.call import Call
from fuzzytorch.ops.dtypes import NARROW, store
from fuzzytorch.table import Row, Verdict

_EXACT_INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint16)


def _converted(call: Call, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``x`` as ``dtype``, rounded under the mode where stock torch may round."""
    if dtype == torch.complex64 and x.dtype in (torch.float64, torch.complex128):
        return store(call, x.to(torch.complex128), dtype)
    if not dtype.is_floating_point or dtype == torch.float64 or x.dtype == dtype:
        return x.to(dtype)
    if dtype != torch.float32 and dtype not in NARROW:
        return x.to(dtype)
    if x.is_floating_point():
        return store(call, x, dtype)
    if x.dtype.is_complex or _holds_exactly(x, dtype):
        return x.to(dtype)
    return store(call, x.to(torch.float64), dtype)


def _holds_exactly(x: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether every integer of ``x`` is a number of ``dtype``: up to 2 to its precision."""
    if x.numel() == 0:
        return True
    largest = {torch.float32: 2**24, torch.float16: 2**11, torch.bfloat16: 2**8}[dtype]
    if dtype == torch.float32 and x.dtype in _EXACT_INTEGERS:
        return True
    # Unsigned integers of more than 8 bits have few kernels.
    ordered = x if x.dtype.is_signed or x.dtype.itemsize == 1 else x.to(torch.float64)
    low, high = (int(v) for v in torch.aminmax(ordered))
    return -largest <= low and high <= largest


def to_copy(
    call: Call,
    x: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    **kwargs: Any,
) -> torch.Tensor:
    """``aten._to_copy``."""
    if dtype is None or dtype == x.dtype:
        return torch.ops.aten._to_copy(x, dtype=dtype, **kwargs)
    values = _converted(call, x, dtype)
    if all(v is None or v is torch.preserve_format for v in kwargs.values()):
        return values
    return torch.ops.aten._to_copy(values, dtype=dtype, **kwargs)


def copy_(call: Call, x: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> Any:
    """``aten.copy_``."""
    if source.dtype == x.dtype:
        return x.copy_(source, non_blocking)
    return x.copy_(_converted(call, source, x.dtype), non_blocking)


def copy(call: Call, x: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> Any:
    """``aten.copy``."""
    return torch.ops.aten.copy(x, _converted(call, source, x.dtype), non_blocking)


_WHY = "one rounding per element into a narrower floating-point dtype; widening is exact"

ROWS = (
    Row("aten._to_copy.default", Verdict.ROUNDED, to_copy, _WHY, any_dtype=True),
    Row("aten.copy_.default", Verdict.ROUNDED, copy_, _WHY, any_dtype=True),
    Row("aten.copy.default", Verdict.ROUNDED, copy, _WHY, any_dtype=True),
)
