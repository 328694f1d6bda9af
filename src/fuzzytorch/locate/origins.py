"""What is said of the operations in which Inf or NaN first appears, as values."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Final

from fuzzytorch.ensemble.samples import Failure
from fuzzytorch.locate.places import Place
from fuzzytorch.text import aligned

_HEADER: Final = ("value", "operation", "module", "pass", "cause", "samples", "IEEE", "where")

OVERFLOW: Final = "overflow"
"""A finite result in binary64: the number is too large for the dtype that the operation has."""
DIVISION: Final = "division by zero"
"""Inf in binary64 too, from finite operands: a quotient by zero, the logarithm of zero."""
INVALID: Final = "invalid operation"
"""NaN in binary64 too, from finite operands: 0/0, the root of a negative number."""
INFINITE: Final = "Inf among the operands"
"""NaN where an operand was infinite already: Inf - Inf, Inf/Inf, 0 Inf."""
UNKNOWN: Final = "unknown"
"""The operation cannot be repeated in binary64."""


@dataclasses.dataclass(frozen=True, slots=True)
class Origin:
    """An operation in which, in some runs, Inf or NaN first appears.

    Attributes:
        value: ``"Inf"``, none of whose operands is Inf or NaN, or ``"NaN"``, none of whose operands
            is NaN.
        operation: the overload, as in ``"aten.exp.default"``.
        place: the innermost module around it; ``None`` outside of all.
        node: the node of autograd that was being evaluated; ``None`` in a forward pass.
        cause: :data:`OVERFLOW`, :data:`DIVISION`, :data:`INVALID`, :data:`INFINITE` or
            :data:`UNKNOWN`.
        line: file and number of the line of the program.
        result: dtype and shape of the result in the first of the runs.
        elements: how many of its elements were Inf or NaN there.
        replicas: the samples in which it is the first.
        ieee: whether it is the first in the run without noise.
    """

    value: str
    operation: str
    place: Place | None
    node: str | None
    cause: str
    line: str
    result: str
    elements: int
    replicas: tuple[int, ...]
    ieee: bool


@dataclasses.dataclass(frozen=True, slots=True)
class NonFinite:
    """Where Inf and NaN first appear in a computation: an immutable value, printed as a table.

    Attributes:
        origins: the operations, in the order in which they were met, first in the run without
            noise.
        runs: how many runs under the mode there were, those that raised included.
        mode: the rounding mode.
        seed: the seed used, also when it was drawn.
        failures: the runs that raised; they count as far as they came.
        notes: remarks on the run itself.
    """

    origins: tuple[Origin, ...]
    runs: int
    mode: str
    seed: int
    failures: tuple[Failure, ...] = ()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.text()

    def count(self, value: str) -> int:
        """In how many samples ``"Inf"`` or ``"NaN"`` appears."""
        return sum(len(origin.replicas) for origin in self.origins if origin.value == value)

    def ieee(self, value: str) -> bool:
        """Whether ``"Inf"`` or ``"NaN"`` appears in the run without noise."""
        return any(origin.ieee for origin in self.origins if origin.value == value)

    @property
    def rounding_decides(self) -> bool:
        """Whether Inf, or NaN, appears in some runs, with or without noise, and not in all."""
        values = {origin.value for origin in self.origins}
        return any(self.count(v) < self.runs or not self.ieee(v) for v in values)

    @property
    def verdict(self) -> str:
        """``"finite"``, ``"rounding decides"``, or the cause of the first origin and
        ``", not rounding"``."""
        if not self.origins:
            return "finite"
        if self.rounding_decides:
            return "rounding decides"
        return f"{self.origins[0].cause}, not rounding"

    def text(self) -> str:
        """The verdict, a table of the origins, and what they mean."""
        title = f"{self.runs} samples, mode {self.mode}, seed {self.seed}"
        lines = [title, f"verdict: {self.verdict}"]
        if self.origins:
            rows = [_HEADER, *(self._row(origin) for origin in self.origins)]
            lines += ["", *aligned(rows, (5,)), "", *self._sentences()]
        remarks = list(self._remarks())
        if remarks:
            lines += ["", *(f"! {remark}" for remark in remarks)]
        return "\n".join(lines)

    def _row(self, origin: Origin) -> tuple[str, ...]:
        return (
            origin.value,
            origin.operation,
            "" if origin.place is None else origin.place.described,
            "forward" if origin.node is None else f"backward ({origin.node})",
            origin.cause,
            f"{len(origin.replicas)} of {self.runs}",
            "yes" if origin.ieee else "no",
            origin.line,
        )

    def _sentences(self) -> Iterator[str]:
        first = self.origins[0]
        yield (
            f"{first.value} first appears in {first.operation}, in a result of {first.result} "
            f"(elements: {first.elements})."
        )
        for value in dict.fromkeys(origin.value for origin in self.origins):
            stock = "also" if self.ieee(value) else "not"
            yield (
                f"{value} appears in {self.count(value)} of {self.runs} samples, and {stock} in "
                "the run without noise."
            )

    def _remarks(self) -> Iterator[str]:
        if self.failures:
            first = self.failures[0]
            yield (
                f"{len(self.failures)} of {self.runs} samples failed, and count as far as they "
                f"came; the first, replica {first.replica}: {first.error}"
            )
        yield from self.notes

    def to_json(self) -> dict[str, Any]:
        """The report as a value for :mod:`json`."""
        return {**dataclasses.asdict(self), "verdict": self.verdict}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> NonFinite:
        """The report that :meth:`to_json` described."""
        return cls(
            origins=tuple(map(_origin, value["origins"])),
            runs=value["runs"],
            mode=value["mode"],
            seed=value["seed"],
            failures=tuple(Failure(**failure) for failure in value["failures"]),
            notes=tuple(value["notes"]),
        )


def _origin(value: Mapping[str, Any]) -> Origin:
    place = value["place"]
    fields = {
        **value,
        "place": None if place is None else Place(**place),
        "replicas": tuple(value["replicas"]),
    }
    return Origin(**fields)
