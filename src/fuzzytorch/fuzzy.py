"""The dispatch mode: lookup, numbering, counting; no arithmetic of its own."""

from __future__ import annotations

import contextlib
import itertools
import secrets
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch.utils import _python_dispatch as dispatch
from torch.utils._contextlib import context_decorator

from fuzzytorch import guards
from fuzzytorch.account import Account
from fuzzytorch.active import PLAIN, is_under_mode, lazy_views, modes_above
from fuzzytorch.active import thread as _thread
from fuzzytorch.backends import backend_named
from fuzzytorch.gaps import Gap, uncovered
from fuzzytorch.lookup import Entry, entry, other_entry, source, without_decomposition
from fuzzytorch.ops.admission import REFUSALS, accepted, admit, refuse, rehearse
from fuzzytorch.ops.call import Call
from fuzzytorch.ops.coarse import NotInBinary64
from fuzzytorch.ops.dtypes import (
    Arithmetic,
    arithmetic,
    conversion,
    dtype_of_inexact,
    unusual,
    without_integers,
    working_dtype,
)
from fuzzytorch.ops.storing import converted
from fuzzytorch.ops.variants import conflicts, direct, split, tangled, without_floats, write
from fuzzytorch.records import Coverage
from fuzzytorch.rounding import Rounding
from fuzzytorch.scope import Scope
from fuzzytorch.stream import Stream
from fuzzytorch.table import Row, Table, Verdict

