"""Rows for functions and reductions of sparse tensors: those of dense operands on stored elements.

Stock torch says which elements a result stores; elements that are stored for one position
are added first where it adds them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Final

import torch

from fuzzytorch.ops import (
    complex_functions,
    complex_reduction,
    pointwise,
    reduction,
    softmax,
    transcendental,
)
from fuzzytorch.ops.call import Call
from fuzzytorch.ops.pointwise import DIV, LOG
from fuzzytorch.ops.softmax import (
    EXP_OF_DIFFERENCE,
    LESS_BOTH,
    LOG_SOFTMAX_GRADIENT,
    SOFTMAX_GRADIENT,
)
from fuzzytorch.ops.sparse import coalesce, values_at
from fuzzytorch.ops.stored import (
    Targets,
    accumulate,
    filled,
    points,
    positions,
    product,
    sparse_row,
    sum_of,
)
from fuzzytorch.table import Row

_FAMILIES: Final = (pointwise, transcendental, reduction, complex_functions, complex_reduction)
_ROWS: Final = {
    (row.name, row.operands == "complex"): row for family in _FAMILIES for row in family.ROWS
}


def _row_function(name: str, values: torch.Tensor) -> Callable[..., Any] | None:
    """The function of the row that dense operands have, ``None`` where it is exact."""
    row = _ROWS.get((f"aten.{name}", values.is_complex()))
    return None if row is None else row.function


def _summed(call: Call, x: torch.Tensor) -> torch.Tensor:
    """A tensor that stores every position once."""
    if x.layout is torch.sparse_coo and not x.is_coalesced():
        return coalesce(call, x)
    return x


def on_values(call: Call, x: torch.Tensor, *options: Any, name: str, **named: Any) -> torch.Tensor:
    """The row of dense operands on the stored elements."""
    pattern = call.overload(x, *options, **named)
    values = points(_summed(call, x))[1]
    function = _row_function(name, values)
    if function is None:
        return filled(pattern, call.overload(values, *options, **named))
    return filled(pattern, function(call, values, *options, **named))


def norm(call: Call, x: torch.Tensor, *options: Any, **named: Any) -> torch.Tensor:
    """The norm of all stored elements; stock torch has no other."""
    values = points(_summed(call, x))[1]
    function = _row_function("linalg_vector_norm.default", values)
    assert function is not None
    order = options[0] if options and options[0] is not None else 2
    y: torch.Tensor = function(call, values, order)
    return y.reshape(call.overload(x, *options, **named).shape)


def total(
    call: Call,
    x: torch.Tensor,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Sums over dimensions: of the stored elements, and of those that fall on one position."""
    pattern = call.overload(x, dim, keepdim) if keepdim else call.overload(x, dim)
    indices, values = points(x)
    sparse = indices.shape[0]
    reduced = sorted(d % x.dim() for d in dim) if dim else list(range(x.dim()))
    inner = [d - sparse + 1 for d in reduced if d >= sparse]
    if inner:
        values = sum_of(call, values, inner)
    if pattern.layout is torch.strided:
        return sum_of(call, values, [0]).reshape(pattern.shape)
    if keepdim:
        kept = indices.index_fill(0, torch.tensor([d for d in reduced if d < sparse]), 0)
    else:
        kept = indices[[d for d in range(sparse) if d not in reduced]]
    keys = positions(kept, pattern.shape)
    if points(pattern)[0].shape[1] == keys.shape[0] and not pattern.is_coalesced():
        return filled(pattern, values)
    targets = Targets(call, pattern)
    targets.add(keys, values)
    return targets.filled()


def to_dense(
    call: Call,
    x: torch.Tensor,
    dtype: torch.dtype | None = None,
    masked_grad: bool | None = None,
) -> torch.Tensor:
    """Adds the elements that are stored for one position."""
    return call.overload(_summed(call, x), dtype, masked_grad)


def _groups(x: torch.Tensor, dim: int) -> tuple[int, torch.Tensor]:
    """How many slices along a sparse dimension store elements, and the slice of each element."""
    indices = points(x)[0]
    others = [d for d in range(indices.shape[0]) if d != dim]
    keys = positions(indices[others], [x.shape[d] for d in others])
    found, group = keys.unique(return_inverse=True)
    return found.shape[0], group


