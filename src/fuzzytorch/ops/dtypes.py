"""Which dtype an operation works in, and what is done where its tensors have others.

Rows compute in float32 or float64.  Operands of other dtypes are converted to the one that
torch computes in: float16 and bfloat16 are widened to float32, float32 to float64 where
it meets float64.  The row runs, and its results are stored in the dtype of stock torch,
which is one more rounding under the mode where that dtype is narrower.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch.utils._pytree import tree_leaves, tree_map

from fuzzytorch.ops.call import Call
from fuzzytorch.rounding import Rounding

NARROW: Final = {torch.float16: "float16", torch.bfloat16: "bfloat16"}
"""Floating-point dtypes with a store of their own, and the format of that store."""

WORKING: Final = (torch.float32, torch.float64)
"""Floating-point dtypes that rows compute in."""

PARTS: Final = {torch.complex64: torch.float32, torch.complex128: torch.float64}
"""Complex dtypes that rows compute in, and the dtype of their parts."""

_OTHER: Final = frozenset({torch.quint8, torch.qint8, torch.qint32, torch.quint4x2, torch.quint2x4})


class Arithmetic(enum.Enum):
    """What the tensors of a call ask of the arithmetic."""

    NONE = "no floating-point tensor takes part"
    BINARY32 = "float32 throughout"
    BINARY64 = "float64 throughout"
    MIXED = "float32 or float64 arithmetic on tensors that are not all of that dtype"
    COMPLEX = "arithmetic on the components of complex numbers"
    SPARSE = "arithmetic on the stored elements of sparse tensors"
    META = "no numbers, only shapes"
    IMPOSSIBLE = "a dtype, layout or device that no row computes"


def tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    """The tensors among the arguments of a call, lists of tensors included."""
    for x in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(x, torch.Tensor):
            yield x
        elif isinstance(x, (list, tuple)):
            for y in x:
                if isinstance(y, torch.Tensor):
                    yield y


def arithmetic(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arithmetic:
    """Classifies the arguments of a call."""
    kind = Arithmetic.NONE
    for x in tensors(args, kwargs):
        if not x.is_cpu:
            return Arithmetic.META if x.is_meta else Arithmetic.IMPOSSIBLE
        if not is_dense(x):
            return _sparse(args, kwargs)
        dtype = x.dtype
        if dtype is torch.float32:
            if kind is Arithmetic.NONE:
                kind = Arithmetic.BINARY32
            elif kind is Arithmetic.BINARY64:
                kind = Arithmetic.MIXED
        elif dtype is torch.float64:
            if kind is Arithmetic.NONE:
                kind = Arithmetic.BINARY64
            elif kind is Arithmetic.BINARY32:
                kind = Arithmetic.MIXED
        elif dtype.is_floating_point or dtype.is_complex or dtype in _OTHER:
            kind = Arithmetic.MIXED
    if kind is Arithmetic.MIXED and _computes_in(args, kwargs) is None:
        return Arithmetic.COMPLEX if complex_dtype(args, kwargs) else Arithmetic.IMPOSSIBLE
    if _has_complex_number(args, kwargs):
        return Arithmetic.COMPLEX if complex_dtype(args, kwargs) else Arithmetic.IMPOSSIBLE
    return _as_asked(kind, kwargs["dtype"]) if "dtype" in kwargs else kind


def is_dense(x: torch.Tensor) -> bool:
    """Whether kernels can walk a tensor by strides: neither sparse nor nested."""
    return x.layout is torch.strided and not x.is_nested


def conversion(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arithmetic:
    """Classifies a call that converts between dtypes; without a change of dtype it only copies."""
    operands = list(tensors(args, kwargs))
    dtypes = {x.dtype for x in operands}
    if kwargs.get("dtype") is not None:
        dtypes.add(kwargs["dtype"])
    if len(dtypes) == 1:
        return Arithmetic.BINARY32
    if any(x.is_meta for x in operands):
        return Arithmetic.META
    walked = all(x.is_cpu and is_dense(x) and x.dtype not in _OTHER for x in operands)
    return Arithmetic.BINARY32 if walked else Arithmetic.IMPOSSIBLE


def complex_dtype(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.dtype | None:
    """complex64 or complex128, whichever torch computes a call in; ``None`` if in neither."""
    asked = kwargs.get("dtype")
    dtype, found = _promotion(args, kwargs)
    found = found or _has_complex_number(args, kwargs) or (asked is not None and asked.is_complex)
    dtype = asked or dtype or torch.get_default_dtype()
    if not found or dtype.itemsize == 1:
        return None
    dtype = dtype.to_complex()
    return dtype if dtype in PARTS else None


def _sparse(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arithmetic:
    """The class of a call with an operand that is not dense: rows know COO, CSR and CSC."""
    layouts = (torch.strided, torch.sparse_coo, torch.sparse_csr, torch.sparse_csc)
    operands = list(tensors(args, kwargs))
    inexact = {x.dtype for x in operands if is_inexact(x) or x.dtype in _OTHER}
    known = all(x.is_cpu and x.layout in layouts and not x.is_nested for x in operands)
    if not inexact and known:
        return Arithmetic.NONE
    asked = {kwargs.get("dtype")} - {None}
    if not known or len(inexact | asked) > 1:
        return Arithmetic.IMPOSSIBLE
    if not inexact.issubset(PARTS) and _has_complex_number(args, kwargs):
        return Arithmetic.IMPOSSIBLE
    known = inexact.issubset({*WORKING, *NARROW, *PARTS})
    return Arithmetic.SPARSE if known else Arithmetic.IMPOSSIBLE


def is_inexact(x: torch.Tensor) -> bool:
    """Whether a tensor holds floating-point or complex numbers."""
    return x.is_floating_point() or x.is_complex()


def holds_inexact(*trees: Any) -> bool:
    """Whether arguments or results hold a floating-point or complex tensor, at any depth."""
    return any(isinstance(x, torch.Tensor) and is_inexact(x) for x in tree_leaves(trees))


def dtype_of_inexact(*trees: Any) -> torch.dtype:
    """The dtype of the first floating-point or complex tensor among arguments or results."""
    found: torch.dtype = next(
        x.dtype for x in tree_leaves(trees) if isinstance(x, torch.Tensor) and is_inexact(x)
    )
    return found


def _has_complex_number(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    for x in args:
        if type(x) is complex:
            return True
    return bool(kwargs) and any(type(x) is complex for x in kwargs.values())


def _as_asked(kind: Arithmetic, dtype: torch.dtype | None) -> Arithmetic:
    """The class of a call whose operands torch converts to ``dtype`` first, as ``sum`` does."""
    if dtype is None:
        return kind
    if dtype is torch.float32:
        return Arithmetic.MIXED if kind is Arithmetic.BINARY64 else kind
    if dtype is torch.float64:
        return kind if kind is Arithmetic.BINARY64 else Arithmetic.MIXED
    if dtype in NARROW:
        return Arithmetic.MIXED
    if dtype in PARTS:
        return Arithmetic.COMPLEX
    if dtype.is_floating_point or dtype.is_complex:
        return Arithmetic.IMPOSSIBLE
    return Arithmetic.NONE


def _promotion(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[torch.dtype | None, bool]:
    """The dtype that inexact operands promote to, and whether one of them is complex.

    Tensors without dimensions give way to others.
    """
    sized: torch.dtype | None = None
    single: torch.dtype | None = None
    complex_ = False
    for x in tensors(args, kwargs):
        if x.dtype in _OTHER:
            return None, False
        if not is_inexact(x):
            continue
        complex_ = complex_ or x.is_complex()
        if x.dim() > 0:
            sized = x.dtype if sized is None else _promoted(sized, x.dtype)
        else:
            single = x.dtype if single is None else _promoted(single, x.dtype)
    return sized or single, complex_


def _computes_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.dtype | None:
    """The promoted dtype if rows can compute on it: float32, float64 or a 16-bit one."""
    dtype, found = _promotion(args, kwargs)
    return dtype if not found and (dtype in WORKING or dtype in NARROW) else None


def working_dtype(kind: Arithmetic, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.dtype:
    """The dtype that a row computes in: float64 where torch does, else float32."""
    if kind is Arithmetic.BINARY32:
        return torch.float32
    if kind is Arithmetic.BINARY64:
        return torch.float64
    dtype = complex_dtype(args, kwargs) if kind in (Arithmetic.COMPLEX, Arithmetic.SPARSE) else None
    if dtype is not None:
        return PARTS[dtype]
    asked = kwargs.get("dtype")
    if asked is None:
        asked = _computes_in(args, kwargs)
    return torch.float64 if asked is torch.float64 else torch.float32


def _promoted(a: torch.dtype, b: torch.dtype) -> torch.dtype:
    # Eight-bit formats do not promote; torch raises, and stock torch shall say so.
    return a if a == b or a.itemsize == 1 or b.itemsize == 1 else torch.promote_types(a, b)


def unusual(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Names what made a call impossible, for a message."""
    for x in tensors(args, kwargs):
        if x.layout is not torch.strided:
            return f"layout {str(x.layout).removeprefix('torch.')}"
        if x.is_nested:
            return "a nested tensor"
        if not x.is_cpu:
            return f"device {x.device.type}"
    if _has_complex_number(args, kwargs):
        return "a complex number"
    dtypes = {x.dtype for x in tensors(args, kwargs)}
    if kwargs.get("dtype") is not None:
        dtypes.add(kwargs["dtype"])
    names = {
        str(dtype).removeprefix("torch.")
        for dtype in dtypes - {*WORKING, *NARROW}
        if dtype.is_floating_point or dtype.is_complex or dtype in _OTHER
    }
    return "dtype " + " and ".join(sorted(names))


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


def without_integers(tree: Any, dtype: torch.dtype) -> Any:
    """A tree of arguments whose integers and truth values became numbers of a dtype.

    Only for calls that have no other tensors and return this dtype: torch converts all of
    them first.
    """
    return tree_map(lambda x: x.to(dtype) if isinstance(x, torch.Tensor) else x, tree)


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


def real_parts(x: torch.Tensor) -> torch.Tensor:
    """A complex tensor as one of real numbers whose last dimension holds both parts."""
    return torch.view_as_real(x.resolve_conj().resolve_neg())


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
        return (_computes_in(args, kwargs),) * len(schema.returns)
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
