"""Runs the census: ``make census``, or with ``tests`` on the path ``python -m census``.

make census
make census ARGS='--dtypes float32,bfloat16 --only nn.functional --samples 3'
make census ARGS='--results census.jsonl --page docs/census.md'
make census ARGS='--samples 2 --page docs/census.md'
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from pathlib import Path

from census.entries import DTYPES, entries
from census.report import complaints, others, page, table
from census.survey import Survey
from census.workers import surveys


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="census", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--only", default="", help="entries whose name contains one of these words")
    parser.add_argument("--samples", type=int, help="of each entry (all)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--limit", type=float, default=900.0, help="seconds per entry (900)")
    parser.add_argument(
        "--results", type=Path, help="append what is found to this file, and run what it lacks"
    )
    parser.add_argument("--page", type=Path, help="write the page of the documentation here")
    return parser.parse_args()


def main() -> int:
    """Runs what is asked for; 1 if a law does not hold."""
    warnings.simplefilter("ignore")
    chosen = options()
    words = [word for word in chosen.only.split(",") if word]
    wanted = [
        entry
        for entry in entries(tuple(chosen.dtypes.split(",")))
        if not words or any(word in entry.name for word in words)
    ]
    every = wanted == entries()
    if chosen.page and not every:
        print("the page is that of all entries: leave out --dtypes and --only.", file=sys.stderr)
        return 2
    found: dict[str, Survey] = {}
    if chosen.results and chosen.results.exists():
        for line in chosen.results.read_text().splitlines():
            known = Survey.from_json(json.loads(line))
            found[str(known.entry)] = known
    left = [(entry, chosen.samples, True) for entry in wanted if str(entry) not in found]
    start = time.monotonic()
    for i, done in enumerate(surveys(left, chosen.workers, chosen.limit), 1):
        found[str(done.entry)] = done
        if chosen.results:
            with chosen.results.open("a") as file:
                file.write(json.dumps(done.to_json()) + "\n")
        for f in done.findings:
            print(f"{done.entry}, {f.law}, sample {f.sample}: {f.what}", file=sys.stderr)
        minutes = (time.monotonic() - start) / 60
        print(f"\r{i} of {len(left)} entries, {minutes:.0f} min", end="", file=sys.stderr)
    print(file=sys.stderr)
    results = [found[str(entry)] for entry in wanted]
    print(table(results), others(results), sep="\n\n")
    wrong = list(complaints(results, every and chosen.samples is None))
    for sentence in wrong:
        print(sentence)
    if chosen.page:
        chosen.page.write_text(page(results, chosen.samples))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
