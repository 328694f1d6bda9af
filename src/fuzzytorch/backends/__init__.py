"""Backends compute the primitives; :func:`backend_named` chooses one."""

from __future__ import annotations

import functools
import importlib
from typing import Final

from fuzzytorch.backends.protocol import Backend

BACKENDS: Final = ("cpu", "reference")
"""``cpu``: the native kernels; ``reference``: plain torch, slow, the definition of the others."""

EXTENSION: Final = "fuzzytorch._prism"
"""The compiled module behind ``cpu``."""


@functools.cache
def backend_named(name: str | None = None) -> Backend:
    """The backend of a name, ``cpu`` by default.

    Raises:
        ValueError: there is no backend of this name.
        RuntimeError: the native kernels were not built.
    """
    name = "cpu" if name is None else name
    if name not in BACKENDS:
        raise ValueError(f"unknown backend {name!r}: choose one of {', '.join(BACKENDS)}.")
    if name == "cpu":
        try:
            importlib.import_module(EXTENSION)
        except ImportError as error:
            raise RuntimeError(
                "the backend 'cpu' needs the native kernels, and this installation of fuzzytorch "
                f"has none that load ({error}): install it again with a C++17 compiler, or ask "
                "for backend='reference', which is slow."
            ) from error
    module = importlib.import_module(f"fuzzytorch.backends.{name}")
    backend: Backend = getattr(module, f"{name.capitalize()}Backend")()
    return backend
