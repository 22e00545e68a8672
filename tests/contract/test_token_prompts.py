"""Token in, token out, the same on every engine. Run: pytest tests/contract/test_token_prompts.py"""

from __future__ import annotations

from dataclasses import replace

import pytest

from evalharness.api.errors import ConfigError
from evalharness.api.options import GenerationOptions
from evalharness.api.requests import GenerationFailure, GenerationResult, TokenGenerationRequest
from evalharness.engine.engine import Engine
from tests.contract.asking import CONTEXT, FREE, TEXTS, ask, generate

SHORT = replace(FREE, max_new_tokens=4)
DRAWN = GenerationOptions(max_new_tokens=6, temperature=1.0, seed=7)


def prompt_ids(engine: Engine, results: list[GenerationResult]) -> list[TokenGenerationRequest]:
    return [TokenGenerationRequest(engine.tokenizer.encode(result.prompt_text, add_special_tokens=False)) for result in results]


def test_the_ids_of_a_prompt_give_what_its_chat_gives(engine: Engine) -> None:
    options = GenerationOptions(max_new_tokens=8, logprobs=True)
    chats = generate(engine, [ask(text) for text in TEXTS], options)
    results = engine.generate_token_batch(prompt_ids(engine, chats), options)
    assert [replace(result, prompt_sha256="") for result in results] == [replace(chat, prompt_sha256="") for chat in chats]


def test_ids_that_cannot_be_asked_are_invalid_and_take_no_other_along(engine: Engine) -> None:
    beyond = engine.backend.capabilities.vocab_size or len(engine.tokenizer)
    context = engine.backend.max_model_len or CONTEXT
    asked = [TokenGenerationRequest(ids) for ids in ([], [5, beyond], [5] * (context + 1), [5, 6, 7])]
    outcomes = dict(engine.stream(asked, SHORT))
    kinds = [outcome.kind if isinstance(outcome, GenerationFailure) else "fine" for outcome in (outcomes[index] for index in range(4))]
    assert kinds == ["invalid", "invalid", "invalid" if engine.backend.max_model_len else "fine", "fine"]
    assert f"token id {beyond}" in outcomes[1].problem  # type: ignore[union-attr]


def test_the_first_of_three_samples_is_what_one_sample_is(engine: Engine) -> None:
    requests = [TokenGenerationRequest([5, 6, 7]), TokenGenerationRequest([8, 9])]
    alone, three = (engine.generate_samples(requests, DRAWN, num_samples) for num_samples in (1, 3))
    assert [group[0] for group in three] == [group[0] for group in alone]
    assert [[result.seed for result in group] for group in three] == [[7, 8, 9]] * 2
    assert three == engine.generate_samples(requests, DRAWN, 3)


def test_several_greedy_samples_are_the_same_error(engine: Engine) -> None:
    with pytest.raises(ConfigError, match="num_samples 2 with greedy decoding"):
        engine.generate_samples([TokenGenerationRequest([5])], SHORT, 2)
