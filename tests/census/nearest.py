"""In nearest rounding a call is that of stock torch, in everything that a program sees."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch._prims_common import check_significant_strides
from torch.utils._pytree import tree_leaves

import fuzzytorch as ft
from census.calls import WIDE, Outcome, call, copied
from census.entries import GAUGED, UNDEFINED, Entry
from census.exceptions import WITHOUT_BINARY64
from census.tolerance import beyond, exactly, sensitivity
from fuzzytorch.records import Coverage

COLUMN_MAJOR: Final = {"linalg.lstsq", "linalg.lstsq.grad_oriented", "ormqr"}
"""Results of LAPACK, which stock torch returns in the strides of its work space."""

UNWRITTEN: Final = {"linalg.matrix_rank", "linalg.matrix_rank.hermitian"}
"""Operations of which torch itself leaves ``out=`` alone while any dispatch mode is active."""


@dataclasses.dataclass
class Seen:
    """What a run of a law adds up: coverage, and the elements that needed the derived bound."""

    coverage: Coverage = dataclasses.field(default_factory=Coverage)
    compared: int = 0
    reordered: int = 0


def forward(entry: Entry, sample: Any, seen: Seen) -> Iterator[str]:
    """Sentences about what differs in the results of a call, none if nothing does."""
    yield from _law(entry, entry.info, sample, None, seen)


def backward(entry: Entry, sample: Any, seen: Seen) -> Iterator[str]:
    """The same of the results and the gradients, which are taken of what is unique in them."""
    yield from _law(entry, entry.info, sample, sample.output_process_fn_grad, seen)


def in_place(entry: Entry, sample: Any, seen: Seen) -> Iterator[str]:
    """The same of the in-place overload, if there is one and the sample fits it."""
    operation = entry.info.inplace_variant
    if operation is None or sample.broadcasts_input or not isinstance(sample.input, torch.Tensor):
        return
    yield from _law(entry, operation, sample, None, seen)


def into_targets(entry: Entry, sample: Any, seen: Seen) -> Iterator[str]:
    """The same of the ``out=`` overload, with tensors of the right shapes full of other numbers."""
    if not entry.info.supports_out or entry.name in UNWRITTEN:
        return
    with torch.no_grad():
        stock = call(entry.info, copied(sample))
    if stock.error is not None or stock.values or not stock.outputs:
        return
    if any(y.layout is not torch.strided for y in stock.outputs):
        return

    def operation(*args: Any, **kwargs: Any) -> Any:
        wide = any(x.dtype is WIDE.get(entry.dtype) for x in _tensors((args, kwargs)))
        dtypes = [WIDE.get(y.dtype, y.dtype) if wide else y.dtype for y in stock.outputs]
        targets = [
            torch.full_like(y, 7, dtype=d) for y, d in zip(stock.outputs, dtypes, strict=True)
        ]
        returned = entry.info(*args, **kwargs, out=targets[0] if len(targets) == 1 else targets)
        return targets, returned

    yield from _law(entry, operation, sample, None, seen)


def refusal(entry: Entry, sample: Any) -> Iterator[str]:
    """What stock torch refuses is refused with the same error, and leaves the same behind."""
    stock = _quiet(lambda: call(entry.info, copied(sample)))
    ours = _quiet(lambda: call(entry.info, copied(sample), mode=ft.fuzzy("rn", seed=0)))
    if ours.error != stock.error:
        yield f"stock torch raises {stock.error}, the mode {ours.error}"
    elif ours.changed != stock.changed:
        yield f"arguments change (version, values): {ours.changed}, in stock {stock.changed}"


def _law(
    entry: Entry,
    operation: Callable[..., Any],
    sample: Any,
    gauge: Callable[[Any], Any] | None,
    seen: Seen,
) -> Iterator[str]:
    def run(mode: ft.fuzzy | None = None) -> Outcome:
        with torch.set_grad_enabled(gauge is not None):
            return _quiet(lambda: call(operation, copied(sample), gauge, mode=mode))

    stock = run()
    mode = ft.fuzzy("rn", seed=0)
    ours = run(mode)
    seen.coverage = seen.coverage.merge(mode.coverage)
    yield from _visible(ours, stock)
    if ours.error or stock.error or len(ours.tensors) != len(stock.tensors):
        return
    bounds: list[tuple[torch.Tensor, torch.Tensor]] | None = None
    for i, (a, b) in enumerate(zip(ours.tensors, stock.tensors, strict=True)):
        what = _form(a, b, entry)
        if what is not None:
            yield f"result {i}: {what}"
        elif entry.name not in UNDEFINED and (entry.name not in GAUGED or gauge is not None):
            seen.compared += b.numel()
            wrong = beyond(a, b, None, entry)
            if not wrong.any():
                continue
            if bounds is None:
                weights = tuple(y.dtype for y in stock.outputs)
                bounds = _bounds(entry, operation, sample, gauge, weights)
            seen.reordered += int(wrong.sum())
            if i < len(bounds) and bounds[i][0].shape == b.shape:
                exact, bound = bounds[i]
                wrong &= beyond(a, b, bound, entry) & beyond(a, exact, None, entry)
                if as_near(a, b, exact):
                    continue
            elif entry.name in WITHOUT_BINARY64:
                unit = torch.finfo(b.dtype).eps * exactly(b).abs().max()
                wrong &= beyond(a, b, 2 * unit, entry)
            if wrong.any():
                yield f"result {i}: {_worst(a, b, wrong)}"


def as_near(a: torch.Tensor, b: torch.Tensor, exact: torch.Tensor) -> bool:
    """Whether ``a`` is as near the exact result as ``b``: by the largest error of an element.

    Where much cancels both are wrong.
    """
    if not (a.dtype.is_floating_point or a.dtype.is_complex) or a.numel() == 0:
        return False
    ours, stock = (float((exactly(x) - exact).abs().max()) for x in (a, b))
    return ours <= 2 * stock


def _bounds(
    entry: Entry,
    operation: Callable[..., Any],
    sample: Any,
    gauge: Callable[[Any], Any] | None,
    weights: tuple[torch.dtype, ...],
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    def run(change: Callable[[torch.Tensor], torch.Tensor]) -> Outcome:
        with torch.set_grad_enabled(gauge is not None):
            return _quiet(lambda: call(operation, copied(sample, change), gauge, weights))

    return sensitivity(run, entry)


def _visible(ours: Outcome, stock: Outcome) -> Iterator[str]:
    """Differences that are no matter of values."""
    if ours.error != stock.error:
        yield f"stock torch raises {stock.error}, the mode {ours.error}"
        return
    for name in ("values", "memory", "changed", "random"):
        a, b = getattr(ours, name), getattr(stock, name)
        if a != b and not (name == "values" and _close_numbers(a, b)):
            yield f"{name}: {a}, in stock torch {b}"
    a, b = ([g is None for g in x.gradients] for x in (ours, stock))
    if a != b or len(ours.outputs) != len(stock.outputs):
        yield "the results or gradients are not as many as in stock torch"


def _close_numbers(a: Any, b: Any) -> bool:
    pairs = list(zip(a, b, strict=False))
    return len(a) == len(b) and all(
        x == y or (isinstance(y, (float, complex)) and abs(x - y) <= 1e-5 + 1e-5 * abs(y))
        for x, y in pairs
    )


def _form(a: torch.Tensor, b: torch.Tensor, entry: Entry) -> str | None:
    """What differs in dtype, shape, layout or strides; a conjugate may be lazy or not."""
    mine, theirs = ((y.dtype, tuple(y.shape), y.layout) for y in (a, b))
    if mine != theirs:
        return f"{mine}, in stock torch {theirs}"
    if a.layout is not torch.strided or entry.name in COLUMN_MAJOR:
        return None
    if not check_significant_strides(a, b)[0]:
        return f"strides {a.stride()}, in stock torch {b.stride()} (shape {tuple(b.shape)})"
    return None


def _worst(a: torch.Tensor, b: torch.Tensor, wrong: torch.Tensor) -> str:
    x, y = exactly(a), exactly(b)
    distance = torch.where(wrong, (x - y).abs().nan_to_num(nan=torch.inf), -1.0).reshape(-1)
    at = int(distance.argmax())
    return (
        f"{int(wrong.sum())} of {wrong.numel()} elements differ, element {at}: "
        f"{x.reshape(-1)[at].item()!r}, in stock torch {y.reshape(-1)[at].item()!r}"
    )


def _quiet(run: Callable[[], Outcome]) -> Outcome:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run()


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [x for x in tree_leaves(tree) if isinstance(x, torch.Tensor)]
