from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalharness.statistics.correction import holm


def test_holm_matches_a_worked_example() -> None:
    # 4 × 0.005, 3 × 0.01, 2 × 0.03, 1 × 0.04 raised to the one before.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_no_test_and_one_test_need_no_correction() -> None:
    assert holm([]) == []
    assert holm([0.2]) == [0.2]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_a_corrected_p_is_never_smaller_and_keeps_the_order(p_values: list[float]) -> None:
    corrected = holm(p_values)
    assert all(p <= q <= 1 for p, q in zip(p_values, corrected, strict=True))
    pairs = sorted(zip(p_values, corrected, strict=True))
    assert [q for _, q in pairs] == sorted(q for _, q in pairs)
