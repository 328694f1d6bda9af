"""Mode ``rn`` adds in an order as accurate as that of stock torch."""

from __future__ import annotations

import accuracy
import pytest

CASES = list(accuracy.cases())


@pytest.mark.parametrize("case", [c for c in CASES if c.gated], ids=lambda case: case.name)
def test_nearest_rounding_deviates_from_binary64_as_much_as_stock_torch(
    case: accuracy.Case,
) -> None:
    ours, stock = accuracy.deviations(case)
    assert accuracy.LOW <= ours / stock <= accuracy.HIGH


@pytest.mark.parametrize("case", [c for c in CASES if not c.gated], ids=lambda case: case.name)
def test_where_the_deviations_are_not_alike_nearest_rounding_is_the_more_accurate(
    case: accuracy.Case,
) -> None:
    ours, stock = accuracy.deviations(case)
    assert case.why
    assert ours <= accuracy.HIGH * stock


def test_products_are_compared_from_small_to_large() -> None:
    assert {f"mm 64x{k}x64" for k in (16, 256, 1024, 8192)} <= {c.name for c in CASES if c.gated}
