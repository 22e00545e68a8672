"""Which rows run together. Run: pytest tests/backends/hf/test_batching.py"""

from __future__ import annotations

import pytest

from evalharness.backends.hf.batching import groups_of_equal_plan, take_batch
from tests.backends.hf_models import prompt

pytestmark = pytest.mark.engine


def test_rows_that_differ_in_the_seed_only_share_a_group():
    groups = groups_of_equal_plan([prompt(0, [5], seed=1), prompt(1, [5], seed=2), prompt(2, [5], max_new_tokens=3)])
    assert [[item.index for item in group] for group in groups] == [[0, 1], [2]]


def test_plans_with_lists_in_their_extras_are_compared():
    plans = [(("bad_words_ids", [[1]]),), (("bad_words_ids", [[2]]),), (("bad_words_ids", [[1]]),)]
    groups = groups_of_equal_plan(prompt(index, [5], extra=extra) for index, extra in enumerate(plans))
    assert [[item.index for item in group] for group in groups] == [[0, 2], [1]]


BATCHES = {
    "by budget": ([1, 2, 3, 15], 20, 99, [[15], [3, 2, 1]]),
    "by rows": ([1, 1, 1, 1, 1], 99, 2, [[1, 1], [1, 1], [1]]),
    "one that never fits": ([5, 50], 20, 99, [[50], [5]]),
}


@pytest.mark.parametrize("lengths, budget, cap, expected", BATCHES.values(), ids=BATCHES.keys())
def test_batches_take_the_longest_rows_that_fit(lengths, budget, cap, expected):
    rows = list(lengths)
    batches = []
    while rows:
        batches.append(sorted(take_batch(rows, int, lambda num, width: num <= cap and num * width <= budget, 10**6), reverse=True))
    assert batches == expected


def test_a_row_that_needs_more_padding_than_a_batch_is_worth_waits_for_the_next():
    rows = [1, 2, 90, 95, 100]
    assert take_batch(rows, int, lambda num, width: True, 20) == [90, 95, 100]
    assert rows == [1, 2]
