"""What stock torch refuses is refused: its own checks, run once for every new signature.

Rows and kernels compute; they do not repeat the hundreds of checks on shapes, dtypes
and options that stock kernels make.  Instead a call whose signature was not met before is
first run by stock torch, whose result is dropped: it raises its own error, before a kernel
reads where nothing lies.  Elementwise rows need none of this, since broadcasting checks; only
a few have numbers that stock torch refuses.  Decompositions check less than kernels, or in
other words; what torch itself composes of other operations checks as stock torch does.

Meta kernels would cost nothing, but they do not serve: those of two rows in three, those of
convolutions among them, take arguments that the kernels of a CPU refuse.  The memory of the
dropped result is free again before a row allocates its own.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from fuzzytorch.table import Row, Verdict

_KEPT: Final = 2**14
_DRAWING_NOTHING: Final = frozenset({"aten._scaled_dot_product_flash_attention_for_cpu.default"})
"""Declared to draw random numbers, for a dropout that the kernel does not have."""

_REFUSING_NUMBERS: Final = frozenset(
    {"aten.celu.default", "aten.smooth_l1_loss.default", "aten.softshrink.default"}
)
"""Elementwise operations that stock torch has only for some values of a number."""

_admitted: set[Any] = set()


def needs_admission(row: Row, overload: Any) -> bool:
    """Whether calls of a row are to be admitted before they run.

    Not where stock torch would draw random numbers or write into an argument a second time
    (batch normalization writes running statistics, and the gradient of a recurrent layer its
    workspace, which their schemas do not declare).
    """
    return (
        row.verdict in (Verdict.ROUNDED, Verdict.LOWERED)
        and not row.any_dtype
        and (torch.Tag.pointwise not in overload.tags or str(overload) in _REFUSING_NUMBERS)
        and (
            torch.Tag.nondeterministic_seeded not in overload.tags
            or str(overload) in _DRAWING_NOTHING
        )
        and not overload._schema.is_mutable
        and not any(a.name in ("running_mean", "workspace") for a in overload._schema.arguments)
    )


def admit(overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises what stock torch raises for a call, unless one of its signature was admitted."""
    signature = (
        id(overload),
        tuple([_signature(x) for x in args]),
        tuple([(name, _signature(x)) for name, x in kwargs.items()]) if kwargs else (),
    )
    if signature in _admitted:
        return
    overload(*args, **kwargs)
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
