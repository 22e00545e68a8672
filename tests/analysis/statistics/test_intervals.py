from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy import stats

from evalharness.analysis.statistics.intervals import Interval, mean_intervals, wilson_interval


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
    assert wilson_interval(0.5, 10, 0.99)[0] < wilson_interval(0.5, 10)[0]


@pytest.mark.parametrize(("rate", "n"), [(0.5, 0), (1.1, 3), (-0.1, 3), (float("nan"), 3)], ids=["no case", "above", "below", "nan"])
def test_a_rate_that_is_none_is_refused(rate: float, n: int) -> None:
    with pytest.raises(ValueError, match="a Wilson interval needs n >= 1"):
        wilson_interval(rate, n)


def one(values: list[float], groups: list[str | None] | None = None, *, rate: bool = False, bounded: bool = True, **more: Any) -> Interval:
    (found,) = mean_intervals(np.array(values)[:, None], groups, is_rate=[rate], is_bounded=[bounded], **more)
    return found


class TestIntervalsOfScores:
    def test_a_rate_and_a_bounded_score_at_its_bound_everywhere_get_wilsons(self) -> None:
        assert one([1.0] * 9 + [0.0], rate=True) == (*wilson_interval(0.9, 10), "wilson")
        assert one([1.0, float("nan"), 0.0], rate=True) == (*wilson_interval(0.5, 2), "wilson")  # a case without the score
        assert [one([value] * 20) for value in (0.0, 1.0)] == [(*wilson_interval(value, 20), "wilson") for value in (0.0, 1.0)]

    @pytest.mark.parametrize("seed", range(3))
    def test_a_mean_gets_about_the_bootstrap_that_scipy_makes(self, seed: int) -> None:
        values = np.random.default_rng(seed).beta(5, 1, 200)
        scipys = stats.bootstrap((values,), np.mean, method="BCa", n_resamples=9999, rng=seed).confidence_interval
        found = one(list(values))
        assert (found.low, found.high) == pytest.approx((scipys.low, scipys.high), abs=0.004)
        assert found.kind == "bootstrap"

    @pytest.mark.parametrize(
        ("values", "bounded"), [([0.5] * 5, True), ([0.0] * 5, False), ([0.3], True), ([], True)], ids=["equal", "counts", "one", "none"]
    )
    def test_where_nothing_varies_there_is_no_bootstrap(self, values: list[float], bounded: bool) -> None:
        found = one(values, bounded=bounded)
        assert found.kind == "none"
        assert np.isnan([found.low, found.high]).all()

    @pytest.mark.parametrize("rate", [True, False])
    def test_cases_that_go_together_widen_it(self, rate: bool) -> None:
        values = [float(number < 30) for number in range(60)]
        groups = [f"g{number // 6}" for number in range(60)]
        apart, together = one(values, rate=rate), one(values, groups, rate=rate)
        assert together.high - together.low > 2 * (apart.high - apart.low)
        # Where every case is right, a group counts as one case.
        assert one([1.0] * 60, groups, rate=True).low < wilson_interval(1.0, 10)[0]

    def test_the_same_seed_gives_the_same_interval(self) -> None:
        values = list(np.random.default_rng(0).random(50))
        assert one(values, seed=3) == one(values, seed=3) != one(values, seed=4)

    def test_many_groups_are_drawn_in_bundles_with_about_the_same_result(self) -> None:
        values = np.random.default_rng(0).random(5000)
        found, error = one(list(values)), stats.sem(values)
        assert (found.low, found.high) == pytest.approx((values.mean() - 1.96 * error, values.mean() + 1.96 * error), abs=0.15 * error)

    @pytest.mark.slow
    @pytest.mark.parametrize("rate", [True, False], ids=["wilson", "bootstrap"])
    @pytest.mark.parametrize("truth", [0.9, 0.5])
    def test_grouped_scores_are_covered(self, rate: bool, truth: float) -> None:
        # 300 runs of 40 groups of up to five cases. Nominal 95 %, standard error 1.3 %: fewer than 91 % happens once in
        # 1,000 runs of a right interval; the seed is fixed.
        generator = np.random.default_rng(1)
        covered = 0
        for _ in range(300):
            codes = np.repeat(np.arange(40), generator.integers(1, 6, 40))
            chance = generator.beta(4 * truth, 4 * (1 - truth), 40)[codes]
            values = (generator.random(len(codes)) < chance) * 1.0 if rate else chance + generator.normal(0, 0.05, len(codes))
            found = one(list(values), [str(code) for code in codes], rate=rate)
            covered += found.low <= truth <= found.high
        assert covered / 300 > 0.91
