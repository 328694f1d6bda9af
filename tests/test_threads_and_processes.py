"""Published complaints about other threads and processes, each with its expected outcome."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
from typing import Any, Final

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import fuzzytorch as ft
from fuzzytorch.backends import EXTENSION

pytest.importorskip(EXTENSION, reason="the native kernels were not built")


THREADED: Final = torch.linspace(0.5, 3.0, 500)


def _in_thread(**arguments: Any) -> torch.Tensor:
    results: list[torch.Tensor] = []

    def work() -> None:
        with ft.fuzzy("sr", **arguments):
            results.append(THREADED * 0.1)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return results[0]


def test_threads_differ_without_a_seed_and_agree_with_one() -> None:
    assert not torch.equal(_in_thread(), _in_thread())
    with ft.fuzzy("sr", seed=4):
        here = THREADED * 0.1
    assert torch.equal(_in_thread(seed=4), here)
    assert torch.equal(_in_thread(seed=4), here)


def test_work_in_a_thread_that_the_mode_cannot_see_is_warned_about() -> None:
    with ft.fuzzy("sr", seed=0):
        thread = threading.Thread(target=lambda: THREADED * 0.1)
        with pytest.warns(UserWarning, match="does not inherit"):
            thread.start()
        thread.join()


class Perturbed(Dataset[torch.Tensor]):
    """Items that are computed in a worker, under a mode of its own."""

    def __init__(self, seed: int | None) -> None:
        self.seed = seed

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        with ft.fuzzy("sr", seed=self.seed):
            return THREADED * 0.1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_forked_loader_workers_differ_without_a_seed_and_agree_with_one() -> None:
    for seed, different in ((None, 4), (7, 1)):
        loader = DataLoader(Perturbed(seed), num_workers=2, multiprocessing_context="fork")
        items = {tuple(item.flatten().tolist()) for item in loader}
        assert len(items) == different, seed


def test_two_processes_differ_without_a_seed_and_agree_with_one() -> None:
    script = textwrap.dedent("""
        import json, torch, fuzzytorch as ft
        x = torch.linspace(0.5, 3.0, 500)
        results = []
        for seed in (None, 11):
            with ft.fuzzy("sr", seed=seed):
                results.append((x * 0.1).tolist())
        print(json.dumps(results))
    """)
    runs = [
        json.loads(
            subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout
        )
        for _ in range(2)
    ]
    assert runs[0][0] != runs[1][0]
    assert runs[0][1] == runs[1][1]
    with ft.fuzzy("sr", seed=11):
        assert (THREADED * 0.1).tolist() == runs[0][1]
