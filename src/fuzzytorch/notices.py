"""Warnings that point at the line of the program, not at the library that noticed."""

from __future__ import annotations

import os
import sys
import warnings
from types import FrameType
from typing import Final

import torch

_LIBRARIES: Final = tuple(
    os.path.join(os.path.dirname(os.path.abspath(file)), "") for file in (__file__, torch.__file__)
)
"""Folders whose lines are never the cause: this package and torch."""


def notice(message: str) -> None:
    """Warns about the innermost line on this thread that is neither torch's nor this package's.

    The filters of :mod:`warnings` apply as if that line had called ``warnings.warn``.
    """
    frame = responsible(sys._getframe(1))
    warnings.warn_explicit(
        message,
        UserWarning,
        frame.f_code.co_filename,
        frame.f_lineno,
        frame.f_globals.get("__name__", "<unknown>"),
        frame.f_globals.setdefault("__warningregistry__", {}),
    )


def responsible(frame: FrameType) -> FrameType:
    """The innermost frame, from one on outwards, that is neither torch's nor this package's."""
    while frame.f_code.co_filename.startswith(_LIBRARIES) and frame.f_back is not None:
        frame = frame.f_back
    return frame
