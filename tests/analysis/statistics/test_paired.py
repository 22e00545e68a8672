from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy import stats

from evalharness.analysis.statistics.paired import PairedChange, detectable_difference, holm, paired_changes, sign_flip_p, smallest_p


def change(base: list[float], candidate: list[float], groups: list[str | None] | None = None, bounded: bool = True) -> PairedChange:
    (found,) = paired_changes(np.array(base)[:, None], np.array(candidate)[:, None], groups, is_bounded=[bounded])
    return found


@pytest.mark.parametrize(("up", "down"), [(0, 1), (3, 12), (0, 5), (7, 7), (100, 160), (900, 1000)])
def test_without_groups_rates_get_the_exact_test_of_mcnemar(up: int, down: int) -> None:
    sums = np.r_[np.ones(up), -np.ones(down), np.zeros(50)]
    assert sign_flip_p(sums) == pytest.approx(stats.binomtest(min(up, down), up + down).pvalue)


@pytest.mark.parametrize("seed", range(4))
def test_other_scores_get_the_permutation_test_that_scipy_enumerates(seed: int) -> None:
    sums = np.random.default_rng(seed).integers(-100, 100, 12) / 100.0
    expected = stats.permutation_test((sums,), np.sum, permutation_type="samples", n_resamples=np.inf).pvalue
    assert sign_flip_p(sums / np.abs(sums).max()) == pytest.approx(expected, abs=0.02)  # rounded to a hundredth of the largest


def test_beyond_what_is_counted_the_normal_distribution_gives_nearly_the_same() -> None:
    generator = np.random.default_rng(0)
    sums = generator.choice([-1.0, 1.0], 3000, p=[0.48, 0.52])
    up = int((sums > 0).sum())
    assert sign_flip_p(sums) == pytest.approx(stats.binomtest(up, 3000).pvalue, rel=0.06)


@pytest.mark.parametrize("sums", [[], [0.0, 0.0], [1.0, -1.0], [1e-17, -3e-17]], ids=["none", "zeros", "balanced", "rounding"])
def test_no_difference_has_p_1(sums: list[float]) -> None:
    assert sign_flip_p(np.array(sums)) == 1.0


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=40))
def test_p_is_a_chance_and_does_not_know_which_side_is_which(sums: list[float]) -> None:
    p = sign_flip_p(np.array(sums))
    assert 0 < p <= 1
    assert sign_flip_p(-np.array(sums)) == pytest.approx(p)


def test_the_interval_of_rates_is_that_of_agresti_and_min() -> None:
    # 53 pairs, 8 up, 16 down: their formula by hand, z = 1.959964.
    base, candidate = [1.0] * 16 + [0.0] * 8 + [1.0] * 29, [0.0] * 16 + [1.0] * 8 + [1.0] * 29
    found = change(base, candidate)
    difference, error = (8.5 - 16.5) / 55, (25 - 64 / 55) ** 0.5 / 55
    assert (found.low, found.high) == pytest.approx((difference - 1.959964 * error, difference + 1.959964 * error))
    assert (found.num_pairs, found.num_up, found.num_down, found.difference) == pytest.approx((53, 8, 16, -8 / 53))


def test_a_pair_counts_where_both_sides_have_the_score_and_without_one_nothing_is_known() -> None:
    nan = float("nan")
    found = change([1.0, nan, 0.5, 0.25], [0.5, 1.0, nan, 0.25])
    assert (found.num_pairs, found.base, found.candidate) == (2, 0.625, 0.375)
    found = change([nan], [1.0])
    assert (found.num_pairs, found.p) == (0, 1.0)
    assert np.isnan([found.base, found.candidate, found.difference, found.low, found.high, found.standard_error]).all()


def test_a_bounded_score_that_nowhere_changed_still_has_an_interval() -> None:
    found = change([0.5] * 98, [0.5] * 98)
    assert (found.difference, found.low, found.high) == pytest.approx((0, -0.0196, 0.0196), abs=1e-4)
    assert np.isnan(change([0.5] * 98, [0.5] * 98, bounded=False).low)


def test_groups_that_change_together_are_one_observation() -> None:
    base, candidate = [1.0] * 40, [0.0] * 20 + [1.0] * 20
    apart = change(base, candidate)
    together = change(base, candidate, [f"g{number // 10}" for number in range(40)])
    assert (apart.p, together.p) == pytest.approx((2**-19, 0.5))  # two groups of four changed: 2 of 4 signs are as extreme
    assert together.high - together.low > 2 * (apart.high - apart.low)
    assert together.num_groups == 4
    assert change([0.0] * 4, [1.0] * 4, ["a", None, "a", None]).num_groups == 3  # cases without a group are groups of their own


def test_the_same_seed_gives_the_same_interval() -> None:
    values = np.random.default_rng(0).random((2, 50, 1))
    first, again = (paired_changes(*values, is_bounded=[True], seed=3) for _ in range(2))
    assert first == again
    assert first != paired_changes(*values, is_bounded=[True], seed=4)


@pytest.mark.slow
def test_what_could_have_been_shown_is_shown_four_times_in_five() -> None:
    # 2,000 runs of 400 cases: the share's standard error is 0.9 %, so ±4 % fails once in 100,000 for a right formula.
    generator = np.random.default_rng(0)
    noise = generator.normal(0, 1, (2000, 400))
    smallest = detectable_difference(1 / 400**0.5, 0.05)
    shown = [sign_flip_p(row + smallest) < 0.05 for row in noise]
    assert np.mean(shown) == pytest.approx(0.8, abs=0.04)


def test_three_groups_can_never_be_significant() -> None:
    assert [smallest_p(number) for number in (0, 1, 3, 6)] == [1.0, 1.0, 0.25, 0.03125]


@pytest.mark.slow
@pytest.mark.parametrize("is_binary", [True, False], ids=["rate", "mean"])
def test_grouped_differences_are_covered_and_false_alarms_are_rare(is_binary: bool) -> None:
    # 400 runs of 60 groups of up to five cases, each group with its own drift. Nominal 95 %, standard error 1.1 %: a share
    # below 91.5 % happens once in 1,000 runs of a right interval; the seed is fixed.
    generator = np.random.default_rng(5)
    covered = alarms = 0
    for _ in range(400):
        sizes = generator.integers(1, 6, 60)
        codes = np.repeat(np.arange(60), sizes)
        drift = generator.normal(0, 0.15, 60)[codes]
        chance = np.clip(0.7 + np.stack([drift, -drift]), 0, 1)
        values = (generator.random((2, len(codes))) < chance) * 1.0 if is_binary else chance + generator.normal(0, 0.1, chance.shape)
        (found,) = paired_changes(values[0][:, None], values[1][:, None], [str(code) for code in codes], is_bounded=[is_binary])
        covered += found.low <= 0 <= found.high
        alarms += found.p < 0.05
    assert covered / 400 > 0.915
    assert alarms / 400 < 0.085


def test_holm_matches_a_worked_example_and_counts_only_tests_that_can_be_significant() -> None:
    # 4 × 0.005, 3 × 0.01, 2 × 0.03, 1 × 0.04 raised to the one before.
    corrected, num_counted = holm([0.01, 0.04, 0.03, 0.005])
    assert corrected == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert num_counted == 4
    assert holm([]) == ([], 1)
    assert holm([0.2]) == ([0.2], 1)
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
