"""Laws of the rows that a mode is given for itself."""

from __future__ import annotations

import pytest
import torch

import fuzzytorch as ft
from fuzzytorch.lookup import resolve
from fuzzytorch.ops.formula import Formula

LIBRARY = torch.library.Library("fuzzytorch_own", "DEF")
LIBRARY.define("tripled(Tensor x) -> Tensor")
LIBRARY.define("tripled_(Tensor(a!) x) -> Tensor(a!)")
LIBRARY.impl("tripled", lambda x: x * 3, "CPU")
LIBRARY.impl("tripled_", lambda x: x.mul_(3), "CPU")
own = torch.ops.fuzzytorch_own

TRIPLED = Formula(lambda x: x * 3.0)
ROW = ft.Row(
    "fuzzytorch_own.tripled.default",
    ft.Verdict.ROUNDED,
    lambda call, x: TRIPLED(call, x, out=call.out),
    "one product",
)
X = torch.rand(1000, generator=torch.Generator().manual_seed(0))


def verdicts(mode):
    return {r.name: r.verdict for r in mode.coverage.records}


def test_an_operation_and_its_in_place_variant_use_the_row_of_the_mode():
    with ft.fuzzy("sr", seed=0, rows=(ROW,), strict=True) as mode:
        a, b, c = own.tripled(X), own.tripled(X), own.tripled_(X.clone())
    assert not torch.equal(a, b) and not torch.equal(b, c)
    for y in (a, b, c):
        torch.testing.assert_close(y, X * 3)
    assert verdicts(mode) == {
        "fuzzytorch_own.tripled.default": ft.Verdict.ROUNDED,
        "fuzzytorch_own.tripled_.default": ft.Verdict.ROUNDED,
        "aten.clone.default": ft.Verdict.EXACT,
    }


def test_a_row_of_a_mode_holds_for_this_mode_alone():
    outer, inner = ft.fuzzy("sr", seed=0, rows=(ROW,)), ft.fuzzy("sr", seed=0)
    with outer, inner, pytest.warns(UserWarning, match="tripled"):
        y = own.tripled(X)
    assert torch.equal(y, X * 3)
    assert verdicts(inner) == {"fuzzytorch_own.tripled.default": ft.Verdict.UNCOVERED}
    assert resolve(own.tripled.default).verdict is ft.Verdict.UNCOVERED


def test_a_row_of_a_mode_comes_before_that_of_the_table_also_in_parts_of_operations():
    kept = ft.Row("aten.sigmoid.default", ft.Verdict.LOWERED, lambda call, x: x.tanh(), "a change")
    with ft.fuzzy("rn", seed=0, rows=[kept]):
        results = torch.sigmoid(X), X.clone().sigmoid_(), torch.special.expit(X)
    for y in results:
        torch.testing.assert_close(y, X.tanh())
    with ft.fuzzy("rn", seed=0):
        torch.testing.assert_close(X.sigmoid(), 1 / (1 + torch.exp(-X)))


def test_the_list_that_a_mode_was_given_can_change_without_the_mode():
    rows = [ROW]
    mode = ft.fuzzy("sr", seed=0, rows=rows, strict=True)
    rows.clear()
    with mode:
        own.tripled(X)
    assert mode.gaps == ()


@pytest.mark.parametrize(
    ("rows", "error", "sentence"),
    [
        ([ROW, ROW], ValueError, "fuzzytorch_own.tripled.default has two rows"),
        (["aten.add.Tensor"], TypeError, "'aten.add.Tensor' is not a Row"),
        (
            [ft.Row("aten.absent.default", ft.Verdict.EXACT, None, "")],
            ValueError,
            "aten.absent.default, which torch .* does not have",
        ),
        (
            [ft.Row("demo::op", ft.Verdict.EXACT, None, "")],
            ValueError,
            "'demo::op' is not the name of an overload",
        ),
    ],
)
def test_rows_that_mean_nothing_are_refused_in_a_sentence(rows, error, sentence):
    with pytest.raises(error, match=sentence):
        ft.fuzzy(rows=rows)
