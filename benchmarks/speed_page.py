"""The page docs/speed.md, from the figures that benchmarks/bench.py measured.

python benchmarks/speed_page.py docs/speed.json > docs/speed.md
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from speed import speedup, value
from timing import STOCK

_NAMES = {"avx512": "AVX-512", "avx2": "AVX2"}

_HEAD = """\
# Speed and memory

What the rounding modes cost. `make bench` measures everything here on one machine and writes this
page and [speed.json](speed.json), which holds all figures. What each mode needs in instructions and
cycles, and what was tried where a bound is missed, stands in [kernels.md](kernels.md); more models
stand in [models.md](models.md).

How to read it: a figure is a time as a multiple of that of stock torch for the same work, with the
same number of threads and the same instruction set (where fuzzytorch is limited to AVX2, so is
stock torch). 1.00 is as fast as stock torch; smaller is better. For calls on tiny tensors, in which
there is next to nothing to compute, it is the whole time of one call in microseconds. The bound
that the project sets itself follows in brackets; **a figure in bold is above its bound**.

Each figure is a median of {fewest} to {most} measurements (column *n*). Stock torch and the modes
are measured in turn in one process, so that other programs on the machine disturb all of them
alike; an unmeasured call precedes each measurement where stock torch takes less than a tenth of a
second. The *spread* is the third less the first quartile of the measurements over their median,
where it is widest in the row. No figure is known better than that: one that misses or meets its
bound by less may do the other the next time. Each table says how many processors other programs
kept busy meanwhile: where they left fewer than there are threads, stock torch, whose threads wait
for each other in a loop, is slowed down more than the modes, and its multiples are too small.
"""


class Cell(NamedTuple):
    """A figure and what it is held to.

    Attributes:
        row, mode: where it stands.
        value: in the unit of its row.
        bound: the most it should be.
    """

    row: str
    mode: str
    value: float
    bound: float

    @property
    def within(self) -> bool:
        """Whether the bound is met."""
        return self.value <= self.bound

    def text(self) -> str:
        """The figure, in bold above its bound, which follows in brackets."""
        return f"{_marked(self.value, self.within)} ({self.bound:g})"


def _shown(figure: float) -> str:
    return f"{figure:.2f}" if figure < 10 else f"{figure:.1f}"


def _marked(figure: float, within: bool) -> str:
    return _shown(figure) if within else f"**{_shown(figure)}**"


def _table(heads: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """A table of Markdown, numbers to the right of the first column."""
    heads = list(heads)
    rule = "|---|" + "---:|" * (len(heads) - 1)
    return "\n".join([_line(heads), rule, *(_line(cells) for cells in lines)]) + "\n"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _seconds(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} us"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _mebibytes(count: float) -> str:
    return f"{count / 2**20:.0f} MiB"


def cells(name: str, row: dict[str, Any]) -> list[Cell]:
    """The figures of a row, one per mode."""
    return [Cell(name, mode, value(row, mode), bound) for mode, bound in row["bound"].items()]


def _title(configuration: dict[str, Any]) -> str:
    threads = configuration["threads"]
    plural = "" if threads == 1 else "s"
    return f"{_NAMES[configuration['isa']]}, {threads} thread{plural}"


def _listed(found: list[Cell]) -> str:
    """How many of the cells are within their bounds, and which are not."""
    above = [c for c in found if not c.within]
    text = f"{len(found) - len(above)} of {len(found)} cells are within their bounds"
    if not above:
        return f"{text}.\n"
    rows = dict.fromkeys(c.row for c in above)
    lines = [
        f"* {row}: " + ", ".join(f"`{c.mode}` {_shown(c.value)}" for c in above if c.row == row)
        for row in rows
    ]
    return f"{text}. Above:\n\n" + "\n".join(lines) + "\n"


def _configuration(configuration: dict[str, Any], modes: list[str]) -> Iterator[str]:
    rows = configuration["rows"]
    yield f"## {_title(configuration)}\n"
    where = configuration["machine"]
    yield (
        f"Stock torch reports {where['torch instruction set']}, fuzzytorch "
        f"{where['fuzzytorch instruction set']}. {_others(configuration)}\n"
    )
    lines = []
    for name, row in rows.items():
        texts = [cell.text() for cell in cells(name, row)]
        spread = f"{max(row['spread'].values()):.0%}"
        stock = _seconds(row["seconds"][STOCK])
        lines.append([name, stock, *texts, spread, str(row["measurements"])])
    yield _table(["work", "stock", *(f"`{m}`" for m in modes), "spread", "n"], lines)
    yield _listed([cell for name, row in rows.items() for cell in cells(name, row)])
    spreads = [(s, name, m) for name, row in rows.items() for m, s in row["spread"].items()]
    if spreads:
        worst, name, mode = max(spreads)
        yield f"Widest spread: {worst:.0%} ({name}, {_mode(mode)}).\n"


def _others(run: dict[str, Any]) -> str:
    return f"Other programs kept {run['others']:.2f} processors busy."


def _mode(mode: str) -> str:
    return "stock torch" if mode == STOCK else f"`{mode}`"


def _summary(configurations: list[dict[str, Any]]) -> Iterator[str]:
    lines = []
    for configuration in configurations:
        found = [c for name, row in configuration["rows"].items() for c in cells(name, row)]
        lines.append([_title(configuration), str(sum(c.within for c in found)), str(len(found))])
    total = [str(sum(int(line[i]) for line in lines)) for i in (1, 2)]
    yield _table(["configuration", "within", "cells"], [*lines, ["all", *total]])


def _missing(missing: dict[str, Any]) -> Iterator[str]:
    for isa in missing["instruction sets"]:
        yield f"This machine does not have {_NAMES[isa]}: the tables for it are left out.\n"
    if missing["threads"]:
        yield "This machine has one processor: two threads are left out.\n"
    for row, package in missing["rows"].items():
        yield f"{row} is left out, because the package {package} is not installed.\n"


def _machine(figures: dict[str, Any]) -> str:
    each = {"torch instruction set", "fuzzytorch instruction set", "threads"}
    named = [f"{key}: {v}" for key, v in figures["machine"].items() if key not in each]
    return f"Machine: {'; '.join(named)}. Instruction sets and threads are those of each table.\n"


def _scaling(figures: dict[str, Any]) -> Iterator[str]:
    modes, bound = figures["modes"], figures["speedup"]
    yield "## Two threads against one\n"
    yield (
        "Time with one thread over time with two, of the same mode, measured in turn in one "
        f"process: larger is better, **in bold below {bound:g}**. Stock torch stands beside.\n"
    )
    lines, gains = [], []
    for isa, run in figures["scaling"].items():
        for name, row in run["rows"].items():
            gain = {mode: speedup(row, mode) for mode in (STOCK, *modes)}
            gains += [gain[mode] for mode in modes]
            spread = max(s for threads in row.values() for s in threads["spread"].values())
            texts = [_marked(gain[mode], gain[mode] >= bound) for mode in modes]
            lines.append([f"{name}, {_NAMES[isa]}", _shown(gain[STOCK]), *texts, f"{spread:.0%}"])
    yield _table(["work", "stock", *(f"`{m}`" for m in modes), "spread"], lines)
    yield f"{sum(gain >= bound for gain in gains)} of {len(gains)} cells reach {bound:g}.\n"
    for isa, run in figures["scaling"].items():
        yield f"{_NAMES[isa]}: {_others(run)}\n"


def _memory(figures: dict[str, Any]) -> Iterator[str]:
    modes, memory = figures["modes"], figures["memory"]
    bound = memory["bound"]
    yield "## Peak memory\n"
    yield (
        "What the first inference adds to the memory of a process that holds the model and its "
        "input, as a multiple of what it adds under stock torch; one thread. Each figure is a "
        f"median of {memory['processes']} fresh processes, and *range* is how far these lie apart, "
        "where it is widest in the row. The code of the kernels that it loads counts too.\n"
    )
    lines, found = [], []
    for name, row in memory["bytes"].items():
        here = [Cell(name, mode, row[mode] / row[STOCK], bound) for mode in modes]
        found += here
        spread = f"{max(memory['spread'][name].values()):.0%}"
        lines.append([name, _mebibytes(row[STOCK]), *(cell.text() for cell in here), spread])
    yield _table(["work", "stock", *(f"`{m}`" for m in modes), "range"], lines)
    yield _listed(found)


def _relative(values: list[float], sizes: list[int]) -> list[str]:
    """Each value per unit of size, relative to the first."""
    first = values[0] / sizes[0]
    return [f"{value / size / first:.2f}" for value, size in zip(values, sizes, strict=True)]


def _linearity(figures: dict[str, Any]) -> Iterator[str]:
    batch, samples = figures["linearity"]["batch"], figures["linearity"]["samples"]
    yield "## Linearity\n"
    yield (
        "An inference of the MNIST net, with one thread: time and added peak memory *per image*, "
        "relative to those at the smallest batch. They stay about 1, or below where a fixed cost "
        "spreads over more images.\n"
    )
    lines = []
    for mode in batch["seconds"]:
        for what, text in (("seconds", _seconds), ("bytes", _mebibytes)):
            values = batch[what][mode]
            label = f"{'time' if what == 'seconds' else 'memory'}, {_mode(mode)}"
            lines.append([label, text(values[0]), *_relative(values, batch["sizes"])])
    first, *_ = batch["sizes"]
    yield _table(["per image", f"of batch {first}", *map(str, batch["sizes"])], lines)
    yield (
        "`ft.sample` of that inference at batch 64 in `sr`, without a run of stock torch: time "
        "*per sample*, and added peak memory of the whole, which keeps the outputs of all "
        "samples; relative to the first.\n"
    )
    seconds, held, sizes = samples["seconds"]["sr"], samples["bytes"]["sr"], samples["sizes"]
    whole = [f"{count / held[0]:.2f}" for count in held]
    lines = [
        ["time per sample", _seconds(seconds[0] / sizes[0]), *_relative(seconds, sizes)],
        ["memory", _mebibytes(held[0]), *whole],
    ]
    yield _table(["samples", f"of {sizes[0]}", *map(str, sizes)], lines)
    spreads = [s for part in (batch, samples) for row in part["spread"].values() for s in row]
    yield f"Widest spread of these times: {max(spreads):.0%}.\n"


def page(figures: dict[str, Any]) -> str:
    """The whole page, as Markdown; a function of the figures alone."""
    fewest, most = figures["measurements"]
    parts = [_HEAD.format(fewest=fewest, most=most), _machine(figures)]
    if figures["only"]:
        words = " or ".join(f"`{word}`" for word in figures["only"].split(","))
        parts.append(f"A part of the rows, those whose name contains {words}, was measured.\n")
    parts += _missing(figures["missing"])
    parts += _summary(figures["configurations"])
    for configuration in figures["configurations"]:
        parts += _configuration(configuration, figures["modes"])
    if any(run["rows"] for run in figures["scaling"].values()):
        parts += _scaling(figures)
    parts += _memory(figures)
    parts += _linearity(figures)
    return "\n".join(parts)


if __name__ == "__main__":
    sys.stdout.write(page(json.loads(Path(sys.argv[1]).read_text())))
