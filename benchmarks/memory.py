"""Peak memory that an inference adds to a fresh process, as a multiple of stock torch's.

python benchmarks/memory.py
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import statistics
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from cases import ENSEMBLES, INFERENCES, LARGEST, MEMORY, MODES, Work, present
from timing import STOCK, Call, context, cores

_WORKS = {work.name: work for work in (*INFERENCES, *ENSEMBLES, *LARGEST)}


PROCESSES = 3
"""Fresh processes per figure, which is their median: what an allocator gives back varies."""


@dataclasses.dataclass(frozen=True)
class Peak:
    """Bytes that a call adds: the median, and the range of the processes over it."""

    bytes: int
    spread: float


def peaks(wanted: Iterable[tuple[Work, str]]) -> dict[tuple[Work, str], Peak]:
    """What the first call of each work adds in each mode, with one thread."""
    tasks = sorted(set(wanted), key=lambda task: (task[0].name, task[1]))
    # Side by side: what a process holds does not depend on how long it takes.
    with ThreadPoolExecutor(cores()) as pool:
        found = list(pool.map(_in_a_process, [task for task in tasks for _ in range(PROCESSES)]))
    return {task: _peak(found[i * PROCESSES : (i + 1) * PROCESSES]) for i, task in enumerate(tasks)}


def _peak(values: list[int]) -> Peak:
    median = statistics.median_low(values)
    return Peak(median, (max(values) - min(values)) / median)


def _in_a_process(task: tuple[Work, str]) -> int:
    work, mode = task
    command = [sys.executable, __file__, "--of", work.name, "--mode", mode]
    return int(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def added(call: Call, mode: str) -> int:
    """Bytes by which the peak during a call exceeds what this process held before."""
    with context(mode):
        # What building the model used and gave back would hide as much of the call.
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # sets the peak to what is held now
        before = _status("VmRSS")
        call()
    return _status("VmHWM") - before


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--of", choices=_WORKS, help="print the bytes of one work, in this process")
    parser.add_argument("--mode", choices=(STOCK, *MODES), default=STOCK, help="of --of (stock)")
    return parser.parse_args()


def main() -> int:
    """Prints the table, or a number of bytes."""
    given = options()
    if given.of:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        print(added(_WORKS[given.of].build(), given.mode))
        return 0
    print(f"{'added peak memory':<36}{'stock':>14}" + "".join(f"{mode:>8} " for mode in MODES))
    for work in LARGEST:
        if not present(work):
            print(f"{work.name} is left out: install {work.needs}.")
            continue
        found = peaks((work, mode) for mode in (STOCK, *MODES))
        stock = found[work, STOCK].bytes
        ratios = [found[work, mode].bytes / stock for mode in MODES]
        cells = "".join(f"{ratio:8.2f}{'*' if ratio > MEMORY else ' '}" for ratio in ratios)
        print(f"{work.name:<36}{stock / 2**20:10.1f} MiB{cells}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
