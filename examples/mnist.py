"""How many digits of an MNIST classifier can be trusted?

Trains the network of PyTorch's MNIST example with stock torch, then repeats its
inference, and one epoch of its training, while every floating-point operation
rounds randomly.  `make demo` runs it; the options shrink it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from mnist_model import BATCH, Images, Net, accuracy, infer, load_images, train
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import fuzzytorch as ft
from fuzzytorch.ensemble import Samples

SEED = 1
"""Of the weights, the order of the images, the dropout masks and the rounding."""

STOCK_RUNS = 3

Tick = Callable[[], None]


class Timed:
    """A callable that keeps the seconds of each of its calls."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function
        self.seconds: list[float] = []

    def __call__(self) -> Any:
        start = time.perf_counter()
        result = self.function()
        self.seconds.append(time.perf_counter() - start)
        return result


def digits_of(name: str, digits: torch.Tensor) -> str:
    """One line: mean and smallest number of significant digits over the elements."""
    mean, least = digits.mean().item(), digits.min().item()
    return f"  digits of the {name:<9} mean {mean:.2f}   minimum {least:.2f}"


def report(
    console: Console,
    title: str,
    samples: Samples,
    logits: torch.Tensor,
    test: Images,
    slowdown: float,
) -> None:
    """Prints what the samples say; ``logits`` ``(samples, n, 10)`` are judged by stock torch."""
    console.print(f"\n[bold]{title}[/bold]")
    shares = "  ".join(f"{100 * accuracy(sample, test):.2f}" for sample in logits)
    console.print(f"  accuracy, % per sample  {shares}")
    for name, digits in samples.digits.items():
        console.print(digits_of(name, digits))
    labels = logits.argmax(2)
    flips = int((labels != labels[0]).any(0).sum())
    console.print(f"  predictions that flip   {flips} of {len(test)}")
    console.print(f"  slowdown                {slowdown:.1f}x stock torch in this process")
    console.print(f"  coverage                {samples.coverage.headline()}")


def inference(
    console: Console, net: Net, test: Images, modes: tuple[str, ...], n: int, tick: Tick
) -> None:
    """Repeats the inference under each mode; stock torch runs in turn for the comparison."""
    for mode in modes:
        stock = Timed(lambda: infer(net, test, tick))
        for _ in range(STOCK_RUNS):
            stock()
        fuzzy = Timed(lambda: infer(net, test, tick))
        samples = ft.sample(fuzzy, n=n, mode=mode, seed=SEED, reference=False)
        slowdown = statistics.median(fuzzy.seconds) / statistics.median(stock.seconds)
        title = f"Inference, {len(test)} held-out images, {n} samples in {mode}"
        report(console, title, samples, samples.values["logits"], test, slowdown)


def training(console: Console, data: Images, test: Images, n: int, tick: Tick) -> None:
    """Repeats one epoch from the same weights, once in stock torch and n times in sr."""

    def run() -> dict[str, torch.Tensor]:
        net, loss = train(data, epochs=1, seed=SEED, after_batch=tick)
        return {
            "weights": parameters_to_vector(net.parameters()).detach(),
            "loss": torch.tensor(loss),
        }

    def logits_of(weights: torch.Tensor) -> torch.Tensor:
        net = Net().eval()
        vector_to_parameters(weights, net.parameters())
        return infer(net, test)["logits"]

    timed = Timed(run)
    samples = ft.sample(timed, n=n, mode="sr", seed=SEED, reference=True)
    stock, *fuzzy = timed.seconds
    title = f"Training, one epoch on {len(data)} images, {n} samples in sr from the same weights"
    logits = torch.stack([logits_of(weights) for weights in samples.values["weights"]])
    report(console, title, samples, logits, test, statistics.median(fuzzy) / stock)
    share = accuracy(logits_of(samples.reference["weights"]), test)
    console.print(f"  the same in stock torch accuracy {100 * share:.2f} %")


def options(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=10, help="inferences per mode (10)")
    parser.add_argument("--train-size", type=int, default=4000, help="images to train on (4000)")
    parser.add_argument("--test-size", type=int, default=1000, help="images to hold out (1000)")
    parser.add_argument("--epochs", type=int, default=3, help="epochs of the stock training (3)")
    parser.add_argument("--trainings", type=int, default=3, help="trainings in sr (3)")
    found = parser.parse_args(arguments)
    for name, least in (("samples", 2), ("trainings", 2), ("epochs", 1)):
        if getattr(found, name) < least:
            parser.error(f"--{name} {getattr(found, name)} is too few: give at least {least}.")
    return found


def main(arguments: list[str] | None = None) -> int:
    """Runs the demo; 0 on success, 2 for arguments that make no sense."""
    chosen = options(arguments)
    try:
        data, test = load_images(chosen.train_size, chosen.test_size)
    except ValueError as error:
        print(f"mnist.py: {error}", file=sys.stderr)
        return 2
    console = Console(highlight=False, soft_wrap=True)
    modes = ("sr", "ud")
    per_epoch, per_test = -(-len(data) // BATCH), -(-len(test) // 100)
    total = per_epoch * (chosen.epochs + 1 + chosen.trainings)
    total += per_test * len(modes) * (chosen.samples + STOCK_RUNS)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("stock training", total=total)

        def tick() -> None:
            progress.advance(task)

        stock = Timed(lambda: train(data, chosen.epochs, SEED, tick))
        net, _ = stock()
        share = accuracy(infer(net, test)["logits"], test)
        console.print(
            f"[bold]Stock torch[/bold], {chosen.epochs} epochs on {len(data)} images in "
            f"{stock.seconds[0]:.0f} s: accuracy {100 * share:.2f} %"
        )
        progress.update(task, description="inference")
        inference(console, net, test, modes, chosen.samples, tick)
        progress.update(task, description="training in sr")
        training(console, data, test, chosen.trainings, tick)
        progress.update(task, description="done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
