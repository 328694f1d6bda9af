"""Fixtures of several files."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from commands import Command, Done

from fuzzytorch import cli


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs the command in this process; the processes that it starts are real."""

    def run(*arguments: str | Path) -> Done:
        monkeypatch.setattr(sys, "argv", ["fuzzytorch", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        shown = capfd.readouterr()
        return Done(int(ended.value.code or 0), shown.out, shown.err)

    monkeypatch.setenv("COLUMNS", "200")
    return run
