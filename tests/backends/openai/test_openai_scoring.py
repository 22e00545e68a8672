"""Given responses at a server: bodies and answers. Run: pytest tests/backends/openai/test_openai_scoring.py

A real vLLM server is asked in test_openai_on_vllm.py.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from evalharness.api.errors import BackendError, RequestError
from evalharness.backends.openai.flavours import FLAVOURS
from evalharness.backends.openai.payload import completion_of_response, scoring_body
from tests.backends.hf_models import prompt as prompt_of_ids


def prompt(prompt_ids=(5, 6), response_ids=(7, 8)):
    return replace(prompt_of_ids(3, prompt_ids), response_ids=tuple(response_ids))


def answer(*logprobs, ids=(5, 6, 7, 8), **changes):
    entries = [
        None if value is None else {str(token_id): {"logprob": value, "rank": 1}} for token_id, value in zip(ids, logprobs, strict=False)
    ]
    return {"choices": [{"text": "x", "prompt_logprobs": entries, **changes}]}


def test_ids_of_prompt_and_response_are_sent_as_one_prompt():
    body = scoring_body(prompt(), "served")
    assert (body["prompt"], body["prompt_logprobs"], body["max_tokens"], body["model"]) == ([5, 6, 7, 8], 0, 1, "served")


def test_the_response_has_the_last_of_the_prompts_values():
    completion = completion_of_response(answer(None, -1.0, -2.0, -3.0, prompt_token_ids=[5, 6, 7, 8]), prompt())
    assert (completion.index, completion.token_ids, completion.logprobs) == (3, (7, 8), (-2.0, -3.0))
    assert (completion.num_prompt_tokens, completion.stopped_by) == (2, "given")


def test_a_response_is_greedy_where_no_token_is_more_likely():
    asked = replace(prompt(), asks_greedy=True)
    assert scoring_body(asked, "served")["prompt_logprobs"] == 1
    for beside, is_greedy in ((-2.5, True), (-2.0, True), (-1.5, False)):
        told = answer(None, -1.0, -2.0, -3.0)
        told["choices"][0]["prompt_logprobs"][2]["9"] = {"logprob": beside, "rank": 1}
        assert completion_of_response(told, asked).is_greedy is is_greedy
        assert completion_of_response(told, prompt()).is_greedy is None
    told["choices"][0]["prompt_logprobs"][2]["9"] = {"logprob": "-2"}
    with pytest.raises(BackendError, match="is not a number"):
        completion_of_response(told, asked)
    assert completion_of_response(answer(None, -2.0, ids=(7, 8)), replace(asked, token_ids=())).is_greedy is None


def test_without_a_prompt_the_first_token_has_no_value():
    completion = completion_of_response(answer(None, -2.0, ids=(7, 8)), prompt(prompt_ids=()))
    assert completion.logprobs == (None, -2.0)


def test_what_is_impossible_is_minus_infinity():
    assert completion_of_response(answer(None, -1.0, -9999.0, -3.0), prompt()).logprobs == (-math.inf, -3.0)


@pytest.mark.parametrize(
    "told, problem",
    [
        (answer(None, -1.0, -2.0), "gave 3 log-probabilities for 4 prompt tokens"),
        (answer(prompt_logprobs=None), "gave no log-probabilities for 4 prompt tokens; is it a vLLM server"),
        (answer(None, -1.0, None, -3.0), "log-probability of prompt token 2 is not a number: None"),
        (answer(None, -1.0, "a", -3.0), "log-probability of prompt token 2 is not a number"),
        (answer(None, -1.0, math.nan, -3.0), "log-probability of prompt token 2 is not a number"),
        (answer(None, -1.0, 0.5, -3.0), "log-probability of prompt token 2 is above 0"),
        (answer(None, -1.0, -2.0, -3.0, ids=(5, 6, 9, 8)), "log-probability of prompt token 2 is not a number"),
        (answer(None, -1.0, -2.0, -3.0, prompt_token_ids=[5, 6, 7]), "scored other tokens than those that it was sent"),
        ({"choices": []}, "expected 1, got 0"),
        ([], "is not an object"),
    ],
    ids=["too few", "none", "null", "text", "nan", "above 0", "another token", "other ids", "no choice", "no object"],
)
def test_an_answer_that_is_none_is_an_error_and_never_a_zero(told, problem):
    with pytest.raises(BackendError, match=problem):
        completion_of_response(told, prompt())


def test_pictures_and_nothing_cannot_be_sent():
    with pytest.raises(RequestError, match="takes images with messages only"):
        scoring_body(replace(prompt(), load_images=lambda: []), "served")
    with pytest.raises(RequestError, match=r"leave out a part of an adapter \(vLLM issue 51594\)"):
        scoring_body(prompt(), "served", has_adapter=True)
    with pytest.raises(RequestError, match="neither a prompt nor a response"):
        scoring_body(prompt((), ()), "served")


def test_only_servers_that_are_known_to_score_prompts_are_asked():
    assert [name for name, flavour in FLAVOURS.items() if flavour.scores_prompts] == ["vllm"]
