"""Runs of one script in fresh processes, one after the other."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TextIO

from fuzzytorch.records import Coverage


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How one run of the script ended.

    Attributes:
        replica: its number.
        returncode: of the process; negative when a signal ended it.
        coverage: what was perturbed; ``None`` if the process ended without a report.
    """

    replica: int
    returncode: int
    coverage: Coverage | None

    @property
    def exit_code(self) -> int:
        """The exit code as a shell counts it: 128 more than the signal that ended the run."""
        return self.returncode if self.returncode >= 0 else 128 - self.returncode


def replicas(
    script: str, arguments: Sequence[str], count: int, settings: Mapping[str, Any]
) -> Iterator[Outcome]:
    """Runs the script ``count`` times and yields the outcomes as they come.

    Args:
        script: its path.
        arguments: its command line.
        count: replicas 0 to ``count - 1`` are run. A single one inherits the terminal;
            the output of several is passed on line by line with a prefix.
        settings: of the noise, as :func:`fuzzytorch.cli.selection.options` reads them; at least
            ``mode``, ``seed`` and ``format``.
    """
    with tempfile.TemporaryDirectory(prefix="fuzzytorch-") as folder:
        for replica in range(count):
            report = Path(folder) / f"{replica}.json"
            child = json.dumps({**settings, "replica": replica, "report": str(report)})
            command = [sys.executable, "-m", "fuzzytorch.cli.script", child, script, *arguments]
            code = _owning(command) if count == 1 else _prefixed(command, f"[{replica}] ")
            yield Outcome(replica, code, _read(report))


def conclude(outcomes: Sequence[Outcome], settings: Mapping[str, Any]) -> str:
    """The closing report: how many finished, what failed, the coverage of all, the seed."""
    failed = [o for o in outcomes if o.returncode]
    lines = [
        f"fuzzytorch: {len(outcomes) - len(failed)} of {len(outcomes)} samples finished, "
        f"mode {settings['mode']}, format {settings['format']}, seed {settings['seed']}"
    ]
    for outcome in failed:
        ended = f"exit code {outcome.returncode}"
        if outcome.returncode < 0:
            ended = f"ended by signal {-outcome.returncode}"
        lines.append(f"  sample {outcome.replica} failed: {ended}")
    silent = sum(o.coverage is None for o in outcomes)
    if silent:
        lines.append(f"  {silent} samples ended without telling their coverage")
    total: Coverage | None = None
    for outcome in outcomes:
        if outcome.coverage is not None:
            total = outcome.coverage if total is None else total.merge(outcome.coverage)
    if total is not None:
        lines.append(f"  coverage: {total.headline()}")
    return "\n".join(lines)


def _read(report: Path) -> Coverage | None:
    return Coverage.from_json(json.loads(report.read_text())) if report.exists() else None


def _owning(command: Sequence[str]) -> int:
    return subprocess.run(command, check=False).returncode


def _prefixed(command: Sequence[str], prefix: str) -> int:
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # Lines should appear when they are printed, as they do on a terminal.
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert child.stdout is not None
    assert child.stderr is not None
    pumps = [
        threading.Thread(target=_pump, args=(source, sink, prefix))
        for source, sink in ((child.stdout, sys.stdout), (child.stderr, sys.stderr))
    ]
    try:
        for pump in pumps:
            pump.start()
        for pump in pumps:
            pump.join()
        return child.wait()
    except BaseException:
        child.terminate()
        child.wait()
        raise


def _pump(source: IO[bytes], sink: TextIO, prefix: str) -> None:
    # Bytes are cut at line feeds only, so that a progress bar stays one line.
    for line in source:
        text = line.decode(errors="replace").removesuffix("\n")
        sink.write(f"{prefix}{text}\n")
        sink.flush()
