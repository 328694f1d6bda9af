"""The dispatch mode: lookup, numbering, counting; no arithmetic of its own."""

from __future__ import annotations

import contextlib
import itertools
import secrets
from collections.abc import Callable
from typing import Any, Final

import torch
from torch.utils import _python_dispatch as dispatch
from torch.utils._contextlib import context_decorator

from fuzzytorch import guards
from fuzzytorch.active import is_under_mode, lazy_views, modes_above
from fuzzytorch.active import thread as _thread
from fuzzytorch.backends import backend_named
from fuzzytorch.lookup import Entry, entry, other_entry, source, without_decomposition
from fuzzytorch.notices import notice
from fuzzytorch.ops.admission import admit
from fuzzytorch.ops.call import Call
from fuzzytorch.ops.coarse import NotInBinary64, estimated_operations
from fuzzytorch.ops.dtypes import (
    Arithmetic,
    accepted,
    arithmetic,
    conversion,
    converted,
    is_inexact,
    tensors,
    unusual,
    without_integers,
    working_dtype,
)
from fuzzytorch.ops.variants import conflicts, direct, split, write
from fuzzytorch.records import Coverage, Tally
from fuzzytorch.rounding import Rounding
from fuzzytorch.scope import Scope
from fuzzytorch.stream import Stream
from fuzzytorch.table import Row, Verdict

_PLAIN: Final = frozenset({torch.Tensor, torch.nn.Parameter, torch.nn.Buffer})
"""Types of tensors that hold plain numbers; other subclasses answer for themselves."""


_OTHER: Final = {Arithmetic.COMPLEX: "complex", Arithmetic.SPARSE: "sparse"}
"""Operands that rows of their own compute with."""

_THESE_COARSE: Final = "for these operands torch computes it in binary64; the result is rounded"


