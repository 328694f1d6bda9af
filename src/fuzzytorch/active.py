"""Which modes are active on a thread; how to set them aside; what torch leaves out below one."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch.utils import _python_dispatch as dispatch

PLAIN: Final = frozenset({torch.Tensor, torch.nn.Parameter, torch.nn.Buffer})
"""Types of tensors that hold plain numbers; other subclasses answer for themselves."""


class _Thread(threading.local):
    """What each thread knows of the modes on it.

    Attributes:
        handling: whether a mode is answering for an operation.
        lowering: the overloads whose decompositions are running, outermost first.
        active: the modes that were entered and not left, innermost last.
        last: the mode left last.
    """

    def __init__(self) -> None:
        self.handling = False
        self.lowering: list[Any] = []
        self.active: list[Any] = []
        self.last: Any = None


thread = _Thread()


def is_under_mode() -> bool:
    """Whether a mode is active on this thread."""
    return bool(thread.active)


def modes_above(mode: Any) -> list[Any]:
    """The modes of torch on this thread that were entered after ``mode``, innermost first.

    Raises:
        RuntimeError: ``mode`` is not active on this thread.
    """
    above: list[Any] = []
    for i in reversed(range(torch._C._len_torch_dispatch_stack())):
        other = torch._C._get_dispatch_stack_at(i)
        if other is mode:
            return above
        above.append(other)
    raise RuntimeError(
        f"{mode!r} was left on another thread than it was entered on: enter and leave it on one."
    )


@contextlib.contextmanager
def lazy_views() -> Iterator[None]:
    """Conjugates, negatives and zeros that torch has not written out are understood inside.

    Below a dispatch mode torch leaves them out, because the arguments of an operation have none
    left; but an operation made of others may make new ones, whose values would be read wrong.
    """
    keys, included = torch._C.DispatchKey, torch._C._SetExcludeDispatchKeyGuard
    with (
        included(keys.Conjugate, False),
        included(keys.Negative, False),
        included(keys.ZeroTensor, False),
    ):
        yield


@contextlib.contextmanager
def stock() -> Iterator[None]:
    """Stock torch: no mode of this package is active on this thread inside.

    Other dispatch modes of torch stay on.
    """
    active = thread.active
    aside = [dispatch._pop_mode() for _ in range(torch._C._len_torch_dispatch_stack())][::-1]
    kept = [mode for mode in aside if not any(mode is other for other in active)]
    for mode in kept:
        dispatch._push_mode(mode)
    thread.active = []
    try:
        yield
    finally:
        for _ in kept:
            dispatch._pop_mode()
        for mode in aside:
            dispatch._push_mode(mode)
        thread.active = active
