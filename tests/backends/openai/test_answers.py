"""Answers of servers. No network. Run: pytest tests/backends/openai/test_answers.py"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from evalharness.api.errors import BackendError
from evalharness.backends.base import Completion, Prompt, SamplingPlan
from evalharness.backends.fake import FakeTokenizer
from evalharness.backends.openai.payload import completion_of
from tests.backends.plans import PLAN

PROMPT = Prompt(4, "abc", (1, 2, 3), 3, PLAN)
TOKENIZER = FakeTokenizer()


def read(answer: Any, *, plan: SamplingPlan = PLAN, exact: bool = True) -> Completion:
    return completion_of(answer, replace(PROMPT, plan=plan), tokenizer=TOKENIZER, vocab_size=1000, exact_prompt=exact)


def choice(**values: Any) -> dict[str, Any]:
    return {"choices": [{"text": "x", "finish_reason": "length", "token_ids": [7], **values}]}


def test_ids_and_logprobs_of_the_choice_are_taken() -> None:
    answer = choice(token_ids=[101, 102], logprobs={"token_logprobs": [-0.5, -0.3]})
    got = read(answer, plan=replace(PLAN, logprobs=True))
    assert (got.token_ids, got.logprobs, got.stopped_by, got.exact_ids, got.index) == ((101, 102), (-0.5, -0.3), "length", True, 4)


def test_ids_and_logprobs_of_the_content_are_taken_as_numbers() -> None:
    content = [{"token_id": 701, "logprob": "-0.7"}, {"token_id": "702", "logprob": -0.2}]
    got = read(choice(token_ids=None, logprobs={"content": content}), plan=replace(PLAN, logprobs=True))
    assert (got.token_ids, got.logprobs) == ((701, 702), (-0.7, -0.2))


def test_a_text_without_ids_is_tokenised_again_and_says_so() -> None:
    answer = {
        **choice(text="hi", token_ids=None, logprobs={"tokens": [".", " I'm"], "token_logprobs": [-1, -2]}),
        "usage": {"completion_tokens": 9},
    }
    got = read(answer)
    assert got.token_ids == tuple(TOKENIZER.encode("hi", add_special_tokens=False))
    assert (got.exact_ids, got.logprobs, got.num_completion_tokens) == (False, None, 9)


class Strict(FakeTokenizer):
    """As tokenizers are: they take no half of a surrogate pair."""

    def encode(self, text: str, add_special_tokens: bool = True, **more: Any) -> list[int]:
        text.encode("utf-8")
        return super().encode(text, add_special_tokens=add_special_tokens, **more)


@pytest.mark.parametrize(("text", "read_as"), [("a\ud800b", "a\ufffdb"), ("\udc00", "\ufffd"), ("\ud83d\ude00", "😀"), ("猫😀", "猫😀")])
def test_half_a_surrogate_pair_in_a_text_is_a_replacement_character(text: str, read_as: str) -> None:
    answer = choice(text=text, token_ids=None)
    got = completion_of(answer, PROMPT, tokenizer=Strict(), vocab_size=1000, exact_prompt=True)
    assert got.token_ids == tuple(TOKENIZER.encode(read_as, add_special_tokens=False))


def test_without_logprobs_there_are_none() -> None:
    assert read(choice()).logprobs is None


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ([None], "is not a number"),
        ([float("nan")], "not finite"),
        ([float("-inf")], "not finite"),
        ([-9999.0], "not finite"),
        ([0.5], "above 0: 0.5"),
        ([-1, -2], "2 log-probabilities for 1 tokens"),
        (None, "no log-probabilities for 1 tokens"),
    ],
)
def test_logprobs_that_are_none_are_an_error(values: Any, match: str) -> None:
    with pytest.raises(BackendError, match=match):
        read(choice(logprobs={"token_logprobs": values}), plan=replace(PLAN, logprobs=True))


@pytest.mark.parametrize(
    ("answer", "match"),
    [
        ({"choices": []}, "expected 1, got 0"),
        ({"choices": [{}, {}]}, "expected 1, got 2"),
        ({"choices": {"0": {}}}, "no list of choices"),
        ({}, "no list of choices"),
        ([], "is not an object"),
        ({"choices": ["x"]}, "choice is not an object"),
        ({"choices": [{"finish_reason": "stop"}]}, "has no text"),
        ({"choices": [{"finish_reason": "stop", "message": {"content": None}}]}, "has no text"),
        ({"choices": [{"finish_reason": "tool_calls", "message": {"content": "", "tool_calls": [{}]}}]}, "took tool calls out"),
        (choice(finish_reason="abort"), "finish_reason 'abort'"),
        (choice(finish_reason=None), "finish_reason None"),
        (choice(token_ids=["x"]), "token ids are not integers"),
        (choice(token_ids=[-1]), "token ids are not integers"),
        (choice(token_ids=[7.5]), "token ids are not integers"),
        (choice(token_ids=[True]), "token ids are not integers"),
        (choice(token_ids=["7" * 5000]), "token ids are not integers"),
        (choice(token_ids=[1000]), "token id 1000, and the checkpoint's vocabulary ends at 999: it serves another model"),
        (choice(token_ids=[]), "gave no token and says that the room for 8 is used up"),
        (choice(finish_reason="stop"), r"stop reason None\), and none of the tokens that end one is there"),
        ({"error": {"message": "out of memory"}}, "no list of choices: .*out of memory"),
        (choice(token_ids=[7] * 9), "gave 9 tokens where 8 were allowed"),
    ],
)
def test_answers_that_are_none_are_errors(answer: Any, match: str) -> None:
    with pytest.raises(BackendError, match=match):
        read(answer)


def test_another_count_of_the_prompt_is_another_prompt() -> None:
    with pytest.raises(BackendError, match="made 4 tokens of a prompt that has 3"):
        read({**choice(), "usage": {"prompt_tokens": 4}})
    assert read({**choice(), "usage": {"prompt_tokens": 4}}, exact=False).num_prompt_tokens == 4


def test_an_end_at_a_stop_string_is_told_from_one_at_the_end_token() -> None:
    plan = replace(PLAN, stop_strings=("row",))
    got = read(choice(text="The b", token_ids=None, finish_reason="stop", stop_reason="row"), plan=plan)
    assert got.stopped_by == "string"
    assert TOKENIZER.decode(list(got.token_ids)) == "The brow"
    ended = read(choice(text="The b", token_ids=None, finish_reason="stop", stop_reason=None), plan=plan)
    assert (ended.stopped_by, ended.token_ids[-1]) == ("id", 2)


def test_logprobs_that_were_asked_for_and_belong_to_no_id_are_an_error() -> None:
    answer = choice(token_ids=None, logprobs={"tokens": ["x"], "token_logprobs": [-1.0]})
    with pytest.raises(BackendError, match="no token ids, so its log-probabilities belong to none"):
        read(answer, plan=replace(PLAN, logprobs=True))


def test_a_text_that_was_cut_at_a_string_which_the_server_does_not_name_is_cut_there() -> None:
    assert read(choice(finish_reason="stop"), plan=replace(PLAN, stop_strings=("row",))).stopped_by == "string"


@pytest.mark.parametrize("told", [120, "x"], ids=["id", "text"])
def test_a_text_without_ids_that_ended_at_a_stop_id_has_that_id(told: object) -> None:
    [letter] = TOKENIZER.encode("x", add_special_tokens=False)
    ended = choice(text="hi", token_ids=None, finish_reason="stop", stop_reason=letter if told == 120 else told)
    assert read(ended, plan=replace(PLAN, stop_token_ids=(2, letter))).token_ids[-1] == letter


def test_what_an_answer_says_is_shown_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BackendError, match="no list of choices") as caught:
        read({"error": "no such key: Bearer abcdef0123456789"})
    assert "abcdef" not in str(caught.value)
