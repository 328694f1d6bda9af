"""The demo, small: its lines are all there, and its numbers make sense."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from mnist_model import Net, load_images, train

import fuzzytorch as ft

DEMO = Path(__file__).resolve().parents[1] / "examples" / "mnist.py"
BINARY32_DIGITS = 24 * 0.30103


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(DEMO), *arguments], capture_output=True, text=True)


@pytest.fixture(scope="module")
def output() -> str:
    size = ("--samples", "3", "--train-size", "128", "--test-size", "50")
    done = run(*size, "--epochs", "1", "--trainings", "2")
    assert done.returncode == 0, done.stderr
    return done.stdout


def numbers(output: str, label: str) -> list[list[float]]:
    """The numbers of every line that starts with a label."""
    lines = re.findall(rf"^\s*{label}\s(.*)$", output, re.MULTILINE)
    return [[float(n) for n in re.findall(r"\d+(?:\.\d+)?", line)] for line in lines]


def test_the_demo_gives_an_accuracy_for_every_sample(output: str) -> None:
    shares = numbers(output, "accuracy, % per sample")
    assert [len(row) for row in shares] == [3, 3, 2]
    assert all(0 <= share <= 100 for row in shares for share in row)


@pytest.mark.parametrize(("of", "times"), [("logits", 2), ("loss", 3), ("weights", 1)])
def test_the_demo_gives_mean_and_minimum_of_the_digits(output: str, of: str, times: int) -> None:
    found = numbers(output, f"digits of the {of}")
    assert len(found) == times
    for mean, least in found:
        assert 0 <= least <= mean <= BINARY32_DIGITS


def test_noise_reaches_the_logits_and_leaves_most_of_their_digits(output: str) -> None:
    for mean, _ in numbers(output, "digits of the logits"):
        assert 3 < mean < 7


def test_the_demo_counts_flips_and_states_slowdown_and_coverage(output: str) -> None:
    flips = numbers(output, "predictions that flip")
    assert len(flips) == 3
    assert all(0 <= count <= total == 50 for count, total in flips)
    assert len(numbers(output, "slowdown")) == 3
    assert all(share > 0 for share, *_ in numbers(output, "coverage"))


@pytest.mark.parametrize(
    "arguments",
    [("--samples", "1"), ("--trainings", "1"), ("--epochs", "0"), ("--train-size", "5000")],
    ids=" ".join,
)
def test_impossible_sizes_end_in_a_sentence_and_exit_code_2(arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert re.search(r"give at", done.stderr)


def test_the_network_is_that_of_the_pytorch_example() -> None:
    assert sum(p.numel() for p in Net().parameters()) == 1_199_882


@pytest.mark.parametrize("mode", ["rn", "sr", "ud", "cestac"])
def test_initial_weights_do_not_depend_on_the_mode(mode: str) -> None:
    torch.manual_seed(7)
    stock = Net().state_dict()
    torch.manual_seed(7)
    with ft.fuzzy(mode=mode, seed=3):
        weights = Net().state_dict()
    assert all(torch.equal(weights[name], stock[name]) for name in stock)


def test_training_twice_with_the_same_seed_and_replica_gives_the_same_weights() -> None:
    data, _ = load_images(64, 1)

    def weights(replica: int) -> torch.Tensor:
        with ft.fuzzy(mode="sr", seed=5, replica=replica):
            net, _ = train(data, epochs=1, seed=1)
        return torch.cat([p.detach().flatten() for p in net.parameters()])

    first = weights(0)
    assert torch.equal(first, weights(0))
    assert not torch.equal(first, weights(1))
