"""Rows for complex operands of what is linear with real coefficients: each part on its own.

Real and imaginary part run the row that real operands have: sums, additions into places
named by an index, gradients of windows and padding.  What torch decomposes into operations
that have complex rows is lowered as for real operands.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import torch

from fuzzytorch.ops import activation_backward, folding, indexing, linear_algebra, reduction
from fuzzytorch.ops.activation_backward import native_dropout_backward
from fuzzytorch.ops.call import Call
from fuzzytorch.ops.complex import complex_row, mul, parts
from fuzzytorch.ops.dtypes import is_inexact
from fuzzytorch.ops.lowered import lowered_row
from fuzzytorch.table import Row, Verdict


def by_parts(
    call: Call, *operands: Any, function: Callable[..., torch.Tensor], **options: Any
) -> torch.Tensor:
    """The function of a real row on both parts of its inexact operands.

    The first operand holds numbers also where these are integers, which ``dtype=`` converts.
    """
    data = [
        isinstance(x, torch.Tensor) and (i == 0 or is_inexact(x)) for i, x in enumerate(operands)
    ]
    # Dense copies: rows give the result the strides of their operands.
    split = [
        tuple(part.clone() for part in parts(call, x)) if d else (x, x)
        for x, d in zip(operands, data, strict=True)
    ]
    real, imaginary = (function(call, *part, **options) for part in zip(*split, strict=True))
    return torch.complex(real, imaginary)


def index_add(
    call: Call,
    self: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    source: torch.Tensor,
    *,
    alpha: Any = 1,
) -> torch.Tensor:
    """Adds slices; their product by ``alpha``, which may be complex, comes first."""
    source = source if alpha == 1 else mul(call, source, alpha)
    return by_parts(call, self, dim, index, source, function=indexing.index_add)


def reduced_into(
    call: Call, *operands: Any, function: Callable[..., torch.Tensor], **options: Any
) -> torch.Tensor:
    """Sums and means of both parts, or products of complex numbers, in places by an index."""
    self, dim, index, source, *reduce = operands
    if not isinstance(source, torch.Tensor):
        source = torch.full(index.shape, source, dtype=call.dtype.to_complex())
    operands = (self, dim, index, source, *reduce)
    if options.get("reduce", *reduce) in ("multiply", "prod"):
        return function(call, *operands, product=mul, **options)
    return by_parts(call, *operands, function=function, **options)


def native_dropout(
    call: Call, input: torch.Tensor, p: float, train: bool | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """``input * mask * (1 / (1 - p))`` with the mask that stock torch draws."""
    _, mask = torch.ops.aten.native_dropout.default(input, p, train)
    if train is False:
        return input.clone(), mask
    scale = 0.0 if p == 1.0 else 1.0 / (1.0 - p)
    return by_parts(call, input, mask, scale, function=native_dropout_backward), mask


def decomposed(call: Call, *args: Any, **kwargs: Any) -> Any:
    """The decomposition that real operands have."""
    row = lowered_row(call.overload)
    assert row is not None and row.function is not None
    return row.function(call, *args, **kwargs)


LINEAR: Final = """
    sum.default sum.dim_IntList mean.default mean.dim cumsum.default trace.default
    scatter_add.default index_put.default _index_put_impl.default _unsafe_index_put.default
    put.default embedding_dense_backward.default unfold_backward.default col2im.default
    reflection_pad1d_backward.default reflection_pad2d_backward.default
    reflection_pad3d_backward.default replication_pad1d_backward.default
    replication_pad2d_backward.default replication_pad3d_backward.default
    native_dropout_backward.default
"""
"""Operations whose real row runs on both parts."""

REDUCED: Final = "scatter.reduce scatter.value_reduce scatter_reduce.two index_reduce.default"
"""Operations that add or multiply, as they are told."""

DECOMPOSED: Final = "_chunk_cat.default _unsafe_masked_index_put_accumulate.default"
"""Operations whose decomposition serves complex operands."""

_FAMILIES: Final = (activation_backward, folding, indexing, linear_algebra, reduction)
_REAL: Final = {row.name: row for family in _FAMILIES for row in family.ROWS}


def _on_parts(name: str, function: Callable[..., Any]) -> Row:
    row = _REAL[f"aten.{name}"]
    run = functools.partial(function, function=row.function)
    return complex_row(name, run, f"each part: {row.why}")


ROWS: tuple[Row, ...] = (
    *(_on_parts(name, by_parts) for name in LINEAR.split()),
    *(_on_parts(name, reduced_into) for name in REDUCED.split()),
    complex_row("index_add.default", index_add, "each part: every addition; the product by alpha"),
    complex_row("native_dropout.default", native_dropout, "both products of each part"),
    *(
        Row(
            f"aten.{name}",
            Verdict.LOWERED,
            decomposed,
            "complex: torch has a decomposition into other operations",
            operands="complex",
        )
        for name in DECOMPOSED.split()
    ),
)
