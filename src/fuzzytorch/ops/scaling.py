"""The scaling of losses in mixed precision (``torch.amp.GradScaler``)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fuzzytorch.ops.call import Call
from fuzzytorch.table import Row, Verdict


def unscale(
    call: Call, grads: Sequence[torch.Tensor], found_inf: torch.Tensor, inv_scale: torch.Tensor
) -> None:
    """``aten._amp_foreach_non_finite_check_and_unscale_``."""
    scaled = inv_scale.item() != 1.0
    for grad in grads:
        if not torch.isfinite(grad).all():
            found_inf.fill_(1.0)
        if scaled:
            grad.mul_(inv_scale)


def update_scale(
    call: Call,
    scale: torch.Tensor,
    growth_tracker: torch.Tensor,
    found_inf: torch.Tensor,
    growth: float,
    backoff: float,
    interval: int,
) -> torch.Tensor:
    """``aten._amp_update_scale_``."""
    if found_inf.item() > 0:
        scale.mul_(backoff)
        growth_tracker.zero_()
        return scale
    growth_tracker.add_(1)
    if growth_tracker.item() == interval:
        grown = scale * growth
        if torch.isfinite(grown).all():
            scale.copy_(grown)
        growth_tracker.zero_()
    return scale


ROWS = (
    Row(
        "aten._amp_foreach_non_finite_check_and_unscale_.default",
        Verdict.LOWERED,
        unscale,
        "the products with the inverse scale; the check is exact",
    ),
    Row(
        "aten._amp_update_scale_.default",
        Verdict.LOWERED,
        update_scale,
        "the product of the scale with its factor",
    ),
)
