"""The census on a choice of its samples, and the list of known gaps.

Every entry in every dtype meets the laws of nearest rounding on one sample of each kind, and in one
of its dtypes that of stochastic rounding. ``make census`` runs all samples.
"""

from __future__ import annotations

import pathlib
import zlib
from collections.abc import Callable, Iterator

import pytest
from census.entries import Entry, entries
from census.report import complaints
from census.survey import Survey
from census.workers import surveys

from fuzzytorch.coverage.known_gaps import GAPS
from fuzzytorch.coverage.page import page
from fuzzytorch.table import overload_named

ENTRIES = entries()
PAGE = pathlib.Path(__file__).parent.parent / "docs" / "coverage.md"


def drawn(entry: Entry) -> bool:
    """Whether the law of stochastic rounding is met in this of the dtypes of an operation."""
    own = entries(name=entry.name)
    return own[zlib.crc32(entry.name.encode()) % len(own)] == entry


@pytest.fixture(scope="module")
def surveyed(request: pytest.FixtureRequest) -> Iterator[Callable[[Entry], Survey]]:
    """The survey of an entry; two processes make those of all tests that were selected."""
    items = [item for item in request.session.items if "entry" in getattr(item, "fixturenames", ())]
    wanted = [item.callspec.params["entry"] for item in items]
    running = surveys([(entry, 1, drawn(entry)) for entry in wanted])
    done: dict[Entry, Survey] = {}

    def get(entry: Entry) -> Survey:
        while entry not in done:
            found = next(running)
            done[found.entry] = found
        return done[entry]

    yield get
    running.close()


@pytest.mark.parametrize("entry", ENTRIES, ids=str)
def test_the_laws_hold_for_an_operation_in_a_dtype(
    entry: Entry, surveyed: Callable[[Entry], Survey]
) -> None:
    found = surveyed(entry)
    assert found.samples or not found.computes
    assert list(complaints([found], complete=False)) == []


def test_every_operation_and_dtype_of_the_database_is_an_entry() -> None:
    assert len(ENTRIES) == len(set(ENTRIES)) > 3000
    assert sum(map(drawn, ENTRIES)) == len({entry.name for entry in ENTRIES})


def test_known_gaps_are_operations_of_torch_with_a_reason_each() -> None:
    assert len({gap.operation for gap in GAPS}) == len(GAPS) <= 12
    for gap in GAPS:
        overload_named(gap.operation)
        assert gap.why


def test_the_page_of_coverage_lists_every_known_gap() -> None:
    assert "## Known gaps" in page()
    for gap in GAPS:
        assert f"| `{gap.operation.removeprefix('aten.')}` | {gap.why} |" in PAGE.read_text()
