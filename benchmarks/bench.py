"""Everything that docs/speed.md reports, measured, as JSON on the standard output.

Runs benchmarks/speed.py once per instruction set and number of threads, each in a process of its
own, then compares two threads with one, and measures memory and linearity.

    python benchmarks/bench.py > docs/speed.json
    python benchmarks/bench.py --only mm,call --budget 0.1   # a part of the rows, for a trial
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cases import (
    BATCHES,
    CASES,
    ENSEMBLES,
    INFERENCES,
    LARGEST,
    MEMORY,
    MODES,
    SAMPLES,
    SPEEDUP,
    Work,
    chosen,
    present,
)
from memory import PROCESSES, peaks
from timing import FEWEST, MOST, STOCK, Setting, cores, isas, machine, measure

SPEED = Path(__file__).with_name("speed.py")
ISAS = ("avx512", "avx2")
THREADS = (1, 2)


def configuration(isa: str, *arguments: str) -> dict[str, Any]:
    """The JSON file of a run of benchmarks/speed.py, which reports to the standard error."""
    print(f"\n{isa} {' '.join(arguments)}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "figures.json"
        command = [sys.executable, str(SPEED), "--isa", isa, "--json", str(file), *arguments]
        subprocess.run(command, check=True, stdout=sys.stderr)
        found: dict[str, Any] = json.loads(file.read_text())
    return found


def memory() -> dict[str, Any]:
    """Added peak bytes of an inference in stock torch and every mode."""
    works = [work for work in LARGEST if present(work)]
    found = peaks((work, mode) for work in works for mode in (STOCK, *MODES))
    return {
        "bound": MEMORY,
        "processes": PROCESSES,
        "bytes": {w.name: {m: found[w, m].bytes for m in (STOCK, *MODES)} for w in works},
        "spread": {w.name: {m: found[w, m].spread for m in (STOCK, *MODES)} for w in works},
    }


def _linear(
    works: Sequence[Work], sizes: Sequence[int], modes: Mapping[str, str], budget: float
) -> dict[str, Any]:
    """Seconds and added peak bytes of a work at several sizes, with one thread.

    ``modes`` says under what each column of the figures is measured.
    """
    settings = [Setting(mode, 1) for mode in modes.values()]
    timings = [measure(work.build, settings, budget) for work in works]
    found = peaks((work, mode) for work in works for mode in modes.values())
    columns = list(zip(modes, settings, strict=True))
    return {
        "sizes": list(sizes),
        "seconds": {name: [timing[s].seconds for timing in timings] for name, s in columns},
        "spread": {name: [timing[s].spread for timing in timings] for name, s in columns},
        "bytes": {name: [found[work, s.mode].bytes for work in works] for name, s in columns},
    }


def linearity(budget: float) -> dict[str, Any]:
    """Of an inference in its batch, and of an ensemble, which rounds in ``sr`` by itself."""
    return {
        "batch": _linear(INFERENCES, BATCHES, {STOCK: STOCK, "sr": "sr"}, budget),
        "samples": _linear(ENSEMBLES, SAMPLES, {"sr": STOCK}, budget),
    }


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="rows whose name contains one of these words")
    parser.add_argument("--budget", type=float, default=3.0, help="seconds per row, about (3)")
    return parser.parse_args()


def main() -> int:
    """Measures and prints the figures."""
    given = options()
    where = machine()
    rows = ("--budget", str(given.budget), "--only", given.only)
    sets = [isa for isa in ISAS if isa in isas()]
    counts = [threads for threads in THREADS if threads <= cores()]
    figures = {
        "machine": where,
        "modes": list(MODES),
        "measurements": [FEWEST, MOST],
        "only": given.only,
        "missing": {
            "instruction sets": [isa for isa in ISAS if isa not in sets],
            "threads": [threads for threads in THREADS if threads not in counts],
            "rows": {c.name: c.needs for c in chosen(CASES, given.only) if not present(c)},
        },
        "configurations": [
            {"isa": isa, "threads": n, **configuration(isa, "--threads", str(n), *rows)}
            for isa in sets
            for n in counts
        ],
        "speedup": SPEEDUP,
        "scaling": {isa: configuration(isa, "--scaling", *rows) for isa in sets if 2 in counts},
    }
    print("\nmemory and linearity", file=sys.stderr, flush=True)
    figures["memory"] = memory()
    figures["linearity"] = linearity(given.budget)
    json.dump(figures, sys.stdout, indent=2)
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
