"""Given responses get the log-probabilities that transformers itself gives them. Run: pytest tests/contract/test_scoring.py"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from evalharness.api.options import GenerationOptions
from evalharness.api.requests import CompletionRequest, GenerationFailure
from evalharness.api.scoring import ScoringRequest
from evalharness.backends.base import Completion
from evalharness.engine.backend_contract import FREE, TEXTS, ask, generate, look, noise
from evalharness.engine.engine import Engine
from tests.backends.hf_models import model_of
from tests.backends.vllm_models import Reference

RESPONSES = ["blue", "yes, it is. " * 6, "", "统计: 3", "a", "{}"]
PROMPTS = [ask(text) for text in TEXTS[: len(RESPONSES)]]


def plain_logprobs(reference: Reference, text: str, response: Sequence[int], images: Sequence[Any] = ()) -> list[float]:
    """Return log-softmax at the response's tokens, of one plain forward pass over prompt and response."""
    import torch

    inputs = reference.inputs(text, images)
    ids = torch.tensor([list(response)])
    inputs["input_ids"] = torch.cat([inputs["input_ids"], ids], dim=1)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    if "mm_token_type_ids" in inputs:
        inputs["mm_token_type_ids"] = torch.cat([inputs["mm_token_type_ids"], torch.zeros_like(ids)], dim=1)
    with torch.no_grad():
        scores = reference.model(**inputs).logits.float().log_softmax(dim=-1)[0]
    start = inputs["input_ids"].shape[1] - len(response)
    return [scores[start + i - 1, token_id].item() for i, token_id in enumerate(response)]


def scored(engine: Engine, prompts: Sequence[Any], responses: Sequence[Any], **options: Any) -> list[Any]:
    requests = [ScoringRequest(prompt, response) for prompt, response in zip(prompts, responses, strict=True)]
    return generate(engine, requests, GenerationOptions(**options))


def test_the_response_gets_the_log_softmax_of_transformers(real_engine: Engine, reference: Reference) -> None:
    results = scored(real_engine, PROMPTS, RESPONSES)
    assert [len(result.logprobs) for result in results] == [len(real_engine.tokenizer.encode(text)) for text in RESPONSES]
    for result in results:
        wanted = plain_logprobs(reference, result.prompt_text, result.token_ids) if result.token_ids else []
        assert list(result.logprobs) == pytest.approx(wanted, abs=1e-4)
        assert (result.logprobs_kind, result.finish_reason) == ("raw", "scored")


def test_texts_that_are_joined_get_the_log_softmax_of_their_common_ids(real_engine: Engine, reference: Reference) -> None:
    prompts = [CompletionRequest("The sky is "), "The sky is", CompletionRequest(""), ask("Say a colour.")]
    results = generate(real_engine, [ScoringRequest(prompt, "blue", join="text") for prompt in prompts], GenerationOptions())
    encode = real_engine.tokenizer.encode
    heads = [encode("The sky is"), encode("The sky is"), [real_engine.tokenizer.eos_token_id]]
    heads.append(encode(results[3].prompt_text.rstrip(), add_special_tokens=False))
    wholes = [encode("The sky is blue"), encode("The sky isblue"), [*heads[2], *encode("blue", add_special_tokens=False)]]
    wholes.append(encode(results[3].prompt_text + "blue", add_special_tokens=False))
    for result, head, whole in zip(results, heads, wholes, strict=True):
        assert (result.num_prompt_tokens, result.token_ids) == (len(head), tuple(whole[len(head) :]))
        assert list(result.logprobs) == pytest.approx(plain_logprobs_of_ids(reference, whole)[len(head) - 1 :], abs=1e-4)
        assert (result.text, result.num_bytes_scored) == ("blue", 4)


