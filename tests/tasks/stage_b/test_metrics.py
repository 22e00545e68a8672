"""Rates with their denominators. Run: pytest tests/tasks/stage_b/test_metrics.py"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalharness.tasks.stage_a.data import Label
from evalharness.tasks.stage_b.metrics import Confusion, confusion, rates

Pairs = list[tuple[Label, "Label | None"]]
TP, FN, FP, TN = ("pass", "pass"), ("pass", "fail"), ("fail", "pass"), ("fail", "fail")


def test_the_documented_rates() -> None:
    pairs: Any = [TP, TP, FN, FP, TN, TN]
    found = rates(confusion(pairs))
    assert found["accuracy"] == pytest.approx(4 / 6)
    assert found["fp_rate"] == found["fn_rate"] == pytest.approx(1 / 6)
    assert found["false_release_rate"] == found["false_block_rate"] == pytest.approx(1 / 3)
    assert found["unparsed_rate"] == 0


def test_no_tickets_give_rates_of_zero() -> None:
    cells = confusion([])
    assert set(rates(cells).values()) == {0.0}
    assert cells.num_tickets == 0


def test_tickets_without_a_verdict_are_counted_by_themselves() -> None:
    pairs: Any = [TP, TN, ("pass", None), ("fail", None), ("fail", None)]
    cells = confusion(pairs)
    assert (cells.tp, cells.fn, cells.fp, cells.tn) == (1, 0, 0, 1)
    assert (cells.num_unparsed_pass, cells.num_unparsed_fail, cells.num_unparsed, cells.num_tickets) == (1, 2, 3, 5)
    assert rates(cells)["accuracy"] == 0.4
    assert rates(cells)["unparsed_rate"] == 0.6
    assert rates(cells)["false_release_rate_parsed"] == rates(cells)["false_block_rate_parsed"] == 0


def test_in_the_documented_rates_no_verdict_is_the_mistake_of_its_side() -> None:
    cells = Confusion(tp=2, fn=1, fp=1, tn=1, num_unparsed_pass=1, num_unparsed_fail=2)
    assert (cells.num_blocked, cells.num_released) == (2, 3)
    found = rates(cells)
    assert (found["fn_rate"], found["fp_rate"]) == (2 / 8, 3 / 8)
    assert (found["false_release_rate"], found["false_block_rate"]) == (3 / 5, 2 / 4)
    assert (found["false_release_rate_parsed"], found["false_block_rate_parsed"]) == (1 / 3, 1 / 3)


def test_nothing_that_parses_gets_the_worst_rates() -> None:
    found = rates(Confusion(num_unparsed_pass=3, num_unparsed_fail=3))
    assert (found["false_release_rate"], found["false_block_rate"], found["accuracy"]) == (1.0, 1.0, 0.0)


PAIRS = st.lists(st.tuples(st.sampled_from(["pass", "fail"]), st.sampled_from(["pass", "fail", None])), max_size=30)


@given(PAIRS, st.randoms())
def test_the_order_of_tickets_changes_nothing(pairs: Pairs, order: Any) -> None:
    assert confusion(order.sample(pairs, len(pairs))) == confusion(pairs)


@given(PAIRS)
def test_rates_are_shares_that_add_up(pairs: Pairs) -> None:
    found = rates(confusion(pairs))
    assert all(0 <= value <= 1 for value in found.values())
    if pairs:
        assert found["accuracy"] + found["fn_rate"] + found["fp_rate"] == pytest.approx(1)


@given(PAIRS, st.sampled_from(["pass", "fail"]))
def test_an_invalid_answer_more_never_betters_a_documented_rate(pairs: Pairs, label: Label) -> None:
    before, after = rates(confusion(pairs)), rates(confusion([*pairs, (label, None)]))
    assert after["accuracy"] <= before["accuracy"]
    for name in ("false_release_rate", "false_block_rate"):
        assert after[name] >= before[name]
