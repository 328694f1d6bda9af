"""Conversions between dtypes: a narrower floating-point dtype costs one rounding."""

from __future__ import annotations

from typing import Any, Final

import torch

from fuzzytorch.ops.call import Call
from fuzzytorch.ops.dtypes import NARROW, WORKING
from fuzzytorch.ops.pointwise import ADD
from fuzzytorch.ops.storing import store
from fuzzytorch.table import Row, Verdict

_LARGEST: Final = {
    torch.float64: 2**53,
    torch.float32: 2**24,
    torch.float16: 2**11,
    torch.bfloat16: 2**8,
}
"""Up to this magnitude a dtype holds every integer."""

_EXACT_INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint16)


def _converted(call: Call, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``x`` as ``dtype``, rounded under the mode where stock torch may round."""
    if dtype == torch.complex64 and x.dtype in (torch.float64, torch.complex128):
        return store(call, x.to(torch.complex128), dtype)
    if x.dtype == dtype or (dtype not in WORKING and dtype not in NARROW):
        return x.to(dtype)
    if x.is_floating_point():
        return store(call, x, dtype)
    if x.dtype.is_complex or _holds_exactly(x, dtype):
        return x.to(dtype)
    if dtype == torch.float64:
        inner = call.inner(dtype, call.run_rounding)
        # Two halves of 32 bits, whose sum alone is inexact.
        y = ADD(inner, (x >> 32).to(dtype) * 2.0**32, (x & 0xFFFFFFFF).to(dtype))
        call.operations += inner.operations
        return y
    return store(call, x.to(torch.float64), dtype)


def _holds_exactly(x: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether every integer of ``x`` is a number of ``dtype``: up to 2 to its precision."""
    if x.numel() == 0:
        return True
    if dtype == torch.float64 and x.dtype != torch.int64:
        return True
    if dtype == torch.float32 and x.dtype in _EXACT_INTEGERS:
        return True
    # Unsigned integers of more than 8 bits have few kernels.
    ordered = x if x.dtype.is_signed or x.dtype.itemsize == 1 else x.to(torch.float64)
    low, high = (int(v) for v in torch.aminmax(ordered))
    largest = _LARGEST[dtype]
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