def test_a_response_without_prompt_has_no_value_for_its_first_token(real_engine: Engine, reference: Reference) -> None:
    ids = tuple(real_engine.tokenizer.encode("count from one to ten"))
    whole, alone, tail = scored(real_engine, [[], [], ids[:4]], [ids, ids[:1], ids[4:]])
    assert whole.logprobs[0] is None
    assert len(whole.logprobs) == len(ids)
    assert list(whole.logprobs[1:]) == pytest.approx(plain_logprobs_of_ids(reference, ids), abs=1e-4)
    assert alone.logprobs == (None,)
    assert tail.logprobs == pytest.approx(whole.logprobs[4:], abs=1e-4)


def plain_logprobs_of_ids(reference: Reference, ids: Sequence[int]) -> list[float]:
    import torch

    with torch.no_grad():
        scores = reference.model(input_ids=torch.tensor([list(ids)])).logits.float().log_softmax(dim=-1)[0]
    return [scores[i, token_id].item() for i, token_id in enumerate(ids[1:])]


def test_responses_to_pictures_are_scored_behind_all_their_tokens(real_engine: Engine, reference: Reference) -> None:
    pictures: list[list[Any]] = [[noise(64, 48)], [noise(300, 200, 1)], [noise(33, 1000, 2), noise(64, 48, 3)]]
    results = scored(real_engine, [look(*each) for each in pictures], ["a dog", "two dogs and a cat", "no"])
    for each, result in zip(pictures, results, strict=True):
        assert list(result.logprobs) == pytest.approx(plain_logprobs(reference, result.prompt_text, result.token_ids, each), abs=1e-4)
        assert result.num_prompt_tokens == reference.inputs(result.prompt_text, each)["input_ids"].shape[1]
        assert len(result.images) == len(each)


def test_each_row_of_an_uneven_batch_equals_the_row_alone(real_engine: Engine) -> None:
    together = scored(real_engine, PROMPTS, RESPONSES)
    for i, result in enumerate(together):
        (alone,) = scored(real_engine, PROMPTS[i : i + 1], RESPONSES[i : i + 1])
        assert result.logprobs == pytest.approx(alone.logprobs, abs=1e-4)


