"""Choice metrics: equal to independent definitions, also with ties, equal choices and several right ones."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from evalharness.api.errors import ContractTypeError, ContractValueError
from evalharness.api.requests import GenerationResult
from evalharness.scores import choice_aggregates, choice_scores

CHOICES = ["Blue", "Grün", "Red"]


def scored(*logprobs: float | None) -> GenerationResult:
    return GenerationResult("", "", "scored", logprobs=logprobs)


@pytest.mark.parametrize(
    "sums, gold, acc, norm, by_bytes, tied",
    [
        ((-1.0, -2.0, -3.0), 0, 1, 1, 1, 0),
        ((-4.0, -4.0, -3.5), 0, 0, 1, 0, 0),  # four characters each, five bytes of the second
        ((-1.0, -1.0, -2.0), 1, 0, 0, 1, 1),  # of equally likely ones the first
        ((-math.inf, -math.inf, -math.inf), 0, 1, 1, 1, 1),
        ((-2.0, -9.0, -1.0), "Red", 1, 1, 1, 0),
        ((-2.0, -9.0, -1.0), [0, 2], 1, 1, 1, 0),
    ],
)
def test_sums_and_means_decide(sums, gold, acc, norm, by_bytes, tied):
    scores = choice_scores(sums, CHOICES, gold).scores
    assert [scores[name] for name in ("acc", "acc_norm", "acc_bytes", "tied")] == [acc, norm, by_bytes, tied]


def test_a_gold_may_come_out_of_a_table_or_be_several_texts():
    for gold, acc in ((np.int64(1), 0), (np.array([0, 2]), 1), (["Blue", "Red"], 1), ((1, "Red"), 0), (range(3), 1)):
        assert choice_scores(np.array([-1.0, -2.0, -3.0]), CHOICES, gold).scores["acc"] == acc
    with pytest.raises(ContractTypeError, match=r"choices must be texts, got 2; give str\(…\)"):
        choice_scores([-1.0, -2.0], ["a", 2], 0)


def test_equal_choices_stay_two():
    judged = choice_scores([scored(-1.0, -1.0), -2.0, -3.0], ["no", "no", "yes"], 1)
    assert judged.scores["acc"] == 0
    assert judged.scores["tied"] == 1
    assert len(judged.details["choices"]) == 3
    assert judged.problem == "'no' is taken for the right 'no'"


def test_mutual_information_takes_off_what_a_choice_is_worth_without_the_question():
    assert choice_scores([-3.0, -1.0, -9.0, -5.0, -1.0, -9.0], CHOICES, 0).scores["acc_mutual_info"] == 1
    assert choice_scores([-3.0, -1.0, -math.inf], CHOICES, 2, unconditional=[-1.0, -1.0, -math.inf]).scores["acc_mutual_info"] == 0


@pytest.mark.parametrize(
    "results, choices, gold, problem",
    [
        ([-1.0], CHOICES, 0, "3 choices need as many results, got 1"),
        ([-1.0, -2.0], ["a", ""], 0, "choice 1 is empty"),
        ([-1.0, -2.0], ["a", "b"], 2, "gold must be places from 0 to 1, .* got 2"),
        ([-1.0, -2.0], ["a", "b"], True, "gold must be places from 0 to 1, .* got True"),
        ([-1.0, -2.0], ["a", "b"], [], "gold must be places"),
        ([-1.0, -2.0], ["a", "b"], "c", "gold 'c' is none of the choices"),
        ([-1.0, -2.0], ["a", "b"], 1.0, "gold must be places from 0 to 1, or texts of choices, got 1.0"),
        (["-1", -2.0], ["a", "b"], 0, "'a' cannot be weighed: '-1' is no sum of log-probabilities"),
        ([scored(None, -1.0), -2.0], ["a", "b"], 0, "'a' cannot be weighed"),
        ([-1.0, math.nan], ["a", "b"], 0, "'b' cannot be weighed: nan is no sum of log-probabilities"),
    ],
)
def test_what_cannot_be_judged_is_an_error(results, choices, gold, problem):
    with pytest.raises(ContractValueError, match=problem):
        choice_scores(results, choices, gold)


ROWS = st.lists(st.tuples(st.lists(st.floats(-30, 0), min_size=3, max_size=3), st.integers(0, 2)), min_size=1, max_size=12)


@settings(max_examples=30, deadline=None)
@given(ROWS)
def test_scores_and_aggregates_keep_their_bounds(questions):
    judged = [choice_scores(sums, CHOICES, gold) for sums, gold in questions]
    for each in judged:
        assert sum(choice["share"] for choice in each.details["choices"]) == pytest.approx(1)
        assert 0 <= each.scores["brier_score"] <= 2
        assert each.scores["p_right"] <= each.scores["confidence"]
    metrics = choice_aggregates([{"scores": each.scores, "details": each.details} for each in judged])
    assert 0 <= metrics["ece"] <= 1
    assert -1 <= metrics["mcc"] <= 1
    assert 0 <= metrics["macro_f1"] <= 1
    if all(each.scores["acc"] for each in judged):
        assert metrics["macro_f1"] == 1


def test_calibration_is_the_gap_of_each_bin():
    rows = [{"scores": {"confidence": c, "acc": a}, "details": {"gold": [0, 1], "picked": 0, "choices": []}} for c, a in PAIRS]
    assert choice_aggregates(rows) == {"ece": pytest.approx((abs(0.62 - 1 + 0.68) + abs(0.95 - 1)) / 3)}


PAIRS = [(0.62, 1.0), (0.68, 0.0), (0.95, 1.0)]


@pytest.mark.parametrize("row", [{"scores": {"confidence": 0.5, "acc": 1.0}}, {"scores": {"confidence": 0.5}, "details": {}}])
def test_aggregates_say_what_a_test_did_not_record(row: dict[str, Any]) -> None:
    with pytest.raises(ContractValueError, match=r"record score\(\*\*judged.scores\) and details\(\*\*judged.details\)"):
        choice_aggregates([row])
