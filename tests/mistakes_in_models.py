"""What programs get wrong with layers, products and losses, and stock torch refuses."""

from __future__ import annotations

import torch
from operands import Mistake
from torch import nn
from torch.nn import functional as F

PRODUCTS: dict[str, Mistake] = {
    "mm": lambda t: torch.mm(t(3, 4), t(5, 6)),
    "mm 3d": lambda t: torch.mm(t(3, 4, 2), t(4, 6)),
    "mm dtype": lambda t: torch.mm(t(3, 4), t(4, 6).double()),
    "mm half": lambda t: torch.mm(t(3, 4), t(4, 6).half()),
    "mm int": lambda t: torch.mm(t(3, 4), t.ones(4, 6, dtype=torch.int64)),
    "bmm": lambda t: torch.bmm(t(2, 3, 4), t(3, 4, 5)),
    "bmm inner": lambda t: torch.bmm(t(2, 3, 4), t(2, 5, 5)),
    "matmul": lambda t: t(2, 3, 4) @ t(2, 5, 4),
    "matmul 0d": lambda t: t(3) @ torch.tensor(2.0),
    "matmul dtype": lambda t: t(3, 4) @ t(4, 3).double(),
    "linear": lambda t: F.linear(t(3, 4), t(5, 6)),
    "linear bias": lambda t: F.linear(t(3, 4), t(5, 4), t(6)),
    "linear dtype": lambda t: F.linear(t(3, 4), t(5, 4).double()),
    "linear dtype bias": lambda t: F.linear(t(3, 4), t(5, 4), t(5).double()),
    "linear grad": lambda t: F.linear(t.leaf(3, 4), t.leaf(5, 4), t.leaf(6)),
    "addmm": lambda t: torch.addmm(t(7), t(3, 4), t(4, 5)),
    "addmm dtype": lambda t: torch.addmm(t(5).double(), t(3, 4), t(4, 5)),
    "baddbmm": lambda t: torch.baddbmm(t(7), t(2, 3, 4), t(2, 4, 5)),
    "baddbmm dt": lambda t: torch.baddbmm(t(5).double(), t(2, 3, 4), t(2, 4, 5)),
    "addbmm": lambda t: torch.addbmm(t(7), t(2, 3, 4), t(2, 4, 5)),
    "addmv": lambda t: torch.addmv(t(3), t(3, 4), t(5)),
    "addr": lambda t: torch.addr(t(3, 3), t(3), t(4)),
    "dot": lambda t: torch.dot(t(3), t(4)),
    "dot 2d": lambda t: torch.dot(t(3, 3), t(3, 3)),
    "dot dt": lambda t: torch.dot(t(3), t(3).double()),
    "mv": lambda t: torch.mv(t(3, 4), t(3)),
    "outer": lambda t: torch.outer(t(3, 3), t(3)),
}