def test_what_was_generated_scores_what_it_was_generated_with(real_engine: Engine) -> None:
    made = generate(real_engine, PROMPTS, replace(FREE, logprobs=True))
    again = scored(real_engine, PROMPTS, [result.token_ids for result in made])
    for one, other in zip(made, again, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
        assert one.num_prompt_tokens == other.num_prompt_tokens


def test_it_is_told_whether_greedy_decoding_gives_a_response(real_engine: Engine) -> None:
    made = generate(real_engine, PROMPTS, replace(FREE, max_new_tokens=6))
    ids = [result.token_ids for result in made]
    requests = [ScoringRequest(prompt, response, greedy=True) for prompt, response in zip(PROMPTS, ids, strict=True)]
    other = (ids[0][-1] + 1) % 50
    requests += [
        ScoringRequest(PROMPTS[0], (*ids[0][:-1], other), greedy=True),
        ScoringRequest(PROMPTS[0], (other, *ids[0][1:]), greedy=True),
    ]
    requests += [ScoringRequest([], ids[0], greedy=True), ScoringRequest(PROMPTS[0], "", greedy=True), ScoringRequest(PROMPTS[0], ids[0])]
    results = generate(real_engine, requests, GenerationOptions())
    assert [result.is_greedy for result in results] == [*[True] * len(made), False, False, None, None, None]
    assert results[0].logprobs == pytest.approx(results[-1].logprobs, abs=1e-4)
    (rolled,) = generate(real_engine, [ScoringRequest("", TEXTS[0] * 3, join="text", rolling=5, greedy=True)], GenerationOptions())
    assert rolled.is_greedy is False


def test_a_response_may_have_its_end_token(real_engine: Engine) -> None:
    (open_end, ended) = generate(real_engine, [ScoringRequest(ask("hi"), "yes", ends) for ends in (False, True)], GenerationOptions())
    assert ended.token_ids == (*open_end.token_ids, real_engine.backend.eos_token_ids[0])
    assert ended.logprobs[:-1] == pytest.approx(open_end.logprobs, abs=1e-4)
    assert (ended.text, ended.raw_text) == ("yes", "yes" + real_engine.tokenizer.decode([ended.token_ids[-1]]))


def test_scored_and_generated_requests_may_be_asked_together(real_engine: Engine) -> None:
    score, text = generate(real_engine, [ScoringRequest(ask("hi"), "yes"), ask("hi")], FREE)
    assert (score.finish_reason, text.finish_reason) == ("scored", "length")
    assert (score.text, len(text.token_ids)) == ("yes", 24)


@pytest.mark.parametrize(
    "prompt, response, problem",
    [
        pytest.param(ask("hi"), [70_000], "token id|vocabulary", id="an unknown id"),
        pytest.param(ask("hi"), "<|image_pad|>", "response holds the image placeholder", id="a picture in the response"),
        pytest.param(ask("hi"), "\udc00", "the response holds .* half of a surrogate pair", id="half a surrogate"),
        pytest.param("<|image_pad|>", "yes", "1 image placeholder", id="a picture in a bare prompt"),
    ],
)
def test_what_cannot_be_scored_is_invalid_and_the_others_go_on(real_engine: Engine, prompt: Any, response: Any, problem: str) -> None:
    outcomes: dict[int, Any] = dict(
        real_engine.stream([ScoringRequest(prompt, response), ScoringRequest(ask("hi"), "yes")], GenerationOptions())
    )
    assert isinstance(outcomes[0], GenerationFailure)
    assert outcomes[0].kind == "invalid"
    assert re.search(problem, outcomes[0].problem)
    assert outcomes[1].finish_reason == "scored"


def test_gradients_reach_the_layers_that_look_at_pictures(hf_engine: Engine) -> None:
    prompts, responses = [look(noise(64, 48)), ask("hi"), look(noise(300, 200, 1))], ["a dog", "yes", "two dogs"]
    scores = hf_engine.get_logprobs(prompts, responses, grad=True)
    assert scores.rows()[2] == pytest.approx(scored(hf_engine, prompts, responses)[2].logprobs, abs=1e-4)
    model = model_of(hf_engine)
    try:
        scores.values[scores.mask].mean().backward()
        reached = {name for name, weight in model.named_parameters() if weight.grad is not None and weight.grad.abs().sum() > 0}
    finally:
        model.zero_grad()
    assert any("visual" in name for name in reached)
    assert any("language_model" in name for name in reached)


@pytest.mark.vllm
def test_a_prompt_that_branches_off_a_cached_one_gets_the_same_ids(
    vllm_engine: Engine, hf_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM reads the first prompt's blocks for the second; hf has no cache across prompts, with or without use_cache within one."""
    from evalharness.backends.vllm import backend as vllm, sampling as vllm_sampling

    cached: list[int] = []

    def noting(prompt: Any, output: Any, *rest: Any) -> Completion | tuple[int, GenerationFailure]:
        cached.append(output.num_cached_tokens)
        return complete(prompt, output, *rest)

    complete = vllm_sampling.completion_of
    monkeypatch.setattr(vllm, "completion_of", noting)
    stem = "The same long beginning of two prompts, told once and then told again. " * 8
    first, second = ask(stem + "one"), ask(stem + "another end, and a longer one")
    vllm_engine.backend._engine._llm.llm_engine.reset_prefix_cache()  # type: ignore[attr-defined]
    (fresh,) = generate(vllm_engine, [second], FREE)
    vllm_engine.backend._engine._llm.llm_engine.reset_prefix_cache()  # type: ignore[attr-defined]
    generate(vllm_engine, [first], FREE)
    (branched,) = generate(vllm_engine, [second], FREE)
    assert cached[0] == 0
    assert cached[2] > 100  # of the stem
    on_hf = [generate(hf_engine, [first, second], replace(FREE, use_cache=use_cache))[1] for use_cache in (True, False)]
    assert fresh.token_ids == branched.token_ids == on_hf[0].token_ids == on_hf[1].token_ids