_OTHER: Final = {Arithmetic.COMPLEX: "complex", Arithmetic.SPARSE: "sparse"}
"""Operands that rows of their own compute with."""


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
        strict: do not accept that an operation runs unperturbed.  All of them run, warned about as
            ever, so that one run finds them all; leaving the mode raises an error that lists
            them with the modules where they were called, unless another exception is under way.
        rows: :class:`fuzzytorch.Row` values that this mode uses before those of the table, for
            operations of an extension, or to compute one of torch otherwise.
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
            a seed or replica out of range, a function to select that is not torch's, a row
            for an operation that torch does not know, or two rows for one.
        TypeError: a value that selects nothing, a scope without a ``Rounding``, or what is no row.
        RuntimeError: the native kernels were not built.
        UncoveredError: from a strict mode when it is left.
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
        rows: Sequence[Row] = (),
    ) -> None:
        super().__init__()
        self.rounding = Rounding.of(mode, format, precision, emin, emax)
        self.seed = secrets.randbits(63) if seed is None else seed
        self.replica = replica
        # Refuses what is not a name of a stream before anything runs.
        Stream(self.seed, self.replica, 0)
        self.backend = backend_named(backend)
        self.strict = strict
        asks = strict or not (include is None and exclude is None and scopes is None)
        self._scope = Scope(include, exclude, scopes, self.rounding, strict) if asks else None
        self._own = Table({"rows": rows})
        self._first_call = 0
        self._numbers = itertools.count()
        self._forks = 0
        # By id, which hashes faster than an overload; the entry keeps the overload alive.
        self._entries: dict[int, Entry] = {}
        self._others: dict[tuple[int, str], Entry | None] = {}
        self._account = Account()
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
        if not any(mode is self for mode in _thread.active):
            self._account.forget_gaps()
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
            self._scope.exit(complete=bool(self._account) and not any(exception))
        if self.gaps and not any(exception) and not any(m is self for m in _thread.active):
            raise uncovered(repr(self), self.gaps)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, run under this mode at every call."""
        return context_decorator(lambda: self, function)

    @property
    def coverage(self) -> Coverage:
        """What ran under this mode so far, as a value that does not change any more."""
        return self._account.coverage()

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """What ran unperturbed, and where, since this mode was entered; of strict modes only."""
        return self._account.gaps

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
        if types and not PLAIN.issuperset(types):
            # A tensor subclass unwraps itself and meets the mode with its parts.
            return NotImplemented
        known = self._entries.get(id(func))
        if known is None:
            known = self._entries[id(func)] = entry(func, self._own)
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
                known = self._other(func, _OTHER[kind]) or known
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
                self._account.exact(row)
                return func(*args, **kwargs)
            return self._uncovered(row, func, args, kwargs, row.why)
        variant, operands, rest, overload = row.variant, args, kwargs, func
        targets: tuple[torch.Tensor, ...] = ()
        if variant is not None:
            rest, targets = split(variant, args, kwargs)
            overload = variant.base
        kind = _kind(row, args, rest)
        if kind is Arithmetic.NONE:
            exact, result = without_floats(row, func, args, kwargs, rest)
            if exact:
                self._account.exact(row)
                return result
            if row.verdict is not Verdict.LOWERED:
                operands, rest = without_integers((args, rest), dtype_of_inexact(result))
                kind = arithmetic(operands, rest)
        if kind in _OTHER and row.operands == "real":
            other = self._other(func, _OTHER[kind])
            if other is None:
                return self._uncovered(row, func, args, kwargs, unusual(args, rest))
            return self._run(other.row, func, args, kwargs, rounding, other.admission)
        if kind is Arithmetic.META:
            return func(*args, **kwargs)
        if kind is Arithmetic.IMPOSSIBLE:
            return self._uncovered(row, func, args, kwargs, unusual(operands, rest))
        if admission or kind is Arithmetic.MIXED:
            admit(overload, operands, rest)
        dtype = working_dtype(kind, operands, rest)
        out = None if variant is None else direct(operands, rest, targets, dtype)
        if targets and out is None and tangled(operands, rest, targets):
            # Each operation of stock torch has its own opinion on memory that overlaps.
            rehearse(func, args, kwargs)
        call = Call(overload, rounding, self.backend, self._next_stream, out, dtype)
        try:
            result = self._apply(row, call, kind, operands, rest)
            if result is NotImplemented:
                # A decomposition that does not apply to these arguments.
                return self._run(without_decomposition(row, func), func, args, kwargs, rounding)
        except NotInBinary64:
            return self._uncovered(row, func, args, kwargs, "torch has no binary64 kernel for it")
        except REFUSALS as error:
            refuse(func, args, kwargs, error)
        if variant is not None:
            results = result if isinstance(result, (list, tuple)) else (result,)
            if conflicts(variant, results, targets, lambda: accepted(func, args, kwargs)):
                return self._uncovered(row, func, args, kwargs, "its result does not fit")
            write(call, results, targets)
            result = targets if len(targets) > 1 else targets[0]
        self._account.perturbed(row, call, operands, rest, result)
        return result

    def _other(self, func: Any, operands: str) -> Entry | None:
        """The entry of an overload that was met, for complex or sparse operands."""
        key = (id(func), operands)
        if key not in self._others:
            self._others[key] = other_entry(func, operands, self._own)
        return self._others[key]

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
        if row.operands != "real":
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
            self._account.excluded(row, func, args, kwargs, result)
        finally:
            thread.handling = False
        return result

    def _next_stream(self) -> Stream:
        return Stream(self.seed, self.replica, next(self._numbers))

    def _uncovered(
        self, row: Row, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], why: str
    ) -> Any:
        """Runs stock torch because nothing else can."""
        with lazy_views():
            result = func(*args, **kwargs)
        module = self._scope.module() if self.strict and self._scope is not None else None
        self._account.uncovered(row, func, args, kwargs, result, why, module)
        return result


def current() -> fuzzy | None:
    """The innermost mode that is active on this thread, or the one left last."""
    return _thread.active[-1] if _thread.active else _thread.last


def _kind(row: Row, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arithmetic:
    """What the tensors of a call ask of a row."""
    if not row.any_dtype or row.verdict is Verdict.COARSE:
        return arithmetic(args, kwargs)
    if row.verdict is Verdict.ROUNDED:
        return conversion(args, kwargs)
    return Arithmetic.BINARY32