CONVOLUTIONS: dict[str, Mistake] = {
    "cat": lambda t: torch.cat([t(3, 4), t(2, 5)]),
    "cat dim": lambda t: torch.cat([t(3, 4), t(2, 4)], dim=3),
    "cat empty": lambda t: torch.cat([]),
    "cat nd": lambda t: torch.cat([t(3, 4), t(2)]),
    "stack": lambda t: torch.stack([t(3), t(4)]),
    "conv2d": lambda t: F.conv2d(t(1, 3, 8, 8), t(4, 2, 3, 3)),
    "conv2d groups": lambda t: F.conv2d(t(1, 4, 8, 8), t(4, 2, 3, 3), groups=3),
    "conv2d groups2": lambda t: F.conv2d(t(1, 4, 8, 8), t(3, 2, 3, 3), groups=2),
    "conv2d groups0": lambda t: F.conv2d(t(1, 4, 8, 8), t(4, 4, 3, 3), groups=0),
    "conv2d small": lambda t: F.conv2d(t(1, 3, 2, 2), t(4, 3, 3, 3)),
    "conv2d bias": lambda t: F.conv2d(t(1, 3, 8, 8), t(4, 3, 3, 3), t(5)),
    "conv2d dims": lambda t: F.conv2d(t(8, 8), t(4, 3, 3, 3)),
    "conv2d dtype": lambda t: F.conv2d(t(1, 3, 8, 8), t(4, 3, 3, 3).double()),
    "conv2d bias dt": lambda t: F.conv2d(t(1, 3, 8, 8), t(4, 3, 3, 3), t(4).double()),
    "conv2d long": lambda t: F.conv2d(t.ones(1, 3, 8, 8, dtype=torch.int64), t(4, 3, 3, 3)),
    "conv2d stride0": lambda t: F.conv2d(t(1, 3, 8, 8), t(4, 3, 3, 3), stride=0),
    "conv2d pad-1": lambda t: F.conv2d(t(1, 3, 8, 8), t(4, 3, 3, 3), padding=-1),
    "conv2d dil0": lambda t: F.conv2d(t(1, 3, 8, 8), t(4, 3, 3, 3), dilation=0),
    "conv2d stride3": lambda t: F.conv2d(t(1, 3, 8, 8), t(4, 3, 3, 3), stride=(1, 1, 1)),
    "conv2d same": lambda t: F.conv2d(t(1, 3, 8, 8), t(4, 3, 3, 3), stride=2, padding="same"),
    "conv2d grad": lambda t: F.conv2d(t.leaf(1, 3, 8, 8), t.leaf(4, 2, 3, 3)),
    "conv1d": lambda t: F.conv1d(t(1, 3, 8), t(4, 2, 3)),
    "conv1d empty": lambda t: F.conv1d(t(1, 3, 0), t(4, 3, 3)),
    "conv3d": lambda t: F.conv3d(t(1, 3, 4, 4, 4), t(4, 2, 3, 3, 3)),
    "convT": lambda t: F.conv_transpose2d(t(1, 3, 8, 8), t(4, 2, 3, 3)),
    "convT outpad": lambda t: F.conv_transpose2d(t(1, 3, 8, 8), t(3, 2, 3, 3), output_padding=3),
    "convT neg": lambda t: F.conv_transpose2d(t(1, 3, 1, 1), t(3, 2, 3, 3), padding=4),
}


LOSSES: dict[str, Mistake] = {
    "nll idx": lambda t: F.nll_loss(t(2, 4), t.index(0, 4)),
    "nll shape": lambda t: F.nll_loss(t(2, 4), t.index(0, 1, 2)),
    "nll dt": lambda t: F.nll_loss(t(2, 4), t(2)),
    "nll weight": lambda t: F.nll_loss(t(2, 4), t.index(0, 1), weight=t(3)),
    "ce idx": lambda t: F.cross_entropy(t(2, 4), t.index(0, 4)),
    "ce neg": lambda t: F.cross_entropy(t(2, 4), t.index(0, -1)),
    "ce grad": lambda t: F.cross_entropy(t.leaf(2, 4), t.index(0, 4)).backward(),
    "ce shape": lambda t: F.cross_entropy(t(2, 4), t(2, 3)),
    "ce smoothing": lambda t: F.cross_entropy(t(2, 4), t.index(0, 1), label_smoothing=2.0),
    "nll2d": lambda t: F.nll_loss(t(2, 4, 3, 3), t.full((2, 3, 3), 4)),
    "mse": lambda t: F.mse_loss(t(3), t(4)),
    "bce": lambda t: F.binary_cross_entropy(t(3), t(4)),
    "bce range": lambda t: F.binary_cross_entropy(t(3) * 10, t(3)),
    "bce_logits": lambda t: F.binary_cross_entropy_with_logits(t(3), t(4)),
    "kl": lambda t: F.kl_div(t(3), t(4)),
    "l1": lambda t: F.l1_loss(t(3), t(2, 4)),
    "smooth": lambda t: F.smooth_l1_loss(t(3), t(3), beta=-1),
    "huber": lambda t: F.huber_loss(t(3), t(3), delta=0),
    "multi_margin": lambda t: F.multi_margin_loss(t(2, 3), t.index(0, 3)),
    "multilabel": lambda t: F.multilabel_margin_loss(t(2, 3), t.index(0, 3)),
    "ctc": lambda t: F.ctc_loss(
        t(5, 2, 4), t.ones(2, 3, dtype=torch.int64), t.index(6, 5), t.index(3, 3)
    ),
}


