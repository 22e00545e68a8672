"""Token in, token out, the same on every engine. Run: pytest tests/contract/test_token_prompts.py"""

from __future__ import annotations

from dataclasses import replace

import pytest

from evalharness.api.errors import ConfigError
from evalharness.api.options import GenerationOptions
from evalharness.api.requests import GenerationFailure, TokenGenerationRequest
from evalharness.engine.backend_contract import FREE
from evalharness.engine.engine import Engine
from tests.contract.stand_ins import CONTEXT

SHORT = replace(FREE, max_new_tokens=4)
DRAWN = GenerationOptions(max_new_tokens=6, temperature=1.0, seed=7)


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
