"""Does our scatter equal that of stock torch's own kernels under binary instrumentation?

Compares, element by element, the standard deviations of 30 samples in ``sr`` and
``cestac`` with recorded ones: stock torch 2.13 (MKL, oneDNN, AVX2) run under
Verrou, modes ``average`` and ``random``.  The recordings are read from the folder
that FUZZYTORCH_REFERENCE names, else from ``shared/reference`` beside this
project.  Usage: ``python benchmarks/fidelity.py``.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F

import fuzzytorch as ft

SAMPLES: Final = 30
LOW, HIGH = 0.7, 1.4
"""Accepted median ratios of our standard deviation to the recorded one."""

RECORDED: Final = {"sr": "verrou_average.npz", "cestac": "verrou_random.npz"}
"""Our mode and the recording of the same mode."""

_GELU = (
    "stock evaluates erf by a polynomial in binary32, each step of which scatters; we round it once"
)
REASONS: Final = {
    ("sr", "gelu"): _GELU,
    ("cestac", "gelu"): _GELU,
}
"""Why a median ratio lies outside the range, for a mode and an operation."""

Inputs = dict[str, torch.Tensor]


def folder() -> Path | None:
    """The folder with the recordings; ``None`` if there is none."""
    named = os.environ.get("FUZZYTORCH_REFERENCE")
    beside = Path(__file__).resolve().parents[1]
    places = (
        [Path(named)]
        if named
        else [beside / "shared/reference", beside.parent / "shared/reference"]
    )
    return next((place for place in places if (place / "inputs.npz").is_file()), None)


def load(name: str, place: Path) -> dict[str, torch.Tensor]:
    """All tensors of one recording.

    Raises:
        FileNotFoundError: the recording is not in the folder.
    """
    with np.load(place / name) as arrays:
        return {key: torch.from_numpy(np.asarray(arrays[key])) for key in arrays.files}


def _mm(t: Inputs) -> dict[str, torch.Tensor]:
    return {"mm": t["a"] @ t["b"]}


def _conv2d(t: Inputs) -> dict[str, torch.Tensor]:
    return {"conv2d": F.conv2d(t["x"], t["w"])}


def _rows(t: Inputs) -> dict[str, torch.Tensor]:
    return {
        "layer_norm": F.layer_norm(t["ln"], (768,), t["lng"], t["lnb"]),
        "softmax": t["sm"].softmax(-1),
        "var": t["ln"].var(-1),
        "gelu": F.gelu(t["ln"]),
        "mul_add": t["ln"] * t["lng"] + t["lnb"],
    }


def _sums(t: Inputs) -> dict[str, torch.Tensor]:
    return {"sum_positive": t["pos"].sum(), "sum_zero_mean": t["zero"].sum()}


def _mnist(t: Inputs) -> dict[str, torch.Tensor]:
    names = ("c1w", "c1b", "c2w", "c2b", "f1w", "f1b", "f2w", "f2b")
    p = {name: t[name].clone().requires_grad_() for name in names}
    x = F.relu(F.conv2d(t["img"], p["c1w"], p["c1b"]))
    x = F.relu(F.conv2d(x, p["c2w"], p["c2b"]))
    x = F.max_pool2d(x, 2).flatten(1)
    x = F.linear(F.relu(F.linear(x, p["f1w"], p["f1b"])), p["f2w"], p["f2b"])
    scores = F.log_softmax(x, dim=1)
    loss = F.nll_loss(scores, torch.tensor([3, 1, 4, 1]))
    loss.backward()
    gradients = {"grad_conv1": "c1w", "grad_conv2": "c2w", "grad_fc2": "f2w"}
    outputs = {"mnist_log_probs": scores.detach(), "mnist_loss": loss.detach()}
    return outputs | {key: p[name].grad for key, name in gradients.items()}


COMPUTATIONS: Final[tuple[Callable[[Inputs], dict[str, torch.Tensor]], ...]] = (
    _mm,
    _conv2d,
    _rows,
    _sums,
    _mnist,
)


@dataclasses.dataclass(frozen=True)
class Fidelity:
    """One operation under one mode against the recording.

    Attributes:
        ratio: median over the elements of our standard deviation over the recorded one.
        low, high: quartiles of the same ratios.
        elements: elements that scatter in both.
        one_sided: share of the elements that scatter in one of the two only.
        bias: our mean minus the binary64 value, in our standard errors, root mean
            square over the elements that scatter; about 1 if unbiased.
    """

    operation: str
    mode: str
    ratio: float
    low: float
    high: float
    elements: int
    one_sided: float
    bias: float

    @property
    def within(self) -> bool:
        """Whether the median ratio lies in the accepted range."""
        return LOW <= self.ratio <= HIGH

    @property
    def reason(self) -> str:
        """Why it does not, where that is known; else empty."""
        return REASONS.get((self.mode, self.operation), "")


def moments(
    inputs: Inputs, mode: str, samples: int = SAMPLES, seed: int = 0
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Mean and standard deviation (divisor n - 1) of every operation, in float64."""
    drawn: dict[str, list[torch.Tensor]] = {}
    for replica in range(samples):
        with ft.fuzzy(mode=mode, seed=seed, replica=replica):
            outputs = [function(inputs) for function in COMPUTATIONS]
        for output in outputs:
            for key, value in output.items():
                drawn.setdefault(key, []).append(value.double())
    stacked = {key: torch.stack(values) for key, values in drawn.items()}
    return {key: (values.mean(0), values.std(0)) for key, values in stacked.items()}


