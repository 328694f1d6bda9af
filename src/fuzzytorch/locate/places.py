"""Which call of which module a program is in."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from fuzzytorch import provenance


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """A module of a program.

    Attributes:
        root: the class of the module whose call is outermost; the second of a class that the
            program calls has ``#2`` behind it, and so on.
        path: the path of the module from there, empty for the outermost one itself, several
            joined by `` = `` where the module is registered more than once.
        kind: its class.
    """

    root: str
    path: str
    kind: str

    def __str__(self) -> str:
        return self.path or f"({self.root})"

    @property
    def described(self) -> str:
        """The path and the class."""
        return f"{self.path} ({self.kind})" if self.path else str(self)


class Places(provenance.Listener):
    """Follows the calls of modules on the thread that enters it, for one run of a program."""

    def __init__(self) -> None:
        self._begin()

    def __enter__(self) -> Places:
        self._begin()
        self._track.entered += 1
        provenance.listen(self)
        return self

    def __exit__(self, *exception: Any) -> None:
        self._track.entered -= 1
        provenance.ignore(self)
        self._begin()

    def _begin(self) -> None:
        """Forgets the modules of the last run, which may have been another program's."""
        self._track = provenance.Track(None)
        self._roots: dict[torch.nn.Module, str] = {}
        self._places: dict[Place, Place] = {}

    def enter_module(self, module: torch.nn.Module) -> Any:
        """A module is called."""
        return self._enter(module)

    def leave(self, frame: Any) -> None:
        """It returns or raises."""
        self._track.leave(frame)

    def here(self) -> tuple[Place | None, str | None]:
        """The innermost module around what runs now, and the node of autograd, if any.

        An operation of a backward pass belongs to the module of the operation that it
        differentiates; the graph must be of this run.
        """
        place, _ = self._track.place()
        if torch.is_grad_enabled():
            self._track.history.follow(place)
        node: Any = torch._C._current_autograd_node()
        return place, None if node is None else node.name()

    def _enter(self, module: torch.nn.Module) -> provenance.Frame:
        def inside(root: torch.nn.Module, paths: tuple[str, ...]) -> Place:
            place = Place(self._name(root), " = ".join(paths), type(module).__name__)
            return self._places.setdefault(place, place)

        return self._track.enter_module(module, inside)

    def _name(self, root: torch.nn.Module) -> str:
        known = self._roots.get(root)
        if known is None:
            kind = type(root).__name__
            alike = sum(type(other).__name__ == kind for other in self._roots)
            known = self._roots[root] = f"{kind}#{alike + 1}" if alike else kind
        return known
