"""What stock torch refuses is refused: its own checks, run once for every new signature.

Rows and kernels compute; they do not repeat the hundreds of checks on shapes, dtypes
and options that stock kernels make.  Instead a call whose signature was not met before is
first run by stock torch, whose result is dropped: it raises its own error, before a kernel
reads where nothing lies.  Elementwise rows need none of this, since broadcasting checks.

Meta kernels would cost nothing, but they do not serve: those of two rows in three, those of
convolutions among them, take arguments that the kernels of a CPU refuse.  The memory of the
dropped result is free again before a row allocates its own.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from fuzzytorch.table import Row, Verdict

_KEPT: Final = 2**14
_admitted: set[Any] = set()


def needs_admission(row: Row, overload: Any) -> bool:
    """Whether calls of a row are to be admitted before they run.

    Not where stock torch would draw random numbers or write into an argument a second time
    (batch normalization writes running statistics that its schema does not declare).
    """
    return (
        row.verdict is Verdict.ROUNDED
        and not row.any_dtype
        and torch.Tag.pointwise not in overload.tags
        and torch.Tag.nondeterministic_seeded not in overload.tags
        and not overload._schema.is_mutable
        and not any(a.name == "running_mean" for a in overload._schema.arguments)
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
    # Values of numbers that are not sizes change from call to call, and refuse nothing.
    return float if isinstance(x, float) else x
