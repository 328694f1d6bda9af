"""The native library serves C++ programs without Python or torch."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LIBRARIES = sorted(ROOT.glob("build/*/libprism.a"), key=lambda p: p.stat().st_mtime)
COMPILER = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")


@pytest.fixture(scope="module")
def harmonic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not LIBRARIES or COMPILER is None:
        pytest.skip("libprism.a was not built in this checkout, or there is no compiler")
    program = tmp_path_factory.mktemp("cpp") / "harmonic"
    source = ROOT / "examples" / "harmonic.cpp"
    command = [COMPILER, "-std=c++17", "-I", str(ROOT / "native"), str(source)]
    subprocess.run([*command, str(LIBRARIES[-1]), "-pthread", "-o", str(program)], check=True)
    return program


def run(program: Path, *arguments: str, isa: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(program), *arguments],
        env={"FUZZYTORCH_ISA": isa},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_harmonic_series_in_cpp_has_the_published_values(harmonic: Path) -> None:
    found = {}
    for mode in ("rn", "sr", "ud"):
        line = run(harmonic, mode, "10000").stdout
        mean, std = re.search(r"mean (\S+), std (\S+)", line).groups()  # type: ignore[union-attr]
        found[mode] = float(mean), float(std)
    # 9.7876060 is the exact sum; 3.5e-5 and 9.3e-5 are the published spreads, which 30
    # samples know within 50% at a level far below 1e-3.
    assert found["rn"] == (pytest.approx(9.7876129, abs=1e-6), 0)
    assert found["sr"] == (pytest.approx(9.7876060, abs=4e-5), pytest.approx(3.5e-5, rel=0.5))
    assert found["ud"][1] == pytest.approx(9.3e-5, rel=0.5)


def test_every_instruction_set_gives_the_same_sums_in_cpp(harmonic: Path) -> None:
    lines = {
        isa: run(harmonic, "sr", "1000", isa=isa).stdout.removeprefix(isa)
        for isa in ("", "baseline")
    }
    assert lines["baseline"].startswith(" sr: 1000 terms")
    assert lines[""].split(" ", 1)[1] == lines["baseline"].split(" ", 1)[1]


def test_bad_arguments_are_refused_with_the_possible_ones(harmonic: Path) -> None:
    done = run(harmonic, "nearest", "10")
    assert done.returncode == 2
    assert "rn|sr|ud" in done.stderr
