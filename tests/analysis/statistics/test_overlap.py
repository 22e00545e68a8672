"""Precision, recall and F1 of counts. Run: pytest tests/analysis/statistics/test_overlap.py"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from evalharness.analysis.statistics.overlap import MIN_SUPPORT, Overlap, macro_and_min


@st.composite
def overlaps(draw: st.DrawFn, apart: bool = False) -> Overlap:
    num_predicted, num_reference = draw(st.integers(0, 50)), draw(st.integers(0, 50))
    num_hit = draw(st.integers(0, min(num_predicted, num_reference)))
    return Overlap(num_hit, num_predicted, num_reference, draw(st.integers(0, num_reference)) if apart else None)


@given(st.one_of(overlaps(), overlaps(apart=True)))
def test_f1_lies_between_precision_and_recall_and_all_are_shares(overlap: Overlap) -> None:
    precision, recall, f1 = overlap.precision(0.0), overlap.recall(0.0), overlap.f1(0.0)
    assert 0 <= min(precision, recall) - 1e-12 <= f1 + 1e-12 or f1 == 0
    assert f1 <= max(precision, recall) + 1e-12 <= 1 + 1e-9
    assert (f1 == 0) == (precision == 0 or recall == 0)


@given(overlaps())
def test_both_ways_to_count_hits_give_one_f1(overlap: Overlap) -> None:
    apart = Overlap(overlap.num_hit, overlap.num_predicted, overlap.num_reference, overlap.num_hit)
    assert apart.f1(None) == pytest.approx(overlap.f1(None))
    assert (apart.precision(None), apart.recall(None)) == (overlap.precision(None), overlap.recall(None))


@given(overlaps())
def test_predictions_and_references_exchanged_exchange_precision_and_recall(overlap: Overlap) -> None:
    turned = Overlap(overlap.num_hit, overlap.num_reference, overlap.num_predicted)
    assert (turned.precision(None), turned.recall(None)) == (overlap.recall(None), overlap.precision(None))
    assert turned.f1(None) == overlap.f1(None)


@pytest.mark.parametrize("empty", [None, 0.0, 1.0])
def test_the_caller_chooses_the_ratio_of_nothing_by_nothing(empty: Any) -> None:
    nothing, nothing_predicted, nothing_there = Overlap(0, 0, 0), Overlap(0, 0, 3), Overlap(0, 3, 0)
    assert (nothing.precision(empty), nothing.recall(empty), nothing.f1(empty)) == (empty, empty, empty)
    assert (nothing_predicted.precision(empty), nothing_predicted.recall(empty), nothing_predicted.f1(empty)) == (empty, 0.0, 0.0)
    assert (nothing_there.precision(empty), nothing_there.recall(empty), nothing_there.f1(empty)) == (0.0, empty, 0.0)


@given(st.lists(overlaps()))
def test_a_sum_adds_counts_in_any_order(parts: list[Overlap]) -> None:
    total = Overlap.sum(parts)
    assert total == Overlap.sum(reversed(parts))
    assert (total.num_hit, total.num_predicted) == (sum(part.num_hit for part in parts), sum(part.num_predicted for part in parts))


def test_the_lowest_f1_is_that_of_categories_with_enough_references() -> None:
    often, rare = Overlap(MIN_SUPPORT, MIN_SUPPORT, MIN_SUPPORT), Overlap(0, 0, MIN_SUPPORT - 1)
    assert macro_and_min({"often": often, "rare": rare, "never": Overlap(0, 5, 0)}) == {"category_macro_f1": 0.5, "category_min_f1": 1.0}
    assert macro_and_min({"rare": rare})["category_min_f1"] == 0.0
    assert macro_and_min({"never": Overlap(0, 5, 0)}) == {}
