"""What tests of the command use: what it leaves behind, and scripts to run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

Command: TypeAlias = Callable[..., "Done"]


@dataclasses.dataclass(frozen=True)
class Done:
    """What a finished command left behind."""

    returncode: int
    stdout: str
    stderr: str


def written(folder: Path, text: str, name: str = "program.py") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path
