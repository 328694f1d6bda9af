"""Written calls for rows of families that accumulate, which the database lacks."""

from __future__ import annotations

from typing import Any, Final

import torch


def normal(*shape: int) -> torch.Tensor:
    """Normal numbers that depend on the shape alone."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def _index(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(high))


_BATCH: Final = (
    normal(4, 3, 5),
    normal(3),
    normal(3) * 0.5,
    normal(3) * 0.25,
    normal(3).square() + 0.5,
)
"""Input, weight, bias, running mean and variance of a batch normalization."""


def _attended(*args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention and the logarithms that its gradient takes."""
    query, key, value, causal = args
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return attention(query, key, value, 0.0, causal)


_CONV: Final = (normal(2, 4, 9), normal(6, 2, 3), normal(6), [2], [1], [1], False, [0], 2)
_CONV_FLAGS: Final = (False, False, True, True)

_BAGS: Final = (_index(6, 12), torch.arange(12) // 4, torch.full((3,), 4))
"""Indices of three bags of four, the bag of each, and their sizes."""

_ATTENTION: Final = (normal(2, 4, 3, 5), normal(2, 2, 6, 5), normal(2, 2, 6, 5) * 0.5)
"""Queries of four heads, keys and values of two."""

_LSTM: Final = (
    *(normal(4, 2, 5), normal(12, 5), normal(12, 3), normal(12), normal(12)),
    *(normal(2, 3), normal(2, 3) * 0.5),
)
"""Input of four steps, weights and biases of an LSTM of width three, its first states."""

_WORDS: Final = torch.tensor([[1, 3, 3], [2, 4, 1]])


def _spelled(*lengths: int) -> tuple[Any, ...]:
    """Logarithms of probabilities of five labels in seven steps, targets and their lengths."""
    targets = torch.cat([row[:n] for row, n in zip(_WORDS, lengths, strict=True)])
    return normal(7, 2, 5).log_softmax(2), targets, [7, 7], list(lengths)


def _spelling(*lengths: int) -> tuple[Any, ...]:
    """What the gradient of the loss takes."""
    args = _spelled(*lengths)
    return (normal(2), *args, *torch.ops.aten._ctc_loss(*args), 0)


def _tensors(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same arguments with lists of lengths as tensors."""
    return tuple(torch.tensor(x) if isinstance(x, list) else x for x in args)


_GRID: Final = normal(2, 4, 3, 2) * 0.7

_LINEAR: Final = {"linear1d": (5,), "bilinear2d": (5, 8), "trilinear3d": (3, 5, 4)}
"""Sizes of images to be resampled to six elements along each dimension, none of which falls on
an element: there a linear weight has a kink, and its mean is not that of exact arithmetic."""

_OFFSETS: Final = torch.tensor([[0, 3, 3, 7], [0, 1, 5, 7]])
"""Where the three segments of seven elements start, one of them empty, in two places."""

_LABELS: Final = torch.tensor([[3, 0, -1, 1, -1], [2, -1, 4, 0, 0], [0, 1, 2, 3, 4]])
_LISTED: Final = torch.tensor([[1, 0, 0, 1, 0], [0, 0, 1, 0, 0], [1, 1, 1, 1, 1]]).float()
"""Labels of three samples up to the first negative one, and which classes they are."""

WRITTEN: Final[dict[str, list[tuple[Any, ...]]]] = {
    "aten.multi_margin_loss_backward.default": [
        (grad, normal(6, 5), _index(5, 6), p, 0.75, weight, reduction)
        for grad, p, weight, reduction in (
            (normal(6), 2, normal(5).abs(), 0),
            (normal(), 1, normal(5).abs(), 1),
            (normal(), 2, None, 2),
        )
    ],
    "aten.multilabel_margin_loss_backward.default": [
        (normal(3), normal(3, 5), _LABELS, 0, _LISTED),
        (normal(), normal(3, 5), _LABELS, 1, _LISTED),
    ],
    "aten.segment_reduce.default": [
        (normal(7, 3), reduce, {"lengths": torch.tensor([3, 0, 4]), "initial": initial})
        for reduce, initial in (("sum", 0.75), ("mean", None), ("mean", 0.75), ("prod", 0.75))
    ]
    + [
        (normal(2, 7, 3), reduce, {"offsets": _OFFSETS, "axis": 1})
        for reduce in ("sum", "mean", "prod", "max")
    ],
    "aten._segment_reduce_backward.default": [
        (normal(2, 3, 3), results, data, reduce, {"offsets": _OFFSETS, "axis": 1})
        for reduce, data, results in (
            ("sum", normal(2, 7, 3), normal(2, 3, 3)),
            ("mean", normal(2, 7, 3), normal(2, 3, 3)),
            ("prod", normal(2, 7, 3), normal(2, 3, 3)),
            ("prod", normal(2, 7, 3) * (normal(2, 7, 3) > 0), normal(2, 3, 3)),
            ("max", torch.ones(2, 7, 3), torch.ones(2, 3, 3)),
        )
    ],
    "aten.histogram.bin_ct": [
        (normal(60), 5, {"range": [-1.25, 1.25], "weight": normal(60), "density": density})
        for density in (False, True)
    ],
    "aten.histogram.bins_tensor": [
        (normal(6, 10), torch.tensor([-1.5, -0.2, 0.1, 1.3]), {"weight": normal(6, 10)}),
        (normal(60), torch.tensor([-1.5, -0.2, 0.1, 1.3]), {"density": True}),
    ],
    "aten._histogramdd_from_bin_cts.default": [
        (normal(60, 2), [3, 4], {"range": [-1.5, 1.5, -2.0, 2.0], "weight": normal(60)}),
    ],
    "aten._histogramdd_from_bin_tensors.default": [
        (
            normal(60, 2),
            [torch.tensor([-1.5, -0.2, 0.1, 1.3]), torch.tensor([-2.0, 0.3, 1.1])],
            {"weight": normal(60), "density": density},
        )
        for density in (False, True)
    ],
    "aten.linalg_matrix_exp.default": [
        # Norms for every degree, and for squaring three times.
        (torch.tensor([1e-8, 1e-5, 0.002, 0.05, 0.2, 0.5, 4.0]).view(-1, 1, 1) * normal(3, 3),)
    ],
    "aten._scaled_dot_product_flash_attention_for_cpu.default": [
        _ATTENTION,
        (*_ATTENTION, 0.0, True),
        (normal(1, 2, 2, 4), normal(1, 2, 400, 4), normal(1, 2, 400, 4)),
    ],
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": [
        (normal(2, 4, 3, 5) * 0.5, *_ATTENTION, *_attended(*_ATTENTION, causal), 0.0, causal)
        for causal in (False, True)
    ],
    "aten._masked_softmax.default": [
        (normal(2, 3, 4, 4), normal(2, 4) > 0.5, 3, 1),
        (normal(2, 3, 4, 4), torch.ones(4, 4).triu(1).bool(), 3, 0),
        (normal(2, 3, 4, 4), normal(2, 3, 4, 4) > 0.5, 3, 2),
    ],
    "aten._masked_softmax_backward.default": [
        (normal(2, 3, 4, 4), normal(2, 3, 4, 4).softmax(3) * 0.5, normal(2, 3, 4, 4) > 0.5, 3)
    ],
    "aten._transform_bias_rescale_qkv.default": [(normal(2, 5, 24), normal(24), 2)],
    "aten._embedding_bag_forward_only.default": [
        (normal(6, 5), _BAGS[0], torch.tensor([0, 3, 3, 8]), False, mode, False, None, False, 2)
        for mode in range(3)
    ],
    "aten._embedding_bag_dense_backward.default": [
        (normal(3, 5), *_BAGS, torch.full((3, 5), 2), 6, by_frequency, mode, weights, -1)
        for by_frequency, mode, weights in (
            (False, 0, normal(12)),
            (True, 0, None),
            (False, 1, None),
            (False, 2, None),
        )
    ],
    "aten._embedding_bag_per_sample_weights_backward.default": [
        (normal(3, 5), normal(6, 5), _BAGS[0], torch.tensor([0, 4, 8]), _BAGS[1], 0, 2)
    ],
    "aten._grid_sampler_2d_cpu_fallback.default": [(normal(2, 3, 5, 4), _GRID, 0, 0, True)],
    "aten._ctc_loss.default": [
        (normal(7, 2, 5).log_softmax(2), _WORDS, [7, 7], [3, 3], 0),
        (normal(7, 2, 5).log_softmax(2), _WORDS - 1, [7, 7], [3, 3], 4),
        _spelled(0, 0),
    ],
    "aten._ctc_loss.Tensor": [_tensors(_spelled(3, 1))],
    "aten._ctc_loss_backward.Tensor": [_tensors(_spelling(3, 1))],
    "aten._ctc_loss_backward.default": [_spelling(3, 3), _spelling(3, 1), _spelling(0, 2)],
    "aten._logcumsumexp.default": [(normal(3, 9), 1)],
    "aten.mkldnn_rnn_layer.default": [(*_LSTM, False, [], 2, 3, 1, True, False, False, True)],
    "aten.grid_sampler_2d_backward.default": [
        (normal(2, 3, 4, 3), normal(2, 3, 5, 4), _GRID, *options, [True, True])
        for options in ((0, 0, True), (0, 1, False), (0, 2, False), (1, 0, True), (2, 2, True))
    ],
    **{
        f"aten.upsample_{kind}.default": [(normal(2, 3, *sizes), [6] * len(sizes), False)]
        for kind, sizes in _LINEAR.items()
    },
    **{
        f"aten.upsample_{kind}_backward.default": [
            (normal(2, 3, *[6] * len(sizes)), [6] * len(sizes), [2, 3, *sizes], False)
        ]
        for kind, sizes in _LINEAR.items()
    },
    "aten._upsample_bilinear2d_aa.default": [
        (normal(2, 3, 9, 7), [4, 11], False),
        (normal(2, 3, 9, 7), [4, 3], True, 0.5, None),
    ],
    "aten._upsample_bicubic2d_aa.default": [
        (normal(2, 3, 9, 7), [4, 11], False),
        (normal(2, 3, 9, 7), [4, 3], True, 0.5, None),
    ],
    "aten._upsample_bicubic2d_aa_backward.default": [
        (normal(2, 3, 4, 11), [4, 11], [2, 3, 9, 7], False)
    ],
    "aten._upsample_bilinear2d_aa_backward.default": [
        (normal(2, 3, 4, 11), [4, 11], [2, 3, 9, 7], False)
    ],
    "aten._upsample_lanczos2d_aa.default": [(normal(2, 3, 9, 7), [4, 11], False)],
    "aten._upsample_lanczos2d_aa_backward.default": [
        (normal(2, 3, 4, 11), [4, 11], [2, 3, 9, 7], False)
    ],
    "aten.mm.default": [(normal(3, 300), normal(300, 5)), (normal(7, 20).t(), normal(7, 2))],
    "aten._addmm_activation.default": [(normal(5), normal(4, 6), normal(6, 5))],
    "aten._euclidean_dist.default": [
        (normal(4, 3) * 3, normal(5, 3)),
        (normal(2, 4, 3) * 3, normal(2, 5, 3)),
    ],
    "aten._cdist_forward.default": [(normal(4, 3), normal(5, 3), p, 2) for p in (0.5, 1, 2, 3)],
    "aten._cdist_backward.default": [
        (normal(4, 5), normal(4, 3), normal(5, 3), p, normal(4, 5).abs() + 0.5)
        for p in (1.0, 1.5, 2.0, 3.0)
    ],
    "aten._convolution.default": [(*_CONV, *_CONV_FLAGS)],
    "aten.conv_tbc.default": [(normal(9, 2, 4), normal(3, 4, 5), normal(5), 1)],
    "aten.norm.Scalar": [(normal(40), p) for p in (1, 2, 3)],
    "aten.norm.ScalarOpt_dtype": [(normal(40), 2)],
    "aten.norm.ScalarOpt_dim": [
        (normal(8, 9), p, [1], True) for p in (None, 0, 1, 2.5, float("inf"))
    ],
    "aten.norm.ScalarOpt_dim_dtype": [(normal(8, 9), 2, [0], False)],
    "aten.prod.default": [(normal(20),)],
    "aten.sum.default": [(normal(33, 33),)],
    "aten._native_batch_norm_legit.no_stats": [(*_BATCH[:3], True, 0.125, 2.0**-10)],
    "aten._native_batch_norm_legit_no_training.default": [(*_BATCH, 0.125, 2.0**-10)],
    "aten._native_batch_norm_legit_functional.default": [(*_BATCH, True, 0.125, 2.0**-10)],
    "aten._batch_norm_with_update_functional.default": [(*_BATCH, 0.125, 2.0**-10)],
    "aten._batch_norm_no_update.default": [(*_BATCH, 0.125, 2.0**-10)],
    "aten.batch_norm_backward.default": [
        (
            *(
                normal(4, 3, 5) * 0.5,
                *_BATCH[:2],
                *_BATCH[3:],
                normal(3) * 0.125,
                normal(3).square() + 0.5,
            ),
            *(training, 2.0**-10, [True, True, True], torch.empty(0, dtype=torch.uint8)),
        )
        for training in (True, False)
    ],
    "aten._weight_norm_interface.default": [
        (normal(4, 3, 2), normal(4, 1, 1), 0),
        (normal(4, 3, 2), normal(1, 1, 2), 2),
    ],
    "aten._weight_norm_interface_backward.default": [
        (normal(4, 3, 2) * 0.5, normal(4, 3, 2), normal(4, 1, 1), normal(4, 1, 1).square() + 0.5, 0)
    ],
    "aten.avg_pool2d.default": [
        (normal(2, 3, 8, 6), [2, 3]),
        (normal(3, 8, 6), [2, 2], [3, 1]),
        (normal(2, 3, 7, 7), [3, 3], [2, 2], [1, 1]),
    ],
    "aten.max_pool2d_with_indices_backward.default": [
        (
            *(normal(2, 3, 3, 3), normal(2, 3, 7, 7), [3, 3], [2, 2], [0, 0], [1, 1], False),
            torch.full((2, 3, 3, 3), 24),
        )
    ],
    "aten.nll_loss_forward.default": [
        (normal(7, 5), _index(5, 7), normal(5).abs(), r, 2) for r in range(3)
    ],
    "aten.nll_loss_backward.default": [
        (normal(), normal(7, 5), _index(5, 7), normal(5).abs(), 1, 2, torch.tensor(3.25))
    ],
}
"""Calls that the database does not make, or not in these shapes: arguments by name, those with
keywords in a dictionary at the end."""
