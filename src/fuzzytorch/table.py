"""The table: which aten operation is computed how, and what is claimed for it.

Rows are data, one file per family in :mod:`fuzzytorch.ops`; a :class:`Table` is a
frozen index of them.  What has no row of its own is resolved by
:mod:`fuzzytorch.lookup`, which answers with a :class:`Row` again.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import torch


class Verdict(enum.Enum):
    """What is claimed for an operation; the order is from the strongest to the weakest claim.

    ``EXCLUDED`` is no verdict of a row, but of calls.
    """

    EXACT = "no rounding happens"
    ROUNDED = "every scalar operation is rounded under the mode"
    LOWERED = "rewritten as other operations, each with its own verdict"
    COARSE = "computed by torch, in binary64 where possible; only the result is rounded"
    UNCOVERED = "runs unperturbed"
    EXCLUDED = "runs unperturbed on request: what a mode was told not to round"

    # Members are compared by identity; enum's own hash is a slow Python function.
    __hash__ = object.__hash__


OPERANDS: Final = ("real", "complex", "sparse")
"""What the tensors of a call hold: dense real numbers, complex ones, or some are sparse."""


@dataclasses.dataclass(frozen=True, slots=True)
class Variant:
    """How an overload that writes into its arguments follows from a functional one.

    Attributes:
        base: the functional overload that computes the values.
        outs: names of the keyword arguments that are written; empty for an in-place
            overload, which writes its first argument.
    """

    base: Any
    outs: tuple[str, ...] = ()

    @property
    def in_place(self) -> bool:
        """True when the first argument is both read and written."""
        return not self.outs


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One overload of the table.

    Attributes:
        name: the overload, as in ``"aten.add.Tensor"``.
        verdict: what is claimed.
        function: ``function(call, *args, **kwargs)`` with the arguments of the
            overload (of its functional base for a derived variant); ``None`` for
            ``EXACT`` and ``UNCOVERED`` (stock torch runs).  A ``ROUNDED`` function sees
            floating-point tensors of the dtype of the call only and returns such; a ``LOWERED``
            one runs under the mode again, so that the operations it calls are met.
        why: one line: what is rounded, or why nothing is.
        any_dtype: whether ``function`` takes floating-point tensors of every dtype and
            returns what stock torch returns: conversions, what torch itself composes of other
            operations, and operations computed in binary64.
        variant: how an in-place or ``out=`` overload was derived, else ``None``.
        operands: what the tensors of a call hold for which the row stands, one of
            :data:`OPERANDS`: ``"complex"`` where one is complex or a number is, ``"sparse"``
            where one has a sparse layout.  An overload may have one row for each.  The
            functions of these two convert narrower dtypes themselves.
    """

    name: str
    verdict: Verdict
    function: Callable[..., Any] | None
    why: str
    any_dtype: bool = False
    variant: Variant | None = None
    operands: str = "real"

    def __post_init__(self) -> None:
        if self.verdict is Verdict.EXCLUDED:
            raise ValueError(f"the row {self.name} is EXCLUDED, which only calls can be.")
        stock = self.verdict in (Verdict.EXACT, Verdict.UNCOVERED)
        if stock != (self.function is None):
            raise ValueError(
                f"the row {self.name} is {self.verdict.name} "
                f"{'and' if stock else 'but'} has {'a' if stock else 'no'} function."
            )
        if self.operands not in OPERANDS:
            raise ValueError(
                f"the row {self.name} is for {self.operands!r} operands: choose one of {OPERANDS}."
            )


class Table:
    """A frozen index of rows by overload.

    Raises:
        ValueError: two rows for one overload, or a row for an overload that this torch
            does not have.
    """

    def __init__(self, families: Mapping[str, Sequence[Row]]) -> None:
        rows: dict[tuple[str, str], Row] = {}
        origin: dict[tuple[str, str], str] = {}
        for family, members in families.items():
            for row in members:
                key = (row.name, row.operands)
                if key in rows:
                    raise ValueError(
                        f"{row.name} has two rows, one in the family {origin[key]!r} and one "
                        f"in {family!r}: remove one of them."
                    )
                overload_named(row.name)
                rows[key] = row
                origin[key] = family
        self._rows = MappingProxyType(rows)
        self._family = MappingProxyType(origin)

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows.values())

    def get(self, name: str, operands: str = "real") -> Row | None:
        """The row written for an overload such as ``"aten.add.Tensor"``, or ``None``."""
        return self._rows.get((name, operands))

    def family(self, row: Row) -> str:
        """The family that holds a row."""
        return self._family[row.name, row.operands]


def overload_named(name: str) -> Any:
    """The overload of a name such as ``"aten.add.Tensor"``.

    Raises:
        ValueError: this torch has no such overload.
    """
    namespace, operation, overload = name.split(".")
    packet = getattr(getattr(torch.ops, namespace), operation, None)
    if packet is None or overload not in dispatched(packet):
        raise ValueError(
            f"the table has a row for {name}, which torch {torch.__version__} does not have: "
            "correct its name or remove it."
        )
    return getattr(packet, overload)


def dispatched(packet: Any) -> list[str]:
    """The overloads of an operation that reach a dispatch mode.

    The others are those that TorchScript has for numbers, lists and strings.
    """
    names = _dispatcher_names()
    qualified = packet._qualified_op_name
    return [
        overload
        for overload in packet.overloads()
        if (qualified if overload == "default" else f"{qualified}.{overload}") in names
    ]


@functools.cache
def _dispatcher_names() -> frozenset[str]:
    return frozenset(torch._C._dispatch_get_all_op_names())
