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


GAPS: Final[tuple[KnownGap, ...]] = ()
"""All that PyTorch's own database of operations meets; the census holds them to it."""

BEYOND: Final = (
    "operations of extensions (`torch.library`): a mode can be given rows for them",
    "quantized tensors, and what is computed in the layout of oneDNN (`to_mkldnn`)",
    "sparse tensors in blocks (BSR, BSC); `hspmm`, `sspaddmm`, products along CSR rows",
    "conversions of sparse and nested tensors to narrower dtypes",
    "arithmetic on float8 and complex32 tensors, of which stock torch has a few operations",
    "tensors on other devices than the CPU",
)
"""What that database does not meet."""
