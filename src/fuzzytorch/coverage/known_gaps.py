"""Known gaps: what runs unperturbed although it does floating-point arithmetic, and why."""

from __future__ import annotations

import dataclasses
from typing import Final


@dataclasses.dataclass(frozen=True, slots=True)
class KnownGap:
    """An operation that is not perturbed, on some or all operands.

    Attributes:
        operation: the overload, as in ``"aten.mm.default"``.
        why: one line: on which operands, and what stands in the way.
    """

    operation: str
    why: str


GAPS: Final = (
    KnownGap(
        "aten._native_batch_norm_legit.out",
        "it writes running statistics beside its results; the functional overload is rounded",
    ),
)
"""All that PyTorch's own database of operations meets; the census holds them to it."""
