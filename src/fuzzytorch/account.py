"""What a mode keeps count of: calls, their arithmetic, and what ran unperturbed."""

from __future__ import annotations

from typing import Any, Final

from fuzzytorch.gaps import Gap, Gaps
from fuzzytorch.notices import notice
from fuzzytorch.ops.call import Call
from fuzzytorch.ops.coarse import estimated_operations
from fuzzytorch.ops.dtypes import holds_inexact
from fuzzytorch.records import Coverage, Record
from fuzzytorch.table import Row, Verdict

_NOTHING_ROUNDED: Final = "no floating-point operand, or no scalar operation in these calls"
_THESE_COARSE: Final = "for these operands torch computes it in binary64; the result is rounded"


class Account:
    """Counts calls and their operations while a mode runs; one warning for what it cannot round.

    Args, of the methods that count a call:
        row: that of the call.
        func, args, kwargs, result: the overload that ran, with what it took and returned.
    """

    __slots__ = ("_counts", "_gaps", "_warned")

    def __init__(self) -> None:
        self._counts: dict[tuple[str, Verdict], list[Any]] = {}
        self._gaps = Gaps()
        self._warned: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._counts)

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """What ran unperturbed since :meth:`forget_gaps`, where places were given."""
        return self._gaps.found

    def forget_gaps(self) -> None:
        """The mode is entered again."""
        self._gaps.clear()

    def coverage(self) -> Coverage:
        """What was counted so far."""
        return Coverage(
            tuple(
                Record(name, verdict, calls, operations, why)
                for (name, verdict), (calls, operations, why) in self._counts.items()
            )
        )

    def exact(self, row: Row) -> None:
        """A call in which nothing rounds."""
        self._count(row, Verdict.EXACT, 0)

    def perturbed(
        self, row: Row, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """A call that the function of its row answered."""
        verdict, operations = row.verdict, call.operations
        if call.coarse:
            verdict = Verdict.COARSE
        if verdict is Verdict.ROUNDED and operations == 0:
            # A conversion to a wider dtype, or nothing to compute.
            verdict = Verdict.EXACT
        elif verdict is Verdict.COARSE:
            estimate = estimated_operations(call.overload, args, kwargs, result)
            operations = max(operations, estimate)
        self._count(row, verdict, operations, _THESE_COARSE if call.coarse else None)

    def excluded(
        self, row: Row, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """A call that stock torch answered because the program asked for it."""
        if row.verdict is Verdict.EXACT or not holds_inexact(args, kwargs, result):
            return self.exact(row)
        operations = estimated_operations(func, args, kwargs, result)
        return self._count(row, Verdict.EXCLUDED, operations, "not to be rounded, on request")

    def uncovered(
        self,
        row: Row,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        why: str,
        module: str | None,
    ) -> None:
        """A call that stock torch answered because nothing else can.

        Args:
            why: one line.
            module: where it was called, for the list of gaps; ``None`` keeps it off the list.
        """
        if not holds_inexact(args, kwargs, result):
            return self.exact(row)
        if module is not None:
            self._gaps.add(row.name, why, module)
        operations = estimated_operations(func, args, kwargs, result)
        self._count(row, Verdict.UNCOVERED, operations, why)
        if row.name not in self._warned:
            self._warned.add(row.name)
            notice(f"{row.name} runs without perturbation under the fuzzytorch mode ({why}).")
        return None

    def _count(self, row: Row, verdict: Verdict, operations: int, why: str | None = None) -> None:
        key = (row.name, verdict)
        count = self._counts.get(key)
        if count is None:
            if why is None:
                why = row.why if verdict is row.verdict else _NOTHING_ROUNDED
            count = self._counts[key] = [0, 0, why]
        count[0] += 1
        count[1] += operations