def _sums(call: Call, count: int, group: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """For every element the sum of its group."""
    flat = values.reshape(values.shape[0], math.prod(values.shape[1:]))
    total = torch.zeros(count, flat.shape[1], dtype=values.dtype)
    return accumulate(call, group, flat, total)[group].view(values.shape)


def sparse_softmax(
    call: Call, x: torch.Tensor, dim: int, half_to_float: bool, *, logarithm: bool
) -> torch.Tensor:
    """Softmax over the stored elements of every slice."""
    pattern = call.overload(x, dim, half_to_float)
    x, dim = _summed(call, x), dim % x.dim()
    indices, values = points(x)
    if dim >= indices.shape[0]:
        function = softmax.log_softmax if logarithm else softmax.softmax
        return filled(pattern, function(call, values, dim - indices.shape[0] + 1, False))
    count, group = _groups(x, dim)
    place = group.view(-1, *[1] * (values.dim() - 1)).expand(values.shape)
    largest = values.new_zeros(count, *values.shape[1:])
    largest = largest.scatter_reduce(0, place, values, "amax", include_self=False)[group]
    powers = EXP_OF_DIFFERENCE(call, values, largest)
    sums = _sums(call, count, group, powers)
    if not logarithm:
        return filled(pattern, DIV(call, powers, sums))
    return filled(pattern, LESS_BOTH(call, values, largest, LOG(call, sums)))


def sparse_softmax_backward(
    call: Call,
    grad: torch.Tensor,
    y: torch.Tensor,
    dim: int,
    self: torch.Tensor,
    *,
    logarithm: bool,
) -> torch.Tensor:
    """The gradient of :func:`sparse_softmax`; what ``grad`` does not store is zero."""
    pattern = call.overload(grad, y, dim, self)
    dim %= y.dim()
    indices, values = points(y)
    incoming = values_at(call, grad, indices, y.shape)
    if dim >= indices.shape[0]:
        backward = softmax.log_softmax_backward if logarithm else softmax.softmax_backward
        inner = dim - indices.shape[0] + 1
        return filled(pattern, backward(call, incoming, values, inner, values.dtype))
    count, group = _groups(y, dim)
    if logarithm:
        sums = _sums(call, count, group, incoming)
        return filled(pattern, LOG_SOFTMAX_GRADIENT(call, incoming, values, sums))
    sums = _sums(call, count, group, product(call, values, incoming))
    return filled(pattern, SOFTMAX_GRADIENT(call, incoming, values, sums))


ELEMENTWISE: Final = """
    abs asin asinh atan atanh ceil deg2rad erf erfinv expm1 floor frac log1p nan_to_num
    pow.Tensor_Scalar rad2deg relu round sgn sign sin sinh sqrt tan tanh trunc
"""
"""Functions of the stored elements, which keep zero."""

_ONCE: Final = "the row of dense operands on the stored elements, those of one position added first"
_ADDED: Final = "every addition of stored elements"


_NAMES: Final = tuple(n if "." in n else f"{n}.default" for n in ELEMENTWISE.split())

ROWS: tuple[Row, ...] = (
    *(sparse_row(name, functools.partial(on_values, name=name), _ONCE) for name in _NAMES),
    *(
        sparse_row(name, norm, "that of the stored elements")
        for name in ("norm.Scalar", "norm.ScalarOpt_dim")
    ),
    *(sparse_row(n, total, _ADDED) for n in ("sum.dim_IntList", "_sparse_sum.dim")),
    sparse_row("_to_dense.default", to_dense, "every addition of elements stored for one position"),
    *(
        sparse_row(
            f"_sparse_{name}.default",
            functools.partial(sparse_softmax, logarithm=logarithm),
            "differences, exponentials, sums, quotients or logarithms of the stored elements",
        )
        for name, logarithm in (("softmax", False), ("log_softmax", True))
    ),
    *(
        sparse_row(
            f"_sparse_{name}_backward_data.default",
            functools.partial(sparse_softmax_backward, logarithm=logarithm),
            "products, sums and differences of the stored elements",
        )
        for name, logarithm in (("softmax", False), ("log_softmax", True))
    ),
)
