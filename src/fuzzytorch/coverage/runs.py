"""The coverage of a run, and of one call of a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuzzytorch.fuzzy import current, fuzzy
from fuzzytorch.records import Coverage


def coverage() -> Coverage:
    """The coverage of the innermost mode active on this thread, or of the one left last.

    Returns:
        An immutable value; print it for a table.

    Raises:
        RuntimeError: no mode was entered on this thread yet.
    """
    mode = current()
    if mode is None:
        raise RuntimeError(
            "there is no coverage yet: run something under fuzzytorch.fuzzy on this thread first."
        )
    return mode.coverage


def explain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Coverage:
    """Runs ``function(*args, **kwargs)`` once and says what became of its operations.

    It runs in mode ``rn``, so that results stay those of IEEE arithmetic; the verdicts are the
    same in every mode.  What the function returns is dropped, its side effects stay.

    Returns:
        One record per overload and verdict, with the reason; print it for a table.
    """
    with fuzzy("rn", seed=0) as mode:
        function(*args, **kwargs)
    return mode.coverage
