"""Fixtures of several files."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from commands import Command, Done

from fuzzytorch import cli

STOCK_CALL = torch.nn.Module.__call__


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


@pytest.fixture
def silent_scope() -> Iterator[None]:
    """A selector that meets nothing fails the test, unless the test expects the warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
    assert torch.nn.Module.__call__ is STOCK_CALL
    assert torch._C._len_torch_function_stack() == 0
