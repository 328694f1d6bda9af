"""Models as people write them, with random weights: small for the tests, real for the figures."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Tensor = torch.Tensor


@dataclasses.dataclass(frozen=True)
class Training:
    """One training step: ``loss()`` is a forward pass, ``step()`` also a backward pass.

    Both draw the same random numbers of torch at every call.

    Attributes:
        module: holds the parameters, whose gradients ``step`` leaves in place.
        loss: a forward pass; returns a scalar.
        fit: a whole optimization instead of a single backward pass, for models that are fit.
    """

    module: nn.Module
    loss: Callable[[], Tensor]
    fit: Callable[[], Tensor] | None = None

    def step(self) -> Tensor:
        """A forward and a backward pass, or the fit; the last loss, detached."""
        if self.fit is not None:
            return self.fit().detach()
        self.module.zero_grad()
        loss = self.loss()
        loss.backward()
        return loss.detach()


@dataclasses.dataclass(frozen=True)
class Model:
    """A model at two sizes.

    Attributes:
        name: as in the table of the documentation.
        size: the real size, in words.
        build: makes the training step from the keywords of a size.
        small, real: these keywords.
        needs: a package beside torch.
    """

    name: str
    size: str
    build: Callable[..., Training]
    small: dict[str, Any]
    real: dict[str, Any]
    needs: str | None = None

    def at(self, size: str) -> Training:
        """The training step at ``"small"`` or ``"real"`` size, the same at every call."""
        torch.manual_seed(0)
        return self.build(**(self.small if size == "small" else self.real))


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


def _transformers(
    model: str, config: str, inputs: Callable[..., dict[str, Tensor]], **keywords: Any
) -> Training:
    """A model of the package ``transformers`` with random weights, in training mode.

    ``inputs`` makes its arguments from the configuration.
    """
    import transformers

    configuration = getattr(transformers, config)(**keywords)
    net = getattr(transformers, model)(configuration).train()
    batch = inputs(configuration)

    def loss() -> Tensor:
        # Dropout, but also masks that are drawn by numpy.
        transformers.set_seed(1)
        return net(**batch).loss

    return Training(net, loss)


def _of_transformers(model: str, config: str, inputs: Callable[..., Any]) -> Callable[..., Any]:
    def build(shape: tuple[int, ...], **keywords: Any) -> Training:
        return _transformers(model, config, functools.partial(inputs, shape=shape), **keywords)

    return build


def _words(config: Any, shape: tuple[int, ...]) -> dict[str, Tensor]:
    words = torch.randint(config.vocab_size, shape)
    return {"input_ids": words, "labels": words}


def _images(config: Any, shape: tuple[int, ...]) -> dict[str, Tensor]:
    batch, side = shape
    return {
        "pixel_values": torch.randn(batch, 3, side, side),
        "labels": torch.arange(batch) % config.num_labels,
    }


def _spectrogram(config: Any, shape: tuple[int, ...]) -> dict[str, Tensor]:
    batch, words = shape
    frames = 2 * config.max_source_positions
    return {
        "input_features": torch.randn(batch, config.num_mel_bins, frames),
        "labels": torch.randint(3, config.vocab_size, (batch, words)),
    }


def _sound(config: Any, shape: tuple[int, ...]) -> dict[str, Tensor]:
    labels = torch.arange(shape[0]) % config.num_labels
    return {"input_values": torch.randn(shape), "labels": labels}


def _transcribed(config: Any, shape: tuple[int, ...]) -> dict[str, Tensor]:
    labels = torch.randint(1, config.vocab_size, (shape[0], 4))
    return {"input_values": torch.randn(shape), "labels": labels}


_TINY = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
_TINY_WAVLM = {
    **_TINY, "intermediate_size": 32, "conv_dim": [8, 8], "conv_stride": [5, 2],
    "conv_kernel": [10, 3], "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2,
    "num_buckets": 16, "max_bucket_distance": 20, "vocab_size": 12,
    "mask_time_length": 2, "classifier_proj_size": 8,
}  # fmt: skip
_TINY_WHISPER = {
    "vocab_size": 50, "num_mel_bins": 8, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1,
    "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32, "max_source_positions": 16, "max_target_positions": 16,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
}  # fmt: skip
_TINY_GPT2 = {
    "vocab_size": 50, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2,
    "bos_token_id": 0, "eos_token_id": 0, "loss_type": "ForCausalLM",
}  # fmt: skip

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
    Model(
        "ResNet",
        "ResNet-50, 2 x 224^2",
        _of_transformers("ResNetForImageClassification", "ResNetConfig", _images),
        {"shape": (2, 32), "embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]},
        {"shape": (2, 224)},
        "transformers",
    ),
    Model(
        "BERT",
        "base, 1 x 128 tokens",
        _of_transformers("BertForMaskedLM", "BertConfig", _words),
        {"shape": (2, 12), **_TINY, "intermediate_size": 32, "vocab_size": 50},
        {"shape": (1, 128)},
        "transformers",
    ),
    Model(
        "GPT-2",
        "124M, 1 x 128 tokens",
        _of_transformers("GPT2LMHeadModel", "GPT2Config", _words),
        {"shape": (2, 12), **_TINY_GPT2},
        {"shape": (1, 128), "loss_type": "ForCausalLM"},
        "transformers",
    ),
    Model(
        "ViT",
        "B/16, 1 x 224^2",
        _of_transformers("ViTForImageClassification", "ViTConfig", _images),
        {"shape": (2, 32), **_TINY, "intermediate_size": 32, "image_size": 32, "patch_size": 8},
        {"shape": (1, 224)},
        "transformers",
    ),
    Model(
        "ConvNeXt",
        "tiny, 1 x 224^2",
        _of_transformers("ConvNextForImageClassification", "ConvNextConfig", _images),
        {"shape": (2, 32), "hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2},
        {"shape": (1, 224)},
        "transformers",
    ),
    Model(
        "Swin",
        "tiny, 1 x 224^2",
        _of_transformers("SwinForImageClassification", "SwinConfig", _images),
        {
            "shape": (2, 32), "image_size": 32, "patch_size": 4, "embed_dim": 8,
            "depths": [2, 2], "num_heads": [2, 2], "window_size": 4,
        },
        {"shape": (1, 224)},
        "transformers",
    ),
    Model(
        "Whisper",
        "tiny, 30 s of sound, 32 tokens",
        _of_transformers("WhisperForConditionalGeneration", "WhisperConfig", _spectrogram),
        {"shape": (2, 6), **_TINY_WHISPER},
        {
            "shape": (1, 32), "d_model": 384, "encoder_layers": 4, "decoder_layers": 4,
            "encoder_attention_heads": 6, "decoder_attention_heads": 6,
            "encoder_ffn_dim": 1536, "decoder_ffn_dim": 1536,
        },
        "transformers",
    ),
    Model(
        "WavLM",
        "base, 1 s of sound",
        _of_transformers("WavLMForSequenceClassification", "WavLMConfig", _sound),
        {"shape": (2, 400), **_TINY_WAVLM},
        {"shape": (1, 16_000)},
        "transformers",
    ),
    Model(
        "WavLM, CTC",
        "base, 1 s of sound",
        _of_transformers("WavLMForCTC", "WavLMConfig", _transcribed),
        {"shape": (2, 400), **_TINY_WAVLM},
        {"shape": (1, 16_000)},
        "transformers",
    ),
)  # fmt: skip
