"""Where a network loses its digits, and where Inf first appears in it."""

from __future__ import annotations

import torch
from torch import nn

import fuzzytorch as ft


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.relu(self.norm(self.conv(x)))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.ModuleList(Block(8) for _ in range(4))
        self.head = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


class Attention(nn.Module):
    def forward(self, scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        lowest = torch.finfo(scores.dtype).min
        return (scores.masked_fill(mask, lowest) - 64).softmax(-1)


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        n = len(tokens)
        return self.attention(tokens @ tokens.T, torch.ones(n, n, dtype=torch.bool).triu()) @ tokens


def main() -> None:
    torch.manual_seed(0)
    network, images = Network(), torch.rand(4, 3, 16, 16)
    with torch.no_grad():
        # A channel whose values are nearly the same everywhere: batch normalization divides the
        # little that is left, rounding errors included, by its small standard deviation.
        network.blocks[2].conv.weight[5] *= 1 / 256
        network.blocks[2].conv.bias[5] = 16.0
        print(ft.profile(lambda: network(images), n=10, mode="sr", seed=0).text(most=8))

    decoder, tokens = Decoder(), torch.rand(6, 8).half()
    print()
    print(ft.first_nonfinite(lambda: decoder(tokens), n=10, mode="sr", seed=0))


if __name__ == "__main__":
    main()
