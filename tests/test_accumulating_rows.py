"""Rows of sums, products, convolutions, normalizations, pooling and losses."""

from __future__ import annotations

import pytest
import torch
from accumulation_calls import normal
from accumulation_cases import Case, rows_of
from accumulation_laws import (
    counts,
    equals_stock_in_nearest_rounding,
    ignores_the_layout,
    is_centred_in_stochastic_rounding,
    keeps_integers,
    noise_reaches_inexact_elements,
)

from fuzzytorch.table import Row, Verdict, overload_named

FAMILIES = (
    "linear_algebra",
    "convolution",
    "reduction",
    "normalization",
    "batch_norm",
    "softmax",
    "pooling",
    "loss",
    "ctc",
    "margin_loss",
    "segment",
    "histogram",
    "matrix_exp",
)
ROWS = [row for row in rows_of(*FAMILIES) if row.verdict is not Verdict.LOWERED]

INTEGERS = frozenset(
    [
        "aten.mm.default",
        "aten.bmm.default",
        "aten.addmm.default",
        "aten.baddbmm.default",
        "aten.addbmm.default",
        "aten.mv.default",
        "aten.addmv.default",
        "aten.dot.default",
        "aten.vdot.default",
        "aten.addr.default",
        "aten.trace.default",
        "aten.convolution.default",
        "aten._convolution.default",
        "aten.conv_tbc.default",
        "aten.convolution_backward.default",
        "aten.sum.default",
        "aten.sum.dim_IntList",
        "aten.nansum.default",
        "aten.prod.default",
        "aten.prod.dim_int",
        "aten.cumsum.default",
        "aten.cumprod.default",
        "aten.max_pool2d_with_indices_backward.default",
        "aten.max_pool3d_with_indices_backward.default",
        "aten.adaptive_max_pool2d_backward.default",
        "aten.upsample_nearest2d_backward.default",
    ]
)
"""Rows whose operations on small integers give small integers."""

