"""Known gaps: what runs unperturbed although it does floating-point arithmetic, and why."""

from __future__ import annotations

import dataclasses
from typing import Final


@dataclasses.dataclass(frozen=True, slots=True)
class Gap:
    """An operation that is not perturbed, on some or all operands.

    Attributes:
        operation: the overload, as in ``"aten.mm.default"``.
        why: one line: on which operands, and what stands in the way.
    """

    operation: str
    why: str


GAPS: Final[tuple[Gap, ...]] = ()
"""All that PyTorch's own database of operations meets; the census holds them to it."""
