"""Coverage and slowdown of whole models, one step of each, as a page of the documentation.

Stock torch and every mode are measured in turn in one process, so that a noisy machine disturbs
all of them alike; the table holds ratios of medians. Nothing is downloaded.

    python benchmarks/models.py > docs/models.md
    python benchmarks/models.py --size small --only LSTM,BERT --modes sr
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from timing import STOCK, context, machine
from zoo import MODELS, TRAINED, Inference, Model, Training

WEAK = ("COARSE", "UNCOVERED")
"""Verdicts of operations that are named in the table."""

_HEAD = """\
# Models

One training step (a forward and a backward pass) of models with random weights, and one inference
of models with trained ones: the share of the floating-point operations that are rounded one by one,
and the time as a multiple of that under stock torch, medians of up to five. `make models` prints
this page.

Machine: {machine}.

| model | size | operations | rounded | not rounded one by one | stock | {modes} |
|---|---|---:|---:|---|---:|{rule}"""


def covered(step: Training | Inference, mode: str) -> Any:
    """The coverage of one step under a mode."""
    with warnings.catch_warnings(), context(mode) as run:
        warnings.simplefilter("ignore")  # what is not covered stands in the table
        step.step()
    return run.coverage


def measure(step: Training | Inference, modes: tuple[str, ...], budget: float) -> dict[str, float]:
    """Median seconds of a step in stock torch and in every mode, measured in turn."""
    taken: dict[str, list[float]] = {mode: [] for mode in (STOCK, *modes)}
    end = time.perf_counter() + budget
    while not taken[STOCK] or (len(taken[STOCK]) < 5 and time.perf_counter() < end):
        for mode, values in taken.items():
            with warnings.catch_warnings(), context(mode):
                warnings.simplefilter("ignore")
                start = time.perf_counter()
                step.step()
                values.append(time.perf_counter() - start)
    return {mode: statistics.median(values) for mode, values in taken.items()}


def figures(model: Model, size: str, modes: tuple[str, ...], budget: float) -> dict[str, Any]:
    """What one row of the table says."""
    step = model.at(size)
    step.step()  # workspaces, caches and lazily imported code
    coverage = covered(step, modes[0])
    weak = {r.name: r.operations for r in coverage.records if r.verdict.name in WEAK}
    return {
        "operations": coverage.operations,
        "rounded": 1 - sum(weak.values()) / coverage.operations,
        "weak": weak,
        "seconds": measure(step, modes, budget),
    }


def line(model: Model, found: dict[str, Any]) -> str:
    """One row of the table, as Markdown."""
    seconds = found["seconds"]
    rounded = "100%" if not found["weak"] else f"{min(found['rounded'], 0.9999):.2%}"
    weak = ", ".join(f"`{name.split('.')[1]}`" for name in found["weak"])
    cells = [model.name, model.size, f"{found['operations']:.2g}", rounded, weak]
    cells.append(f"{seconds[STOCK]:.3f} s")
    cells += [f"{seconds[m] / seconds[STOCK]:.1f}x" for m in seconds if m != STOCK]
    return f"| {' | '.join(cells)} |"


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--modes", default="sr,ud")
    parser.add_argument("--only", default="", help="models whose name contains one of these words")
    parser.add_argument("--size", choices=("small", "real"), default="real")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds per model, about (20)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    return parser.parse_args()


def main() -> int:
    """Prints the page and writes the JSON file, if one is asked for."""
    chosen = options()
    torch.set_num_threads(chosen.threads)
    modes = tuple(chosen.modes.split(","))
    words = [word for word in chosen.only.split(",") if word]
    where = machine()
    named = "; ".join(f"{key}: {value}" for key, value in where.items())
    print(_HEAD.format(machine=named, modes=" | ".join(modes), rule="---:|" * len(modes)))
    results: dict[str, Any] = {"machine": where, "size": chosen.size, "models": {}}
    for model in (*MODELS, *TRAINED):
        if words and not any(word in model.name for word in words):
            continue
        if model.needs is not None and importlib.util.find_spec(model.needs) is None:
            print(f"{model.name} is left out: install {model.needs}.", file=sys.stderr)
            continue
        found = results["models"][model.name] = figures(model, chosen.size, modes, chosen.budget)
        print(line(model, found), flush=True)
    if chosen.json:
        chosen.json.write_text(json.dumps(results, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
