"""How a call is timed: settings in turn, medians, spreads, and what the figures depend on."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

import fuzzytorch as ft
from fuzzytorch.backends import cpu

STOCK = "stock"

LEAST = 2e-3
"""Seconds that one measurement of stock torch takes at least, by repeating the call."""

LONG = 0.1
"""Seconds of stock torch from which on a measurement needs no call before it to warm up."""

FEWEST, MOST = 7, 21
"""Measurements per setting; the budget of a row ends them in between."""

LIMITS = {
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
    },
    "baseline": {
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
    },
}
"""Environment that asks stock torch to keep to an instruction set, by fuzzytorch's name of it."""

Call = Callable[[], Any]


@dataclasses.dataclass(frozen=True)
class Setting:
    """Under what a call runs: a mode of fuzzytorch or ``STOCK``, and threads."""

    mode: str
    threads: int


@dataclasses.dataclass(frozen=True)
class Timing:
    """Seconds of one call.

    Attributes:
        seconds: the median of the measurements.
        spread: third less first quartile, over the median.
        measurements: their number.
    """

    seconds: float
    spread: float
    measurements: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Timing:
        """Of at least two measurements."""
        first, median, third = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, (third - first) / median, len(values))


def environment(isa: str) -> dict[str, str]:
    """Variables that a process needs to run fuzzytorch and stock torch at an instruction set."""
    return {"FUZZYTORCH_ISA": isa, **LIMITS.get(isa, {})}


def isas() -> tuple[str, ...]:
    """Instruction sets that this machine can run, best first."""
    return cpu.available_isas()


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0))


def context(mode: str) -> AbstractContextManager[Any]:
    """Stock torch or a mode of fuzzytorch."""
    return nullcontext() if mode == STOCK else ft.fuzzy(mode=mode, seed=0)


def seconds(call: Call, setting: Setting, repeats: int, warm: bool) -> float:
    """Seconds per call, the mode being switched on already; ``warm`` calls once before.

    Torch's idle threads of the call before spin for some milliseconds on the processors that
    the threads of this one need, and caches hold what another mode used.
    """
    torch.set_num_threads(setting.threads)
    with context(setting.mode):
        if warm:
            call()
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        return (time.perf_counter() - start) / repeats


def measure(
    build: Callable[[], Call], settings: Sequence[Setting], budget: float
) -> dict[Setting, Timing]:
    """Times of one call in every setting, measured in turn; the first is that of stock torch."""
    torch.manual_seed(0)
    call = build()
    for setting in settings:
        seconds(call, setting, 1, warm=False)  # workspaces, caches and lazily imported code
    stock = seconds(call, settings[0], 1, warm=False)
    repeats = max(1, round(LEAST / stock))
    taken: dict[Setting, list[float]] = {setting: [] for setting in settings}
    end = time.perf_counter() + budget
    for done in range(MOST):
        if done >= FEWEST and time.perf_counter() > end:
            break
        for setting, values in taken.items():
            values.append(seconds(call, setting, repeats, warm=stock < LONG))
    return {setting: Timing.of(values) for setting, values in taken.items()}


@dataclasses.dataclass(frozen=True)
class Usage:
    """Seconds up to a moment: of all processors at work, of this process, of the clock."""

    busy: float
    own: float
    clock: float

    @classmethod
    def now(cls) -> Usage:
        """Up to this moment."""
        # user nice system idle iowait irq softirq steal, in ticks
        ticks = [int(word) for word in Path("/proc/stat").read_text().split()[1:9]]
        busy = sum(ticks) - ticks[3] - ticks[4]
        return cls(busy / os.sysconf("SC_CLK_TCK"), time.process_time(), time.perf_counter())

    def others(self) -> float:
        """Processors that other programs kept busy since then, on average."""
        now = self.now()
        taken = (now.busy - self.busy) - (now.own - self.own)
        return max(0.0, taken / (now.clock - self.clock))


def machine() -> dict[str, str]:
    """What the figures depend on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), ""
    )
    found = {
        "processor": model or platform.processor() or "unknown",
        "processors": str(cores()),
        "torch instruction set": torch.backends.cpu.get_cpu_capability(),
        "fuzzytorch instruction set": cpu.isa(),
        "threads": str(torch.get_num_threads()),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "fuzzytorch": importlib.metadata.version("fuzzy-pytorch"),
    }
    if importlib.util.find_spec("transformers"):
        found["transformers"] = importlib.metadata.version("transformers")
    return found
