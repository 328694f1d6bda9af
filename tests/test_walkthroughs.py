"""Pages of the documentation whose code is run, all blocks of a page one after the other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.filterwarnings("ignore:demo.scaled_softplus.*runs without perturbation:UserWarning")
@pytest.mark.parametrize("page", ["adding_an_operation"])
def test_the_code_of_a_page_runs_from_top_to_bottom(page: str) -> None:
    path = DOCS / f"{page}.md"
    text = path.read_text(encoding="utf-8")
    blocks = list(re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
    assert len(blocks) > 5
    names: dict[str, object] = {"__name__": page}
    for block in blocks:
        # Empty lines in front, so that an error points at the line of the page.
        above = "\n" * (text[: block.start()].count("\n") + 1)
        exec(compile(above + block[1], str(path), "exec"), names)
    assert torch._C._len_torch_dispatch_stack() == 0
