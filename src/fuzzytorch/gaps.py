"""What ran unperturbed under a strict mode, with the modules where it was called."""

from __future__ import annotations

import dataclasses
from collections import Counter


@dataclasses.dataclass(frozen=True, slots=True)
class Gap:
    """Calls of one overload that ran unperturbed, in one module.

    Attributes:
        name: the overload, as in ``"aten.add.Tensor"``.
        why: one line.
        module: the path and the class of the innermost module around the calls, as in
            ``"encoder.0 (Linear)"``, of the outermost one the class alone; for calls of a backward
            pass that of the operation that they differentiate.  Empty outside of modules.
        calls: how many.
    """

    name: str
    why: str
    module: str
    calls: int


class UncoveredError(RuntimeError):
    """Operations ran unperturbed under a strict mode, which has been left.

    Attributes:
        gaps: all of them.
    """

    def __init__(self, message: str, gaps: tuple[Gap, ...]) -> None:
        # All arguments, so that the error can be handed to another process.
        super().__init__(message, gaps)
        self.gaps = gaps

    def __str__(self) -> str:
        return str(self.args[0])


def uncovered(mode: str, gaps: tuple[Gap, ...]) -> UncoveredError:
    """The error that lists gaps: a line for each operation, with its calls in each module."""
    places: dict[tuple[str, str], list[str]] = {}
    for gap in gaps:
        calls = "1 call" if gap.calls == 1 else f"{gap.calls} calls"
        where = f"in {gap.module}" if gap.module else "outside of modules"
        places.setdefault((gap.name, gap.why), []).append(f"{calls} {where}")
    number = "1 operation" if len(places) == 1 else f"{len(places)} operations"
    lines = [
        f"{number} ran without perturbation under {mode}, which strict=True refuses:",
        *(f"  {name} ({why}): {', '.join(where)}" for (name, why), where in places.items()),
        "Exclude what need not be rounded, or give the mode a row for it.",
    ]
    return UncoveredError("\n".join(lines), gaps)


class Gaps:
    """Counts the calls that ran unperturbed."""

    def __init__(self) -> None:
        self._calls: Counter[tuple[str, str, str]] = Counter()

    def add(self, name: str, why: str, module: str) -> None:
        """One more call."""
        self._calls[name, why, module] += 1

    def clear(self) -> None:
        """Forgets them."""
        self._calls.clear()

    @property
    def found(self) -> tuple[Gap, ...]:
        """All of them, in the order in which they were met first."""
        return tuple(Gap(*where, calls) for where, calls in self._calls.items())
