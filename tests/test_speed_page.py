"""The page docs/speed.md says what was measured, and the instruments measure what they claim."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from bench import ISAS
from cases import CASES, INFERENCES, MODES, WAVLM_BASE, WAVLM_LARGE, wavlm
from memory import added
from speed_page import page
from timing import FEWEST, STOCK, Setting, Timing, Usage, isas, measure

from fuzzytorch.rounding import MODES as ALL_MODES

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def threads() -> Iterator[None]:
    """Puts the number of threads back."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def figures() -> dict[str, Any]:
    """One row whose modes take exactly their bounds, in one configuration."""
    seconds = {STOCK: 1.0, "sr": 9.0, "ud": 4.5, "cestac": 4.5, "rn": 1.5}
    row = {
        "unit": "times stock torch",
        "bound": {mode: seconds[mode] for mode in MODES},
        "measurements": 9,
        "seconds": seconds,
        "spread": dict.fromkeys(seconds, 0.0625),
    }
    half = {mode: value / 2 for mode, value in seconds.items()}
    where = {"processor": "P", "torch instruction set": "T", "fuzzytorch instruction set": "F"}
    linear = {"sizes": [2, 4], "spread": {"sr": [0.0, 0.0]}}
    linear |= {"seconds": {"sr": [2.0, 5.0]}, "bytes": {"sr": [2**20, 2**21]}}
    return {
        "machine": where,
        "modes": list(MODES),
        "measurements": [7, 21],
        "only": "",
        "missing": {"instruction sets": [], "threads": [], "rows": {}},
        "configurations": [
            {"isa": "avx2", "threads": 1, "machine": where, "rows": {"W": row}, "others": 0.25}
        ],
        "speedup": 1.8,
        "scaling": {
            "avx2": {"rows": {"W": {"1": row, "2": {**row, "seconds": half}}}, "others": 0.5}
        },
        "memory": {
            "bound": 1.3,
            "processes": 3,
            "bytes": {"M": dict.fromkeys(seconds, 2**20)},
            "spread": {"M": dict.fromkeys(seconds, 0.125)},
        },
        "linearity": {"batch": linear, "samples": linear},
    }


def test_the_page_is_that_of_the_figures_beside_it() -> None:
    found = json.loads((ROOT / "docs" / "speed.json").read_text())
    text = (ROOT / "docs" / "speed.md").read_text()
    assert text == page(found), "make it again: benchmarks/speed_page.py docs/speed.json"


def test_a_cell_at_its_bound_is_within() -> None:
    text = page(figures())
    assert "| W | 1.00 s | 9.00 (9) | 4.50 (4.5) | 4.50 (4.5) | 1.50 (1.5) | 6% | 9 |" in text
    assert "4 of 4 cells are within their bounds.\n" in text
    assert "| all | 4 | 4 |" in text
    assert "| W, AVX2 | 2.00 | 2.00 | 2.00 | 2.00 | 2.00 | 6% |" in text
    assert "4 of 4 cells reach 1.8." in text
    assert "Other programs kept 0.25 processors busy." in text
    assert "AVX2: Other programs kept 0.50 processors busy." in text


@pytest.mark.parametrize("mode", MODES)
def test_a_cell_above_its_bound_is_bold_and_listed(mode: str) -> None:
    found = figures()
    found["configurations"][0]["rows"]["W"]["seconds"][mode] = 20.0
    found["memory"]["bytes"]["M"][mode] = 2**21
    text = page(found)
    assert "| **20.0** (" in text
    assert f"3 of 4 cells are within their bounds. Above:\n\n* W: `{mode}` 20.0\n" in text
    assert "| all | 3 | 4 |" in text
    assert "| **2.00** (1.3) |" in text
    assert f"\n* M: `{mode}` 2.00\n" in text


def test_a_gain_below_its_bound_is_bold() -> None:
    found = figures()
    found["scaling"]["avx2"]["rows"]["W"]["2"]["seconds"]["ud"] = 4.5
    text = page(found)
    assert "| W, AVX2 | 2.00 | 2.00 | **1.00** | 2.00 | 2.00 | 6% |" in text
    assert "3 of 4 cells reach 1.8." in text


