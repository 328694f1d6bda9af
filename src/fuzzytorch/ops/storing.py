"""Results as stock torch returns them: in its dtypes, rounded once where those are narrower."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import torch
from torch.utils._pytree import tree_map

from fuzzytorch.ops.call import Call
from fuzzytorch.ops.dtypes import NARROW, promoted_dtype, real_parts, tensors
from fuzzytorch.rounding import Rounding


def converted(
    call: Call,
    overload: Any,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Runs the function of a row on operands in its dtype, and stores as stock torch does."""
    dtypes = result_dtypes(overload, args, kwargs)
    own_args, own_kwargs = tree_map(functools.partial(_operand, call), (args, kwargs))
    result = function(call, *own_args, **own_kwargs)
    _write_back(call, overload, args, own_args)
    for x, y in zip(args, own_args, strict=True):
        if result is y and isinstance(x, torch.Tensor):
            # In place: the tensor that was written back is returned, not its copy.
            return x
    results = result if isinstance(result, (list, tuple)) else (result,)
    if dtypes is None:
        dtypes = stock_dtypes(overload, args, kwargs)
    stored = tuple(
        store(call, y, dtype) if isinstance(y, torch.Tensor) and dtype is not None else y
        for y, dtype in zip(results, dtypes, strict=True)
    )
    return type(result)(stored) if isinstance(result, (list, tuple)) else stored[0]


def _write_back(
    call: Call, overload: Any, args: tuple[Any, ...], converted: tuple[Any, ...]
) -> None:
    """Stores what a row wrote into converted copies of its arguments.

    Running statistics, which schemas do not declare, and what they do declare.
    """
    for argument, x, y in zip(overload._schema.arguments, args, converted, strict=False):
        declared = argument.alias_info is not None and argument.alias_info.is_write
        running = argument.name in ("running_mean", "running_var")
        if not (declared or running) or y is x or torch.equal(x.to(y.dtype), y):
            continue
        # Random numbers are those of stock torch: never rounded under the mode.
        x.copy_(y if argument.name == "noise" else store(call, y, x.dtype))


def _operand(call: Call, x: Any) -> Any:
    if not isinstance(x, torch.Tensor) or not x.is_floating_point() or x.dtype == call.dtype:
        return x
    if x.dtype == torch.float64 and x.dim() > 0:
        # Asked for by ``dtype=``; a float64 tensor without dimensions counts as a number.
        return call.round(x)
    return x.to(call.dtype)


def store(call: Call, y: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A result as ``dtype``: a narrower floating-point dtype costs one rounding under the mode.

    So does each part of a complex number.
    """
    if y.dtype is torch.complex128 and dtype is torch.complex64:
        return torch.view_as_complex(store(call, real_parts(y), torch.float32))
    if y.dtype == dtype or not y.dtype.is_floating_point or not dtype.is_floating_point:
        return y if y.dtype == dtype else y.to(dtype)
    if dtype in NARROW:
        return rounded_to(call, y, NARROW[dtype]).to(dtype)
    if dtype == torch.float32 and y.dtype == torch.float64:
        return call.stored(y, dtype, call.run_rounding)
    return y.to(dtype)


def rounded_to(call: Call, y: torch.Tensor, format: str) -> torch.Tensor:
    """Float32 values of the format nearest above or below ``y``, one rounding per element.

    The format is narrowed further where the rounding of the mode is narrower.
    """
    return call.stored(y, torch.float32, _narrower(call.run_rounding, format))


@functools.cache
def _narrower(rounding: Rounding, format: str) -> Rounding:
    target = Rounding.of(rounding.mode, format)
    largest = min(target.largest, rounding.largest)
    precision = min(target.precision, rounding.precision)
    emax = min(target.emax, rounding.emax)
    ieee = (2.0 - 2.0 ** (1 - precision)) * 2.0**emax
    return Rounding(
        rounding.mode,
        precision,
        max(target.emin, rounding.emin),
        emax,
        min(largest, ieee),
    )


_RESULTS: dict[Any, tuple[torch.dtype | None, ...] | None] = {}


def result_dtypes(
    overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[torch.dtype | None, ...] | None:
    """The dtypes that stock torch returns, from its meta kernel; ``None`` without one.

    They depend on dtypes and on which tensors have no dimension, so that the answer
    is kept.
    """
    named = _signature(tuple(sorted(kwargs.items())))
    key = (overload, torch.get_default_dtype(), _signature(args), named)
    if key not in _RESULTS:
        _RESULTS[key] = _ask_meta(overload, args, kwargs)
    return _RESULTS[key]


def stock_dtypes(
    overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[torch.dtype | None, ...]:
    """The dtypes that stock torch returns, from a call of it whose values are dropped.

    For overloads without a meta kernel.  Where a second call would draw random numbers or
    write into an argument, floating-point results take the promoted dtype instead.
    """
    schema = overload._schema
    if schema.is_mutable or torch.Tag.nondeterministic_seeded in overload.tags:
        return (promoted_dtype(args, kwargs),) * len(schema.returns)
    result = overload(*args, **kwargs)
    results = result if isinstance(result, (list, tuple)) else (result,)
    return tuple(y.dtype if isinstance(y, torch.Tensor) else None for y in results)


def _signature(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return (x.dtype, x.dim() == 0)
    if isinstance(x, (list, tuple)):
        return tuple(_signature(y) for y in x)
    return x if isinstance(x, torch.dtype | str | bool) else type(x)


def _ask_meta(
    overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[torch.dtype | None, ...] | None:
    meta_args, meta_kwargs = tree_map(_to_meta, (args, kwargs))
    try:
        result = overload(*meta_args, **meta_kwargs)
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        # No meta kernel, or one that needs data: the caller falls back to promotion.
        return None
    results = result if isinstance(result, (list, tuple)) else (result,)
    dtypes = [y.dtype if isinstance(y, torch.Tensor) else None for y in results]
    if str(overload).removeprefix("aten.").removesuffix(".default") in _WITH_STATISTICS:
        # Meta kernels answer for other devices: on a CPU the saved statistics have the
        # dtype of the parameters, or of the input where there are none.
        parameters = [x.dtype for x in tensors(args[1:], kwargs) if x.is_floating_point()]
        dtypes[1:3] = [parameters[0] if parameters else args[0].dtype] * 2
    return tuple(dtypes)


_WITH_STATISTICS: Final = frozenset(
    {
        "native_layer_norm",
        "native_group_norm",
        "native_batch_norm",
        "_native_batch_norm_legit",
        "_native_batch_norm_legit.no_stats",
        "_native_batch_norm_legit_functional",
        "_native_batch_norm_legit_no_training",
        "_batch_norm_with_update",
        "_batch_norm_with_update_functional",
        "_batch_norm_no_update",
    }
)
"""Operations whose second and third result are means and reciprocal deviations."""


def _to_meta(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
    return torch.device("meta") if isinstance(x, torch.device) else x
