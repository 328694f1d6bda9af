"""Our scatter equals that of stock torch's own kernels under binary instrumentation."""

from __future__ import annotations

import fidelity
import pytest

PLACE = fidelity.folder()


@pytest.mark.skipif(
    PLACE is None, reason="no recordings: let FUZZYTORCH_REFERENCE name their folder"
)
@pytest.mark.parametrize("mode", fidelity.RECORDED)
def test_the_median_ratio_of_scatters_is_near_one_or_its_reason_is_stated(mode: str) -> None:
    assert PLACE is not None
    rows = fidelity.compare(mode, PLACE)
    assert len(rows) > 10
    assert [row for row in rows if not row.within and not row.reason] == []
    # A reason that is no longer needed would hide the next regression.
    assert [row for row in rows if row.within and row.reason] == []
