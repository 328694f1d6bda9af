"""Laws of what stock torch refuses: the same error in the same words, which changes nothing.

The inputs that PyTorch's own database has for errors are part of the census.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import accumulation_cases
import mistakes_in_arithmetic
import mistakes_in_models
import pytest
import row_cases
import torch
from operands import Mistake, Operands
from torch.nn import functional as F
from torch.utils._pytree import tree_flatten, tree_unflatten

import fuzzytorch as ft
from fuzzytorch.lookup import table
from fuzzytorch.ops import admission
from fuzzytorch.ops.admission import REFUSALS
from fuzzytorch.table import Row

pytestmark = pytest.mark.filterwarnings("ignore")

MISTAKES = mistakes_in_models.MISTAKES | mistakes_in_arithmetic.MISTAKES
X = torch.rand(50, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def _nothing_is_admitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "_admitted", set())


def refusal(run: Callable[[], Any]) -> tuple[type, str] | None:
    """What a call raises; nothing of this package may be left switched on behind it."""
    torch.manual_seed(0)
    try:
        run()
    except (*REFUSALS, AttributeError) as error:
        return type(error), str(error)
    return None


def refused(run: Callable[[], Any]) -> tuple[type, str] | None:
    def under_a_mode() -> None:
        with ft.fuzzy("sr", seed=0):
            try:
                run()
            finally:
                # The mode goes on: what comes after an error that was caught is rounded.
                assert not torch.equal(X * 0.1, expected)

    expected = X * 0.1
    error = refusal(under_a_mode)
    assert torch._C._len_torch_dispatch_stack() == 0
    assert torch.equal(X * 0.1, expected)
    return error


def state(tensors: list[torch.Tensor]) -> list[Any]:
    """Everything about tensors that can be compared, their numbers bit by bit."""
    return [
        (x.shape, x.dtype, version(x), None if x.grad is None else bits(x.grad), bits(x))
        for x in tensors
    ]


def version(x: torch.Tensor) -> int | None:
    return None if x.is_inference() else x._version


def bits(x: torch.Tensor) -> bytes | None:
    if x.layout is not torch.strided or x.device.type != "cpu" or x.is_nested:
        return None
    return x.detach().resolve_conj().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def outcome(mistake: Mistake, run: Callable[..., Any]) -> tuple[Any, list[Any]]:
    operands = Operands()
    raised = run(lambda: mistake(operands))
    return raised, state(operands.made)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_refused_as_in_stock_torch_and_changes_what_it_changes_there(
    name: str,
) -> None:
    stock = outcome(MISTAKES[name], refusal)
    assert stock[0] is not None, "this is no mistake"
    assert outcome(MISTAKES[name], refused) == stock


ZEROS, SOURCE, LOSSES = torch.zeros(4, 3), torch.ones(2, 3), torch.zeros(2, 4)
BY_INDEX: dict[str, Callable[[torch.Tensor], Any]] = {
    "index_add": lambda i: torch.index_add(ZEROS, 0, i, SOURCE),
    "index_reduce": lambda i: torch.index_reduce(ZEROS, 0, i, SOURCE, "prod"),
    "index_copy": lambda i: torch.index_copy(ZEROS, 0, i, SOURCE),
    "index_fill": lambda i: torch.index_fill(ZEROS, 0, i, 1.0),
    "index_select": lambda i: torch.index_select(ZEROS, 0, i),
    "index_put": lambda i: torch.index_put(ZEROS, [i], SOURCE, accumulate=True),
    "index": lambda i: ZEROS[i],
    "take": lambda i: torch.take(ZEROS[:, 0], i),
    "put": lambda i: torch.put(ZEROS[:, 0], i, SOURCE[:, 0], accumulate=True),
    "gather": lambda i: torch.gather(ZEROS, 0, i[:, None]),
    "gather backward": lambda i: (
        torch.gather(ZEROS.clone().requires_grad_(), 0, i[:, None]).sum().backward()
    ),
    "scatter": lambda i: torch.scatter(ZEROS, 0, i[:, None], SOURCE),
    "scatter_add": lambda i: torch.scatter_add(ZEROS, 0, i[:, None], SOURCE),
    "scatter_reduce": lambda i: torch.scatter_reduce(ZEROS, 0, i[:, None], SOURCE, "mean"),
    "embedding": lambda i: F.embedding(i, ZEROS),
    "embedding_bag, sum": lambda i: F.embedding_bag(i[None], ZEROS, mode="sum"),
    "embedding_bag, mean": lambda i: F.embedding_bag(i[None], ZEROS, mode="mean"),
    "embedding_bag, max": lambda i: F.embedding_bag(i[None], ZEROS, mode="max"),
    "nll_loss": lambda i: F.nll_loss(LOSSES, i),
    "nll_loss, images": lambda i: F.nll_loss(LOSSES[:, :, None, None], i[:, None, None]),
    "cross_entropy": lambda i: F.cross_entropy(LOSSES, i, label_smoothing=0.1),
    "multi_margin_loss": lambda i: F.multi_margin_loss(LOSSES, i),
    "max_unpool1d": lambda i: F.max_unpool1d(SOURCE[:1, :2], i[None], 2),
}


@pytest.mark.parametrize("wrong", [4, -6, 10**9])
@pytest.mark.parametrize("name", BY_INDEX)
def test_a_wrong_index_is_refused_although_its_signature_was_admitted(
    name: str, wrong: int
) -> None:
    use, good, bad = BY_INDEX[name], torch.tensor([0, 3]), torch.tensor([0, wrong])
    stock = refusal(lambda: use(bad))

    def run() -> None:
        use(good)
        use(bad)

    assert refused(run) == stock


@pytest.mark.parametrize("wrong", [4, -6, 10**9])
def test_an_index_that_stock_torch_does_not_check_is_refused(wrong: int) -> None:
    indices = torch.tensor([0, wrong])
    with ft.fuzzy("sr", seed=0), pytest.raises(IndexError, match="the dimension has size 4"):
        torch.ops.aten.embedding_dense_backward(SOURCE, indices, 4, -1, False)


PUBLIC = [
    row
    for row in table()
    if row.function is not None
    and not row.name.startswith("aten._")
    and "_backward" not in row.name
    and "mkldnn" not in row.name
]
"""Not what only torch calls, with arguments that fit: stock torch itself crashes on others."""


def spoiled(case: Any) -> Iterator[tuple[str, Any]]:
    """The arguments of a case with one of them changed, and what was changed."""
    leaves, spec = tree_flatten((case.args, case.kwargs))
    for i, x in enumerate(leaves):
        for what, y in spoilings(x):
            yield f"{what} at {i}", tree_unflatten([*leaves[:i], y, *leaves[i + 1 :]], spec)


def spoilings(x: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(x, torch.Tensor):
        for dtype in (torch.float64, torch.float32, torch.float16, torch.int64, torch.int32):
            if dtype is not x.dtype:
                yield str(dtype), x.to(dtype)
        yield "one dimension more", x[None]
        if x.dim() > 0:
            yield "longer", torch.cat([x, x[:1]])
            yield "empty", x[:0]
        if x.dim() > 1:
            yield "wider", torch.cat([x, x[..., :1]], -1)
            yield "flat", x.reshape(-1)
            yield "empty inside", x[..., :0]
        if x.dtype is torch.int64:
            yield "large", x + 10**6
            yield "negative", x - 10**6
    elif isinstance(x, (int, float)) and not isinstance(x, bool):
        yield from ((str(n), n) for n in (-3, 0, 7, -1.5, float("nan")) if isinstance(n, type(x)))
    elif isinstance(x, str):
        yield "a wrong word", "wrong"


@pytest.mark.parametrize("row", PUBLIC, ids=lambda row: row.name)
def test_a_call_of_a_row_with_one_wrong_argument_is_refused_as_in_stock_torch(row: Row) -> None:
    cases = accumulation_cases.cases_of(row.name) or row_cases.cases_of(row.name)
    for case in cases[:2]:
        for what, arguments in spoiled(case):

            def run(arguments: Any = arguments, overload: Any = case.overload) -> None:
                args, kwargs = copy.deepcopy(arguments)
                overload(*args, **kwargs)

            stock = refusal(run)
            if stock is not None:
                assert refused(run) == stock, what