POOLS: dict[str, Mistake] = {
    "maxpool": lambda t: F.max_pool2d(t(1, 1, 2, 2), 3),
    "maxpool pad": lambda t: F.max_pool2d(t(1, 1, 8, 8), 2, padding=2),
    "maxpool k0": lambda t: F.max_pool2d(t(1, 1, 8, 8), 0),
    "avgpool": lambda t: F.avg_pool2d(t(1, 1, 2, 2), 3),
    "avgpool pad": lambda t: F.avg_pool2d(t(1, 1, 8, 8), 2, padding=2),
    "avgpool div": lambda t: F.avg_pool2d(t(1, 1, 8, 8), 2, divisor_override=0),
    "avgpool dims": lambda t: F.avg_pool2d(t(8), 2),
    "avgpool k0": lambda t: F.avg_pool2d(t(1, 1, 8, 8), 0),
    "avgpool s0": lambda t: F.avg_pool2d(t(1, 1, 8, 8), 2, stride=0),
    "avgpool1d": lambda t: F.avg_pool1d(t(1, 2), 3),
    "avgpool3d": lambda t: F.avg_pool3d(t(1, 1, 2, 2, 2), 3),
    "adaptive": lambda t: F.adaptive_avg_pool2d(t(8), 2),
    "adaptive neg": lambda t: F.adaptive_avg_pool2d(t(1, 1, 8, 8), -2),
    "adaptive max": lambda t: F.adaptive_max_pool2d(t(1, 1, 0, 0), 2),
    "adaptive int": lambda t: F.adaptive_avg_pool2d(t.ones(1, 1, 8, 8, dtype=torch.int64), 2),
    "lp": lambda t: F.lp_pool2d(t(1, 1, 2, 2), 2, 3),
    "frac": lambda t: F.fractional_max_pool2d(t(1, 1, 4, 4), 3, output_size=4),
    "unpool": lambda t: F.max_unpool2d(t(1, 1, 2, 2), t.full((1, 1, 2, 2), 99), 2),
}


NORMALIZATIONS: dict[str, Mistake] = {
    "bn shape": lambda t: F.batch_norm(t(3, 4), t.zeros(5), t.ones(5)),
    "bn train shape": lambda t: F.batch_norm(t(3, 4), t.zeros(5), t.ones(5), training=True),
    "bn weight": lambda t: F.batch_norm(t(3, 4), t.zeros(4), t.ones(4), t(5), t(5), training=True),
    "bn one": lambda t: F.batch_norm(t(1, 4), t.zeros(4), t.ones(4), training=True),
    "bn none": lambda t: F.batch_norm(t(3, 4), None, None, training=False),
    "bn dtype": lambda t: F.batch_norm(
        t(3, 4), t.zeros(4).double(), t.ones(4).double(), training=True
    ),
    "bn int": lambda t: F.batch_norm(t.ones(3, 4, dtype=torch.int64), None, None, training=True),
    "bn 2dmodule": lambda t: nn.BatchNorm2d(3)(t(3, 3)),
    "bn grad": lambda t: F.batch_norm(
        t.leaf(3, 4), t.zeros(4), t.ones(4), t.leaf(5), t.leaf(5), training=True
    ),
    "in": lambda t: F.instance_norm(t(3, 4, 5), t.zeros(5), t.ones(5)),
    "in one": lambda t: F.instance_norm(t(3, 4, 1)),
    "ln": lambda t: F.layer_norm(t(3, 4), (5,)),
    "ln w": lambda t: F.layer_norm(t(3, 4), (4,), t(5)),
    "ln dt": lambda t: F.layer_norm(t(3, 4), (4,), t(4).double()),
    "ln empty": lambda t: F.layer_norm(t(3, 4), ()),
    "gn": lambda t: F.group_norm(t(3, 4, 5), 3),
    "gn w": lambda t: F.group_norm(t(3, 4, 5), 2, t(5)),
    "gn 0": lambda t: F.group_norm(t(3, 4, 5), 0),
    "rms": lambda t: F.rms_norm(t(3, 4), (5,)),
}


