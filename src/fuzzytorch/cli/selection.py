"""The options that select a part of a script, between the command line and a mode."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fuzzytorch.rounding import Rounding


def parsed(scopes: Iterable[str]) -> dict[str, list[str]]:
    """The values of ``--scope``, ``PATTERN=mode[:format]`` each, as a value for :mod:`json`.

    Raises:
        ValueError: one of another form, or with an unknown mode or format.
    """
    found: dict[str, list[str]] = {}
    for scope in scopes:
        pattern, _, how = scope.rpartition("=")
        mode, colon, format = how.partition(":")
        if not pattern or not mode or (colon and not format):
            raise ValueError(
                f"--scope {scope!r} is not of the form PATTERN=mode[:format]: write for example "
                "--scope 'encoder.*=sr:bfloat16'."
            )
        named = [mode, format or "binary32"]
        Rounding.of(mode, named[1])
        # Of several scopes for one place the last counts.
        found.pop(pattern, None)
        found[pattern] = named
    return found


def options(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of :class:`fuzzytorch.fuzzy` that settings stand for.

    What selects nothing is left out, because an empty list of what is included rounds nothing.
    """
    chosen = {name: value for name, value in settings.items() if value or name not in _LISTS}
    if "scopes" in chosen:
        chosen["scopes"] = {
            pattern: Rounding.of(mode, format)
            for pattern, (mode, format) in chosen["scopes"].items()
        }
    return chosen


_LISTS = ("include", "exclude", "scopes")
