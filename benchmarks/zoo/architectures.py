"""Architectures of the package ``transformers`` with random weights; nothing is downloaded."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from zoo.model import Model, Training

Tensor = torch.Tensor


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
