"""The table: which aten operation is computed how, and what is claimed for it."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import Any


class Verdict(enum.Enum):
    """What is claimed for an operation; the order is from the strongest to the weakest claim."""

    EXACT = "no rounding happens"
    ROUNDED = "every scalar operation is rounded under the mode"
    LOWERED = "rewritten as other operations, each with its own verdict"
    COARSE = "computed by torch, in binary64 where possible; only the result is rounded"
    UNCOVERED = "runs unperturbed"


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One overload of the table.

    Attributes:
        name: the overload, as in ``"aten.add.Tensor"``.
        verdict: what is claimed.
        function: ``function(call, *args, **kwargs)`` with the arguments of the
            overload; ``None`` for ``EXACT`` (stock torch runs).
        why: one line: what is rounded, or why nothing is.
    """

    name: str
    verdict: Verdict
    function: Callable[..., Any] | None
    why: str
