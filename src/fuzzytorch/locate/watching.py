"""Where Inf and NaN first appear: a check of every operation, on request."""

from __future__ import annotations

import cmath
import dataclasses
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

import torch
from torch.utils import _python_dispatch as dispatch
from torch.utils import _pytree as pytree

from fuzzytorch import guards
from fuzzytorch.active import PLAIN, is_under_mode, thread
from fuzzytorch.ensemble.samples import Failure, describe
from fuzzytorch.ensemble.sampling import sample
from fuzzytorch.locate import origins
from fuzzytorch.locate.finite import all_finite
from fuzzytorch.locate.origins import NonFinite, Origin
from fuzzytorch.locate.places import Places
from fuzzytorch.notices import responsible
from fuzzytorch.ops.dtypes import is_dense

_Tests: TypeAlias = "tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[complex], bool]]"

_VALUES: Final[Mapping[str, _Tests]] = {
    "Inf": (torch.isinf, cmath.isinf),
    "NaN": (torch.isnan, cmath.isnan),
}
"""What is looked for: the test of every element of a tensor, and that of a number."""

_UNINITIALIZED: Final = ("empty", "new_empty", "resize", "_resize")
"""Beginnings of the names of operations whose results are what the memory happened to hold."""


def first_nonfinite(
    fn: Callable[[], Any],
    n: int = 10,
    mode: str = "sr",
    seed: int | None = None,
    *,
    progress: Callable[[int], None] | None = None,
    **options: Any,
) -> NonFinite:
    """Runs ``fn()`` once without noise and n times under it, and says where Inf and NaN appear.

    An operation is an origin of Inf if a floating-point result of it holds one and neither a
    tensor nor a number that it reads is Inf or NaN, and an origin of NaN if none that it reads is
    NaN.  So the ``-inf`` that a program puts into a mask is none, but the softmax of a row that
    is masked throughout is one of NaN.  The first of each kind in every run is reported, of forward
    and backward passes and optimizer steps, with its module, its line and its cause: the
    operation is repeated in binary64.  Where each kind appears in all samples and in the run
    without noise too, it is not rounding that brings it about; where only in some,
    rounding decides.

    Operations are those that reach torch's dispatcher, as :func:`fuzzytorch.explain` lists them:
    one that is lowered to others under the mode has the name of the whole.  The check reads
    every result once, and copies what is written in place; nothing of it exists while no
    such report is made.  Subclasses of tensors are met with their parts.

    Args:
        fn, n, mode, seed, progress, options: as for :func:`fuzzytorch.sample`.

    Returns:
        The origins and the verdict; print it for a table.  A run that raises counts as far as it
        came, also when all of them do.

    Raises:
        TypeError, ValueError: as :func:`fuzzytorch.sample` says.
    """
    if not callable(fn):
        raise TypeError(f"fn={fn!r} cannot be called: give a function that computes one sample.")
    found: dict[int | None, list[Origin]] = {}
    failures: list[Failure] = []
    notes: list[str] = []

    def run() -> None:
        active = thread.active
        replica = active[-1].replica if active else None
        watch = _Watch()
        try:
            with watch:
                fn()
        except Exception as error:  # noqa: BLE001 - reported; the operations until then count
            if replica is None:
                notes.append(f"The run without noise failed: {describe(error)}")
            else:
                failures.append(Failure.of(replica, error))
        found[replica] = watch.found

    samples = sample(run, n, mode, seed, progress=progress, **options)
    return NonFinite(
        origins=_merged(found),
        runs=sum(replica is not None for replica in found),
        mode=samples.mode,
        seed=samples.seed,
        failures=tuple(failures),
        notes=(*samples.notes, *notes),
    )


class _Watch(dispatch.TorchDispatchMode):
    """Looks at the results of every operation until one of each kind is found.

    It is entered above the mode that rounds, so that it meets the operations of the program and
    reads what the mode made of them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Origin] = []
        self._missing = list(_VALUES)
        self._places = Places()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # As for the mode that rounds: True would import the compiler.
        return False

    def __enter__(self) -> _Watch:
        # What is compiled runs eagerly in the run without noise too, or it could not be seen.
        guards.enter(is_under_mode)
        self._places.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self._places.__exit__(*exception)
        guards.leave()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if types and not PLAIN.issuperset(types):
            return NotImplemented
        kwargs = kwargs or {}
        self._places.here()
        if not self._missing or not isinstance(func, torch._ops.OpOverload):
            return func(*args, **kwargs)
        operands = self._unperturbed(_operands, func, args, kwargs)
        result = func(*args, **kwargs)
        self._unperturbed(self._look, func, operands, (result, *_written(func, args, kwargs)))
        return result

    def _unperturbed(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The modes below leave what runs inside alone, and do not count it."""
        before, thread.handling = thread.handling, True
        try:
            return function(*arguments)
        finally:
            thread.handling = before

    def _look(self, func: Any, operands: tuple[Any, Any], results: tuple[Any, ...]) -> None:
        numbers = list(_floats(results))
        if all(map(all_finite, numbers)):
            return
        if func._schema.name.partition("::")[2].startswith(_UNINITIALIZED):
            return
        infinite = _holds("Inf", operands)
        if _holds("NaN", operands):
            return
        for value in tuple(self._missing):
            where = [x for x in numbers if bool(_VALUES[value][0](x).any())]
            if where and not (infinite and value == "Inf"):
                self._missing.remove(value)
                cause = origins.INFINITE if infinite else _cause(func, operands, value)
                self.found.append(self._origin(func, where[0], value, cause))

    def _origin(self, func: Any, first: torch.Tensor, value: str, cause: str) -> Origin:
        place, node = self._places.here()
        frame = responsible(sys._getframe(1))
        shape = "x".join(map(str, first.shape)) or "scalar"
        return Origin(
            value=value,
            operation=str(func),
            place=place,
            node=node,
            cause=cause,
            line=f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}",
            result=f"{str(first.dtype).removeprefix('torch.')}, shape {shape}",
            elements=int(_VALUES[value][0](first).sum()),
            replicas=(),
            ieee=False,
        )


