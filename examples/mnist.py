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

import fuzzytorch as ft
from fuzzytorch.digits import significant

SEED = 1
"""Of the weights, the order of the images, the dropout masks and the rounding."""

TRAININGS = 3

Tick = Callable[[], None]


def timed(function: Callable[[], Any]) -> tuple[Any, float]:
    """The result of a call and its duration in seconds."""
    start = time.perf_counter()
    result = function()
    return result, time.perf_counter() - start


def sampled(function: Callable[[], Any], n: int, mode: str) -> tuple[list[Any], list[float], str]:
    """``n`` realisations under a mode, the seconds of each, and the coverage of the first."""
    results, seconds, headline = [], [], ""
    for replica in range(n):
        with ft.fuzzy(mode=mode, seed=SEED, replica=replica) as fuzzy:
            result, duration = timed(function)
        results.append(result)
        seconds.append(duration)
        headline = headline or fuzzy.coverage.headline()
    return results, seconds, headline


def digits_of(name: str, samples: list[torch.Tensor]) -> str:
    """One line: mean and smallest number of significant digits over the elements."""
    found = significant(torch.stack(samples))
    mean, least = found.digits.mean().item(), found.digits.min().item()
    line = f"  digits of the {name:<8} mean {mean:.2f}   minimum {least:.2f}"
    return f"{line}   (binary32 holds {found.cap:.1f})"


def flips_of(logits: list[torch.Tensor]) -> str:
    """One line: how many predictions are not the same in all samples."""
    labels = torch.stack([sample.argmax(1) for sample in logits])
    flips = int((labels != labels[0]).any(0).sum())
    return f"  predictions that flip   {flips} of {labels.shape[1]}"


def report(
    console: Console,
    title: str,
    outputs: list[dict[str, torch.Tensor]],
    test: Images,
    slowdown: float,
    headline: str,
) -> None:
    """Prints what the samples say about logits, loss and predictions."""
    logits = [output["logits"] for output in outputs]
    console.print(f"\n[bold]{title}[/bold]")
    shares = "  ".join(f"{100 * accuracy(sample, test):.2f}" for sample in logits)
    console.print(f"  accuracy, % per sample  {shares}")
    console.print(digits_of("logits", logits))
    console.print(digits_of("loss", [output["loss"] for output in outputs]))
    console.print(flips_of(logits))
    console.print(f"  slowdown                {slowdown:.1f}x stock torch in this process")
    console.print(f"  coverage                {headline}")


def inference(
    console: Console,
    net: Net,
    test: Images,
    modes: tuple[str, ...],
    n: int,
    tick: Callable[[], None],
) -> None:
    """Repeats the inference under each mode; stock torch runs in turn for the comparison."""

    def run() -> dict[str, torch.Tensor]:
        return infer(net, test, tick)

    for mode in modes:
        before = timed(run)[1], timed(run)[1]
        outputs, seconds, headline = sampled(run, n, mode)
        stock = statistics.median((*before, timed(run)[1]))
        slowdown = statistics.median(seconds) / stock
        title = f"Inference, {len(test)} held-out images, {n} samples in {mode}"
        report(console, title, outputs, test, slowdown, headline)


def training(console: Console, data: Images, test: Images, n: int, tick: Tick) -> None:
    """Repeats one epoch of training from the same weights; stock torch judges the results."""

    def run() -> tuple[Net, float]:
        return train(data, epochs=1, seed=SEED, after_batch=tick)

    (stock_net, _), stock = timed(run)
    trained, seconds, headline = sampled(run, n, "sr")
    outputs = [infer(net, test) for net, _ in trained]
    slowdown = statistics.median(seconds) / stock
    title = (
        f"Training, one epoch on {len(data)} images, {n} samples in sr, same weights and data order"
    )
    report(console, title, outputs, test, slowdown, headline)
    weights = [torch.cat([p.detach().flatten() for p in net.parameters()]) for net, _ in trained]
    console.print(digits_of("weights", weights))
    share = accuracy(infer(stock_net, test)["logits"], test)
    console.print(f"  the same epoch in stock torch: accuracy {100 * share:.2f} %")


def options(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=10, help="inferences per mode (10)")
    parser.add_argument("--train-size", type=int, default=4000, help="images to train on (4000)")
    parser.add_argument("--test-size", type=int, default=1000, help="images to hold out (1000)")
    parser.add_argument("--epochs", type=int, default=3, help="epochs of the stock training (3)")
    parser.add_argument("--trainings", type=int, default=TRAININGS, help="trainings in sr (3)")
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
    total += per_test * len(modes) * (chosen.samples + 3)
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

        (net, _), seconds = timed(lambda: train(data, chosen.epochs, SEED, tick))
        share = accuracy(infer(net, test)["logits"], test)
        console.print(
            f"[bold]Stock torch[/bold], {chosen.epochs} epochs on {len(data)} images in "
            f"{seconds:.0f} s: accuracy {100 * share:.2f} %"
        )
        progress.update(task, description="inference")
        inference(console, net, test, modes, chosen.samples, tick)
        progress.update(task, description="training in sr")
        training(console, data, test, chosen.trainings, tick)
        progress.update(task, description="done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
