"""Where an operation comes from: the modules that are being called, and the nodes of autograd."""

from __future__ import annotations

import dataclasses
import functools
import threading
import weakref
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch._C._autograd import _get_sequence_nr as _sequence_number
from torch.utils.weak import WeakTensorKeyDictionary

_TRANSPARENT: Final = "_orig_mod"
"""How the wrapper that ``torch.compile`` puts around a module names it."""

HISTORY: Final = 2**22
"""Changes of setting that are remembered; graphs older than that are refused."""

_NO_NUMBER: Final = 2**64 - 1
"""What nodes that add up the gradient of a leaf have instead of a number."""


class Listener:
    """What is told about the calls of modules on its thread."""

    def enter_module(self, module: torch.nn.Module) -> Any:
        """Called before a module runs; what it returns is handed to the others."""
        raise NotImplementedError

    def takes(self, frame: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Called, once entered, with what the module is given."""

    def returns(self, frame: Any, result: Any) -> None:
        """Called with what the module returned."""

    def leave(self, frame: Any) -> None:
        """Called when the module has returned or raised."""
        raise NotImplementedError


class _Here(threading.local):
    def __init__(self) -> None:
        self.listeners: list[Listener] = []


_here = _Here()
_lock = threading.Lock()
_active = 0
_stock_call: Callable[..., Any] = torch.nn.Module.__call__
_our_call: Callable[..., Any] | None = None


def listen(listener: Listener) -> None:
    """Tells a listener about the calls of modules on this thread from now on."""
    global _active, _stock_call, _our_call
    _here.listeners.append(listener)
    with _lock:
        _active += 1
        if _active == 1:
            _stock_call = torch.nn.Module.__call__
            _our_call = _watched(_stock_call)
            torch.nn.Module.__call__ = _our_call  # type: ignore[method-assign]


def ignore(listener: Listener) -> None:
    """Ends what :func:`listen` began."""
    global _active
    position = max(i for i, known in enumerate(_here.listeners) if known is listener)
    del _here.listeners[position]
    with _lock:
        _active -= 1
        # Whoever replaced it after us keeps what they put there.
        if _active == 0 and torch.nn.Module.__call__ is _our_call:
            torch.nn.Module.__call__ = _stock_call  # type: ignore[method-assign]


def _watched(stock: Callable[..., Any]) -> Callable[..., Any]:
    """The call of a module, with its listeners told.

    Not a hook of torch: those run before and after the hooks of the program, whose
    operations belong to the module, and not at all after some exceptions.
    """

    @functools.wraps(stock)
    def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        listeners = _here.listeners
        if not listeners:
            return stock(module, *args, **kwargs)
        frames: list[tuple[Listener, Any]] = []
        try:
            for listener in listeners:
                frames.append((listener, listener.enter_module(module)))
                listener.takes(frames[-1][1], args, kwargs)
            result = stock(module, *args, **kwargs)
            for listener, frame in reversed(frames):
                listener.returns(frame, result)
            return result
        finally:
            for listener, frame in reversed(frames):
                listener.leave(frame)

    return call


class Trees:
    """The paths of modules in the trees of the modules that were called first."""

    def __init__(self) -> None:
        self._names: weakref.WeakKeyDictionary[Any, dict[int, tuple[str, ...]]]
        self._names = weakref.WeakKeyDictionary()
        self._fresh: weakref.WeakSet[Any] = weakref.WeakSet()

    def begin(self, root: torch.nn.Module) -> None:
        """A call of ``root`` begins: its tree may have changed since the last one."""
        self._fresh.discard(root)

    def paths(self, root: torch.nn.Module, module: torch.nn.Module) -> tuple[str, ...]:
        """All paths from ``root`` to ``module``; none where it is not registered there."""
        names = self._names.get(root)
        found = names.get(id(module), ()) if names is not None else ()
        if found and all(_at(root, path) is module for path in found):
            return tuple(_spelled(path) for path in found)
        if root in self._fresh:
            return ()
        self._fresh.add(root)
        names = {}
        for path, each in _walk(root, "", ()):
            names[id(each)] = (*names.get(id(each), ()), path)
        self._names[root] = names
        return tuple(_spelled(path) for path in names.get(id(module), ()))


def below(paths: tuple[str, ...], around: tuple[str, ...]) -> tuple[str, ...]:
    """Those paths that lie under one of the paths around them; all of them if none does."""
    inside = [p for p in paths if any(not a or p == a or p.startswith(f"{a}.") for a in around)]
    return tuple(inside) or paths


def _walk(
    module: torch.nn.Module, path: str, above: tuple[torch.nn.Module, ...]
) -> Iterator[tuple[str, torch.nn.Module]]:
    yield path, module
    for name, child in module._modules.items():
        if child is not None and not any(child is each for each in above):
            yield from _walk(child, f"{path}.{name}" if path else name, (*above, module))


def _at(root: torch.nn.Module, path: str) -> torch.nn.Module | None:
    module: torch.nn.Module | None = root
    for name in path.split(".") if path else ():
        if module is None:
            return None
        module = module._modules.get(name)
    return module


def _spelled(path: str) -> str:
    return ".".join(part for part in path.split(".") if part != _TRANSPARENT)


class History:
    """Which setting the nodes of autograd were made under, by their number on this thread.

    Autograd numbers the nodes that a thread makes.  An operation of a backward pass belongs to
    the node that is being evaluated; so the changes of setting and their numbers are all that
    has to be kept, and no node is touched.
    """

    def __init__(self, setting: Any) -> None:
        self._starts = array("Q")
        self._settings: list[Any] = []
        self._before: Any = setting
        self._forgotten = 0
        self._last = 0
        self.current: Any = setting

    def mark(self, setting: Any, start: int | None = None) -> None:
        """The nodes from ``start`` on, or from now on, are made under ``setting``."""
        now = _sequence_number()
        start = now if start is None else start
        self._last = now
        self.current = setting
        starts, settings = self._starts, self._settings
        while starts and starts[-1] >= start:
            starts.pop()
            settings.pop()
        if (settings[-1] if settings else self._before) is not setting:
            starts.append(start)
            settings.append(setting)
            if len(starts) > HISTORY:
                self._forget(HISTORY // 2)

    def follow(self, setting: Any) -> None:
        """An operation runs under ``setting``: its node was made after the last call of this."""
        if setting is not self.current:
            self.mark(setting, self._last)
        else:
            self._last = _sequence_number()

    def at(self, number: int) -> Any:
        """The setting under which a node was made.

        Raises:
            RuntimeError: that was too long ago.
        """
        if number < self._forgotten:
            raise RuntimeError(
                "a backward pass reached operations whose modules are forgotten, because "
                f"modules were entered and left {HISTORY // 2} times since: select fewer modules, "
                "or run the backward pass earlier."
            )
        i = bisect_right(self._starts, number) - 1
        return self._settings[i] if i >= 0 else self._before

    def _forget(self, n: int) -> None:
        self._forgotten = self._starts[n]
        self._before = self._settings[n - 1]
        del self._starts[:n]
        del self._settings[:n]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """A module, function or operation that is running.

    Attributes:
        setting: what holds inside.
        node: the node of autograd whose evaluation it is part of, if any.
        root, paths: the tree in which the module was found, and where.
        previous: the setting of nodes made before.
    """

    setting: Any
    node: Any
    root: torch.nn.Module | None
    paths: tuple[str, ...]
    previous: Any


class Track(threading.local):
    """Where each thread is, and which setting holds there.

    A setting is any value, compared by identity; equal ones had better be one object, which
    keeps the history short.
    """

    def __init__(self, outside: Any) -> None:
        self.outside = outside
        self.entered = 0
        self.frames: list[Frame] = []
        self.history = History(outside)
        self._trees = Trees()
        # Of the last call of a module in a forward pass: activation checkpointing calls it again
        # in the backward pass, without the modules around it.
        self._known: weakref.WeakKeyDictionary[Any, Frame] = weakref.WeakKeyDictionary()
        self._holders: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._leaves = WeakTensorKeyDictionary()

    def enter(
        self, setting: Any, root: torch.nn.Module | None = None, paths: tuple[str, ...] = ()
    ) -> Frame:
        """Something begins inside which a setting holds."""
        node: Any = torch._C._current_autograd_node()
        frame = Frame(setting, node, root, paths, self.history.current)
        self.frames.append(frame)
        self.history.mark(setting)
        return frame

    def enter_module(
        self,
        module: torch.nn.Module,
        inside: Callable[[torch.nn.Module, tuple[str, ...]], Any],
    ) -> Frame:
        """A module is called: ``inside(root, paths)`` says which setting holds in it."""
        node: Any = torch._C._current_autograd_node()
        frames = [f for f in self.frames if f.node is node]
        if node is not None and all(f.root is None for f in frames):
            known = self._known.get(module)
            if known is not None:
                return self.enter(known.setting, None, known.paths)
        root, paths = self._position(frames, module)
        setting = inside(root, paths)
        if setting is not self.outside and self._holders.get(module) is not setting:
            self._holders[module] = setting
            for leaf in module.parameters():
                self._leaves[leaf] = setting
        frame = self.enter(setting, root, paths)
        if node is None:
            self._known[module] = dataclasses.replace(frame, root=None)
        return frame

    def leave(self, frame: Frame) -> None:
        """What was entered returns or raises."""
        if frame in self.frames:
            del self.frames[self.frames.index(frame) :]
        if self.entered > 0:
            self.history.mark(frame.previous)

    def place(self) -> tuple[Any, Any]:
        """The setting of what runs on this thread now.

        Returns:
            The setting, and the node of autograd whose number led to it, or ``None``.
        """
        node: Any = torch._C._current_autograd_node()
        frames = self.frames
        if frames and frames[-1].node is node:
            return frames[-1].setting, None
        if node is None:
            return self.outside, None
        number = node._sequence_nr()
        if number == _NO_NUMBER:
            leaf = getattr(node, "variable", None)
            setting = self.outside if leaf is None else self._leaves.get(leaf, self.outside)
            return setting, None
        return self.history.at(number), node

    def _position(
        self, frames: list[Frame], module: torch.nn.Module
    ) -> tuple[torch.nn.Module, tuple[str, ...]]:
        """The innermost tree around a call that holds the module, and its paths there."""
        for frame in reversed(frames):
            if frame.root is not None:
                paths = self._trees.paths(frame.root, module)
                if paths:
                    return frame.root, below(paths, frame.paths)
        self._trees.begin(module)
        return module, ("",)
