"""The command ``fuzzytorch``."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the command; says what to install where typer and rich are missing."""
    try:
        from fuzzytorch.cli.app import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("typer", "rich"):
            raise
        print(
            f"the command fuzzytorch needs {error.name}, which is not installed: "
            "run pip install 'fuzzy-pytorch[cli]'.",
            file=sys.stderr,
        )
        sys.exit(2)
    app()
