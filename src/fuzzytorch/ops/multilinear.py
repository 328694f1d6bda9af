"""The product of three tensors that ``nn.Bilinear`` and its gradient are made of."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fuzzytorch.ops.call import Call
from fuzzytorch.table import Row, Verdict


def trilinear(
    call: Call,
    i1: torch.Tensor,
    i2: torch.Tensor,
    i3: torch.Tensor,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> torch.Tensor:
    """Sum over ``sumdim`` of the products; each tensor lacks the dimensions of its ``expand``."""
    dimensions = range(i1.dim() + len(expand1))
    operands, letters = [], []
    for x, expanded in ((i1, expand1), (i2, expand2), (i3, expand3)):
        missing = {d % len(dimensions) for d in expanded}
        operands.append(x)
        letters.append("".join(chr(ord("a") + d) for d in dimensions if d not in missing))
    summed = {d % len(dimensions) for d in sumdim}
    result = "".join(chr(ord("a") + d) for d in dimensions if d not in summed)
    return torch.ops.aten.einsum.default(f"{','.join(letters)}->{result}", operands)


ROWS = (
    Row(
        "aten._trilinear.default",
        Verdict.LOWERED,
        trilinear,
        "the product of the first two as one of matrices, then that with the third (stock torch: "
        "slice by slice of the unrolled dimension)",
        any_dtype=True,
    ),
)
