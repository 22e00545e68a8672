"""Rates with their denominators, votes, decode grids. Run: pytest tests/tasks/stage_b/test_metrics.py"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from evalharness.api.errors import ConfigError, ContractTypeError
from evalharness.api.options import DecodeOptions, GenerationOptions, StopOptions
from evalharness.tasks.stage_a.data import Label
from evalharness.tasks.stage_b import ONE_VOTE, THREE_VOTES
from evalharness.tasks.stage_b.metrics import Ballot, Confusion, cast, confusion, decode_grid, rates

Pairs = list[tuple[Label, "Label | None"]]
TP, FN, FP, TN = ("pass", "pass"), ("pass", "fail"), ("fail", "pass"), ("fail", "fail")


def test_the_documented_rates() -> None:
    pairs: Any = [TP, TP, FN, FP, TN, TN]
    found = rates(confusion(pairs))
    assert found["accuracy"] == pytest.approx(4 / 6)
    assert found["fp_rate"] == found["fn_rate"] == pytest.approx(1 / 6)
    assert found["false_release_rate"] == found["false_block_rate"] == pytest.approx(1 / 3)
    assert found["unparsed_rate"] == 0


def test_no_verdict_is_counted_by_itself_and_as_the_mistake_of_its_side() -> None:
    pairs: Any = [TP, TP, FN, FP, TN, ("pass", None), ("fail", None), ("fail", None)]
    cells = confusion(pairs)
    assert cells == Confusion(tp=2, fn=1, fp=1, tn=1, num_unparsed_pass=1, num_unparsed_fail=2)
    assert (cells.num_unparsed, cells.num_tickets, cells.num_blocked, cells.num_released) == (3, 8, 2, 3)
    found = rates(cells)
    assert (found["accuracy"], found["unparsed_rate"], found["fn_rate"], found["fp_rate"]) == (3 / 8, 3 / 8, 2 / 8, 3 / 8)
    assert (found["false_release_rate"], found["false_block_rate"]) == (3 / 5, 2 / 4)
    assert (found["false_release_rate_parsed"], found["false_block_rate_parsed"]) == (1 / 3, 1 / 3)
    found = rates(Confusion(num_unparsed_pass=3, num_unparsed_fail=3))
    assert (found["false_release_rate"], found["false_block_rate"], found["accuracy"]) == (1.0, 1.0, 0.0)


PAIRS = st.lists(st.tuples(st.sampled_from(["pass", "fail"]), st.sampled_from(["pass", "fail", None])), max_size=30)


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


SETTING: dict[str, Any] = {"temperature": 0.7, "top_p": 0.9, "max_new_tokens": 64}


@pytest.mark.parametrize(
    "votes, prediction, agreement",
    [(("pass",), "pass", 1.0), (("pass", "pass", "fail"), "pass", 2 / 3), (("pass", "fail", "fail", None), "fail", 2 / 3)],
    ids=["one", "two-of-three", "beside-invalid"],
)
def test_the_majority_of_the_votes_decides_and_a_sure_mistake_is_harder(votes: Any, prediction: Label, agreement: float) -> None:
    ballot = cast(votes)
    assert (ballot.prediction, ballot.agreement, ballot.difficulty) == (prediction, agreement, 1 - agreement)
    assert (ballot.hard_wrong(prediction), ballot.hard_wrong("fail" if prediction == "pass" else "pass")) == (0.0, agreement)
    assert Ballot(0, 0, 2).hard_wrong("pass") == 0.0


VOTES = st.lists(st.sampled_from(["pass", "fail", None]), min_size=1, max_size=12)


@given(VOTES)
def test_agreement_and_difficulty_stay_in_their_ranges(votes: list[Label | None]) -> None:
    ballot = cast(votes)
    assert ballot.num_pass + ballot.num_fail + ballot.num_invalid == len(votes)
    assert 0 <= ballot.difficulty <= 0.5
    assert ballot.agreement == 0 or 0.5 <= ballot.agreement <= 1


def test_sample_i_of_a_setting_has_its_seed_plus_i_and_without_a_seed_they_differ_too() -> None:
    options = decode_grid([{**SETTING, "seed": 43}, {**SETTING, "temperature": 0.3, "seed": 50}], samples_per_decode=3)
    assert [(one.temperature, one.seed) for one in options] == [(0.7, 43), (0.7, 44), (0.7, 45), (0.3, 50), (0.3, 51), (0.3, 52)]
    assert [one.seed for one in decode_grid([SETTING], samples_per_decode=2)] == [0, 1]
    assert [one.seed for one in decode_grid([SETTING])] == [None]


def test_a_setting_becomes_options_that_clean_up_spaces() -> None:
    (options,) = decode_grid([{**SETTING, "stop": ["<|im_end|>"], "no_repeat_ngram_size": 4, "max_prompt_tokens": 100, "seed": None}])
    assert options == GenerationOptions(
        temperature=0.7,
        top_p=0.9,
        max_new_tokens=64,
        stop=StopOptions(("<|im_end|>",)),
        no_repeat_ngram_size=4,
        max_prompt_tokens=100,
        decode=DecodeOptions(clean_up_tokenization_spaces=True),
    )


BAD_GRIDS = {
    "empty": ([], 1, "the decode grid is empty"),
    "no samples": ([SETTING], 0, "samples_per_decode must be an int of at least 1, got 0"),
    "bool": ([SETTING], True, "samples_per_decode must be an int of at least 1, got True"),
    "without top_p": ([{**SETTING, "top_p": None}], 1, r"grid\[0\] lacks top_p"),
    "unknown": ([SETTING, {**SETTING, "top_k": 3}], 1, r"grid\[1\] has an unknown 'top_k'"),
    "greedy": ([{**SETTING, "temperature": 0}], 2, r"grid\[0\]: samples_per_decode 2 with greedy decoding gives equal samples"),
    "bare string": ([{**SETTING, "stop": "x"}], 1, "stop.stop must be a sequence of strings"),
}


@pytest.mark.parametrize("grid, samples, problem", BAD_GRIDS.values(), ids=BAD_GRIDS.keys())
def test_a_wrong_decode_grid_is_refused(grid: Any, samples: Any, problem: str) -> None:
    with pytest.raises((ConfigError, ContractTypeError), match=problem):
        decode_grid(grid, samples)


def test_the_evals_decodes_are_one_greedy_answer_and_the_trainers_three_votes() -> None:
    assert [one.samples for one in ONE_VOTE] == [False]
    assert [(one.temperature, one.top_p, one.repetition_penalty, one.seed) for one in THREE_VOTES] == [
        (heat, 0.9, 1.05, 43) for heat in (0.3, 0.5, 0.7)
    ]
