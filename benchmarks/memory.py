"""Peak memory that an inference adds to a fresh process, as a multiple of stock torch's.

    python benchmarks/memory.py
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import sys
from pathlib import Path

import torch
from cases import ENSEMBLES, INFERENCES, LARGEST, MEMORY, MODES, Work, present
from timing import STOCK, Call, context

_WORKS = {work.name: work for work in (*INFERENCES, *ENSEMBLES, *LARGEST)}


def peak(work: Work, mode: str) -> int:
    """Bytes that the first call adds to a process of its own that runs on one thread."""
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
        stock = peak(work, STOCK)
        ratios = [peak(work, mode) / stock for mode in MODES]
        cells = "".join(f"{ratio:8.2f}{'*' if ratio > MEMORY else ' '}" for ratio in ratios)
        print(f"{work.name:<36}{stock / 2**20:10.1f} MiB{cells}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
