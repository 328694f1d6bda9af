"""In-place and ``out=`` overloads, derived from their functional base by the schema.

The values come from the row of the base; this module finds the base, decides
whether a kernel may write the target directly, and otherwise copies, with the
checks that stock torch makes on shape and dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fuzzytorch.ops.call import Call
from fuzzytorch.ops.dtypes import holds_inexact, is_dense, tensors
from fuzzytorch.ops.storing import store
from fuzzytorch.table import Row, Variant, dispatched


def variant_of(overload: Any) -> Variant | None:
    """The functional base of an overload that writes tensors, or ``None`` where there is none."""
    schema = overload._schema
    written = [a for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    if not written or any(not _is_tensor(a) for a in written):
        return None
    if all(a.kwarg_only for a in written):
        outs = tuple(a.name for a in written)
        if not all(a.is_out for a in written) or len(schema.returns) not in (0, len(outs)):
            return None
        base = _functional(schema.name, schema.arguments, outs)
        return None if base is None else Variant(base, outs)
    name = schema.name
    if len(written) > 1 or (
        schema.arguments[0] is not written[0] and (schema.arguments[0].name != written[0].name)
    ):
        return None
    if name.endswith("__") and name.split("::")[1].startswith("__i"):
        name = name.replace("::__i", "::__")
    elif name.endswith("_"):
        name = name[:-1]
    base = _functional(name, schema.arguments, ())
    return None if base is None else Variant(base)


def _is_tensor(argument: Any) -> bool:
    return str(argument.type) == "Tensor"


def _functional(name: str, arguments: Sequence[Any], outs: tuple[str, ...]) -> Any | None:
    namespace, operation = name.split("::")
    packet = getattr(getattr(torch.ops, namespace), operation, None)
    if packet is None:
        return None
    wanted = [(a.name, str(a.type)) for a in arguments if a.name not in outs]
    for overload in dispatched(packet):
        candidate = getattr(packet, overload)
        schema = candidate._schema
        writes = any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments)
        if not writes and [(a.name, str(a.type)) for a in schema.arguments] == wanted:
            return candidate
    return None


def derived(overload: Any, variant: Variant, base: Row) -> Row:
    """The row of a variant, given the row of its base."""
    return Row(
        str(overload),
        base.verdict,
        base.function,
        f"derived from {base.name}: {base.why}",
        base.any_dtype,
        None if base.function is None else variant,
        base.operands,
    )


def split(
    variant: Variant, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[dict[str, Any], tuple[torch.Tensor, ...]]:
    """The keyword arguments of the base, and the tensors to write."""
    if variant.in_place:
        return kwargs, (args[0],)
    rest = dict(kwargs)
    return rest, tuple(rest.pop(name) for name in variant.outs)


def direct(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    targets: Sequence[torch.Tensor],
    dtype: torch.dtype,
) -> torch.Tensor | None:
    """The target if a kernel of ``dtype`` may write it while it reads the arguments, else ``None``.

    It may where it is not :func:`tangled`.
    """
    target = targets[0]
    if len(targets) > 1 or target.dtype != dtype or not is_dense(target):
        return None
    return None if tangled(args, kwargs, targets) else target


def tangled(args: tuple[Any, ...], kwargs: dict[str, Any], targets: Sequence[torch.Tensor]) -> bool:
    """Whether a target shares memory with itself or, but for the identical view, an argument."""
    for target in targets:
        if _overlaps_itself(target):
            return True
        for x in tensors(args, kwargs):
            if x is not target and _entangled(x, target):
                return True
    return False


def _overlaps_itself(x: torch.Tensor) -> bool:
    if not is_dense(x) or x.is_contiguous():
        return False
    return any(stride == 0 and size > 1 for size, stride in zip(x.shape, x.stride(), strict=True))


def _entangled(x: torch.Tensor, target: torch.Tensor) -> bool:
    if not torch._C._is_alias_of(x, target):  # type: ignore[attr-defined]
        return False
    return (
        x.data_ptr() != target.data_ptr()
        or x.shape != target.shape
        or x.stride() != target.stride()
        or x.dtype != target.dtype
    )


def conflicts(
    variant: Variant,
    results: Sequence[Any],
    targets: Sequence[torch.Tensor],
    stock: Callable[[], bool],
) -> bool:
    """Whether stock torch refuses these results for these targets (it then says why itself).

    ``stock`` asks stock torch whether it takes the arguments; only ``out=`` tensors of
    another dtype need its answer.
    """
    for result, target in zip(results, targets, strict=True):
        if not isinstance(result, torch.Tensor) or not torch.can_cast(result.dtype, target.dtype):
            return True
        if variant.in_place:
            # Stock torch has no absolute value in place of a complex number.
            narrows = target.is_complex() and result.is_floating_point()
            if narrows or result.shape != target.shape:
                return True
        elif result.dtype != target.dtype and not stock():
            return True
    return False


def write(call: Call, results: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> None:
    """Puts the results where the caller wants them, resizing ``out=`` tensors as stock does."""
    for result, target in zip(results, targets, strict=True):
        if result is target:
            continue
        values = store(call, result, target.dtype)
        if target.layout in (torch.sparse_csr, torch.sparse_csc):
            torch.ops.aten.resize_as_sparse_(target, values).copy_(values)
        elif values.shape == target.shape:
            target.copy_(values)
        else:
            torch.ops.aten.clone.out(values, out=target)


def without_floats(
    row: Row, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], rest: dict[str, Any]
) -> tuple[bool, Any]:
    """Whether a call that reads no floating-point tensor returns none, and what stock returns."""
    if row.variant is not None:
        result = row.variant.base(*args, **rest)
        if holds_inexact(result):
            return False, result
    result = func(*args, **kwargs)
    writes = row.variant is None and not func._schema.is_mutable
    return not (writes and holds_inexact(result)), result
