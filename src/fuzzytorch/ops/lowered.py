"""Operations rewritten as others: PyTorch's own decompositions, found when first needed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from fuzzytorch.table import Row, Verdict

_SEEDED = torch.Tag.nondeterministic_seeded


def lowered_row(overload: Any) -> Row | None:
    """The row that runs a decomposition of the overload under the mode, or ``None``.

    Decompositions that draw random numbers would draw others than stock torch does, so
    that only composite kernels, which stock runs too, serve for those.
    """
    found = _composite(overload) or _per_tensor(overload)
    # What torch itself composes of other operations is right for every dtype.
    any_dtype = found is not None
    if found is None and _SEEDED not in overload.tags:
        found = _primitive(overload) or _registered(overload)
    if found is None:
        return None
    function, why = found
    return Row(str(overload), Verdict.LOWERED, _without_call(function), why, any_dtype)


def _without_call(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(call: Any, *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return run


def _composite(overload: Any) -> tuple[Callable[..., Any], str] | None:
    if not overload._can_decompose():
        return None
    why = "torch composes it of other operations"
    # The kernel that stock torch runs; decompositions in Python may draw other random numbers.
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    if torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), key):
        return functools.partial(overload._op_dk, key), why
    return overload.decompose, why


def _per_tensor(overload: Any) -> tuple[Callable[..., Any], str] | None:
    """The generic kernel of the ``_foreach_`` family calls the operation of each tensor."""
    key = torch._C.DispatchKey.CompositeExplicitAutograd
    if not overload._schema.name.startswith("aten::_foreach_") or (
        not torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), key)
    ):
        return None
    return functools.partial(overload._op_dk, key), "one operation per tensor of the list"


def _primitive(overload: Any) -> tuple[Callable[..., Any], str] | None:
    """Primitives that PyTorch's reference implementations are written in."""
    if overload.namespace != "prims" or not hasattr(overload, "impl_aten"):
        return None
    return overload.impl_aten, "torch implements the primitive by an aten operation"


def _registered(overload: Any) -> tuple[Callable[..., Any], str] | None:
    # Importing the decompositions takes a while and few programs need one.
    from torch._decomp import decomposition_table

    if overload.namespace != "aten" or overload not in decomposition_table:
        return None
    if any(a.alias_info is not None and a.alias_info.is_write for a in overload._schema.arguments):
        return None
    return decomposition_table[overload], "torch has a decomposition into other operations"
