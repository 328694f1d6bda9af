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


_SPARSE_COMPLEX = "on complex CSR operands: only products of real sparse tensors have rows"

GAPS: Final = (
    Gap(
        "aten._native_batch_norm_legit.out",
        "it writes running statistics beside its results; the functional overload is rounded",
    ),
    Gap(
        "aten._sparse_mm_reduce_impl_backward.default",
        "the gradient of a sparse product with another reduction than a sum has no row",
    ),
    Gap(
        "aten._sparse_mm_reduce_impl.default",
        "on float16 and bfloat16 CSR operands: only products of float32 and float64 ones have rows",
    ),
    Gap(
        "torch_nn._linear_cross_entropy_batch_chunked_no_reduction.default",
        "a custom operation outside of aten; on float16 operands it runs whole",
    ),
    Gap("aten.sparse_sampled_addmm.default", _SPARSE_COMPLEX),
    Gap("aten.mm.default", _SPARSE_COMPLEX),
    Gap("aten.mul.Scalar", _SPARSE_COMPLEX),
)
"""All that PyTorch's own database of operations meets; the census holds them to it."""
