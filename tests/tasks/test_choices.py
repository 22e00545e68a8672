"""Multiple choice by likelihood: rows, requests, what sums and means decide. Run: pytest tests/tasks/test_choices.py"""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from evalharness.api.errors import ConfigError
from evalharness.api.requests import GenerationResult, TextGenerationRequest, VlmGenerationRequest
from evalharness.api.scoring import ScoringRequest
from evalharness.tasks import DataWarning, choices

ROW = {"id": "sky-1", "prompt": "What colour is the sky?", "choices": ["Green", "Blue"], "answer": "Blue"}
GIVEN_TEXT = Path(__file__).parents[2] / "fixtures" / "given_text"


def load(folder, *rows):
    (folder / "choices.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return choices.load_cases(folder)


def scored(text, *logprobs):
    return GenerationResult(text, text, "scored", token_ids=tuple(range(len(logprobs))), logprobs=logprobs, logprobs_kind="raw")


def asked(case):
    """Return what the request asks in its step, and as its question."""
    steps = choices.request(case)
    [step, _] = next(steps)
    with pytest.raises(StopIteration) as end:
        steps.send([])
    return step, end.value.value


def test_all_choices_are_a_step_and_the_right_one_is_the_question(tmp_path):
    [case] = load(tmp_path, {**ROW, "choices": ["Green", "Blue", "Red"]})
    chat = TextGenerationRequest([{"role": "user", "content": "What colour is the sky?"}])
    requests = [ScoringRequest(chat, choice) for choice in ("Green", "Red", "Blue")]
    assert asked(case) == (requests, requests[-1])
    assert case.reference == "Blue"


def test_a_bare_text_passes_the_template(tmp_path):
    row = {"id": "a", "text": "The sky is", "choices": [" green", " blue"], "answer": " blue", "ends": True}
    requests = [ScoringRequest("The sky is", choice, True) for choice in (" green", " blue")]
    assert asked(load(tmp_path, row)[0]) == (requests, requests[-1])


@pytest.mark.parametrize(
    "changes, problem",
    [
        ({"choices": ["Blue"]}, "choices must be a list of at least two texts"),
        ({"choices": ["Blue", ""]}, "choices must be a list of at least two texts"),
        ({"answer": "Red"}, "answer must be one of the choices, got 'Red'"),
        ({"answer": 1}, "answer must be one of the choices, got 1"),
        ({"ends": "yes"}, "ends must be true or false, got 'yes'"),
        ({"text": "The sky"}, "has text and prompt; a bare text is the whole prompt"),
        ({"options": 1}, "has 'options'"),
    ],
    ids=["one", "empty", "unknown answer", "answer by number", "ends", "two prompts", "unknown key"],
)
def test_a_row_that_is_wrong_is_named(tmp_path, changes, problem):
    with pytest.raises(ConfigError, match=f"choices.jsonl:1.*{problem}"):
        load(tmp_path, {**ROW, **changes})
    with pytest.raises(ConfigError, match="choices.jsonl:1: text must be a text, got 5"):
        load(tmp_path, {"id": "a", "text": 5, "choices": ["a", "b"], "answer": "a"})


def test_equal_choices_count_once_and_cost_at_most_their_row(tmp_path):
    with pytest.warns(DataWarning, match=r"choices.jsonl:\d: equal choices count once") as warned:
        twice, equal, good = load(
            tmp_path,
            {**ROW, "choices": ["Green", "Blue", "Green", "Blue"]},
            {**ROW, "id": "equal", "choices": ["Blue", "Blue"]},
            {**ROW, "id": "good"},
        )
    assert len(warned) == 2
    assert (twice.others, twice.invalid) == (("Green",), None)
    assert equal.invalid == "choices.jsonl:2: all choices are equal, got ['Blue', 'Blue']"
    assert good.invalid is None


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path):
    (tmp_path / "choices.jsonl").write_text(json.dumps(ROW) + "\r\n", "utf-8-sig")
    assert len(choices.load_cases(tmp_path)) == 1


def test_sums_and_means_may_decide_otherwise():
    right, other = scored("Bluebird", -1.0, -1.0, -1.0), scored("Red", -2.0)
    judged = choices.judge(right, [other])
    assert judged.scores == {
        "acc": 0.0,
        "acc_per_byte": 1.0,  # 3 nats of 8 bytes, 2 of 3
        "acc_per_token": 1.0,  # 3 nats of 3 tokens, 2 of 1
        "p_right": pytest.approx(math.exp(-3) / (math.exp(-3) + math.exp(-2))),
    }
    assert judged.problem == "'Red' is at least as likely as the right 'Bluebird'"
    assert judged.details["choices"] == [{"text": "Bluebird", "logprob": -3.0, "tokens": 3}, {"text": "Red", "logprob": -2.0, "tokens": 1}]


def test_the_likeliest_is_right_a_tie_wrong_and_impossible_choices_have_no_share():
    judged = choices.judge(scored("a", -0.1), [scored("b", -3.0), scored("c", -0.2)])
    assert (judged.scores["acc"], judged.problem) == (1.0, "")
    tie = choices.judge(scored("a", -1.0), [scored("b", -1.0)])
    assert (tie.scores["acc"], tie.scores["p_right"]) == (0.0, 0.5)
    impossible = choices.judge(scored("a", -math.inf), [scored("b", -math.inf)])
    assert (impossible.scores["acc"], impossible.scores["p_right"], impossible.details["choices"][0]["logprob"]) == (0.0, 0.0, "-inf")
    assert choices.judge(scored("a", -1.0), [scored("b", -math.inf)]).scores["p_right"] == 1.0


@pytest.mark.parametrize("values", [(None, -1.0), (None,), ()], ids=["first", "only", "none"])
def test_a_choice_with_a_token_without_a_value_is_not_weighed(values):
    for right, other in ((scored("ab", *values), scored("cd", -2.0)), (scored("cd", -2.0), scored("ab", *values))):
        with pytest.raises(ConfigError, match="'ab' cannot be weighed: nothing stands before its first token"):
            choices.judge(right, [other])


def test_the_shipped_rows_are_photos_and_work_orders_of_the_benchmark():
    cases = choices.load_cases(GIVEN_TEXT)
    assert len(cases) == 36
    assert not any(case.invalid for case in cases)
    for case in cases:
        step, question = asked(case)
        assert len(step) == (4 if case.images else 2)
        assert isinstance(question.prompt, VlmGenerationRequest if case.images else TextGenerationRequest)
