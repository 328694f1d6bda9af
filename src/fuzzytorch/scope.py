"""Which operations a mode rounds, and how: by module, by operation, by function of torch.

An operation of a forward pass belongs to the modules that are being called around it, and one
of a backward pass to the modules around the operation that it differentiates.  Nothing of
this runs under a mode without a scope.
"""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from fuzzytorch import provenance
from fuzzytorch.notices import notice
from fuzzytorch.rounding import Rounding
from fuzzytorch.selectors import Selector, name_of, selectors


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """What holds at a place of the program.

    Attributes:
        included: whether something around it is included; true where nothing had to be.
        excluded: whether something around it is excluded.
        rounding: of the innermost scope around it; ``None`` for that of the mode.
        module: path and class of the innermost module around it, where a scope keeps them.
    """

    included: bool
    excluded: bool = False
    rounding: Rounding | None = None
    module: str = ""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Rule:
    selector: Selector
    argument: str
    rounding: Rounding | None = None


class Scope(provenance.Listener):
    """The rules of a mode, and where each thread is.

    With ``paths``, it keeps the path of every module that is called, for :meth:`module`.

    Raises:
        TypeError, ValueError: as :class:`fuzzytorch.fuzzy` says.
    """

    def __init__(
        self, include: Any, exclude: Any, scopes: Any, rounding: Rounding, paths: bool = False
    ) -> None:
        self._rules = (*_listed(include, "include"), *_listed(exclude, "exclude"), *_mapped(scopes))
        self._default = rounding
        self._paths = paths
        self._outside = Setting(included=include is None)
        self._on_modules = self._those("on_modules")
        self._on_operations = self._those("on_operations")
        self._on_functions = self._those("on_functions")
        self._matched: set[_Rule] = set()
        self._warned: set[_Rule] = set()
        # One object per value, so that settings are compared and looked up by identity.
        self._settings = {self._outside: self._outside}
        self._inside: dict[tuple[int, tuple[_Rule, ...]], Setting] = {}
        self._operations: dict[int, tuple[Any, tuple[_Rule, ...]]] = {}
        self._nodes: dict[str, tuple[_Rule, ...]] = {}
        self._functions = _Functions(self) if self._on_functions else None
        self._state = provenance.Track(self._outside)

    def _those(self, kind: str) -> tuple[_Rule, ...]:
        return tuple(rule for rule in self._rules if getattr(rule.selector, kind))

    def enter(self) -> None:
        """The mode is entered on this thread."""
        state = self._state
        state.entered += 1
        if state.entered == 1:
            provenance.listen(self)
            state.history.mark(self._outside)
            if self._functions is not None:
                self._functions.__enter__()

    def exit(self, complete: bool) -> None:
        """The mode is left on this thread; after a complete run, unmet selectors are warned of."""
        state = self._state
        state.entered -= 1
        if state.entered == 0:
            if self._functions is not None:
                _leave(self._functions)
            state.history.mark(self._outside)
            provenance.ignore(self)
        for rule in self._rules if complete else ():
            if rule not in self._matched and rule not in self._warned:
                self._warned.add(rule)
                notice(
                    f"{rule.argument}: {rule.selector.text} met nothing that ran under the "
                    "fuzzytorch mode: paths begin at the module whose call is outermost, and "
                    "operations are those of the coverage report."
                )

    def rounding(self, overload: Any) -> Rounding | None:
        """How an operation that is dispatched now is rounded; ``None`` for not at all."""
        state = self._state
        setting = self._place()
        if torch.is_grad_enabled():
            state.history.follow(setting)
        rules = self._of_operation(overload)
        if rules:
            setting = self._refined(setting, rules)
        if setting.excluded or not setting.included:
            return None
        return setting.rounding or self._default

    def module(self) -> str:
        """Path and class of the module that what runs on this thread now belongs to, if any."""
        return self._place().module

    @contextlib.contextmanager
    def inside(self, overload: Any) -> Iterator[None]:
        """The operations inside are parts of an operation, and belong to its rules."""
        rules = self._of_operation(overload)
        if not rules:
            yield
            return
        frame = self._state.enter(self._refined(self._place(), rules))
        try:
            yield
        finally:
            self.leave(frame)

    def enter_function(self, function: Any) -> provenance.Frame | None:
        """A function of torch is called; ``None`` if no rule speaks of it."""
        name = name_of(function)
        rules = tuple(r for r in self._on_functions if r.selector.function(name))
        if not rules:
            return None
        return self._state.enter(self._refined(self._place(), rules))

    def enter_module(self, module: torch.nn.Module) -> provenance.Frame:
        """A module is called."""

        def inside(root: torch.nn.Module, paths: tuple[str, ...]) -> Setting:
            rules = tuple(r for r in self._on_modules if r.selector.module(module, paths))
            setting = self._refined(self._place(), rules)
            return self._placed(setting, module, paths[0]) if self._paths else setting

        return self._state.enter_module(module, inside)

    def leave(self, frame: provenance.Frame) -> None:
        """What was entered returns or raises."""
        self._state.leave(frame)

    def _place(self) -> Setting:
        """The setting of what runs on this thread now, but for rules about operations."""
        setting, node = self._state.place()
        if node is not None and self._on_operations:
            return self._refined(setting, self._of_node(node.name()))
        return setting

    def _refined(self, setting: Setting, rules: tuple[_Rule, ...]) -> Setting:
        """A setting with what rules say about a place inside it."""
        if not rules:
            return setting
        self._matched.update(rules)
        key = (id(setting), rules)
        inside = self._inside.get(key)
        if inside is None:
            roundings = [r.rounding for r in rules if r.rounding is not None]
            inside = Setting(
                setting.included or any(r.argument == "include" for r in rules),
                setting.excluded or any(r.argument == "exclude" for r in rules),
                roundings[-1] if roundings else setting.rounding,
                setting.module,
            )
            inside = self._inside[key] = self._settings.setdefault(inside, inside)
        return inside

    def _placed(self, setting: Setting, module: torch.nn.Module, path: str) -> Setting:
        """A setting with the name of a module."""
        kind = type(module).__qualname__
        placed = dataclasses.replace(setting, module=f"{path} ({kind})" if path else kind)
        return self._settings.setdefault(placed, placed)

    def _of_operation(self, overload: Any) -> tuple[_Rule, ...]:
        if not self._on_operations:
            return ()
        known = self._operations.get(id(overload))
        if known is None:
            rules = tuple(r for r in self._on_operations if r.selector.operation(overload))
            known = self._operations[id(overload)] = (overload, rules)
        return known[1]

    def _of_node(self, name: str) -> tuple[_Rule, ...]:
        rules = self._nodes.get(name)
        if rules is None:
            rules = tuple(r for r in self._on_operations if r.selector.node(name))
            self._nodes[name] = rules
        return rules


