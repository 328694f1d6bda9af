"""Laws of the command ``fuzzytorch info``, and of the self-test that it runs."""

from __future__ import annotations

import importlib
import inspect
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from commands import Command

from fuzzytorch import backends, selftest
from fuzzytorch.backends import cpu
from fuzzytorch.backends.protocol import Backend
from fuzzytorch.program import ROUNDED
from fuzzytorch.rounding import MODES, PRESETS
from fuzzytorch.stream import Stream

NATIVE = cpu.CpuBackend()
CASES = tuple(selftest.cases())
PRIMITIVES = [name for name, _ in inspect.getmembers(Backend, inspect.isfunction) if name[0] != "_"]


def test_info_prints_the_circumstances_and_a_passing_self_test(command: Command) -> None:
    done = command("info")
    assert done.returncode == 0
    shown = done.stdout
    for fact in (torch.__version__, cpu.isa(), *cpu.available_isas(), *MODES, *PRESETS):
        assert fact in shown
    assert str(torch.get_num_threads()) in shown
    total = len(CASES) * len(selftest.LAWS)
    assert f"{total} of {total} checks passed" in shown


def test_info_fails_on_a_backend_that_does_not_round(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The command may have been imported anew by a test before this one.
    app = importlib.import_module("fuzzytorch.cli.app")
    monkeypatch.setattr(app, "backend_named", lambda name: Stock())
    done = command("info")
    assert done.returncode == 1
    assert "failed: gemm product: noise reaches the output in sr" in done.stdout


def test_without_native_kernels_the_command_says_so(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = importlib.import_module("fuzzytorch.cli.app")
    monkeypatch.setattr(app, "backend_named", backends.backend_named.__wrapped__)
    monkeypatch.setattr(backends, "EXTENSION", "fuzzytorch._absent")
    done = command("info")
    assert done.returncode == 2
    assert "native kernels" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [["info"], ["run", __file__]])
def test_an_impossible_instruction_set_is_refused_with_exit_code_2(arguments: list[str]) -> None:
    # The choice is read once per process, so this one needs a process of its own.
    done = subprocess.run(
        [sys.executable, "-c", "from fuzzytorch.cli import main; main()", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "FUZZYTORCH_ISA": "sse9"},
    )
    assert done.returncode == 2
    assert "sse9" in done.stderr
    assert all(isa in done.stderr for isa in cpu.available_isas())
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_a_missing_library_of_the_command_is_named(
    missing: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [m for m in sys.modules if m.partition(".")[0] == missing]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "fuzzytorch.cli.app", raising=False)
    monkeypatch.setitem(sys.modules, missing, None)
    done = command("info")
    assert done.returncode == 2
    assert f"needs {missing}" in done.stderr
    assert "pip install 'fuzzy-pytorch[cli]'" in done.stderr


class Broken:
    """The native backend with its outputs spoiled, or with the noise of one replica."""

    name = "broken"

    def __init__(self, spoil: float = 0.0, replica: int | None = None) -> None:
        self.spoil, self.replica, self.whole = spoil, replica, NATIVE

    def __getattr__(self, primitive: str) -> Any:
        method = getattr(self.whole, primitive)

        def run(*arguments: Any) -> None:
            bound = inspect.signature(method).bind(*arguments)
            if self.replica is not None:
                seed = bound.arguments["stream"].seed
                bound.arguments["stream"] = Stream(seed, self.replica)
            method(*bound.args, **bound.kwargs)
            bound.arguments["out"].view(-1)[-1] += self.spoil

        return run


class Stock(Broken):
    """A backend whose noise is always the same, as if there was none."""

    def __init__(self) -> None:
        super().__init__(replica=0)


@pytest.mark.parametrize("primitive", PRIMITIVES)
def test_the_self_test_covers_every_primitive(primitive: str) -> None:
    assert any(case.primitive == primitive for case in CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.primitive}-{case.name}")
def test_the_operands_of_the_self_test_are_many(case: selftest.Case) -> None:
    assert all(x.numel() > 50 for x in (*case.exact, *case.inexact))


def test_the_self_test_covers_every_rounded_operation() -> None:
    names = {case.name for case in CASES if case.primitive == "elementwise"}
    assert names == set(ROUNDED)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.primitive}-{case.name}")
@pytest.mark.parametrize("law", selftest.LAWS)
def test_the_native_backend_passes_the_self_test(law: str, case: selftest.Case) -> None:
    assert selftest.LAWS[law](NATIVE, case) == ""


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.primitive}-{case.name}")
def test_the_self_test_finds_a_kernel_without_noise_and_a_wrong_element(
    case: selftest.Case,
) -> None:
    silent, off = Broken(replica=0), Broken(spoil=1.0)
    results = {law: test(silent, case) for law, test in selftest.LAWS.items()}
    assert "never change" in results.pop("noise reaches the output in sr")
    assert not any(results.values())
    for law, test in selftest.LAWS.items():
        if "exact" in law:
            assert test(off, case).startswith("1 of ")
