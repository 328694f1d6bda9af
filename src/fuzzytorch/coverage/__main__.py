"""``python -m fuzzytorch.coverage`` prints the documentation page."""

from __future__ import annotations

from fuzzytorch.coverage.page import page

print(page(), end="")
