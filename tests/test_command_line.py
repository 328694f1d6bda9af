"""Laws of the command ``fuzzytorch``, and of the self-test that it runs."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch

import fuzzytorch as ft
from fuzzytorch import backends, cli, selftest
from fuzzytorch.backends import cpu
from fuzzytorch.backends.protocol import Backend
from fuzzytorch.program import ROUNDED
from fuzzytorch.rounding import MODES, PRESETS
from fuzzytorch.stream import Stream

Command: TypeAlias = Callable[..., "Done"]

NATIVE = cpu.CpuBackend()
CASES = tuple(selftest.cases())
PRIMITIVES = [name for name, _ in inspect.getmembers(Backend, inspect.isfunction) if name[0] != "_"]

WORK = """
import torch
generator = torch.Generator().manual_seed(0)
x = torch.rand(8, 40, generator=generator) @ torch.rand(40, generator=generator)
print("result", ",".join(v.hex() for v in x.tolist()))
"""


@dataclasses.dataclass(frozen=True)
class Done:
    """What a finished command left behind."""

    returncode: int
    stdout: str
    stderr: str


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


def written(folder: Path, text: str, name: str = "program.py") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def work(**noise: Any) -> tuple[str, ft.Coverage]:
    """The result of the script above under noise in this process, and its coverage."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), ft.fuzzy(**noise) as mode:
        exec(WORK, {})
    return results(shown.getvalue())[0], mode.coverage


def results(text: str) -> list[str]:
    return re.findall(r"result (\S+)", text)


def test_every_sample_is_a_run_under_its_replica_and_the_seed_repeats_it(
    tmp_path: Path, command: Command
) -> None:
    script = written(tmp_path, WORK)
    done = command("run", "--seed", "7", "--samples", "2", script)
    assert done.returncode == 0, done.stderr
    expected = [work(mode="sr", seed=7, replica=replica)[0] for replica in range(2)]
    assert done.stdout.splitlines() == [f"[{i}] result {x}" for i, x in enumerate(expected)]
    assert len(set(expected)) > 1
    assert "2 of 2 samples finished, mode sr, format binary32, seed 7" in done.stderr


def test_a_drawn_seed_and_the_coverage_of_all_samples_are_reported(
    tmp_path: Path, command: Command
) -> None:
    script = written(tmp_path, WORK)
    done = command("run", "--samples", "2", script)
    (seed,) = re.findall(r"seed (\d+)", done.stderr)
    _, coverage = work(mode="sr", seed=0)
    assert coverage.merge(coverage).headline() in done.stderr
    again = command("run", "--seed", seed, "--samples", "1", script)
    assert results(again.stdout) == results(done.stdout)[:1]


def test_mode_and_format_reach_the_script(tmp_path: Path, command: Command) -> None:
    script = written(tmp_path, WORK)
    expected, _ = work(mode="rn", seed=0, format="bfloat16")
    done = command("run", "--mode", "rn", "--format", "bfloat16", "--samples", "1", script)
    assert results(done.stdout) == [expected]


ENVIRONMENT = """
import json, os, sys, neighbour
import __main__
shown = {
    "argv": sys.argv, "path": sys.path[0], "file": __file__, "name": __name__,
    "main": __main__.__dict__ is globals(), "neighbour": neighbour.VALUE, "cwd": os.getcwd(),
}
print(json.dumps(shown))
"""


@pytest.mark.parametrize("relative", [False, True])
def test_a_script_sees_what_python_would_show_it(
    tmp_path: Path, relative: bool, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "sub folder"
    folder.mkdir()
    script = written(folder, ENVIRONMENT)
    written(folder, "VALUE = 7", "neighbour.py")
    given = script.relative_to(tmp_path) if relative else script
    arguments = ["--seed", "3", "--help", "-x", "two words", "--", "run"]
    plain = subprocess.run(
        [sys.executable, str(given), *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    monkeypatch.chdir(tmp_path)
    done = command("run", "--samples", "1", given, *arguments)
    assert json.loads(done.stdout) == json.loads(plain.stdout)


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("import sys; sys.exit(3)", 3),
        ("raise ArithmeticError('planted')", 1),
        ("import os; os._exit(5)", 5),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 137),
    ],
)
def test_the_exit_code_of_a_script_is_passed_on(
    tmp_path: Path, ending: str, code: int, command: Command
) -> None:
    done = command("run", "--samples", "1", written(tmp_path, ending))
    assert done.returncode == code
    assert "0 of 1 samples finished" in done.stderr
    assert "sample 0 failed" in done.stderr
    assert ("planted" in done.stderr) == ("planted" in ending)
    assert ("without telling their coverage" in done.stderr) == ("os" in ending)