class fuzzy(dispatch.TorchDispatchMode):
    """Rounds every floating-point operation of torch under a mode, on this thread.

    A context manager, a decorator (of functions and of generators), and re-entrant::

        with fuzzytorch.fuzzy("sr", seed=0) as mode:
            loss = model(x).sum()
            loss.backward()
        print(mode.coverage.text())

    Of nested modes the innermost alone rounds.  Entering a mode again continues its
    numbering of calls, so that two passes under one mode draw differently; a new mode
    with the same seed repeats the bits.  Values, shapes, strides, aliasing, dtypes and the
    random numbers of torch are what stock torch gives, but for the rounding.  Callables made by
    ``torch.compile`` run eagerly meanwhile, which a warning says once; scripted and traced ones
    are perturbed like any other.

    Args:
        mode: how an operation is rounded, one of :data:`fuzzytorch.rounding.MODES`.
        seed: 0 to 2**64 - 1; ``None`` draws one from the operating system, reported as
            the attribute ``seed``.
        replica: which realisation of an ensemble this is.
        format: the target, one of :data:`fuzzytorch.rounding.PRESETS`.
        precision, emin, emax: replace those of the format: bits of the significand (2 to
            24), exponents of the smallest normal and of the largest number.
        backend: one of :data:`fuzzytorch.backends.BACKENDS`; the native kernels if ``None``.
        strict: raise instead of warning when an operation runs unperturbed.
        include: round what is selected only; ``None`` selects everything.
        exclude: do not round what is selected; stock kernels run, in the forward pass and in
            the backward pass, and are counted as ``EXCLUDED``.
        scopes: a mapping from what is selected to the :class:`fuzzytorch.Rounding` in there; of
            nested ones the innermost counts, of several for one place the last.

    What is selected by ``include``, ``exclude`` and the keys of ``scopes``, one or a list of:

    * the path of modules, such as ``"encoder.layers.*.attn*"``, with the wildcards of
      :mod:`fnmatch` (``*`` stands for dots too), from the module whose call is outermost;
    * a class of modules, or one module; with a module, all that it calls is selected;
    * operations by name as in the coverage report, such as ``"aten.mm"`` or ``"aten.*norm*"``, or
      as in ``torch.ops.aten.mm``; their in-place overloads and derivatives go with them;
    * a function of torch, such as ``torch.nn.functional.softmax``, with the method, operator
      and in-place form of it, where a program calls it (calls inside another function of
      torch that is written in Python are not seen).

    What is both included and excluded is excluded.  A selector that met nothing is warned about
    when the mode is left.  A backward pass knows the modules of a forward pass that ran under
    the same mode on the same thread.

    Raises:
        ValueError: an unknown mode, format or backend, an impossible precision or range,
            a seed or replica out of range, a function to select that is not torch's.
        TypeError: a value that selects nothing, or a scope without a ``Rounding``.
        RuntimeError: the native kernels were not built.
    """

    def __init__(
        self,
        mode: str = "sr",
        seed: int | None = None,
        replica: int = 0,
        *,
        format: str = "binary32",
        precision: int | None = None,
        emin: int | None = None,
        emax: int | None = None,
        backend: str | None = None,
        strict: bool = False,
        include: Any = None,
        exclude: Any = None,
        scopes: Any = None,
    ) -> None:
        super().__init__()
        self.rounding = _rounding(mode, format, precision, emin, emax)
        self.seed = secrets.randbits(63) if seed is None else seed
        self.replica = replica
        # Refuses what is not a name of a stream before anything runs.
        Stream(self.seed, self.replica, 0)
        self.backend = backend_named(backend)
        self.strict = strict
        selects = not (include is None and exclude is None and scopes is None)
        self._scope = Scope(include, exclude, scopes, self.rounding) if selects else None
        self._first_call = 0
        self._numbers = itertools.count()
        self._forks = 0
        # By id, which hashes faster than an overload; the entry keeps the overload alive.
        self._entries: dict[int, Entry] = {}
        self._tally = Tally()
        self._warned: set[str] = set()
        guards.continue_after_fork(self)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # True would wrap the handler and import the compiler on the first operation.
        return False

    def __repr__(self) -> str:
        return f"fuzzy(mode={self.rounding.mode!r}, seed={self.seed}, replica={self.replica})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            f"{self!r} cannot be copied or pickled, because a second one would repeat its random "
            "numbers: pass on its arguments, and make a new mode of them with another replica."
        )

    def __enter__(self) -> fuzzy:
        guards.enter(is_under_mode)
        super().__enter__()
        _thread.active.append(self)
        if self._scope is not None:
            self._scope.enter()
        return self

    def __exit__(self, *exception: Any) -> None:
        above = modes_above(self)
        for _ in above:
            dispatch._pop_mode()
        super().__exit__(*exception)
        for other in reversed(above):
            dispatch._push_mode(other)
        position = max(i for i, m in enumerate(_thread.active) if m is self)
        del _thread.active[position]
        _thread.last = self
        guards.leave()
        if self._scope is not None:
            self._scope.exit(complete=bool(self._tally) and not any(exception))

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, run under this mode at every call."""
        return context_decorator(lambda: self, function)

    @property
    def coverage(self) -> Coverage:
        """What ran under this mode so far, as a value that does not change any more."""
        return self._tally.coverage()

    def count_fork(self) -> None:
        """Numbers the next forked child of this process."""
        self._forks += 1

    def continue_in_child(self) -> None:
        """Gives this process, a forked child, call numbers of its own."""
        self._first_call = guards.first_call_of_child(self._first_call, self._forks)
        self._numbers = itertools.count(self._first_call)
        self._forks = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        thread = _thread
        if thread.handling:
            # Part of an operation that a mode above already answers for.
            return func(*args, **(kwargs or {}))
        if types and not _PLAIN.issuperset(types):
            # A tensor subclass unwraps itself and meets the mode with its parts.
            return NotImplemented
        known = self._entries.get(id(func))
        if known is None:
            known = self._entries[id(func)] = entry(func)
        _, row, admission, others = known
        rounding = self.rounding
        if self._scope is not None:
            scoped = self._scope.rounding(func)
            if scoped is None:
                return self._excluded(row, func, args, kwargs or {})
            rounding = scoped
        if others:
            kind = arithmetic(args, kwargs or {})
            if kind in _OTHER:
                known = other_entry(func, _OTHER[kind]) or known
                _, row, admission, _ = known
        if row.verdict is Verdict.LOWERED and source(row, func) in thread.lowering:
            # A decomposition that comes back to where it started.
            row = without_decomposition(row, func)
        thread.handling = True
        try:
            return self._run(row, func, args, kwargs or {}, rounding, admission)
        finally:
            thread.handling = False

    def _run(
        self,
        row: Row,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        rounding: Rounding,
        admission: bool = False,
    ) -> Any:
        if row.function is None:
            if row.verdict is Verdict.EXACT:
                self._tally.count(row, Verdict.EXACT, 0)
                return func(*args, **kwargs)
            return self._uncovered(row, func, args, kwargs, row.why)
        variant, operands, rest, overload = row.variant, args, kwargs, func
        targets: tuple[torch.Tensor, ...] = ()
        if variant is not None:
            rest, targets = split(variant, args, kwargs)
            overload = variant.base
        kind = _kind(row, args, rest)
        if kind is Arithmetic.NONE:
            exact, result = _without_floats(row, func, args, kwargs, rest)
            if exact:
                self._tally.count(row, Verdict.EXACT, 0)
                return result
            if row.verdict is not Verdict.LOWERED:
                operands, rest = without_integers((args, rest), _dtype_of_floats(result))
                kind = arithmetic(operands, rest)
        if kind in _OTHER and row.operands == "real":
            other = other_entry(func, _OTHER[kind])
            if other is None:
                return self._uncovered(row, func, args, kwargs, unusual(args, rest))
            return self._run(other.row, func, args, kwargs, rounding, other.admission)
        if kind is Arithmetic.META:
            return func(*args, **kwargs)
        if kind is Arithmetic.IMPOSSIBLE:
            return self._uncovered(row, func, args, kwargs, unusual(operands, rest))
        if admission:
            admit(overload, operands, rest)
        dtype = working_dtype(kind, operands, rest)
        out = None if variant is None else direct(operands, rest, targets, dtype)
        call = Call(overload, rounding, self.backend, self._next_stream, out, dtype)
        try:
            result = self._apply(row, call, kind, operands, rest)
            if result is NotImplemented:
                # A decomposition that does not apply to these arguments.
                return self._run(without_decomposition(row, func), func, args, kwargs, rounding)
        except NotInBinary64:
            return self._uncovered(row, func, args, kwargs, "torch has no binary64 kernel for it")
        if variant is not None:
            results = result if isinstance(result, (list, tuple)) else (result,)
            if conflicts(variant, results, targets, lambda: accepted(func, args, kwargs)):
                return self._uncovered(row, func, args, kwargs, "its result does not fit")
            write(call, results, targets)
            result = targets if len(targets) > 1 else targets[0]
        self._record(row, call, overload, operands, rest, result)
        return result

    def _apply(
        self,
        row: Row,
        call: Call,
        kind: Arithmetic,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        assert row.function is not None
        if row.verdict is Verdict.LOWERED:
            return self._lower(row.function, call, args, kwargs)
        if kind is Arithmetic.MIXED and not row.any_dtype:
            return converted(call, call.overload, row.function, args, kwargs)
        if row.operands == "complex":
            with lazy_views():
                return row.function(call, *args, **kwargs)
        return row.function(call, *args, **kwargs)

    def _lower(
        self,
        function: Callable[..., Any],
        call: Call,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Runs a function with this mode on again."""
        thread = _thread
        scope = self._scope
        inside = contextlib.nullcontext() if scope is None else scope.inside(call.overload)
        thread.lowering.append(call.overload)
        thread.handling = False
        dispatch._push_mode(self)
        try:
            with inside, lazy_views():
                return function(call, *args, **kwargs)
        finally:
            dispatch._pop_mode()
            thread.handling = True
            thread.lowering.pop()

    def _excluded(self, row: Row, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs stock torch because the program asked for it."""
        thread = _thread
        thread.handling = True
        try:
            with lazy_views():
                result = func(*args, **kwargs)
            floats = any(is_inexact(x) for x in tensors(args, kwargs)) or _holds_floats(result)
            if row.verdict is Verdict.EXACT or not floats:
                self._tally.count(row, Verdict.EXACT, 0)
            else:
                operations = estimated_operations(func, args, kwargs, result)
                self._tally.count(
                    row, Verdict.EXCLUDED, operations, "not to be rounded, on request"
                )
        finally:
            thread.handling = False
        return result

    def _next_stream(self) -> Stream:
        return Stream(self.seed, self.replica, next(self._numbers))

    def _record(
        self,
        row: Row,
        call: Call,
        overload: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
    ) -> None:
        verdict, operations = row.verdict, call.operations
        if call.coarse:
            verdict = Verdict.COARSE
        if verdict is Verdict.ROUNDED and operations == 0:
            # A conversion to a wider dtype, or nothing to compute.
            verdict = Verdict.EXACT
        elif verdict is Verdict.COARSE:
            estimate = estimated_operations(overload, args, kwargs, result)
            operations = max(operations, estimate)
        self._tally.count(row, verdict, operations, _THESE_COARSE if call.coarse else None)

    def _uncovered(
        self, row: Row, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], why: str
    ) -> Any:
        """Runs stock torch, counts it, and says so once by name."""
        reads = any(is_inexact(x) for x in tensors(args, kwargs))
        if self.strict and reads:
            raise RuntimeError(_complaint(row.name, why))
        with lazy_views():
            result = func(*args, **kwargs)
        if not reads and not _holds_floats(result):
            self._tally.count(row, Verdict.EXACT, 0)
            return result
        if self.strict:
            raise RuntimeError(_complaint(row.name, why))
        operations = estimated_operations(func, args, kwargs, result)
        self._tally.count(row, Verdict.UNCOVERED, operations, why)
        if row.name not in self._warned:
            self._warned.add(row.name)
            notice(_complaint(row.name, why))
        return result


def _rounding(
    mode: str, format: str, precision: int | None, emin: int | None, emax: int | None
) -> Rounding:
    rounding = Rounding.of(mode, format)
    if precision is None and emin is None and emax is None:
        return rounding
    return Rounding(
        mode,
        rounding.precision if precision is None else precision,
        rounding.emin if emin is None else emin,
        rounding.emax if emax is None else emax,
    )


def current() -> fuzzy | None:
    """The innermost mode that is active on this thread, or the one left last."""
    return _thread.active[-1] if _thread.active else _thread.last


def _holds_floats(result: Any) -> bool:
    results = result if isinstance(result, (list, tuple)) else (result,)
    return any(isinstance(y, torch.Tensor) and is_inexact(y) for y in results)


def _dtype_of_floats(result: Any) -> torch.dtype:
    results = result if isinstance(result, (list, tuple)) else (result,)
    dtype: torch.dtype = next(
        y.dtype for y in results if isinstance(y, torch.Tensor) and is_inexact(y)
    )
    return dtype


def _kind(row: Row, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arithmetic:
    """What the tensors of a call ask of a row."""
    if not row.any_dtype or row.verdict is Verdict.COARSE:
        return arithmetic(args, kwargs)
    if row.verdict is Verdict.ROUNDED:
        return conversion(args, kwargs)
    return Arithmetic.BINARY32


def _without_floats(
    row: Row, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], rest: dict[str, Any]
) -> tuple[bool, Any]:
    """Whether a call that reads no floating-point tensor returns none, and what stock returns."""
    if row.variant is not None:
        result = row.variant.base(*args, **rest)
        if _holds_floats(result):
            return False, result
    result = func(*args, **kwargs)
    writes = row.variant is None and not func._schema.is_mutable
    return not (writes and _holds_floats(result)), result


def _complaint(name: str, why: str) -> str:
    return f"{name} runs without perturbation under the fuzzytorch mode ({why})."