LAYERS: dict[str, Mistake] = {
    "sdpa": lambda t: F.scaled_dot_product_attention(t(1, 2, 3, 4), t(1, 2, 3, 5), t(1, 2, 3, 4)),
    "sdpa mask": lambda t: F.scaled_dot_product_attention(
        t(1, 2, 3, 4), t(1, 2, 3, 4), t(1, 2, 3, 4), attn_mask=t(7, 7)
    ),
    "sdpa mask dt": lambda t: F.scaled_dot_product_attention(
        t(1, 2, 3, 4), t(1, 2, 3, 4), t(1, 2, 3, 4), attn_mask=t.ones(3, 3, dtype=torch.int64)
    ),
    "sdpa dt": lambda t: F.scaled_dot_product_attention(
        t(1, 2, 3, 4), t(1, 2, 3, 4).double(), t(1, 2, 3, 4)
    ),
    "lstm": lambda t: nn.LSTM(4, 5)(t(3, 2, 7)),
    "lstm h": lambda t: nn.LSTM(4, 5)(t(3, 2, 4), (t(1, 2, 6), t(1, 2, 5))),
    "gru": lambda t: nn.GRU(4, 5)(t(3, 2, 7)),
    "rnncell": lambda t: nn.RNNCell(4, 5)(t(2, 7)),
    "lstmcell": lambda t: nn.LSTMCell(4, 5)(t(2, 4), (t(3, 5), t(3, 5))),
    "grucell": lambda t: nn.GRUCell(4, 5)(t(2, 4), t(2, 6)),
    "interp size": lambda t: F.interpolate(t(1, 1, 4), size=(3, 3)),
    "interp mode": lambda t: F.interpolate(t(1, 1, 4), size=3, mode="bilinear"),
    "interp neg": lambda t: F.interpolate(t(1, 1, 4, 4), size=(-3, 3), mode="bilinear"),
    "interp 0": lambda t: F.interpolate(t(1, 1, 4, 4), size=(0, 3), mode="bicubic"),
    "interp near": lambda t: F.interpolate(t(1, 1, 4, 4), size=(0, 3)),
    "grid": lambda t: F.grid_sample(t(1, 1, 4, 4), t(1, 3, 3, 3)),
    "grid dt": lambda t: F.grid_sample(t(1, 1, 4, 4), t(1, 3, 3, 2).double()),
    "grid batch": lambda t: F.grid_sample(t(1, 1, 4, 4), t(2, 3, 3, 2)),
    "fold": lambda t: F.fold(t(1, 9, 3), (4, 4), 3),
    "unfold": lambda t: F.unfold(t(1, 1, 2, 2), 3),
    "pixel_shuffle": lambda t: F.pixel_shuffle(t(1, 3, 2, 2), 2),
    "pad": lambda t: F.pad(t(1, 1, 2, 2), (3, 3, 3, 3), mode="reflect"),
    "pad neg": lambda t: F.pad(t(2), (-2, -2)),
}


MISTAKES = PRODUCTS | CONVOLUTIONS | LOSSES | POOLS | NORMALIZATIONS | LAYERS
