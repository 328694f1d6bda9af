"""What the command offers: options, checks of them, printing."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import torch
import typer
from rich.console import Console
from rich.table import Table

from fuzzytorch import selftest
from fuzzytorch.backends import backend_named
from fuzzytorch.cli import selection
from fuzzytorch.cli.replicas import Outcome, conclude, replicas
from fuzzytorch.fuzzy import fuzzy
from fuzzytorch.rounding import MODES, PRESETS

app = typer.Typer(
    help="Runs PyTorch programs under stochastic arithmetic.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.command(context_settings={"allow_interspersed_args": False})
def run(
    script: Annotated[Path, typer.Argument(help="The Python script, as python would run it.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Its arguments.")] = None,
    mode: Annotated[str, typer.Option(help=f"Rounding mode: {', '.join(MODES)}.")] = "sr",
    seed: Annotated[
        int | None, typer.Option(help="Seed of the noise; drawn and reported if not given.")
    ] = None,
    samples: Annotated[int, typer.Option(help="How often the script runs, at least once.")] = 10,
    format: Annotated[
        str, typer.Option(help=f"Format rounded to: {', '.join(PRESETS)}.")
    ] = "binary32",
    include: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Round this only; may be repeated."),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Do not round this; may be repeated."),
    ] = None,
    scope: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN=MODE[:FORMAT]", help="Round this differently; may be repeated."
        ),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Fail, and list them, if operations ran unperturbed."),
    ] = False,
) -> None:
    """Runs an unmodified script under noise, once per sample, each in a fresh process.

    Lines of several samples carry the number of the sample in front, and their
    standard input is empty; a single sample owns the terminal. A sample that
    fails does not stop the others; the exit code is that of the first that failed.

    A PATTERN is the path of modules, as in 'encoder.layers.*', or the name of operations, as in
    'aten.mm' or 'aten.*norm*'.

    Examples:

    fuzzytorch run --mode sr --seed 0 --samples 10 train.py --epochs 3

    fuzzytorch run --include 'encoder.*' --exclude 'aten.*norm*' evaluate.py

    fuzzytorch run --scope '*.attention=sr:bfloat16' --scope 'head=rn' --strict evaluate.py
    """
    if samples < 1:
        _refuse(f"--samples {samples} runs nothing: give at least 1.")
    if not script.is_file():
        what = "is a folder" if script.is_dir() else "does not exist"
        _refuse(f"the script {script} {what}: give the path of a Python file.")
    settings: dict[str, Any] = {"mode": mode, "seed": seed, "format": format, "strict": strict}
    settings |= {"include": include, "exclude": exclude}
    try:
        settings["scopes"] = selection.parsed(scope or ())
        settings["seed"] = fuzzy(**selection.options(settings)).seed
        # An impossible instruction set is refused here, once, and not by every sample.
        _instruction_set()
    except (ValueError, RuntimeError) as error:
        _refuse(str(error))
    outcomes: list[Outcome] = []
    try:
        for outcome in replicas(str(script), arguments or [], samples, settings):
            outcomes.append(outcome)
    except KeyboardInterrupt:
        print(f"interrupted after {len(outcomes)} of {samples} samples.", file=sys.stderr)
        print(conclude(outcomes, settings), file=sys.stderr)
        raise typer.Exit(130) from None
    print(conclude(outcomes, settings), file=sys.stderr)
    raise typer.Exit(next((o.exit_code for o in outcomes if o.exit_code), 0))


@app.command()
def info() -> None:
    """Prints versions, instruction set and threads, and tests every primitive.

    The exit code is 1 if a check of the self-test fails.
    """
    try:
        backend = backend_named("cpu")
        facts = _facts()
    except (ValueError, RuntimeError) as error:
        _refuse(str(error))
    console = Console(highlight=False)
    table = Table.grid(padding=(0, 2))
    for name, value in facts:
        table.add_row(name, value)
    console.print(table)
    checks = selftest.check(backend)
    console.print(_outcomes(checks))
    failed = [check for check in checks if not check.passed]
    for check in failed:
        console.print(f"failed: {check.primitive} {check.name}: {check.law}: {check.detail}")
    console.print(f"self-test: {len(checks) - len(failed)} of {len(checks)} checks passed")
    raise typer.Exit(1 if failed else 0)


def _facts() -> list[tuple[str, str]]:
    return [
        ("fuzzytorch", _version()),
        ("torch", torch.__version__),
        ("python", platform.python_version()),
        ("instruction set", _instruction_set()),
        ("threads", str(torch.get_num_threads())),
        ("modes", ", ".join(MODES)),
        ("formats", ", ".join(PRESETS)),
    ]


def _instruction_set() -> str:
    # Not above: without native kernels the command must get as far as saying so.
    from fuzzytorch.backends import cpu

    return f"{cpu.isa()} (possible here: {', '.join(cpu.available_isas())})"


def _version() -> str:
    try:
        return importlib.metadata.version("fuzzy-pytorch")
    except importlib.metadata.PackageNotFoundError:
        return "used from its sources, not installed"


def _outcomes(checks: tuple[selftest.Check, ...]) -> Table:
    """One row per case, one column per law."""
    table = Table()
    table.add_column("primitive", no_wrap=True)
    for law in selftest.LAWS:
        table.add_column(law)
    cases = dict.fromkeys((check.primitive, check.name) for check in checks)
    for case in cases:
        cells = (
            "yes" if check.passed else "NO"
            for check in checks
            if (check.primitive, check.name) == case
        )
        table.add_row(" ".join(case), *cells)
    return table


def _refuse(sentence: str) -> NoReturn:
    print(f"fuzzytorch: {sentence}", file=sys.stderr)
    raise typer.Exit(2)
