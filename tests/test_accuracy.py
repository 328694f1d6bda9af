"""Mode ``rn`` adds in an order as accurate as that of stock torch."""

from __future__ import annotations

import accuracy
import pytest

CASES = list(accuracy.cases())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_nearest_rounding_deviates_from_binary64_as_much_as_stock_torch(
    case: accuracy.Case,
) -> None:
    found = accuracy.deviation(case)
    assert found.least <= found.ours <= found.most


@pytest.mark.parametrize("k", [512, 1024])
def test_one_long_chain_and_very_short_chains_would_be_noticed(k: int) -> None:
    orders = next(case.orders for case in CASES if case.name == f"mm 64x{k}x64")
    assert orders is not None
    assert accuracy.chained(k, k) > accuracy.HIGH * orders[1]
    assert accuracy.chained(k, 32) < accuracy.LOW * orders[0]


def test_products_are_compared_from_small_to_large() -> None:
    assert {f"mm 64x{k}x64" for k in (16, 256, 1024, 8192)} <= {case.name for case in CASES}
