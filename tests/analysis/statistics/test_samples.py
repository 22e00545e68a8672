from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from evalharness.analysis.gate_grammar import parse_gate
from evalharness.analysis.statistics.intervals import mean_intervals
from evalharness.analysis.statistics.paired import paired_changes
from evalharness.analysis.statistics.samples import repeated_standard_error, sample_scores


@given(st.integers(1, 8), st.data())
def test_scores_are_shares_of_all_choices_of_k(num_samples: int, data: st.DataObject) -> None:
    num_correct, k = data.draw(st.integers(0, num_samples)), data.draw(st.integers(1, num_samples))
    correct = [True] * num_correct + [False] * (num_samples - num_correct)
    choices = list(combinations(correct, k))
    scores = sample_scores(correct, ks=[k])
    assert scores[f"pass@{k}"] == pytest.approx(sum(map(any, choices)) / len(choices))
    assert scores.get(f"pass^{k}", scores["pass@1"] if k == 1 else None) == pytest.approx(sum(map(all, choices)) / len(choices))


def test_repeats_of_a_case_are_no_new_cases() -> None:
    values = np.array([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0], [1.0, 0.0]])
    expected = np.std(values.mean(axis=1), ddof=1) / 2
    assert repeated_standard_error(values) == pytest.approx(expected)
    assert repeated_standard_error(np.hstack([values] * 10)) == pytest.approx(expected)


def test_the_error_of_repeats_is_that_of_drawing_cases_anew() -> None:
    # 2,000 runs of 40 cases × 3 repeats; the spread's own relative error is 1.6 %, so 8 % is five of them.
    generator = np.random.default_rng(0)
    runs = generator.normal(0, 1, (2000, 40, 1)) + generator.normal(0, 2, (2000, 40, 3))
    estimates = [repeated_standard_error(run) for run in runs]
    assert np.mean(estimates) == pytest.approx(runs.mean(axis=(1, 2)).std(), rel=0.08)


def test_one_group_has_no_standard_error() -> None:
    assert np.isnan(repeated_standard_error([[1.0], [0.0]], ["a", "a"]))


def test_scores_of_several_samples_are_named_as_gates_name_them() -> None:
    scores = sample_scores([True, False, True, False, False], ["a", "b", "a", "b", "b"])
    assert scores == pytest.approx(
        {"pass@1": 0.4, "pass@2": 0.7, "pass@4": 1.0, "pass@5": 1.0, "pass^2": 0.1, "pass^4": 0.0, "pass^5": 0.0, "majority": 0.0}
    )
    assert all(parse_gate(f"{name} >= 0.5").metric == name for name in scores)
    assert sample_scores([True], ks=[1]) == {"pass@1": 1.0}


@pytest.mark.parametrize(
    ("answers", "majority"),
    [
        (["x", "x", "y"], 1.0),
        ([None, None, "y"], 0.0),
        ([None, "x", None], 1.0),
        ([None] * 3, 0.0),
        (["x", "y", "y", "x"], 1.0),
        (["y", "x", "x", "y"], 0.0),
    ],
    ids=["most", "a wrong one alone", "a right one alone", "no answer", "a tie with the right one first", "a tie with a wrong one first"],
)
def test_the_majority_is_right_where_the_answer_given_most_often_is(answers: list[str | None], majority: float) -> None:
    assert sample_scores([answer == "x" for answer in answers], answers)["majority"] == majority


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (([],), {}, "at least one sample"),
        (([True], ["a", "b"]), {}, "2 answers for 1 samples"),
        (([True],), {"ks": [2]}, "needs 1 <= k <= num_samples"),
        (([True],), {"ks": [0]}, "needs 1 <= k <= num_samples"),
    ],
    ids=["no samples", "other answers", "k too large", "k too small"],
)
def test_samples_that_do_not_fit_together_are_refused(arguments, options, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sample_scores(*arguments, **options)


def drawn_scores(generator: np.random.Generator, chances: np.ndarray, num_samples: int, name: str) -> np.ndarray:
    """Return one score per case, of samples drawn with each case's own chance of a correct one."""
    correct = generator.random((len(chances), num_samples)) < chances[:, None]
    return np.array([[sample_scores(list(row))[name]] for row in correct])


@pytest.mark.parametrize(("name", "truth"), [("pass@1", 0.5), ("pass@2", 2 / 3), ("pass^2", 1 / 3)])
def test_intervals_of_repeated_cases_hold_the_truth(name: str, truth: float) -> None:
    # Chances uniform over 0…1. Were 95 % of intervals right, fewer than 89 % of 200 would be with a chance of 0.02 %.
    generator = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        values = drawn_scores(generator, generator.random(50), 4, name)
        (interval,) = mean_intervals(values, is_rate=[False], is_bounded=[True])
        covered += interval.low <= truth <= interval.high
    assert covered / 200 > 0.89


def test_repeats_raise_no_false_alarms_between_equal_checkpoints() -> None:
    # At a level of 5 %, more than 10 % of 200 comparisons would raise an alarm with a chance of 0.05 %.
    generator = np.random.default_rng(2)
    alarms = 0
    for _ in range(200):
        chances = generator.random(40)
        sides = [drawn_scores(generator, chances, 4, "pass@2") for _ in range(2)]
        (change,) = paired_changes(*sides, is_bounded=[True])
        alarms += change.p < 0.05
    assert alarms / 200 <= 0.10
