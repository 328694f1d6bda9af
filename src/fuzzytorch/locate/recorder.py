"""Streaming moments of what modules take and return."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch.utils import _pytree as pytree

from fuzzytorch import provenance
from fuzzytorch.active import PLAIN, stock
from fuzzytorch.digits import Digits, Running
from fuzzytorch.locate.calls import Flow, ModuleCall
from fuzzytorch.locate.finite import all_finite
from fuzzytorch.locate.places import Place, Places
from fuzzytorch.ops.dtypes import is_dense

BUDGET: Final = 2**25
"""Elements that a profile follows in all, about 800 MB of moments; then no more calls are added."""


class _Tensor:
    """One tensor that a call takes or returns, over the samples."""

    def __init__(self, x: torch.Tensor, elements: int) -> None:
        self._positions = stratified(x.numel() * (2 if x.is_complex() else 1), elements)
        self._running = Running()
        self.elements = x.numel()
        self.followed = min(x.numel(), elements)
        self.nan = self.inf = 0

    def add(self, x: torch.Tensor) -> None:
        x = torch.view_as_real(x.resolve_conj()) if x.is_complex() else x.resolve_neg()
        wide = x.float() if x.element_size() == 1 else x
        if not all_finite(wide):
            self.nan += int(wide.isnan().sum())
            self.inf += int(wide.isinf().sum())
        flat = x.reshape(-1)
        self._running.add(flat if self._positions is None else flat[self._positions])

    @property
    def digits(self) -> Digits | None:
        """The digits of the elements that are followed; ``None`` of fewer than two samples."""
        return self._running.digits() if self._running.count > 1 and self.followed else None


class _Side:
    """What a call takes, or what it returns."""

    def __init__(self, elements: int) -> None:
        self._elements = elements
        self._alike: list[Any] | None = None
        self.tensors: list[_Tensor] = []
        self.samples = 0
        self.unlike = 0

    def add(self, tree: Any) -> None:
        found = [x.detach() for x in pytree.tree_leaves(tree) if _is_followed(x)]
        alike = [(x.shape, x.dtype) for x in found]
        if self._alike is None:
            self._alike = alike
            self.tensors = [_Tensor(x, self._elements) for x in found]
        if alike != self._alike:
            self.unlike += 1
            return
        self.samples += 1
        for tensor, x in zip(self.tensors, found, strict=True):
            tensor.add(x)

    @property
    def followed(self) -> int:
        return sum(tensor.followed for tensor in self.tensors)

    def flow(self) -> Flow:
        digits = [d for d in (tensor.digits for tensor in self.tensors) if d is not None]
        each = _known(np.concatenate([d.digits.ravel() for d in digits])) if digits else _NONE
        stds = _known(np.concatenate([d.std.ravel() for d in digits])) if digits else _NONE
        overall = _known(np.array([d.overall for d in digits]))
        return Flow(
            digits=float(overall.min()) if overall.size else None,
            mean=float(each.mean()) if each.size else None,
            minimum=float(each.min()) if each.size else None,
            std=float(stds.max()) if stds.size else None,
            nan=sum(tensor.nan for tensor in self.tensors),
            inf=sum(tensor.inf for tensor in self.tensors),
            elements=sum(tensor.elements for tensor in self.tensors),
            followed=self.followed,
        )


class _Call:
    """One call of a module over the samples."""

    def __init__(self, place: Place, number: int, around: _Call | None, elements: int) -> None:
        self.place, self.number, self.around = place, number, around
        self.inputs, self.outputs = _Side(elements), _Side(elements)


class _Frame(NamedTuple):
    frame: provenance.Frame
    call: _Call | None


class Recorder(Places):
    """Keeps the moments of the tensors of every call of a module, over several runs.

    Args:
        elements: how many elements of a tensor are followed.
    """

    def __init__(self, elements: int) -> None:
        super().__init__()
        self._elements = elements
        self._calls: dict[tuple[Place, int], _Call] = {}
        self._left_out: set[tuple[Place, int]] = set()
        self._followed = 0

    def _begin(self) -> None:
        super()._begin()
        self._numbers: collections.Counter[Place] = collections.Counter()
        self._open: list[_Call | None] = []

    def enter_module(self, module: torch.nn.Module) -> _Frame:
        """A module is called."""
        frame = self._enter(module)
        place: Place = frame.setting
        self._numbers[place] += 1
        key = (place, self._numbers[place])
        call = self._calls.get(key)
        if call is None and self._followed < BUDGET:
            around = self._open[-1] if self._open else None
            call = self._calls[key] = _Call(*key, around, self._elements)
        if call is None:
            self._left_out.add(key)
        self._open.append(call)
        return _Frame(frame, call)

    def takes(self, frame: _Frame, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """It is given these."""
        if frame.call is not None:
            self._add(frame.call.inputs, (args, kwargs))

    def returns(self, frame: _Frame, result: Any) -> None:
        """It has returned this."""
        if frame.call is not None:
            self._add(frame.call.outputs, result)

    def leave(self, frame: _Frame) -> None:
        """It returns or raises."""
        super().leave(frame.frame)
        self._open.pop()

    def _add(self, side: _Side, tree: Any) -> None:
        # What is measured is neither perturbed nor counted, and no part of a graph.
        with stock(), torch.no_grad():
            before = side.followed
            side.add(tree)
            self._followed += side.followed - before

    def calls(self) -> tuple[ModuleCall, ...]:
        """The calls of all runs, in the order in which they began first."""
        position = {id(call): i for i, call in enumerate(self._calls.values())}
        flows = [(call.inputs.flow(), call.outputs.flow()) for call in self._calls.values()]
        found = [
            ModuleCall(
                place=call.place,
                number=call.number,
                around=None if call.around is None else position[id(call.around)],
                samples=call.outputs.samples,
                inputs=inputs,
                outputs=outputs,
                own=None,
            )
            for call, (inputs, outputs) in zip(self._calls.values(), flows, strict=True)
        ]
        return with_own(found)

    def notes(self) -> tuple[str, ...]:
        """What the calls leave out, in sentences."""
        notes = []
        calls = list(self._calls.values())
        unlike = [c for c in calls if c.inputs.unlike or c.outputs.unlike]
        if unlike:
            notes.append(
                f"{len(unlike)} calls, of {unlike[0].place} first, took or returned tensors of "
                "other shapes in some samples than in the first, which are left out."
            )
        cut = [c for c in calls for s in (c.inputs, c.outputs) if _is_cut(s)]
        if cut:
            notes.append(
                f"of tensors with more than {self._elements} elements, so many are followed, "
                f"spread over the tensor (first in {cut[0].place})."
            )
        if self._left_out:
            notes.append(
                f"{len(self._left_out)} calls are left out, because {BUDGET} elements are followed "
                "already: ask for fewer elements of each tensor."
            )
        return tuple(notes)


_NONE: Final = np.empty(0)


def with_own(calls: list[ModuleCall]) -> tuple[ModuleCall, ...]:
    """The calls with the digits that they lose outside of those that they call."""
    own = [call.lost for call in calls]
    for call in calls:
        if call.around is not None and call.lost is not None:
            around = own[call.around]
            own[call.around] = None if around is None else around - call.lost
    return tuple(dataclasses.replace(call, own=loss) for call, loss in zip(calls, own, strict=True))


def stratified(size: int, count: int) -> np.ndarray[Any, Any] | None:
    """One position in each of ``count`` equal stretches of ``range(size)``, always the same ones.

    ``None`` stands for all.  Positions at equal distances would fall on the same column of
    every row, at its border for instance.
    """
    if size <= count:
        return None
    edges = np.arange(count + 1) * size // count
    return edges[:-1] + np.random.default_rng(0).integers(0, np.diff(edges))


def _is_cut(side: _Side) -> bool:
    return any(tensor.followed < tensor.elements for tensor in side.tensors)


def _known(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return x[np.isfinite(x)]


def _is_followed(x: Any) -> bool:
    """Whether a leaf is a tensor of floating-point numbers that can be read one by one."""
    return (
        isinstance(x, torch.Tensor)
        and type(x) in PLAIN
        and (x.is_floating_point() or x.is_complex())
        and is_dense(x)
        and not x.is_meta
        and not torch._C._functorch.is_functorch_wrapped_tensor(x)
    )
