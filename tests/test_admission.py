"""Laws of the calls that stock torch checks first: no trace is left, nothing wrong passes."""

from __future__ import annotations

import copy
from typing import Any

import accumulation_cases
import pytest
import row_cases
import torch
from torch.utils._pytree import tree_leaves

from fuzzytorch.fuzzy import fuzzy
from fuzzytorch.lookup import table
from fuzzytorch.ops import admission
from fuzzytorch.ops.admission import admit, needs_admission
from fuzzytorch.table import Row, overload_named

ROWS = [
    row
    for row in table()
    if row.operands == "real" and needs_admission(row, overload_named(row.name))
]


@pytest.fixture(autouse=True)
def _nothing_is_admitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "_admitted", set())


def calls(row: Row) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Arguments for a row, from either collection of cases."""
    cases = accumulation_cases.cases_of(row.name) or row_cases.cases_of(row.name)
    return [(case.args, case.kwargs) for case in cases]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_admission_changes_neither_arguments_nor_random_numbers(row: Row) -> None:
    assert calls(row), f"no case for {row.name}"
    state = torch.get_rng_state()
    for args, kwargs in copy.deepcopy(calls(row)):
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        before = [(x.clone(), x._version) for x in tensors]
        admit(overload_named(row.name), args, kwargs)
        for x, (values, version) in zip(tensors, before, strict=True):
            assert x._version == version
            assert torch.equal(x.nan_to_num(), values.nan_to_num())
    assert torch.equal(torch.get_rng_state(), state)


class Counted:
    """An overload that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        self.calls += 1
        if x.dim() > 2:
            raise RuntimeError("refused on purpose")
        return x


def test_a_signature_is_admitted_once_and_another_one_again() -> None:
    stock, x = Counted(), torch.ones(3, 4)
    for values in (x, x * 2, x.t().contiguous().t()):
        admit(stock, (values, 1.5, [2]), {})
    assert stock.calls == 1
    for other in ((x.double(), 1.5, [2]), (x[:2], 1.5, [2]), (x, 1.5, [3]), (x, 2.5, [2])):
        admit(stock, other, {})
    assert stock.calls == 5


def test_what_was_refused_is_asked_again() -> None:
    stock = Counted()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="refused on purpose"):
            admit(stock, (torch.ones(1, 2, 3),), {})
    assert stock.calls == 2


@pytest.mark.parametrize("wrong", [4, -6, 10**9])
def test_an_index_beyond_its_dimension_is_refused_although_its_signature_was_admitted(
    wrong: int,
) -> None:
    x, source = torch.zeros(4, 3), torch.ones(2, 3)
    good, bad = torch.tensor([0, 3]), torch.tensor([0, wrong])
    losses = torch.zeros(2, 4)
    accumulations = {
        "index_add": lambda i: torch.index_add(x, 0, i, source),
        "scatter_add": lambda i: torch.scatter_add(x, 0, i[:, None].expand(2, 3), source),
        "index_put": lambda i: torch.index_put(x, [i], source, accumulate=True),
        "embedding": lambda i: torch.ops.aten.embedding_dense_backward(source, i, 4, -1, False),
        "nll_loss": lambda i: torch.nn.functional.nll_loss(losses, i),
    }
    for accumulate in accumulations.values():
        with fuzzy("sr", seed=0):
            accumulate(good)
            with pytest.raises((IndexError, RuntimeError)):
                accumulate(bad)