GEOMETRY = ([1], [0], [1], False, [0], 1)
BATCH = (normal(4, 3, 5), normal(3), normal(3), normal(3), normal(3).abs())
COUNTED = {
    "aten.mm.default": ((normal(3, 300), normal(300, 5)), 2 * 3 * 5 * 300),
    "aten.bmm.default": ((normal(2, 3, 4), normal(2, 4, 5)), 2 * 2 * 3 * 5 * 4),
    "aten.addmm.default": ((normal(5), normal(3, 4), normal(4, 5)), 2 * 3 * 5 * 4 + 15),
    "aten.baddbmm.default": ((normal(5), normal(2, 3, 4), normal(2, 4, 5)), 2 * 2 * 3 * 5 * 4 + 30),
    "aten.addbmm.default": ((normal(5), normal(2, 3, 4), normal(2, 4, 5)), 2 * 2 * 3 * 5 * 4 + 30),
    "aten.mv.default": ((normal(3, 4), normal(4)), 2 * 3 * 4),
    "aten.addmv.default": ((normal(3), normal(3, 4), normal(4)), 2 * 3 * 4 + 3),
    "aten.dot.default": ((normal(9), normal(9)), 2 * 9 - 1),
    "aten.addr.default": ((normal(3, 4), normal(3), normal(4)), 2 * 12),
    "aten.trace.default": ((normal(4, 4),), 3),
    "aten.convolution.default": (
        (normal(2, 3, 9), normal(4, 3, 3), normal(4), *GEOMETRY),
        2 * 56 * 9 + 56,
    ),
    "aten.convolution_backward.default": (
        (normal(2, 4, 7), normal(2, 3, 9), normal(4, 3, 3), [4], *GEOMETRY, [True, True, True]),
        2 * 56 * 9 + 2 * 36 * 14 + 4 * 13,
    ),
    "aten.sum.default": ((normal(5, 7),), 34),
    "aten.sum.dim_IntList": ((normal(5, 7), [1]), 5 * 6),
    "aten.mean.dim": ((normal(5, 7), [1]), 5 * 7),
    "aten.prod.default": ((normal(9),), 8),
    "aten.linalg_vector_norm.default": ((normal(9),), 2 * 9 - 1 + 1),
    "aten.var.correction": ((normal(5, 7), [1]), 5),
    "aten.cumsum.default": ((normal(5, 7), 1), 5 * 6),
    "aten.logsumexp.default": ((normal(5, 7), [1]), 5 * (7 + 7 + 6 + 1 + 1)),
    "aten._ctc_loss.default": (
        (normal(4, 3, 5), torch.tensor([[1, 2]] * 3), [4, 4, 4], [2, 2, 2]),
        3 * (3 * 5 * (3 + 3 + 2 + 1 + 2) + (2 + 2 + 1 + 1 + 1)),
    ),
    "aten._ctc_loss_backward.default": (
        (
            *(normal(3), normal(4, 3, 5), torch.zeros(3, 0, dtype=torch.long)),
            *([4, 4, 4], [0, 0, 0], normal(3), normal(3, 4, 1), 0),
        ),
        3 * (3 * (3 + 3 + 2 + 1 + 2) + 4 + 4 * 5 * 6),
    ),
    "aten.native_layer_norm.default": (
        (normal(5, 7), [7], normal(7), normal(7), 1e-5),
        5 * (6 + 1 + 13 + 4) + 35 * (1 + 2 + 1),
    ),
    "aten.native_batch_norm.default": ((*BATCH, True, 0.1, 1e-5), 3 * (3 + 2 + 2) + 60),
    "aten._softmax.default": ((normal(5, 7), 1, False), 5 * (7 + 7 + 6 + 7)),
    "aten._log_softmax.default": ((normal(5, 7), 1, False), 5 * (7 + 7 + 6 + 1 + 14)),
    "aten.avg_pool2d.default": ((normal(2, 3, 8, 8), [2]), 96 * (3 + 1)),
    "aten.avg_pool3d.default": ((normal(2, 8, 8, 8), [2, 2, 3], [2, 2, 1]), 192 * (11 + 1)),
    "aten._adaptive_avg_pool2d.default": ((normal(2, 3, 8, 8), [4, 4]), 96 * (3 + 2)),
    "aten.mse_loss.default": ((normal(5, 7), normal(5, 7)), 2 * 35 + 34 + 1),
    "aten.mse_loss_backward.default": ((normal(), normal(5, 7), normal(5, 7), 1), 1 + 3 * 35),
    "aten.binary_cross_entropy.default": (
        (normal(5, 7).sigmoid(), normal(5, 7).sigmoid(), normal(5, 7)),
        35 * (2 + 4 + 1) + 34 + 1,
    ),
    "aten.binary_cross_entropy_backward.default": (
        (normal(), normal(5, 7).sigmoid(), normal(5, 7).sigmoid(), normal(5, 7)),
        35 * (5 + 1 + 1),
    ),
}
"""Arguments and scalar operations by row."""


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_nearest_rounding_gives_what_stock_torch_gives(row: Row) -> None:
    equals_stock_in_nearest_rounding(row)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_mean_in_stochastic_rounding_is_the_binary64_result(row: Row) -> None:
    is_centred_in_stochastic_rounding(row)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_noise_reaches_every_inexact_element(row: Row) -> None:
    noise_reaches_inexact_elements(row)


def test_the_rows_that_keep_integers_are_rows_of_these_families() -> None:
    assert {row.name for row in ROWS} >= INTEGERS


@pytest.mark.parametrize("row", [row for row in ROWS if row.name in INTEGERS], ids=lambda r: r.name)
def test_integers_stay_exact(row: Row) -> None:
    keeps_integers(row)


@pytest.mark.parametrize(
    "families",
    [("convolution",), ("reduction",), ("normalization", "batch_norm", "softmax"), ("pooling",)],
    ids=" ".join,
)
def test_channels_last_inputs_give_the_same_bits_and_the_strides_of_stock_torch(
    families: tuple[str, ...],
) -> None:
    tried = {row.name: ignores_the_layout(row) for row in rows_of(*families)}
    assert any(tried.values()), tried


@pytest.mark.parametrize("name", COUNTED)
def test_every_rounded_operation_is_counted(name: str) -> None:
    args, operations = COUNTED[name]
    counts(Case(overload_named(name), args, {}), operations)
