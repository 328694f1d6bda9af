"""Models with trained weights that PyPI packages bring along, on inputs that are drawn here.

Both are TorchScript: one scripted, one traced.
"""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import torch

from zoo.model import Inference, Model

Tensor = torch.Tensor

RATE = 16_000
"""Samples of sound a second."""

FRAME = 512
"""Samples that the speech detector takes at a time."""

_VOWELS = ((730, 1090, 2440), (270, 2290, 3010), (300, 870, 2240), (530, 1840, 2480))
"""The first three resonances of the mouth in Hertz, for the vowels of father, see, do and bed."""

_RESONANCES = ((90, 1.0), (110, 0.5), (170, 0.25))
"""Their widths in Hertz, and their heights."""


def speech(seconds: float) -> Tensor:
    """Four vowels a second on a wavering voice of 120 Hz, ``(samples,)``."""
    time = torch.arange(int(seconds * RATE), dtype=torch.float64) / RATE
    pitch = 120 * (1 + 0.05 * torch.sin(2 * math.pi * 3 * time))
    phase = 2 * math.pi * pitch.cumsum(0) / RATE
    centres = torch.tensor(_VOWELS, dtype=torch.float64)[(4 * time).long() % len(_VOWELS)]
    sound = torch.zeros_like(time)
    for harmonic in range(1, 40):
        distances = harmonic * pitch[:, None] - centres
        heights = [
            height / (1 + (distances[:, i] / width).square())
            for i, (width, height) in enumerate(_RESONANCES)
        ]
        sound += sum(heights) * torch.sin(harmonic * phase)
    sound *= 0.5 - 0.5 * torch.cos(2 * math.pi * 4 * time)
    return (0.3 * sound / sound.abs().max()).float()


def detector() -> torch.jit.ScriptModule:
    """The speech detector of the package ``silero-vad``: a spectrum, convolutions, an LSTM."""
    # Not by the package's own function: importing it sets torch to one thread.
    found = importlib.util.find_spec("silero_vad")
    (folder,) = found.submodule_search_locations
    return torch.jit.load(Path(folder) / "data" / "silero_vad.jit").eval()


def probabilities(net: torch.jit.ScriptModule, sound: Tensor) -> Tensor:
    """The probability of speech in every whole frame of a sound, one frame after the other."""
    net.reset_states()
    whole = len(sound) // FRAME * FRAME
    return torch.cat([net(frame[None], RATE)[0] for frame in sound[:whole].split(FRAME)])


def speech_detection(seconds: float) -> Inference:
    net, sound = detector(), speech(seconds)
    return Inference(net, lambda: probabilities(net, sound))


def _ellipsoid(grid: tuple[Tensor, ...], centre: tuple[float, ...], radii: Tensor) -> Tensor:
    """The distance from a centre in units of the radii."""
    offsets = [(x - c) / r for x, c, r in zip(grid, centre, radii.tolist(), strict=True)]
    return sum(offset.square() for offset in offsets).sqrt()


def head(side: int) -> tuple[Tensor, Tensor]:
    """A head as a T1-weighted scan shows it, and where its brain is, both ``(side, side, side)``.

    Ellipsoids for scalp, skull and fluid, and a brain of folded grey around white matter;
    axes point right, forward and up.
    """
    line = torch.linspace(-1, 1, side)
    grid = torch.meshgrid(line, line, line, indexing="ij")
    x, y, z = grid
    scan = torch.zeros_like(x)
    brain = torch.tensor([0.50, 0.65, 0.57])
    scan[_ellipsoid(grid, (0, 0, 0.10), brain + torch.tensor([0.12, 0.13, 0.15])) < 1] = 90
    scan[((x / 0.35).square() + ((y + 0.1) / 0.4).square() < 1) & (z < 0.1)] = 70
    scan[_ellipsoid(grid, (0, 0, 0.12), brain + torch.tensor([0.07, 0.08, 0.09])) < 1] = 15
    scan[_ellipsoid(grid, (0, 0, 0.13), brain + torch.tensor([0.03, 0.04, 0.04])) < 1] = 30
    folds = 1 + 0.06 * torch.sin(14 * x) * torch.sin(11 * y) * torch.sin(13 * z)
    depth = _ellipsoid(grid, (0, 0, 0.14), brain) * folds
    scan[depth < 1] = 80
    scan[depth < 0.82] = 120
    for ventricle in (-0.08, 0.08):
        scan[_ellipsoid(grid, (ventricle, 0, 0.16), torch.tensor([0.05, 0.2, 0.08])) < 1] = 30
    generator = torch.Generator().manual_seed(0)
    noise = 4 * torch.randn(scan.shape, generator=generator)
    return (scan + noise).clamp(min=0), depth < 1


def brain_extraction(side: int, coarse: int) -> Inference:
    """The pipeline of the package ``deepbet``: a network finds the brain, another outlines it.

    ``side`` is that of the scan and of the second network's input, ``coarse`` that of the first.
    """
    from deepbet import BrainExtraction

    pipeline, scan = BrainExtraction(no_gpu=True), head(side)[0].numpy()

    def output() -> Tensor:
        return torch.from_numpy(pipeline.run_model(scan.copy(), (coarse,) * 3, (side,) * 3))

    return Inference(pipeline.model, output)


MODELS = (
    Model(
        "silero-vad, trained",
        "inference, 2 s of sound in frames of 32 ms",
        speech_detection,
        {"seconds": 0.25},
        {"seconds": 2.0},
        "silero_vad",
    ),
    Model(
        "deepbet, trained",
        "inference, two networks of 128^3 and 256^3 voxels",
        brain_extraction,
        {"side": 64, "coarse": 64},
        {"side": 256, "coarse": 128},
        "deepbet",
    ),
)
