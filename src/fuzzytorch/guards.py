"""What a dispatch mode cannot see, made safe or said: other threads, forks, compiled callables."""

from __future__ import annotations

import functools
import importlib
import multiprocessing
import os
import sys
import threading
import weakref
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any, Final, Protocol

import torch

from fuzzytorch.active import thread as _thread
from fuzzytorch.notices import notice

FORK_STRIDE: Final = 2**40
"""Call numbers that one process may use before those of its forked children begin."""

_QUIET_THREADS: Final = (
    "logging.",
    "multiprocessing.pool.Pool._handle",
    "multiprocessing.queues",
    "multiprocessing.resource_sharer",
    "rich.",
    "torch.utils.data._utils.pin_memory",
    "tqdm.",
)
"""Beginnings of the names of functions whose threads carry data or draw progress bars."""


class Forkable(Protocol):
    """What continues in a forked child."""

    def count_fork(self) -> None:
        """Called in the parent, just before a fork."""

    def continue_in_child(self) -> None:
        """Called in the child, just after it."""


_forkables: weakref.WeakSet[Any] = weakref.WeakSet()


def continue_after_fork(mode: Forkable) -> None:
    """Tells a mode about the forks of this process for as long as it exists."""
    _forkables.add(mode)


def _before() -> None:
    for mode in list(_forkables):
        mode.count_fork()


def _in_child() -> None:
    global _lock, _active
    _lock = threading.Lock()
    if _entered and torch.get_num_threads() > 1:
        # The threads of OpenMP, which torch uses below a mode also for what stock torch does
        # on one thread, are not there in a child, and waiting for them would never end.
        torch.set_num_threads(1)
    # Modes on the other threads of the parent stayed behind with these.
    _active = len(_thread.active)
    _remove_unless_active()
    for mode in list(_forkables):
        mode.continue_in_child()


os.register_at_fork(before=_before, after_in_child=_in_child)


def first_call_of_child(first: int, fork: int) -> int:
    """The first call number of the child made by fork number ``fork`` (from 1).

    A process whose own first call is ``first``: child ``f`` of the first process starts at
    ``f * 2**40``; deeper generations are mixed so that siblings and cousins differ.
    """
    parent = first // FORK_STRIDE
    index = fork if parent == 0 else parent * 0x9E3779 + fork
    return (index % 2**24) * FORK_STRIDE


class _Installed:
    """What the guards replaced, and what puts it back."""

    def __init__(self, is_under_mode: Callable[[], bool]) -> None:
        self._is_under_mode = is_under_mode
        self._warned = False
        self._afresh = False
        self._said = False
        self._frames: Any = None
        self._stock_callback: Any = None
        self._stance: Any = None
        self._stock_start = threading.Thread.start
        self._stock_compile = torch.compile
        threading.Thread.start = self._wrapped_start()  # type: ignore[method-assign, assignment]
        self._stock_process = BaseProcess.start
        BaseProcess.start = self._wrapped_process()  # type: ignore[method-assign, assignment]
        # Without the compiler there is nothing compiled, and importing it takes seconds.
        if "torch._dynamo" in sys.modules:
            self._run_eagerly()
        else:
            torch.compile = self._wrapped_compile()

    def remove(self) -> None:
        """Puts everything back."""
        threading.Thread.start = self._stock_start  # type: ignore[method-assign]
        BaseProcess.start = self._stock_process  # type: ignore[method-assign]
        torch.compile = self._stock_compile
        if self._stance is not None:
            self._frames._callback_from_stance = self._stock_callback
            self._stance.__exit__(None, None, None)

    def _run_eagerly(self) -> None:
        if self._stance is None:
            self._stance = torch.compiler.set_stance("force_eager")
            self._frames = importlib.import_module("torch._dynamo.eval_frame")
            self._stock_callback = self._frames._callback_from_stance
            self._frames._callback_from_stance = self._wrapped_callback()

    def _wrapped_callback(self) -> Callable[[Any], Any]:
        """What torch asks whenever a compiled callable is called, with a notice."""
        stock = self._stock_callback

        def callback_from_stance(callback: Any) -> Any:
            # Without a callback nothing is to be compiled.
            if not self._said and callback not in (False, None) and self._is_under_mode():
                self._said = True
                notice(
                    "a callable made by torch.compile runs eagerly under a fuzzytorch mode, "
                    "because compiled kernels cannot be perturbed: its operations are rounded "
                    "one by one, without fusion."
                )
            return stock(callback)

        return callback_from_stance

    def _wrapped_start(self) -> Callable[[threading.Thread], None]:
        stock = self._stock_start

        @functools.wraps(stock)
        def start(thread: threading.Thread) -> None:
            if not self._warned and self._is_under_mode() and not _carries_data(thread):
                self._warned = True
                notice(
                    f"the thread {thread.name!r} was started under a fuzzytorch mode, which it "
                    "does not inherit: its work is not perturbed unless it enters "
                    "fuzzytorch.fuzzy itself."
                )
            stock(thread)

        return start

    def _wrapped_process(self) -> Callable[[BaseProcess], None]:
        stock = self._stock_process

        @functools.wraps(stock)
        def start(process: BaseProcess) -> None:
            if not self._afresh and self._is_under_mode() and _starts_afresh(process):
                self._afresh = True
                notice(
                    f"the process {process.name!r} is started afresh under a fuzzytorch mode, "
                    "which only forked processes inherit: its work is not perturbed unless it "
                    "enters fuzzytorch.fuzzy itself."
                )
            stock(process)

        return start

    def _wrapped_compile(self) -> Callable[..., Any]:
        stock = self._stock_compile

        @functools.wraps(stock)
        def compile(*args: Any, **kwargs: Any) -> Any:
            self._run_eagerly()
            return stock(*args, **kwargs)

        return compile


_lock = threading.Lock()
_active = 0
_entered = False
_installed: _Installed | None = None


def enter(is_under_mode: Callable[[], bool]) -> None:
    """Counts one more active mode; the first one installs the guards.

    While a mode is active anywhere in the process, starting a thread from under it warns once,
    and callables compiled by ``torch.compile`` run eagerly, on every thread.
    """
    global _active, _entered, _installed
    with _lock:
        _active += 1
        _entered = True
        if _active == 1:
            _installed = _Installed(is_under_mode)


def leave() -> None:
    """Counts one active mode less; the last one removes the guards."""
    global _active
    with _lock:
        _active -= 1
        _remove_unless_active()


def _remove_unless_active() -> None:
    global _installed
    if _active == 0 and _installed is not None:
        _installed.remove()
        _installed = None


def _carries_data(thread: threading.Thread) -> bool:
    target = getattr(thread, "_target", None)
    named: Any = target if hasattr(target, "__qualname__") else type(thread)
    return f"{named.__module__}.{named.__qualname__}".startswith(_QUIET_THREADS)


def _starts_afresh(process: BaseProcess) -> bool:
    method = getattr(process, "_start_method", None) or multiprocessing.get_start_method()
    return method != "fork"