def _operands(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What an operation reads, still there when it has written into it."""
    if not func._schema.is_mutable:
        return args, kwargs
    targets = pytree.tree_leaves(list(_written(func, args, kwargs)))
    written = {_memory(x) for x in targets if isinstance(x, torch.Tensor)}
    outs = {a.name for a in func._schema.arguments if a.is_out}

    def kept(x: Any) -> Any:
        return x.clone() if isinstance(x, torch.Tensor) and _memory(x) in written else x

    named = {n: _Target(x) if n in outs else pytree.tree_map(kept, x) for n, x in kwargs.items()}
    return pytree.tree_map(kept, args), named


def _memory(x: torch.Tensor) -> int:
    """What tensors that share memory have in common."""
    return x.untyped_storage().data_ptr() if is_dense(x) else id(x)


@dataclasses.dataclass(frozen=True)
class _Target:
    """An argument that is written and not read."""

    tensors: Any


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Any]:
    """The arguments that an operation writes into."""
    if func._schema.is_mutable:
        for i, argument in enumerate(func._schema.arguments):
            if _writes(argument):
                yield args[i] if i < len(args) else kwargs.get(argument.name)


def _writes(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _floats(tree: Any) -> Iterator[torch.Tensor]:
    """The floating-point numbers of all tensors in a tree, as dense tensors of a usual dtype."""
    for x in pytree.tree_leaves(tree):
        if not isinstance(x, torch.Tensor) or x.is_meta:
            continue
        if not (x.is_floating_point() or x.is_complex()):
            continue
        if x.is_nested:
            yield from _floats(x.unbind())
        elif x.layout is torch.sparse_coo:
            yield x._values()
        elif x.layout is not torch.strided:
            yield x.values() if "sparse" in str(x.layout) else x.to_dense()
        else:
            yield x.float() if x.element_size() == 1 else x


def _holds(value: str, operands: tuple[Any, Any]) -> bool:
    """Whether a tensor or a number among the operands holds the value."""
    of_tensor, of_number = _VALUES[value]
    return any(bool(of_tensor(x).any()) for x in _floats(operands)) or any(
        of_number(x) for x in pytree.tree_leaves(operands) if isinstance(x, (float, complex))
    )


def _cause(func: Any, operands: tuple[Any, Any], value: str) -> str:
    """What the operation yields in binary64 says why it is not finite."""
    if torch.Tag.nondeterministic_seeded in func.tags:
        return origins.UNKNOWN
    args, kwargs = pytree.tree_map(_widened, operands)
    try:
        result = func(*args, **kwargs)
    except (RuntimeError, NotImplementedError):
        return origins.UNKNOWN
    if all(map(all_finite, _floats((result, *_written(func, args, kwargs))))):
        return origins.OVERFLOW
    return origins.DIVISION if value == "Inf" else origins.INVALID


def _widened(x: Any) -> Any:
    if isinstance(x, _Target):
        return pytree.tree_map(_widened, x.tensors)
    if isinstance(x, torch.Tensor) and x.is_floating_point():
        return x.to(torch.float64, copy=True)
    if isinstance(x, torch.Tensor):
        return x.to(torch.complex128, copy=True) if x.is_complex() else x.clone()
    if isinstance(x, torch.dtype):
        return torch.float64 if x.is_floating_point else x
    return x


def _merged(found: dict[int | None, list[Origin]]) -> tuple[Origin, ...]:
    """The origins of all runs, by replica, each once; of the run without noise first."""
    merged: dict[Any, Origin] = {}
    for replica, those in found.items():
        for origin in those:
            where = (origin.operation, origin.place, origin.node, origin.line)
            key = (origin.value, origin.cause, where)
            known = merged.setdefault(key, origin)
            merged[key] = dataclasses.replace(
                known,
                replicas=known.replicas if replica is None else (*known.replicas, replica),
                ieee=known.ieee or replica is None,
            )
    return tuple(merged.values())
