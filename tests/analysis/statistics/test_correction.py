from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalharness.analysis.statistics.paired import holm, sign_flip_p, smallest_p


def test_holm_matches_a_worked_example() -> None:
    # 4 × 0.005, 3 × 0.01, 2 × 0.03, 1 × 0.04 raised to the one before.
    corrected, num_counted = holm([0.01, 0.04, 0.03, 0.005])
    assert corrected == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert num_counted == 4


def test_no_test_and_one_test_need_no_correction() -> None:
    assert holm([]) == ([], 1)
    assert holm([0.2]) == ([0.2], 1)


def test_tests_that_cannot_be_significant_do_not_count() -> None:
    # Two can be at 0.05 / 2; the forty slices with one changed case cannot.
    corrected, num_counted = holm([0.01, 0.5, *[1.0] * 40], [0.001, 0.002, *[1.0] * 40])
    assert num_counted == 2
    assert corrected == pytest.approx([0.02, 0.5, *[1.0] * 40])


def test_of_families_without_a_difference_one_in_twenty_gives_an_alarm_at_most() -> None:
    # 300 families of 30 exact tests, most of them of few cases. The share's standard error is 1.3 %: more than 9 % happens
    # once in 1,000 runs of a right correction; the seed is fixed.
    generator = np.random.default_rng(0)
    alarms = 0
    for _ in range(300):
        sums = [generator.choice([-1.0, 1.0], size) for size in generator.integers(1, 25, 30)]
        found, _ = holm([sign_flip_p(own) for own in sums], [smallest_p(len(own)) for own in sums])
        alarms += min(found) <= 0.05
    assert alarms / 300 < 0.09


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_a_corrected_p_is_never_smaller_and_keeps_the_order(p_values: list[float]) -> None:
    corrected, _ = holm(p_values)
    assert all(p <= q <= 1 for p, q in zip(p_values, corrected, strict=True))
    pairs = sorted(zip(p_values, corrected, strict=True))
    assert [q for _, q in pairs] == sorted(q for _, q in pairs)
