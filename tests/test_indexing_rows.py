"""Rows that add into indexed places."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from row_cases import rows_of
from row_laws import (
    BACKEND,
    equals_stock_in_nearest_rounding,
    is_centred_and_noisy_in_stochastic_rounding,
)
from torch.nn import functional as F

from fuzzytorch.fuzzy import fuzzy
from fuzzytorch.table import Row

aten = torch.ops.aten

ROWS = rows_of("indexing", "folding")

INDEX = torch.randint(6, (40,), generator=torch.Generator().manual_seed(1))
SOURCE = torch.randn(40, 3, generator=torch.Generator().manual_seed(2))
START = torch.randn(6, 3, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_nearest_rounding_gives_what_stock_torch_gives(row: Row) -> None:
    equals_stock_in_nearest_rounding(row)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_stochastic_rounding_is_centred_and_reaches_inexact_elements(row: Row) -> None:
    is_centred_and_noisy_in_stochastic_rounding(row)


def _columns() -> torch.Tensor:
    return INDEX[:, None].expand(40, 3)


ADDITIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "index_add": lambda x, y: x.index_add(0, INDEX, y),
    "index_add along columns": lambda x, y: x.T.index_add(1, INDEX, y.T).T,
    "scatter_add": lambda x, y: x.scatter_add(0, _columns(), y),
    "scatter with add": lambda x, y: x.scatter(0, _columns(), y, reduce="add"),
    "scatter_reduce": lambda x, y: x.scatter_reduce(0, _columns(), y, "sum"),
    "index_put": lambda x, y: x.index_put((INDEX,), y, accumulate=True),
    "index_put by a mask": lambda x, y: x.index_put((x > -99.0,), y[:6].reshape(-1), True),
    "index_put from the end": lambda x, y: x.index_put((INDEX - 6,), y, accumulate=True),
    "put": lambda x, y: x.put(INDEX * 3, y[:, 0], accumulate=True),
}
"""Additions of ``y`` into ``x``, each in another order of the same places."""


@pytest.mark.parametrize("name", ADDITIONS)
def test_additions_happen_in_the_order_of_stock_torch_bit_for_bit(name: str) -> None:
    add = ADDITIONS[name]
    with fuzzy("rn", seed=0, backend=BACKEND):
        actual = add(START, SOURCE)
    assert torch.equal(actual, add(START, SOURCE))


@pytest.mark.parametrize("name", ADDITIONS)
def test_additions_of_integers_stay_exact(name: str) -> None:
    add = ADDITIONS[name]
    whole = (START * 8).round(), (SOURCE * 8).round()
    with fuzzy("sr", seed=0, backend=BACKEND):
        actual = add(*whole)
    assert torch.equal(actual, add(*whole))


@pytest.mark.parametrize("name", ADDITIONS)
def test_every_addition_is_counted(name: str) -> None:
    with fuzzy("sr", seed=0, backend=BACKEND) as mode:
        ADDITIONS[name](START, SOURCE)
    added = {"put": 40, "index_put by a mask": 18}.get(name, SOURCE.numel())
    assert sum(record.operations for record in mode.coverage.records) == added


@pytest.mark.parametrize("name", ["index_add", "scatter_add", "index_put"])
def test_in_place_additions_write_the_tensor_itself(name: str) -> None:
    with fuzzy("sr", seed=4, backend=BACKEND):
        expected = ADDITIONS[name](START, SOURCE)
    x = START.clone()
    with fuzzy("sr", seed=4, backend=BACKEND):
        match name:
            case "index_add":
                x.index_add_(0, INDEX, SOURCE)
            case "scatter_add":
                x.scatter_add_(0, _columns(), SOURCE)
            case "index_put":
                x.index_put_((INDEX,), SOURCE, accumulate=True)
    assert torch.equal(x, expected)
    assert not torch.equal(x, START)


@pytest.mark.parametrize("name", ADDITIONS)
def test_a_transposed_layout_draws_the_same_and_gets_the_strides_of_stock_torch(name: str) -> None:
    x = START.T.contiguous().T
    with fuzzy("sr", seed=5, backend=BACKEND):
        actual = ADDITIONS[name](x, SOURCE)
    with fuzzy("sr", seed=5, backend=BACKEND):
        expected = ADDITIONS[name](START, SOURCE)
    assert torch.equal(actual, expected)
    assert actual.stride() == ADDITIONS[name](x, SOURCE).stride()


def test_products_are_taken_in_the_order_of_the_index() -> None:
    with fuzzy("rn", seed=0, backend=BACKEND):
        actual = START.scatter(0, _columns(), SOURCE, reduce="multiply")
    assert torch.equal(actual, START.scatter(0, _columns(), SOURCE, reduce="multiply"))


def test_selections_of_scatter_reduce_are_exact_in_every_mode() -> None:
    for reduce in ("amax", "amin"):
        expected = START.scatter_reduce(0, _columns(), SOURCE, reduce)
        with fuzzy("ud", seed=0, backend=BACKEND):
            actual = START.scatter_reduce(0, _columns(), SOURCE, reduce)
        assert torch.equal(actual, expected)


def test_copies_of_index_put_are_exact_in_every_mode() -> None:
    index = torch.tensor([3, 1])
    with fuzzy("ud", seed=0, backend=BACKEND):
        actual = START.index_put((index,), SOURCE[:2])
    assert torch.equal(actual, START.index_put((index,), SOURCE[:2]))


def test_the_gradient_of_an_embedding_is_added_per_occurrence() -> None:
    weight = START.clone().requires_grad_()
    expected = torch.zeros_like(START).index_add(0, INDEX[INDEX != 2], SOURCE[INDEX != 2])
    with fuzzy("rn", seed=0, backend=BACKEND) as mode:
        F.embedding(INDEX, weight, padding_idx=2).backward(SOURCE)
    assert torch.equal(weight.grad, expected)
    operations = {r.name: r.operations for r in mode.coverage.records}
    kept = 3 * int((INDEX != 2).sum())
    assert operations["aten.embedding_dense_backward.default"] == kept


@pytest.mark.parametrize(
    "call",
    [
        lambda: START.index_add(0, torch.tensor([6]), SOURCE[:1]),
        lambda: START.scatter_add(0, torch.tensor([[-1, 0, 0]]), SOURCE[:1]),
        lambda: START.index_put((torch.tensor([7]),), SOURCE[:1], accumulate=True),
        lambda: START.put(torch.tensor([99]), SOURCE[0, :1], accumulate=True),
        lambda: torch.ops.aten.embedding_dense_backward(
            SOURCE[:1], torch.tensor([9]), 6, -1, False
        ),
    ],
    ids=["index_add", "scatter_add", "index_put", "put", "embedding_dense_backward"],
)
def test_an_index_out_of_range_is_an_error(call: Callable[[], torch.Tensor]) -> None:
    with fuzzy("sr", seed=0, backend=BACKEND), pytest.raises((IndexError, RuntimeError)):
        call()
