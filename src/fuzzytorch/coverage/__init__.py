"""Reports of what is covered: of a run, of one call, and of the whole table."""

from __future__ import annotations
