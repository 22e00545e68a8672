from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalharness.statistics import wilson_interval


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    # Roots p of (rate - p)² = z² p (1 - p) / n with z = 1.959964, found by bisection.
    [(0, 20, 0.0, 0.1611), (20, 20, 0.8389, 1.0), (10, 20, 0.2993, 0.7007), (1, 1, 0.2065, 1.0), (950, 1000, 0.9347, 0.9619)],
    ids=["none", "all", "half", "one", "many"],
)
def test_wilson_interval_matches_reference_values(successes: int, n: int, low: float, high: float) -> None:
    assert wilson_interval(successes / n, n) == pytest.approx((low, high), abs=5e-5)


@given(st.integers(1, 10**6), st.floats(0, 1))
def test_wilson_interval_holds_the_rate_and_stays_within_bounds(n: int, rate: float) -> None:
    low, high = wilson_interval(rate, n)
    assert 0.0 <= low <= rate <= high <= 1.0


def test_more_confidence_is_a_wider_interval() -> None:
    assert wilson_interval(0.5, 10, 0.99)[0] < wilson_interval(0.5, 10)[0]


@pytest.mark.parametrize(("rate", "n"), [(0.5, 0), (1.1, 3), (-0.1, 3), (float("nan"), 3)], ids=["no case", "above", "below", "nan"])
def test_a_rate_that_is_none_is_refused(rate: float, n: int) -> None:
    with pytest.raises(ValueError, match="a Wilson interval needs n >= 1"):
        wilson_interval(rate, n)
