"""Batches, counts, order, lengths, bad requests, early ends, fallback. Run: pytest tests/contract/test_requests.py"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from evalharness.api.errors import PromptTooLong
from evalharness.api.requests import GenerationFailure, GenerationResult, TextGenerationRequest
from evalharness.backends.base import Backend
from evalharness.engine.backend_contract import FREE, TEXTS, ask, generate, look, noise, outcomes_of
from evalharness.engine.engine import Engine, EngineWarning
from tests.contract.stand_ins import CONTEXT, StandIn

ASKED = [ask(text) for text in TEXTS]
SHORT = replace(FREE, max_new_tokens=4)


def test_the_prompt_is_rendered_once_and_recorded(engine: Engine) -> None:
    (result,) = generate(engine, [ask("hi")], SHORT)
    thinking_off = "" if engine.name == "fake" else "<think>\n\n</think>\n\n"
    assert result.prompt_text == f"<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n{thinking_off}"
    assert result.backend == engine.name


def words(engine: Engine, num_tokens: int) -> TextGenerationRequest:
    """Return a request whose prompt has exactly so many tokens."""
    (bare,) = generate(engine, [ask("x")], replace(FREE, max_new_tokens=1))
    request = ask("x" * (num_tokens - (bare.num_prompt_tokens or 0) + 1))
    return request


TOO_LONG = {
    "prompt": (CONTEXT + 50, 1, rf"the prompt has {CONTEXT + 50} tokens, the context {CONTEXT}"),
    "prompt that fills the context": (CONTEXT, 1, rf"the prompt has {CONTEXT} tokens, the context {CONTEXT}"),
    "sum": (CONTEXT - 8, 9, rf"prompt ({CONTEXT - 8} tokens) + max_new_tokens (9) exceed the context of {CONTEXT}"),
}


@pytest.mark.parametrize("num_tokens, cap, problem", TOO_LONG.values(), ids=TOO_LONG.keys())
def test_what_exceeds_the_context_fails_alone_and_is_not_truncated(engine: Engine, num_tokens: int, cap: int, problem: str) -> None:
    good, bad, other = outcomes_of(engine, [ask("hi"), words(engine, num_tokens), ask("no")], replace(FREE, max_new_tokens=cap))
    assert isinstance(bad, GenerationFailure)
    assert bad.kind == "invalid"
    assert isinstance(bad.error, PromptTooLong)
    assert bad.problem.startswith(problem)
    assert isinstance(good, GenerationResult)
    assert isinstance(other, GenerationResult)


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


@pytest.mark.parametrize("text", ["<|im_end|>", "<think>"])
def test_marks_of_the_template_in_a_text_are_asked_as_they_are(engine: Engine, text: str) -> None:
    (result,) = generate(engine, [ask(text)], SHORT)
    assert text in result.prompt_text


def test_should_stop_ends_what_runs_and_leaves_the_engine_usable(engine: Engine, free: list[GenerationResult]) -> None:
    stop = threading.Event()
    timer = threading.Timer(0.5, stop.set)
    timer.start()
    started = time.monotonic()
    outcomes = list(engine.stream(ASKED * 20, replace(FREE, max_new_tokens=3000), should_stop=stop.is_set))
    took_s = time.monotonic() - started
    timer.cancel()
    if engine.name != "fake":  # whose texts are at an end before
        assert took_s < 60
        assert len(outcomes) < len(ASKED) * 20
    assert all(isinstance(outcome, GenerationResult) for _, outcome in outcomes)
    assert generate(engine, ASKED, FREE) == free


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