class _Functions(TorchFunctionMode):
    """Sees functions of torch before they become operations."""

    def __init__(self, scope: Scope) -> None:
        super().__init__()
        self._scope = weakref.ref(scope)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        scope = self._scope()
        frame = None if scope is None else scope.enter_function(func)
        try:
            return func(*args, **(kwargs or {}))
        finally:
            if scope is not None and frame is not None:
                scope.leave(frame)


def _leave(mode: TorchFunctionMode) -> None:
    """Leaves a function mode, whichever were entered after it."""
    above = []
    while torch._C._len_torch_function_stack() > 0:
        other = torch._C._pop_torch_function_stack()
        if other is mode:
            break
        above.append(other)
    for other in reversed(above):
        torch._C._push_on_torch_function_stack(other)


def _listed(value: Any, argument: str) -> tuple[_Rule, ...]:
    if value is None:
        return ()
    return tuple(_Rule(selector, argument) for selector in selectors(value, argument))


def _mapped(scopes: Any) -> tuple[_Rule, ...]:
    if scopes is None:
        return ()
    if not isinstance(scopes, Mapping):
        raise TypeError(
            f"scopes is {scopes!r}: give a mapping from what is selected to a fuzzytorch.Rounding."
        )
    rules = []
    for key, rounding in scopes.items():
        if not isinstance(rounding, Rounding):
            raise TypeError(
                f"scopes gives {rounding!r} for {key!r}: give a fuzzytorch.Rounding, such as "
                "Rounding.of('sr', 'bfloat16'); what is not to be rounded goes into exclude."
            )
        rules += [_Rule(selector, "scopes", rounding) for selector in selectors(key, "scopes")]
    return tuple(rules)
