"""Models as people write them, with random weights: small for the tests, real for the figures."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from zoo.model import Model, Training

Tensor = torch.Tensor


class Block3d(nn.Sequential):
    """Two convolutions with group normalization."""

    def __init__(self, inputs: int, outputs: int) -> None:
        layers: list[nn.Module] = []
        for width in (inputs, outputs):
            layers += [nn.Conv3d(width, outputs, 3, padding=1), nn.GroupNorm(4, outputs)]
            layers += [nn.LeakyReLU(0.01)]
        super().__init__(*layers)


class UNet3d(nn.Module):
    """A U-Net of three levels for volumes, with transposed convolutions on the way up."""

    def __init__(self, width: int, classes: int = 3) -> None:
        super().__init__()
        w = width
        self.down = nn.ModuleList([Block3d(1, w), Block3d(w, 2 * w)])
        self.bottom = Block3d(2 * w, 4 * w)
        self.grow = nn.ModuleList(
            [nn.ConvTranspose3d(4 * w, 2 * w, 2, 2), nn.ConvTranspose3d(2 * w, w, 2, 2)]
        )
        self.up = nn.ModuleList([Block3d(4 * w, 2 * w), Block3d(2 * w, w)])
        self.head = nn.Conv3d(w, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for block in self.down:
            kept.append(block(x))
            x = F.max_pool3d(kept[-1], 2)
        x = self.bottom(x)
        for grow, block in zip(self.grow, self.up, strict=True):
            x = block(torch.cat([grow(x), kept.pop()], 1))
        return self.head(x)


def unet3d(width: int, side: int) -> Training:
    net, x = UNet3d(width), torch.randn(1, 1, side, side, side)
    target = torch.randint(3, (1, side, side, side))

    def loss() -> Tensor:
        logits = net(x)
        p = logits.softmax(1)[:, 1]
        wanted = (target == 1).float()
        dice = 1 - (2 * (p * wanted).sum() + 1) / (p.sum() + wanted.sum() + 1)
        return F.cross_entropy(logits, target) + dice

    return Training(net, loss)


class LanguageModel(nn.Module):
    """Embedding, LSTM of two layers, tied weights."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, width, 2, dropout=0.2, batch_first=True)
        self.head = nn.Linear(width, words)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(self.embedding(x))[0])


def language_model(words: int, width: int, batch: int, length: int) -> Training:
    net, x = LanguageModel(words, width), torch.randint(words, (batch, length + 1))

    def loss() -> Tensor:
        torch.manual_seed(1)
        return F.cross_entropy(net(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())

    return Training(net, loss)


class GraphLayer(nn.Module):
    """The mean of messages along edges, collected by ``index_add``."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.message = nn.Linear(2 * inputs, outputs)
        self.update = nn.Linear(inputs + outputs, outputs)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        messages = F.relu(self.message(torch.cat([x[source], x[target]], 1)))
        total = x.new_zeros(len(x), messages.shape[1]).index_add(0, target, messages)
        degree = x.new_zeros(len(x)).index_add(0, target, torch.ones(len(target)))
        mean = total / degree.clamp(min=1).unsqueeze(1)
        return F.elu(self.update(torch.cat([x, mean], 1)))


class GraphNetwork(nn.Module):
    """Three layers of messages between nodes, then a class for each."""

    def __init__(self, features: int, width: int, classes: int) -> None:
        super().__init__()
        widths = (features, width, width, width)
        self.layers = nn.ModuleList(map(GraphLayer, widths[:-1], widths[1:]))
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, edges)
        return self.head(x)


def graph_network(nodes: int, edges: int, width: int) -> Training:
    net = GraphNetwork(16, width, 7)
    x, links = torch.randn(nodes, 16), torch.randint(nodes, (2, edges))
    target = torch.randint(7, (nodes,))
    return Training(net, lambda: F.cross_entropy(net(x, links), target))


class VariationalAutoencoder(nn.Module):
    """Fully connected, with a Gaussian code."""

    def __init__(self, pixels: int, width: int, code: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(pixels, width), nn.ReLU())
        self.mean, self.log_variance = nn.Linear(width, code), nn.Linear(width, code)
        self.decoder = nn.Sequential(nn.Linear(code, width), nn.ReLU(), nn.Linear(width, pixels))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.encoder(x)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        code = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        return self.decoder(code).sigmoid(), mean, log_variance


def autoencoder(pixels: int, width: int, code: int, batch: int) -> Training:
    net, x = VariationalAutoencoder(pixels, width, code), torch.rand(batch, pixels)

    def loss() -> Tensor:
        torch.manual_seed(1)
        y, mean, log_variance = net(x)
        divergence = -0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp()).sum()
        return (F.binary_cross_entropy(y, x, reduction="sum") + divergence) / batch

    return Training(net, loss)


def lbfgs(points: int, features: int, steps: int) -> Training:
    net, x = nn.Linear(features, 1), torch.randn(points, features)
    target = (x[:, :1] + 0.5 * torch.randn(points, 1) > 0).float()
    start = {name: value.clone() for name, value in net.state_dict().items()}

    def loss() -> Tensor:
        penalty = 1e-3 * net.weight.square().sum()
        return F.binary_cross_entropy_with_logits(net(x), target) + penalty

    def fit() -> Tensor:
        net.load_state_dict(start)
        optimizer = torch.optim.LBFGS(
            net.parameters(), max_iter=steps, line_search_fn="strong_wolfe"
        )

        def closure() -> Tensor:
            optimizer.zero_grad()
            value = loss()
            value.backward()
            return value

        optimizer.step(closure)
        return closure()

    return Training(net, loss, fit)


MODELS = (
    Model(
        "3-D U-Net",
        "width 16, 48^3 voxels",
        unet3d,
        {"width": 4, "side": 8},
        {"width": 16, "side": 48},
    ),
    Model(
        "LSTM language model",
        "2 x 256 units, 10,000 words, 8 x 35 tokens",
        language_model,
        {"words": 40, "width": 8, "batch": 2, "length": 6},
        {"words": 10_000, "width": 256, "batch": 8, "length": 35},
    ),
    Model(
        "graph network",
        "10,000 nodes, 50,000 edges, width 64",
        graph_network,
        {"nodes": 30, "edges": 80, "width": 8},
        {"nodes": 10_000, "edges": 50_000, "width": 64},
    ),
    Model(
        "variational autoencoder",
        "784-400-20, batch 128",
        autoencoder,
        {"pixels": 36, "width": 16, "code": 4, "batch": 5},
        {"pixels": 784, "width": 400, "code": 20, "batch": 128},
    ),
    Model(
        "LBFGS fit",
        "logistic, 5,000 x 100, 20 steps",
        lbfgs,
        {"points": 60, "features": 5, "steps": 4},
        {"points": 5_000, "features": 100, "steps": 20},
    ),
)
