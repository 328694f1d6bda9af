"""Times under the rounding modes as multiples of stock torch, and peak memory.

Stock torch and every mode are measured in turn in one process, so that a noisy
machine disturbs all of them alike; the table holds ratios of medians.

    python benchmarks/speed.py                       # one thread, fastest instruction set
    python benchmarks/speed.py --threads 2 --isa avx2 --only mm,conv --json speed.json
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
from mnist_model import Net

STOCK = "stock"
MODES = ("rn", "sr", "ud", "cestac")
LEAST = 2e-3
"""Seconds that one measurement of stock torch takes at least, by repeating the call."""

ROUNDS = 9
"""Measurements per mode, unless the budget of a row ends first; three at least."""

Call = Callable[[], Any]


@dataclasses.dataclass(frozen=True)
class Case:
    """A row of the table: ``build`` allocates the operands and returns the call to measure."""

    name: str
    build: Callable[[], Call]


def _pure(function: Callable[..., Any], *shapes: tuple[int, ...]) -> Callable[[], Call]:
    def build() -> Call:
        tensors = [torch.rand(shape) + 0.5 for shape in shapes]
        return lambda: function(*tensors)

    return build


def _conv(size: int) -> Callable[[], Call]:
    def build() -> Call:
        x = torch.randn(1, 64, 64, 64, requires_grad=True)
        w = torch.randn(64, 64, size, size, requires_grad=True)
        with torch.no_grad():
            gradient = torch.randn_like(F.conv2d(x, w, padding=size // 2))

        def call() -> None:
            y = F.conv2d(x, w, padding=size // 2)
            torch.autograd.grad(y, (x, w), gradient)

        return call

    return build


def _inference(batch: int = 64) -> Call:
    net, x = Net().eval(), torch.randn(batch, 1, 28, 28)

    def call() -> torch.Tensor:
        with torch.no_grad():
            return net(x)

    return call


def _training_step() -> Call:
    net, x, target = Net(), torch.randn(64, 1, 28, 28), torch.randint(10, (64,))
    optimizer = torch.optim.Adadelta(net.parameters(), lr=1.0)

    def call() -> None:
        optimizer.zero_grad()
        F.nll_loss(net(x), target).backward()
        optimizer.step()

    return call


MILLION = (1000, 1000)
CASES = (
    Case("mm 1024^3", _pure(torch.mm, (1024, 1024), (1024, 1024))),
    Case("conv2d 3x3 64->64, 64x64, fwd+bwd", _conv(3)),
    Case("conv2d 5x5 64->64, 64x64, fwd+bwd", _conv(5)),
    Case("add 10^6", _pure(torch.add, MILLION, MILLION)),
    Case("mul 10^6", _pure(torch.mul, MILLION, MILLION)),
    Case("exp 10^6", _pure(torch.exp, MILLION)),
    Case("gelu 10^6", _pure(F.gelu, MILLION)),
    Case("softmax 1000x1000", _pure(lambda x: x.softmax(-1), MILLION)),
    Case("layer_norm 1000x1000", _pure(lambda x: F.layer_norm(x, (1000,)), MILLION)),
    Case("sum 10^6", _pure(torch.sum, MILLION)),
    Case("MNIST net, inference, batch 64", _inference),
    Case("MNIST net, training step, batch 64", _training_step),
)
TINY = (
    Case("add of 4 elements", _pure(torch.add, (4,), (4,))),
    Case("sum of 4 elements", _pure(torch.sum, (4,))),
    Case("mm 2x2", _pure(torch.mm, (2, 2), (2, 2))),
    Case("view, no rounding", _pure(lambda x: x.view(2, 2), (4,))),
)


def context(mode: str) -> AbstractContextManager[Any]:
    """Stock torch or a mode of fuzzytorch; imported late, after FUZZYTORCH_ISA is set."""
    if mode == STOCK:
        return nullcontext()
    import fuzzytorch as ft

    return ft.fuzzy(mode=mode, seed=0)


def seconds(call: Call, mode: str, repeats: int) -> float:
    """Seconds per call, the mode being switched on already."""
    with context(mode):
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        return (time.perf_counter() - start) / repeats


def measure(case: Case, modes: tuple[str, ...], budget: float) -> dict[str, float]:
    """Median seconds per call in stock torch and in every mode, measured in turn."""
    torch.manual_seed(0)
    call = case.build()
    everything = (STOCK, *modes)
    for mode in everything:
        seconds(call, mode, 1)  # workspaces, caches and lazily imported code
    repeats = max(1, round(LEAST / seconds(call, STOCK, 1)))
    taken: dict[str, list[float]] = {mode: [] for mode in everything}
    end = time.perf_counter() + budget
    while len(taken[STOCK]) < ROUNDS and (len(taken[STOCK]) < 3 or time.perf_counter() < end):
        for mode in everything:
            taken[mode].append(seconds(call, mode, repeats))
    return {mode: statistics.median(values) for mode, values in taken.items()}


def inference_memory(mode: str, batch: int) -> int:
    """Bytes that an inference of the MNIST net adds to the peak of this (fresh) process."""
    call = _inference(batch)
    with context(mode):
        before = _resident()
        call()
    return _peak() - before


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def memory(modes: tuple[str, ...], batch: int, threads: int) -> dict[str, int]:
    """Peak memory of an inference per mode, in bytes, each in a process of its own."""
    result = {}
    for mode in (STOCK, *modes):
        command = [sys.executable, __file__, "--memory-of", mode, "--batch", str(batch)]
        command += ["--threads", str(threads)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        result[mode] = int(done.stdout)
    return result


def machine() -> dict[str, str]:
    """What the figures depend on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), ""
    )
    return {
        "processor": model or platform.processor() or "unknown",
        "torch instruction set": torch.backends.cpu.get_cpu_capability(),
        "fuzzytorch instruction set": os.environ.get("FUZZYTORCH_ISA", "fastest"),
        "threads": str(torch.get_num_threads()),
        "torch": torch.__version__,
        "fuzzytorch": importlib.metadata.version("fuzzy-pytorch"),
    }


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--isa", help="instruction set of fuzzytorch's kernels (fastest)")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--only", default="", help="rows whose name contains one of these words")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds per row, about (20)")
    parser.add_argument("--batch", type=int, default=256, help="batch of the memory figure (256)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    return parser.parse_args()


def _chosen(cases: tuple[Case, ...], only: str) -> list[Case]:
    words = [word for word in only.split(",") if word]
    return [c for c in cases if not words or any(word in c.name for word in words)]


def main() -> int:
    """Prints the table and writes the JSON file, if one is asked for."""
    chosen = options()
    if chosen.isa:
        os.environ["FUZZYTORCH_ISA"] = chosen.isa
    torch.set_num_threads(chosen.threads)
    if chosen.memory_of:
        print(inference_memory(chosen.memory_of, chosen.batch))
        return 0
    modes = tuple(chosen.modes.split(","))
    where = machine()
    print("; ".join(f"{key}: {value}" for key, value in where.items()))
    figures: dict[str, Any] = {"machine": where, "seconds": {}, "peak bytes": {}}
    heading = "".join(f"{mode:>9}" for mode in modes)
    print(f"\n{'multiples of stock torch':<36}{'stock':>12}{heading}")
    for case in _chosen(CASES, chosen.only):
        found = figures["seconds"][case.name] = measure(case, modes, chosen.budget)
        ratios = "".join(f"{found[mode] / found[STOCK]:8.1f}x" for mode in modes)
        print(f"{case.name:<36}{found[STOCK] * 1e3:9.3f} ms{ratios}", flush=True)
    print(f"\n{'one call, microseconds':<36}{'stock':>12}{heading}")
    for case in _chosen(TINY, chosen.only):
        found = figures["seconds"][case.name] = measure(case, modes, chosen.budget)
        times = "".join(f"{found[mode] * 1e6:9.1f}" for mode in modes)
        print(f"{case.name:<36}{found[STOCK] * 1e6:12.1f}{times}", flush=True)
    if not chosen.only or "memory" in chosen.only:
        name = f"memory of an inference, batch {chosen.batch}"
        peak = figures["peak bytes"][name] = memory(modes, chosen.batch, chosen.threads)
        ratios = "".join(f"{peak[mode] / peak[STOCK]:8.2f}x" for mode in modes)
        print(f"\n{name:<36}{peak[STOCK] / 2**20:8.1f} MiB{ratios}")
    if chosen.json:
        chosen.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