def test_a_failing_sample_is_recorded_and_the_rest_goes_on(
    tmp_path: Path, command: Command
) -> None:
    marker = tmp_path / "runs"
    script = written(
        tmp_path,
        f"{WORK}\nimport sys\n"
        f"with open({str(marker)!r}, 'a+') as runs:\n"
        "    runs.write('x'); runs.seek(0); count = len(runs.read())\n"
        "sys.exit(4 if count == 2 else 0)\n",
    )
    done = command("run", "--seed", "0", "--samples", "3", script)
    assert done.returncode == 4
    assert len(results(done.stdout)) == 3
    assert "2 of 3 samples finished" in done.stderr
    assert "sample 1 failed: exit code 4" in done.stderr


def test_lines_of_several_samples_are_told_apart_on_both_streams(
    tmp_path: Path, command: Command
) -> None:
    script = written(
        tmp_path, "import sys\nprint('a\\rb')\nprint('c', end='')\nprint('e', file=sys.stderr)\n"
    )
    done = command("run", "--samples", "2", script)
    assert done.stdout == "[0] a\rb\n[0] c\n[1] a\rb\n[1] c\n"
    errors = [line for line in done.stderr.splitlines() if line.startswith("[")]
    assert errors == ["[0] e", "[1] e"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--mode", "nearest"], "unknown rounding mode 'nearest'"),
        (["--format", "float12"], "unknown format 'float12'"),
        (["--seed", "-1"], "seed"),
        (["--samples", "0"], "at least 1"),
    ],
)
def test_bad_options_are_refused_with_a_sentence_and_exit_code_2(
    tmp_path: Path, arguments: list[str], words: str, command: Command
) -> None:
    done = command("run", *arguments, written(tmp_path, "print('never')"))
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.strip().endswith(".")
    assert "Traceback" not in done.stderr
    assert not done.stdout


@pytest.mark.parametrize(
    ("name", "words"), [("missing.py", "does not exist"), (".", "is a folder")]
)
def test_a_script_that_cannot_be_run_is_refused_with_exit_code_2(
    tmp_path: Path, name: str, words: str, command: Command
) -> None:
    done = command("run", tmp_path / name)
    assert done.returncode == 2
    assert words in done.stderr


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


def test_an_interruption_ends_the_run_and_reports_the_finished_samples(tmp_path: Path) -> None:
    script = written(
        tmp_path,
        f"import os, time\nfirst = not os.path.exists({str(tmp_path / 'second')!r})\n"
        f"open({str(tmp_path / 'second')!r}, 'w').close()\n"
        "if not first:\n    print('waiting')\n    time.sleep(600)\n",
    )
    run = "from fuzzytorch.cli import main; main()"
    with subprocess.Popen(
        [sys.executable, "-u", "-c", run, "run", "--samples", "3", str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "[1] waiting\n"
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate()
    assert process.returncode == 130
    assert "interrupted after 1 of 3 samples" in errors
    assert "1 of 1 samples finished" in errors


def test_the_script_runner_needs_neither_typer_nor_rich(tmp_path: Path) -> None:
    script = written(tmp_path, "print('here')")
    settings = {"mode": "sr", "seed": 0, "replica": 0, "format": "binary32"}
    settings["report"] = str(tmp_path / "report.json")
    code = (
        "import sys; sys.modules['typer'] = sys.modules['rich'] = None\n"
        "from fuzzytorch.cli.script import main; main(*sys.argv[1:])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(settings), str(script)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "here\n", done.stderr
    assert json.loads((tmp_path / "report.json").read_text()) is not None


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
