"""Modules that know whether stock torch computed them."""

from __future__ import annotations

import torch
from torch import nn

import fuzzytorch as ft

UP = ft.Rounding.of("up")
COARSE = ft.Rounding.of("sr", "bfloat16")
STOCK_CALL = nn.Module.__call__


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Recorded(nn.Module):
    """A layer that keeps what went in and out of it, and the gradients at both ends."""

    def __init__(self, width=7, seed=0):
        super().__init__()
        self.weight = nn.Parameter(randn(width, width, seed=seed))
        self.norm = nn.LayerNorm(width)
        self.seen = {}

    def forward(self, x):
        self.seen["x"] = x.detach()
        if x.requires_grad:
            x.register_hook(lambda g: self.seen.__setitem__("gx", g))
        y = self.compute(x)
        self.seen["y"] = y.detach()
        if y.requires_grad:
            y.register_hook(lambda g: self.seen.__setitem__("gy", g))
        return y

    def compute(self, x):
        return self.norm(x @ self.weight).tanh()

    def stock(self):
        """The output and the gradients that stock torch gives for what went in."""
        x = self.seen["x"].clone().requires_grad_()
        y = self.compute(x)
        inner = torch.autograd.grad(y, (x, *self.parameters()), self.seen["gy"])
        return y.detach(), inner

    def is_stock(self):
        y, (gx, *gradients) = self.stock()
        forward = torch.equal(y, self.seen["y"])
        backward = torch.equal(gx, self.seen["gx"]) and all(
            torch.equal(p.grad, g) for p, g in zip(self.parameters(), gradients, strict=True)
        )
        assert forward == backward, "a layer is stock in one direction only"
        return forward


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.ModuleDict({str(i): Recorded(seed=i) for i in range(3)})
        self.decoder = Recorded(seed=9)

    def forward(self, x):
        for layer in self.encoder.values():
            x = layer(x) * 1.1
        return self.decoder(x)

    def layers(self):
        return {**{f"encoder.{k}": m for k, m in self.encoder.items()}, "decoder": self.decoder}


def stock_layers(model, run=None, **options):
    """Names of the layers that are stock in a forward and backward pass under a mode."""
    model.zero_grad()
    with ft.fuzzy("ud", seed=0, **options) as mode:
        y = (model if run is None else run)(randn(5, 7, seed=3).requires_grad_())
        (y * 1.1).sum().backward()
    return {name for name, m in model.layers().items() if m.is_stock()}, mode.coverage
