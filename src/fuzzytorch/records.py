"""What ran under a mode and what is claimed for it, as values."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Final

from fuzzytorch.table import Row, Verdict

_NOTHING_ROUNDED: Final = "no floating-point operand, or no scalar operation in these calls"


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """The calls of one overload under one verdict.

    Attributes:
        name: the overload, as in ``"aten.add.Tensor"``.
        verdict: what is claimed for these calls.
        calls: how often it was called.
        operations: scalar floating-point operations; 0 for ``EXACT``, and for ``LOWERED``,
            whose parts have records of their own.
        why: one line.
    """

    name: str
    verdict: Verdict
    calls: int
    operations: int
    why: str


@dataclasses.dataclass(frozen=True, slots=True)
class Coverage:
    """The records of a run: an immutable value, printed as a table."""

    records: tuple[Record, ...] = ()

    def __str__(self) -> str:
        return self.text()

    @property
    def operations(self) -> int:
        """Scalar floating-point operations in all."""
        return sum(r.operations for r in self.records)

    def share(self, verdict: Verdict) -> float:
        """Share of the floating-point operations under a verdict, 0 to 1; 0 when there are none."""
        total = self.operations
        part = sum(r.operations for r in self.records if r.verdict is verdict)
        return part / total if total else 0.0

    def headline(self) -> str:
        """One sentence: the share of floating-point operations under each verdict."""
        total = self.operations
        if total == 0:
            return "no floating-point operation that rounds was run."
        parts = [
            f"{_percent(self.share(v))} {v.name}"
            for v in (Verdict.ROUNDED, Verdict.COARSE, Verdict.UNCOVERED, Verdict.EXCLUDED)
            if v is Verdict.ROUNDED or self.share(v) > 0
        ]
        return f"{', '.join(parts)} of {_count(total)} floating-point operations."

    def merge(self, other: Coverage) -> Coverage:
        """The coverage of two runs together."""
        return Coverage(_merged((*self.records, *other.records)))

    def text(self) -> str:
        """The headline and a table: overload, verdict, calls, operations, why."""
        order = sorted(self.records, key=lambda r: (-r.operations, -r.calls, r.name))
        rows = [("operation", "verdict", "calls", "operations", "why")]
        rows += [(r.name, r.verdict.name, str(r.calls), _count(r.operations), r.why) for r in order]
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        lines = [
            f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}  {d:>{widths[3]}}  {e}"
            for a, b, c, d, e in rows
        ]
        return "\n".join([self.headline(), "", *lines])

    def to_json(self) -> dict[str, Any]:
        """The records, most operations first, as a value for :mod:`json`."""
        order = sorted(self.records, key=lambda r: (-r.operations, r.name))
        return {
            "operations": self.operations,
            "headline": self.headline(),
            "records": [{**dataclasses.asdict(r), "verdict": r.verdict.name} for r in order],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Coverage:
        """The coverage that :meth:`to_json` described."""
        return cls(
            tuple(Record(**{**r, "verdict": Verdict[r["verdict"]]}) for r in value["records"])
        )


class Tally:
    """Counts calls and their operations while a mode runs."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[tuple[str, Verdict], list[Any]] = {}

    def __bool__(self) -> bool:
        return bool(self._counts)

    def count(self, row: Row, verdict: Verdict, operations: int, why: str | None = None) -> None:
        """Counts one call.

        Args:
            why: of these calls; that of the row if ``None``.
        """
        key = (row.name, verdict)
        count = self._counts.get(key)
        if count is None:
            if why is None:
                why = row.why if verdict is row.verdict else _NOTHING_ROUNDED
            count = self._counts[key] = [0, 0, why]
        count[0] += 1
        count[1] += operations

    def coverage(self) -> Coverage:
        """What was counted so far."""
        return Coverage(
            tuple(
                Record(name, verdict, calls, operations, why)
                for (name, verdict), (calls, operations, why) in self._counts.items()
            )
        )


def _merged(records: Iterable[Record]) -> tuple[Record, ...]:
    merged: dict[tuple[str, Verdict], Record] = {}
    for record in records:
        key = (record.name, record.verdict)
        known = merged.get(key)
        if known is not None:
            record = dataclasses.replace(
                record,
                calls=known.calls + record.calls,
                operations=known.operations + record.operations,
            )
        merged[key] = record
    return tuple(merged.values())


def _percent(share: float) -> str:
    """Two decimals, but never 100.00% for less than all nor 0.00% for more than nothing."""
    if share in (0.0, 1.0):
        return f"{share:.0%}"
    return f"{min(max(share, 0.0001), 0.9999):.2%}"


def _count(n: int) -> str:
    return str(n) if n < 10**6 else f"{n:.3g}"
