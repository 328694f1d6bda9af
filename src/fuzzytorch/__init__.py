"""Run unmodified PyTorch programs under stochastic arithmetic.

>>> import fuzzytorch as ft
>>> with ft.fuzzy(mode="sr", seed=0):
...     y = model(x)
>>> print(ft.coverage())
"""

from __future__ import annotations

import importlib
from typing import Any, Final

from fuzzytorch.coverage.runs import coverage, explain
from fuzzytorch.fuzzy import fuzzy
from fuzzytorch.gaps import Gap, UncoveredError
from fuzzytorch.records import Coverage
from fuzzytorch.rounding import Rounding
from fuzzytorch.stream import Stream
from fuzzytorch.table import Row, Verdict

__version__ = "0.1.0"

__all__ = [
    "Coverage",
    "Gap",
    "Rounding",
    "Row",
    "Stream",
    "UncoveredError",
    "Verdict",
    "__version__",
    "coverage",
    "digits",
    "explain",
    "first_nonfinite",
    "fuzzy",
    "profile",
    "sample",
]

_LAZY: Final = {
    "sample": ("fuzzytorch.ensemble.sampling", "sample"),
    "digits": ("fuzzytorch.digits", None),
    "first_nonfinite": ("fuzzytorch.locate.watching", "first_nonfinite"),
    "profile": ("fuzzytorch.locate.profiling", "profile"),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _LAZY[name]
    value = importlib.import_module(module)
    return value if attribute is None else getattr(value, attribute)
