"""Laws of the command ``fuzzytorch run``."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import Command, written

import fuzzytorch as ft

WORK = """
import torch
generator = torch.Generator().manual_seed(0)
x = torch.rand(8, 40, generator=generator) @ torch.rand(40, generator=generator)
print("result", ",".join(v.hex() for v in x.tolist()))
"""


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
        (["--scope", "encoder"], "--scope 'encoder' is not of the form PATTERN=mode[:format]"),
        (["--scope", "=sr"], "not of the form"),
        (["--scope", "encoder=sr:"], "not of the form"),
        (["--scope", "encoder=nearest"], "unknown rounding mode 'nearest'"),
        (["--scope", "encoder=sr:float12"], "unknown format 'float12'"),
        (["--include", ""], "include has an empty pattern"),
        (["--exclude", ""], "exclude has an empty pattern"),
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


NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(40, 40, bias=False), nn.Linear(40, 40, bias=False)

    def forward(self, x):
        y = self.first(x)
        print("result", ",".join(v.hex() for v in y.flatten().tolist()))
        y = self.last(y * 0.1)
        print("result", ",".join(v.hex() for v in y.flatten().tolist()))

torch.manual_seed(0)
with torch.no_grad():
    Net()(torch.rand(2, 40))
"""


def net(**noise: Any) -> list[str]:
    """The results of both layers of the script above."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), ft.fuzzy(**noise):
        exec(NET, {"__name__": "net"})
    return results(shown.getvalue())


@pytest.mark.parametrize(
    ("options", "noise"),
    [
        (["--include", "first"], {"include": "first"}),
        (["--exclude", "first", "--exclude", "aten.mul"], {"exclude": ["first", "aten.mul"]}),
        (
            ["--scope", "fir*=sr:bfloat16", "--scope", "last=rn"],
            {"scopes": {"fir*": ft.Rounding.of("sr", "bfloat16"), "last": ft.Rounding.of("rn")}},
        ),
        (
            ["--scope", "first=rn", "--scope", "*=up", "--scope", "first=down"],
            {"scopes": {"*": ft.Rounding.of("up"), "first": ft.Rounding.of("down")}},
        ),
    ],
    ids=str,
)
def test_what_is_selected_reaches_every_sample(
    tmp_path: Path, options: list[str], noise: dict[str, Any], command: Command
) -> None:
    done = command("run", "--seed", "3", "--samples", "2", *options, written(tmp_path, NET))
    assert done.returncode == 0, done.stderr
    expected = [y for i in range(2) for y in net(mode="sr", seed=3, replica=i, **noise)]
    assert results(done.stdout) == expected
    assert expected[:2] != net(mode="sr", seed=3)


UNCOVERED = """
import sys, torch
from torch import nn

class Hidden(nn.Module):
    def forward(self, x):
        return x.to_mkldnn()

nn.Sequential(nn.Linear(4, 4), Hidden())(torch.rand(2, 4)).detach()
"""


@pytest.mark.parametrize("ending", ["", "sys.exit(0)", "sys.exit()"])
def test_a_strict_run_fails_with_the_list_of_what_ran_unperturbed(
    tmp_path: Path, ending: str, command: Command
) -> None:
    script = written(tmp_path, UNCOVERED + ending)
    done = command("run", "--seed", "0", "--samples", "1", script)
    assert done.returncode == 0
    done = command("run", "--seed", "0", "--samples", "1", "--strict", script)
    assert done.returncode == 1
    assert "aten.to_mkldnn.default" in done.stderr
    assert "1 call in 1 (Hidden)" in done.stderr
    assert "Traceback" not in done.stderr
    assert "coverage: " in done.stderr


def test_a_strict_run_passes_the_exit_code_of_a_failing_script_on(
    tmp_path: Path, command: Command
) -> None:
    script = written(tmp_path, f"{UNCOVERED}sys.exit(3)")
    assert command("run", "--samples", "1", "--strict", script).returncode == 3


def test_the_help_shows_how_to_select(command: Command) -> None:
    done = command("run", "--help")
    assert done.returncode == 0
    for word in ("--include", "--exclude", "--scope", "--strict", "PATTERN=MODE[:FORMAT]"):
        assert word in done.stdout
    assert "fuzzytorch run --scope '*.attention=sr:bfloat16'" in done.stdout
