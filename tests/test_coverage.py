"""Laws of the coverage: what is counted, what is claimed, and that the page is the table."""

from __future__ import annotations

import json
import pathlib
import threading

import pytest
import torch

import fuzzytorch as ft
from fuzzytorch.coverage.page import aten_overloads, page
from fuzzytorch.lookup import resolve, table
from fuzzytorch.ops import FAMILIES
from fuzzytorch.records import Coverage, Record
from fuzzytorch.table import Verdict


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def record(run, name, verdict=None):
    found = [r for r in run.records if r.name == name and verdict in (None, r.verdict)]
    assert len(found) == 1, run
    return found[0]


@pytest.mark.parametrize(
    ("name", "call", "operations"),
    [
        ("aten.add.Tensor", lambda: randn(6, 7) + 1.5, 42),
        ("aten.mm.default", lambda: torch.mm(randn(3, 5), randn(5, 7)), 2 * 3 * 5 * 7),
        ("aten.sum.dim_IntList", lambda: randn(6, 7).sum(1), 6 * 6),
        ("aten.addcmul.default", lambda: torch.addcmul(randn(9), randn(9), randn(9)), 2 * 9),
        ("aten.mul_.Tensor", lambda: randn(30).mul_(randn(30)), 30),
        (
            "aten.convolution.default",
            lambda: torch.nn.functional.conv2d(randn(2, 3, 8, 8), randn(4, 3, 3, 3)),
            2 * (2 * 4 * 6 * 6) * (3 * 3 * 3),
        ),
    ],
)
def test_scalar_operations_are_counted(name, call, operations):
    with ft.fuzzy("sr", seed=0) as mode:
        call()
    found = record(mode.coverage, name)
    assert (found.verdict, found.calls, found.operations) == (Verdict.ROUNDED, 1, operations)


def test_only_parts_of_a_lowered_operation_count():
    with torch.inference_mode(), ft.fuzzy("sr", seed=0) as mode:
        torch.nn.functional.conv2d(randn(2, 3, 8, 8), randn(4, 3, 3, 3))
    assert record(mode.coverage, "aten.conv2d.default").operations == 0
    assert record(mode.coverage, "aten.conv2d.default").verdict is Verdict.LOWERED
    assert mode.coverage.share(Verdict.ROUNDED) == 1


def test_an_operation_that_runs_unperturbed_is_weighted_by_its_arithmetic():
    a, b = randn(20, 30).to(torch.complex64).to_sparse(), randn(30, 40).to(torch.complex64)
    with ft.fuzzy("sr", seed=0) as mode, pytest.warns(UserWarning, match="sparse_coo"):
        torch.mm(a, b)
    found = record(mode.coverage, "aten.mm.default")
    assert (found.verdict, found.operations) == (Verdict.UNCOVERED, 2 * 20 * 30 * 40)
    assert found.why == "layout sparse_coo"


def test_an_opaque_layer_is_weighted_by_its_products():
    query, key, value = randn(2, 3, 5, 8), randn(2, 3, 7, 8), randn(2, 3, 7, 8)
    with torch.no_grad(), ft.fuzzy("sr", seed=0) as mode:
        torch.nn.functional.scaled_dot_product_attention(query, key, value)
    assert mode.coverage.operations >= 2 * 2 * 3 * 5 * 7 * (8 + 8)


def test_one_overload_has_a_record_for_each_verdict():
    x = randn(10)
    with ft.fuzzy("sr", seed=0) as mode, pytest.warns(UserWarning, match="complex32"):
        x * 2
        x.to(torch.complex32) * x.to(torch.complex32)
        torch.arange(3) * 2
    verdicts = {r.verdict for r in mode.coverage.records if r.name == "aten.mul.Tensor"}
    assert verdicts == {Verdict.ROUNDED, Verdict.UNCOVERED, Verdict.EXACT}


RUN = Coverage(
    (
        Record("aten.add.Tensor", Verdict.ROUNDED, 2, 9998, "one rounding"),
        Record("aten.eig.default", Verdict.COARSE, 1, 1, "the result"),
        Record("own.op.default", Verdict.UNCOVERED, 1, 1, "no row"),
        Record("aten.view.default", Verdict.EXACT, 7, 0, "a view"),
    )
)


