"""Batches, counts, order, lengths, bad requests, early ends, fallback. Run: pytest tests/contract/test_requests.py"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from evalharness.api.errors import PromptTooLong
from evalharness.api.requests import GenerationFailure, GenerationResult
from evalharness.backends.base import Backend
from evalharness.engine.backend_contract import FREE, TEXTS, ask, generate, look, noise, outcomes_of
from evalharness.engine.engine import Engine, EngineWarning
from tests.contract.stand_ins import StandIn

ASKED = [ask(text) for text in TEXTS]
SHORT = replace(FREE, max_new_tokens=4)


def test_the_prompt_is_rendered_once_and_recorded(engine: Engine) -> None:
    (result,) = generate(engine, [ask("hi")], SHORT)
    thinking_off = "" if engine.name == "fake" else "<think>\n\n</think>\n\n"
    assert result.prompt_text == f"<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n{thinking_off}"
    assert result.backend == engine.name


def test_an_image_prompt_of_the_budget_is_kept_and_one_token_more_fails_alone(engine: Engine) -> None:
    request = look(noise(90, 60))
    (kept,) = generate(engine, [request], SHORT)
    assert kept.num_prompt_tokens is not None
    budgets = [replace(SHORT, max_prompt_tokens=kept.num_prompt_tokens - less) for less in (0, 1)]
    good, bad = outcomes_of(engine, [request, request], budgets)
    assert good == kept
    assert isinstance(bad, GenerationFailure)
    assert (bad.kind, type(bad.error)) == ("invalid", PromptTooLong)
    assert bad.problem.startswith(f"the prompt has {kept.num_prompt_tokens} tokens, max_prompt_tokens is {kept.num_prompt_tokens - 1}; ")


def test_a_video_placeholder_fails_alone(real_engine: Engine) -> None:
    if not real_engine.backend.capabilities.supports_vlm:
        pytest.skip("to a text model it is a token like any")
    good, failed = outcomes_of(real_engine, [ask("hi"), ask("see <|video_pad|>")], SHORT)
    assert isinstance(good, GenerationResult)
    assert isinstance(failed, GenerationFailure)
    assert "videos cannot be asked" in failed.problem


def test_an_error_of_the_caller_leaves_the_engine_usable(engine: Engine, free: list[GenerationResult]) -> None:
    with pytest.raises(LookupError, match="no such case"):
        for _ in engine.stream(ASKED, FREE):
            raise LookupError("no such case")
    assert generate(engine, ASKED, FREE) == free


class WithoutVision(StandIn):
    """A backend that has lost its eyes: texts go on to the real one."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend, f"blind-{backend.name}")
        self.capabilities = replace(backend.capabilities, supports_vlm=False)
        self.processor = None


PICTURE = noise(120, 80)


def test_without_vision_and_without_fallback_images_are_refused_by_name(engine: Engine) -> None:
    blind = WithoutVision(engine.backend)
    with pytest.raises(RuntimeError, match=f"^backend 'blind-{engine.name}' cannot run image requests with this checkpoint"):
        list(Engine(blind).stream([ask("hi"), look(PICTURE)], SHORT))
    assert blind.num_calls == 0


@pytest.mark.parametrize("primary", ["fake", pytest.param("vllm", marks=pytest.mark.vllm)])
def test_images_run_on_the_fallback_texts_do_not_and_one_warning_says_so(backend_of: Any, hf_engine: Engine, primary: str) -> None:
    blind = WithoutVision(backend_of(primary))
    asked = Engine(blind, fallback_backend=backend_of("hf"))
    with pytest.warns(EngineWarning, match=f"backend 'blind-{primary}' cannot run image requests .*: they run on 'hf'") as caught:
        shown, said, again = outcomes_of(asked, [look(PICTURE), ask("hi"), look(PICTURE)], SHORT)
    assert len(caught) == 1
    assert isinstance(shown, GenerationResult)
    assert isinstance(said, GenerationResult)
    assert (said.backend, said.fallback) == (f"blind-{primary}", None)
    assert shown.backend == "hf"
    assert (shown.fallback or "").startswith(f"hf: backend 'blind-{primary}' cannot run image requests")
    assert [replace(one, fallback=None) for one in (shown, again)] == generate(hf_engine, [look(PICTURE)] * 2, SHORT)  # type: ignore[type-var]
