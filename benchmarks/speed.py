"""Times under the rounding modes as multiples of stock torch.

Stock torch and every mode are measured in turn in one process, so that a noisy
machine disturbs all of them alike; the table holds ratios of medians, and a star
where one is above its bound.  ``--isa`` limits stock torch to that instruction set too.

    python benchmarks/speed.py                       # one thread, fastest instruction set
    python benchmarks/speed.py --threads 2 --isa avx2 --only mm,conv --json speed.json
    python benchmarks/speed.py --scaling             # what two threads gain over one
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from cases import CASES, MODES, SPEEDUP, TIMES, Case, chosen, present
from timing import STOCK, Setting, Timing, Usage, environment, isas, machine, measure


def row(case: Case, modes: tuple[str, ...], threads: int, budget: float) -> dict[str, Any]:
    """What the JSON file says of a case: medians, spreads, and their bounds."""
    settings = [Setting(mode, threads) for mode in (STOCK, *modes)]
    found = measure(case.build, settings, budget)
    return {
        "unit": case.unit,
        "bound": {mode: getattr(case.bound, mode) for mode in modes},
        **_figures({setting.mode: timing for setting, timing in found.items()}),
    }


def _figures(timings: dict[str, Timing]) -> dict[str, Any]:
    return {
        "measurements": timings[STOCK].measurements,
        "seconds": {key: timing.seconds for key, timing in timings.items()},
        "spread": {key: timing.spread for key, timing in timings.items()},
    }


def value(found: dict[str, Any], mode: str) -> float:
    """What a row says of a mode, in its unit."""
    taken: float = found["seconds"][mode]
    stock: float = found["seconds"][STOCK]
    return taken / stock if found["unit"] == TIMES else taken * 1e6


def scaling(case: Case, modes: tuple[str, ...], budget: float) -> dict[str, Any]:
    """Medians and spreads of a case with one thread and with two, measured in turn."""
    settings = [Setting(mode, threads) for threads in (1, 2) for mode in (STOCK, *modes)]
    found = measure(case.build, settings, budget)
    return {
        str(threads): _figures({s.mode: t for s, t in found.items() if s.threads == threads})
        for threads in (1, 2)
    }


def speedup(found: dict[str, Any], mode: str) -> float:
    """Time with one thread over time with two."""
    return float(found["1"]["seconds"][mode] / found["2"]["seconds"][mode])


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--isa", choices=isas(), help="instruction set of all kernels (fastest)")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--only", default="", help="rows whose name contains one of these words")
    parser.add_argument("--budget", type=float, default=3.0, help="seconds per row, about (3)")
    parser.add_argument("--scaling", action="store_true", help="two threads against one instead")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    return parser.parse_args()


def _timed(given: argparse.Namespace, modes: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Prints and yields each row."""
    for case in chosen(CASES, given.only):
        if not present(case):
            print(f"{case.name} is left out: install {case.needs}.")
            continue
        found = row(case, modes, given.threads, given.budget)
        cells = f"{case.name:<36}{found['seconds'][STOCK] * 1e6:11.1f} us"
        for mode in modes:
            shown = value(found, mode)
            cells += f"{shown:8.2f}{'*' if shown > found['bound'][mode] else ' '}"
        print(f"{cells}{max(found['spread'].values()):8.0%}{found['measurements']:4}", flush=True)
        yield case.name, found


def _scaled(given: argparse.Namespace, modes: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Prints and yields each row."""
    for case in chosen(CASES, given.only):
        if not case.scaling:
            continue
        found = scaling(case, modes, given.budget)
        cells = f"{case.name:<36}{speedup(found, STOCK):14.2f}"
        for mode in modes:
            gain = speedup(found, mode)
            cells += f"{gain:8.2f}{'*' if gain < SPEEDUP else ' '}"
        print(cells, flush=True)
        yield case.name, found


def main() -> int:
    """Prints the table and writes the JSON file, if one is asked for."""
    given = options()
    wanted = environment(given.isa) if given.isa else {}
    if any(os.environ.get(name) != setting for name, setting in wanted.items()):
        # Torch and its libraries read these once, some of them while they are loaded.
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **wanted})
    torch.set_num_threads(given.threads)
    modes = tuple(given.modes.split(","))
    where = machine()
    if given.scaling:
        where["threads"] = "1 and 2"
    print("; ".join(f"{key}: {value}" for key, value in where.items()))
    heading = "".join(f"{mode:>8} " for mode in modes)
    title = "time with 1 thread / with 2" if given.scaling else "multiples; calls: microseconds"
    tail = "" if given.scaling else "  spread   n"
    print(f"\n{title:<36}{'stock':>14}{heading}{tail}", flush=True)
    start = Usage.now()
    figures: dict[str, Any] = {"machine": where}
    figures["rows"] = dict((_scaled if given.scaling else _timed)(given, modes))
    others = figures["others"] = start.others()
    print(f"\nOther programs kept {others:.2f} processors busy.")
    if given.json:
        given.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
