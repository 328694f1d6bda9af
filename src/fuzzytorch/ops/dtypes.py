"""Which dtype an operation works in, and what is done where its tensors have others.

Rows compute in float32 or float64.  Operands of other dtypes are converted to the one that
torch computes in: float16 and bfloat16 are widened to float32, float32 to float64 where
it meets float64.  The row runs, and its results are stored in the dtype of stock torch,
which is one more rounding under the mode where that dtype is narrower.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch.utils._pytree import tree_leaves, tree_map

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
    if kind is Arithmetic.MIXED and promoted_dtype(args, kwargs) is None:
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


def promoted_dtype(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.dtype | None:
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
        asked = promoted_dtype(args, kwargs)
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


def without_integers(tree: Any, dtype: torch.dtype) -> Any:
    """A tree of arguments whose integers and truth values became numbers of a dtype.

    Only for calls that have no other tensors and return this dtype: torch converts all of
    them first.
    """
    return tree_map(lambda x: x.to(dtype) if isinstance(x, torch.Tensor) else x, tree)


def real_parts(x: torch.Tensor) -> torch.Tensor:
    """A complex tensor as one of real numbers whose last dimension holds both parts."""
    return torch.view_as_real(x.resolve_conj().resolve_neg())
