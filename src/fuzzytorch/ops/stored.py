"""Stored elements of sparse tensors: where they are, and arithmetic on their values.

Values are real or complex; the operations here take the primitives of either.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

from fuzzytorch.ops import complex as complex_
from fuzzytorch.ops import reduction
from fuzzytorch.ops.call import Call
from fuzzytorch.ops.complex_linear import by_parts
from fuzzytorch.ops.dtypes import NARROW, tensors
from fuzzytorch.ops.pointwise import ADD, DIV, MUL
from fuzzytorch.ops.storing import store
from fuzzytorch.table import Row, Verdict


def is_sparse(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.layout is not torch.strided


def points(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices ``(sparse dimensions, n)`` and values ``(n, ...)`` in the order of storage."""
    points = x if x.layout is torch.sparse_coo else x.to_sparse_coo()
    return points._indices(), points._values()


def positions(indices: torch.Tensor, shape: Any) -> torch.Tensor:
    """Positions in row-major order over the sparse dimensions."""
    keys = torch.zeros(indices.shape[1], dtype=torch.int64)
    for index, size in zip(indices, shape, strict=False):
        keys = keys * size + index
    return keys


def filled(pattern: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """A sparse tensor with the stored elements of another and values of its own."""
    if pattern.layout is torch.sparse_coo:
        return torch.ops.aten._sparse_coo_tensor_unsafe(
            pattern._indices(),
            values.view(pattern._values().shape),
            pattern.shape,
            is_coalesced=pattern.is_coalesced(),
        )
    columns = pattern.layout is torch.sparse_csc
    return torch.sparse_compressed_tensor(
        pattern.ccol_indices() if columns else pattern.crow_indices(),
        pattern.row_indices() if columns else pattern.col_indices(),
        values.view(pattern.values().shape),
        pattern.shape,
        layout=pattern.layout,
        check_invariants=False,
    )


class Targets:
    """The stored elements of a result that terms are added to, one after the other."""

    def __init__(self, call: Call, pattern: torch.Tensor) -> None:
        indices, values = points(pattern)
        self._call = call
        self._pattern = pattern
        self._order: torch.Tensor
        self._sorted, self._order = positions(indices, pattern.shape).sort()
        self._values = torch.zeros(values.shape[0], math.prod(values.shape[1:]), dtype=values.dtype)

    def add(self, keys: torch.Tensor, terms: torch.Tensor) -> None:
        place = self._order[torch.searchsorted(self._sorted, keys)]
        accumulate(self._call, place, terms.reshape(self._values[place].shape), self._values)

    def filled(self) -> torch.Tensor:
        return filled(self._pattern, self._values)


def _complex(*operands: Any) -> bool:
    return any(isinstance(x, torch.Tensor) and x.is_complex() for x in operands)


def product(call: Call, a: Any, b: Any) -> torch.Tensor:
    """``a * b``."""
    return complex_.mul(call, a, b) if _complex(a, b) else MUL(call, a, b)


def quotient(call: Call, a: Any, b: Any) -> torch.Tensor:
    """``a / b``."""
    return complex_.div(call, a, b) if _complex(a, b) else DIV(call, a, b)


def plus(call: Call, a: Any, b: Any) -> torch.Tensor:
    """``a + b``."""
    return complex_.add(call, a, b) if _complex(a, b) else ADD(call, a, b)


def scaled(call: Call, x: torch.Tensor, factor: Any) -> torch.Tensor:
    return x if factor == 1 else product(call, x, factor)


def accumulate(
    call: Call, index: torch.Tensor, source: torch.Tensor, out: torch.Tensor
) -> torch.Tensor:
    """``out[index[i]] += source[i]`` in the order of ``i``, each part on its own."""
    if _complex(out):
        both = torch.view_as_real(source.contiguous()).flatten(-2)
        call.accumulate(index, both, torch.view_as_real(out).view(*out.shape[:-1], -1))
        return out
    return call.accumulate(index, source, out)


def dots(call: Call, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The dot product of each row of ``a`` with that of ``b``."""
    if _complex(a):
        return complex_.mm(call, a.unsqueeze(1), b.unsqueeze(2)).view(-1)
    return call.reduce("dot", a, [1], y=b)


def sum_of(call: Call, values: torch.Tensor, dim: Any = None) -> torch.Tensor:
    """The sum over some dimensions, all where ``None``."""
    if _complex(values):
        return by_parts(call, values, dim, function=reduction.total)
    return reduction.total(call, values, dim)


def sparse_row(name: str, function: Callable[..., Any], why: str) -> Row:
    """The row of an overload for sparse operands; those in 16 bits are computed in float32."""
    function = functools.partial(_in_float32, function=function)
    return Row(f"aten.{name}", Verdict.ROUNDED, function, f"sparse: {why}", operands="sparse")


def _in_float32(call: Call, *args: Any, function: Callable[..., Any], **kwargs: Any) -> Any:
    narrow = next((x.dtype for x in tensors(args, kwargs) if x.dtype in NARROW), None)
    if narrow is None:
        return function(call, *args, **kwargs)
    args, kwargs = tree_map(_widened, (args, kwargs))
    return tree_map(functools.partial(_narrowed, call, narrow), function(call, *args, **kwargs))


def _widened(x: Any) -> Any:
    return x.to(torch.float32) if isinstance(x, torch.Tensor) and x.dtype in NARROW else x


def _narrowed(call: Call, dtype: torch.dtype, y: Any) -> Any:
    """A result rounded to the dtype of the operands; of a sparse one, the stored elements."""
    if not isinstance(y, torch.Tensor) or not y.is_floating_point():
        return y
    if call.operations == 0:
        # Nothing was computed: the values are numbers of the narrow dtype.
        return y.to(dtype)
    return filled(y, store(call, points(y)[1], dtype)) if is_sparse(y) else store(call, y, dtype)
