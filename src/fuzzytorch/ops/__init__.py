"""The rows of the table, one file per family; each ends in a tuple ``ROWS``."""

from __future__ import annotations

from typing import Final

FAMILIES: Final = (
    "exact",
    "conversion",
    "random",
)
"""Modules of this package that hold rows; a name without its file is an error."""