def test_the_headline_gives_the_share_of_operations_under_each_verdict():
    assert RUN.headline() == (
        "99.98% ROUNDED, 0.01% COARSE, 0.01% UNCOVERED of 10000 floating-point operations."
    )


@pytest.mark.parametrize(
    ("rounded", "rest", "share"),
    [(10**9, 1, "99.99%"), (1, 10**9, "0.01%"), (5, 0, "100%"), (0, 5, "0%")],
)
def test_the_headline_says_all_or_nothing_only_where_it_is_so(rounded, rest, share):
    run = Coverage(
        (
            Record("a.b.c", Verdict.ROUNDED, 1, rounded, "why"),
            Record("a.b.d", Verdict.UNCOVERED, 1, rest, "why"),
        )
    )
    assert run.headline().startswith(f"{share} ROUNDED")


def test_the_headline_of_a_run_without_arithmetic_says_so():
    assert Coverage().headline() == "no floating-point operation that rounds was run."


def test_the_text_has_a_line_for_every_record_most_operations_first():
    lines = RUN.text().splitlines()
    assert [line.split()[0] for line in lines[3:]] == [
        "aten.add.Tensor",
        "aten.eig.default",
        "own.op.default",
        "aten.view.default",
    ]
    assert all(any(r.name in line and r.why in line for line in lines) for r in RUN.records)
    assert str(RUN) == RUN.text()


def test_merging_adds_the_calls_and_operations_of_equal_records():
    merged = RUN.merge(RUN)
    assert merged.operations == 2 * RUN.operations
    assert [r.calls for r in merged.records] == [4, 2, 2, 14]
    assert merged.headline().startswith("99.98% ROUNDED")
    assert RUN.merge(Coverage()) == RUN


def test_json_holds_every_record_and_reads_back():
    value = json.loads(json.dumps(RUN.to_json()))
    assert Coverage.from_json(value).merge(Coverage()).operations == RUN.operations
    assert set(Coverage.from_json(value).records) == set(RUN.records)


def test_a_snapshot_does_not_change_while_the_mode_goes_on():
    x = randn(10)
    with ft.fuzzy("sr", seed=0) as mode:
        x + 1
        before = mode.coverage
        x + 1
    assert before.operations == 10
    assert mode.coverage.operations == 20


def test_the_coverage_is_that_of_the_innermost_mode_or_the_one_left_last():
    x = randn(10)
    with ft.fuzzy("sr", seed=0) as outer:
        x + 1
        assert ft.coverage() == outer.coverage
        with ft.fuzzy("rn", seed=0) as inner:
            x * 2
            assert ft.coverage() == inner.coverage
        assert ft.coverage() == outer.coverage
    assert ft.coverage() == outer.coverage


def test_a_thread_without_a_mode_has_no_coverage():
    errors = []

    def ask():
        try:
            ft.coverage()
        except RuntimeError as error:
            errors.append(str(error))

    with ft.fuzzy("sr", seed=0):
        pass
    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert errors and errors[0].startswith("there is no coverage yet")


def test_explain_runs_once_in_nearest_rounding_and_says_why():
    calls = []

    def function(x, scale=1.0):
        calls.append(x * scale)
        return x.relu()

    x = randn(50)
    run = ft.explain(function, x, scale=0.1)
    assert len(calls) == 1
    assert torch.equal(calls[0], x * 0.1)
    assert record(run, "aten.mul.Tensor").verdict is Verdict.ROUNDED
    assert record(run, "aten.relu.default").verdict is Verdict.EXACT
    assert "rounding of the product" in str(run)


class TestPage:
    def test_it_counts_every_aten_overload_once(self):
        text = page()
        rows = [resolve(o) for o in aten_overloads()]
        for verdict in Verdict:
            count = sum(row.verdict is verdict for row in rows)
            line = f"| `{verdict.name}` | {verdict.value} | {count} |"
            assert (line in text) == (verdict is not Verdict.EXCLUDED)

    def test_it_has_a_section_for_every_family_and_the_reason_of_every_row(self):
        text = page()
        for family in FAMILIES:
            assert f"## {family.replace('_', ' ').capitalize()}\n" in text
        for row in table():
            assert row.why in text
            assert row.name.split(".")[1] in text

    def test_the_page_in_the_documentation_is_that_of_this_table(self):
        path = pathlib.Path(__file__).parent.parent / "docs" / "coverage.md"
        assert path.read_text() == page(), "run `make docs` after changing a row"