def test_linearity_is_per_unit_and_relative_to_the_first() -> None:
    text = page(figures())
    assert "| time, `sr` | 2.00 s | 1.00 | 1.25 |" in text
    assert "| memory, `sr` | 1 MiB | 1.00 | 1.00 |" in text
    assert "| time per sample | 1.00 s | 1.00 | 1.25 |" in text
    assert "| memory | 1 MiB | 1.00 | 2.00 |" in text


def test_what_is_missing_is_said() -> None:
    found = figures()
    found["missing"] = {"instruction sets": ["avx512"], "threads": [2], "rows": {"W": "pack"}}
    text = page(found)
    assert "This machine does not have AVX-512" in text
    assert "two threads are left out" in text
    assert "W is left out, because the package pack is not installed." in text
    found["only"] = "mm,conv"
    assert "those whose name contains `mm` or `conv`, was measured." in page(found)
    assert "A part of the rows" not in text


def test_every_case_has_a_bound_for_every_mode_and_a_name_of_its_own() -> None:
    assert set(MODES) <= set(ALL_MODES)
    assert all(bound > 1 for case in CASES for bound in case.bound)
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize(
    ("configuration", "millions"), [(WAVLM_BASE, 94), (WAVLM_LARGE, 315)], ids=["base", "large"]
)
def test_the_speech_models_have_the_size_in_their_name(
    configuration: dict[str, Any], millions: int
) -> None:
    pytest.importorskip("transformers")
    with torch.device("meta"):
        net = wavlm(configuration)
    assert sum(p.numel() for p in net.parameters()) // 10**6 == millions
    assert any(f"({millions}M)" in case.name for case in CASES)


def test_a_timing_is_the_median_with_the_distance_of_the_quartiles() -> None:
    assert Timing.of([5.0, 1.0, 4.0, 2.0, 3.0]) == Timing(3.0, 2 / 3, 5)


@pytest.mark.usefixtures("threads")
def test_settings_are_measured_in_turn_and_at_least_as_often_as_promised() -> None:
    seen = []
    settings = [Setting(STOCK, 1), Setting(STOCK, 2)]

    def call() -> None:
        # One call is one measurement: it takes longer than the least of a measurement.
        torch.ones(3_000_000).exp_().log_()
        seen.append(torch.get_num_threads())

    found = measure(lambda: call, settings, budget=0.0)
    assert [timing.measurements for timing in found.values()] == [FEWEST, FEWEST]
    assert [n for i, n in enumerate(seen) if i == 0 or seen[i - 1] != n][:6] == [1, 2, 1, 2, 1, 2]


def test_what_another_program_takes_of_the_processors_is_counted() -> None:
    spin = "import time\nwhile time.process_time() < 0.6: pass"
    start = Usage.now()
    subprocess.run([sys.executable, "-c", spin], check=True)
    clock = time.perf_counter() - start.clock
    # Half of it at least: kernels may count whole ticks of whoever runs when the clock ticks.
    assert start.others() * clock > 0.3


def test_added_memory_is_the_peak_of_the_call_alone() -> None:
    def grow(mebibytes: int) -> None:
        torch.ones(mebibytes << 18)

    grow(512)  # a higher peak before
    assert added(lambda: grow(64), STOCK) == pytest.approx(64 << 20, rel=0.05)


def test_an_instruction_set_is_that_of_stock_torch_too(tmp_path: Path) -> None:
    if "avx2" not in isas():
        pytest.skip("this machine has no AVX2")
    file = tmp_path / "figures.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "speed.py"), "--isa", "avx2"]
    command += ["--only", "add of 4", "--budget", "0", "--modes", "sr", "--json", str(file)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    found = json.loads(file.read_text())
    assert found["machine"]["torch instruction set"] == "AVX2"
    assert found["machine"]["fuzzytorch instruction set"] == "avx2"
    assert set(found["rows"]["call: add of 4"]["seconds"]) == {STOCK, "sr"}


def test_the_works_of_the_page_are_distinct() -> None:
    assert len({work.name for work in INFERENCES}) == len(INFERENCES)
    assert len(set(ISAS)) == len(ISAS)