def compare(mode: str, place: Path, samples: int = SAMPLES) -> list[Fidelity]:
    """All operations under one of the modes of :data:`RECORDED`."""
    recorded, truth = load(RECORDED[mode], place), load("truth64.npz", place)
    found = moments(load("inputs.npz", place), mode, samples)
    return [
        _fidelity(key, mode, mean, std, recorded[f"{key}/std"].double(), truth[key], samples)
        for key, (mean, std) in found.items()
    ]


def _fidelity(
    key: str,
    mode: str,
    mean: torch.Tensor,
    std: torch.Tensor,
    recorded: torch.Tensor,
    truth: torch.Tensor,
    samples: int,
) -> Fidelity:
    recorded, truth = recorded.reshape(std.shape), truth.reshape(std.shape)
    both = (std > 0) & (recorded > 0)
    if not both.any():
        raise RuntimeError(f"no element of {key} scatters in mode {mode}: nothing to compare.")
    ratios = (std / recorded)[both]
    low, middle, high = ratios.quantile(
        torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)
    ).tolist()
    one_sided = ((std > 0) != (recorded > 0)).double().mean().item()
    errors = ((mean - truth) / (std / samples**0.5))[both]
    bias = errors.square().mean().sqrt().item()
    return Fidelity(key, mode, middle, low, high, int(both.sum()), one_sided, bias)


def main() -> int:
    """Prints the table; 1 if a ratio lies outside without a stated reason, 2 without recordings."""
    place = folder()
    if place is None:
        print(
            "fidelity.py: the recordings (inputs.npz and others) were not found: "
            "let the variable FUZZYTORCH_REFERENCE name their folder.",
            file=sys.stderr,
        )
        return 2
    unexplained = False
    print(f"{'mode':<8}{'operation':<17}{'ratio':>6}  {'quartiles':<12}{'elements':>9}{'bias':>7}")
    for mode in RECORDED:
        for row in compare(mode, place):
            note = "" if row.within else row.reason or f"outside {LOW} to {HIGH}"
            unexplained |= not row.within and not row.reason
            if row.one_sided > 0.01:
                note = f"{100 * row.one_sided:.0f} % scatter in one only. {note}"
            quartiles = f"{row.low:.2f}-{row.high:.2f}"
            print(
                f"{mode:<8}{row.operation:<17}{row.ratio:6.2f}  {quartiles:<12}"
                f"{row.elements:9d}{row.bias:7.2f}  {note}".rstrip()
            )
    return int(unexplained)


if __name__ == "__main__":
    sys.exit(main())
