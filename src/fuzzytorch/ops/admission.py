"""What stock torch refuses is refused, in its own words: its checks, run once for a new signature.

Rows and kernels compute; they do not repeat the hundreds of checks on shapes, dtypes
and options that stock kernels make.  Instead a call whose signature was not met before is
first run by stock torch, whose result is dropped: it raises its own error, before a kernel
reads where nothing lies.  Elementwise rows need none of this, since broadcasting checks, but for
operands of several dtypes, which some operations do not take.
An index that is wrong although its signature was admitted is found by the row, and stock torch
is asked again, so that the error is the same one.

Meta kernels would cost nothing, but they do not serve: those of two rows in three, those of
convolutions among them, take arguments that the kernels of a CPU refuse.  The memory of the
dropped result is free again before a row allocates its own.
"""

from __future__ import annotations

import functools
from typing import Any, Final, NoReturn

import torch
from torch.utils._pytree import tree_map

from fuzzytorch.ops.dtypes import is_dense
from fuzzytorch.table import Row, Verdict

REFUSALS: Final = (
    RuntimeError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    AssertionError,
)
"""What torch raises, in C++ and in Python, about arguments that it does not take."""

_KEPT: Final = 2**14
_DRAWING_NOTHING: Final = frozenset({"aten._scaled_dot_product_flash_attention_for_cpu.default"})
"""Declared to draw random numbers, for a dropout that the kernel does not have."""

_LIMITED: Final = frozenset(
    {
        "aten.celu.default",
        "aten.lerp.Scalar",
        "aten.lerp.Tensor",
        "aten.smooth_l1_loss.default",
        "aten.softshrink.default",
    }
)
"""Elementwise operations that do not take every number, or no integers beside other operands."""

_WRITTEN: Final = frozenset({"running_mean", "running_var"})
"""Arguments that are written although their schemas do not say so."""

_admitted: set[Any] = set()


def needs_admission(row: Row, overload: Any) -> bool:
    """Whether calls of a row are to be admitted before they run.

    Not what torch itself composes of other operations, which are admitted one by one; nor
    conversions, which take everything; nor the steps of optimizers on lists of tensors, which
    are made of elementwise operations, with numbers that change from step to step; nor the
    gradient of a recurrent layer, whose workspace stock torch uses up, and only torch calls.
    """
    if row.function is None or (row.any_dtype and row.verdict is not Verdict.COARSE):
        return False
    arguments = overload._schema.arguments
    if any(a.name == "workspace" or _writes_list(a) for a in arguments):
        return False
    return torch.Tag.pointwise not in overload.tags or str(overload) in _LIMITED


def _writes_list(argument: Any) -> bool:
    return bool(argument.is_write) and str(argument.type) == "List[Tensor]"


def admit(overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises what stock torch raises for a call, unless one of its signature was admitted."""
    signature = (
        id(overload),
        tuple([_signature(x) for x in args]),
        tuple([(name, _signature(x)) for name, x in kwargs.items()]) if kwargs else (),
    )
    if signature in _admitted:
        return
    rehearse(overload, args, kwargs)
    if len(_admitted) >= _KEPT:
        _admitted.clear()
    _admitted.add(signature)


def _signature(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return (x.shape, x.dtype)
    if isinstance(x, (list, tuple)):
        return tuple([_signature(y) for y in x])
    # NaN would be another signature every time.
    return None if isinstance(x, float) and x != x else x


def rehearse(overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Runs stock torch for its errors alone: arguments and generators stay as they are."""
    if not _leaves_traces(overload):
        overload(*args, **kwargs)
        return
    own_args, own_kwargs = _apart((args, kwargs))
    generator = kwargs.get("generator") or torch.default_generator
    state = generator.get_state()
    try:
        overload(*own_args, **own_kwargs)
    finally:
        generator.set_state(state)


def accepted(overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether stock torch takes the arguments."""
    try:
        rehearse(overload, args, kwargs)
    except REFUSALS:
        return False
    return True


def refuse(
    overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception
) -> NoReturn:
    """Raises what stock torch says of a call in which a row raised ``error``; else that one."""
    try:
        rehearse(overload, args, kwargs)
    except REFUSALS as stock:
        raise stock from None
    raise error


@functools.cache
def _leaves_traces(overload: Any) -> bool:
    """Whether stock torch draws random numbers or writes into an argument."""
    seeded = torch.Tag.nondeterministic_seeded in overload.tags
    return (
        (seeded and str(overload) not in _DRAWING_NOTHING)
        or overload._schema.is_mutable
        or any(a.name in _WRITTEN for a in overload._schema.arguments)
    )


def _apart(tree: Any) -> Any:
    """A copy of arguments, whose tensors share memory among themselves as the originals do."""
    twins: dict[int, torch.UntypedStorage] = {}

    def copied(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        if not is_dense(x) or x.is_conj() or x.is_neg():
            return x.clone()
        storage = x.untyped_storage()
        if storage._cdata not in twins:
            twins[storage._cdata] = storage.clone()
        y = torch.empty(0, dtype=x.dtype, device=x.device)
        return y.set_(twins[storage._cdata], x.storage_offset(), x.shape, x.stride())

    return tree_map(copied, tree)
