"""Completions → results: texts and finish reason from the stop policy, token counts, and the options that really applied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from evalharness.api.errors import RequestsFailed
from evalharness.api.hooks import GenerationPlugin, postprocess_text
from evalharness.api.requests import GenerationFailure, GenerationResult
from evalharness.api.thinking import Thinking, num_thought
from evalharness.backends.base import Backend, Completion
from evalharness.engine.prompts import PreparedRequest, prompt_sha256
from evalharness.engine.stop_policy import Ending, finish


def result_of(
    prepared: PreparedRequest,
    completion: Completion,
    backend: Backend,
    *,
    fallback: str | None = None,
    plugins: Sequence[GenerationPlugin] = (),
    weight_version: str | None = None,
) -> GenerationResult:
    """Return the result of one completion; `fallback` says why another backend ran it."""
    ending = finish(completion, prepared.stops, backend.tokenizer, prepared.options.decode)
    plan = prepared.prompt.plan
    facts = prepared.images.facts if prepared.images is not None else ()
    num_ids = len(ending.token_ids)
    logprobs = completion.logprobs[:num_ids] if completion.logprobs is not None else None
    return GenerationResult(
        text=postprocess_text(plugins, ending.text) if prepared.response_text is None else prepared.response_text,
        raw_text=ending.raw_text,
        finish_reason=ending.finish_reason,
        stop_reason=ending.stop_reason,
        num_prompt_tokens=completion.num_prompt_tokens,
        num_completion_tokens=num_ids if completion.exact_ids else completion.num_completion_tokens,
        token_ids=ending.token_ids,
        logprobs=logprobs,
        logprobs_kind=plan.logprobs_kind if logprobs is not None else None,
        entropies=completion.entropies[:num_ids] if completion.entropies is not None else None,
        seed=plan.seed if plan.temperature > 0 and prepared.prompt.response_ids is None else None,
        backend=backend.name,
        fallback=fallback,
        ignored_options=prepared.ignored,
        prompt_sha256=prompt_sha256(prepared.prompt, facts),
        prompt_text=prepared.prompt.text,
        weight_version=weight_version,
        images=_image_facts(prepared, completion),
        exact_ids=completion.exact_ids,
        thinking=_thinking(prepared, completion, ending, backend.tokenizer, plugins),
    )


def _thinking(
    prepared: PreparedRequest, completion: Completion, ending: Ending, tokenizer: Any, plugins: Sequence[GenerationPlugin]
) -> Thinking | None:
    """Return thought and answer if a thought was expected and there is one, else None."""
    if prepared.thinking_marks is None:
        return None
    start, end = prepared.thinking_marks
    num_tokens = num_thought(ending.token_ids, end, lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=False)))
    is_closed = num_tokens is not None
    if not is_closed and start not in ending.raw_text and not prepared.prompt.text.rstrip().endswith(start):
        return None
    num_tokens = len(ending.token_ids) if num_tokens is None else num_tokens
    thought = str(tokenizer.decode(list(ending.token_ids[:num_tokens]), skip_special_tokens=True))
    answer = ""
    if is_closed:
        decode = prepared.options.decode
        answer = finish(replace(completion, token_ids=ending.token_ids[num_tokens:]), prepared.stops, tokenizer, decode).text
        if thought.partition(end)[2].strip():  # one token closes the thought and begins the answer, so the mark is plain text
            answer = ending.text.partition(end)[2]
            answer = answer.strip() if decode.strip_whitespace else answer
        answer = postprocess_text(plugins, answer)
    thought = thought.partition(end)[0]
    text = thought.partition(start)[2] if start in thought else thought
    return Thinking(text.strip(), answer, is_closed, num_tokens)


def _image_facts(prepared: PreparedRequest, completion: Completion) -> tuple[Mapping[str, Any], ...]:
    if prepared.images is None:
        return ()
    facts = prepared.images.facts
    if not prepared.images.verify:
        return facts
    expected = prepared.prompt.num_tokens
    return tuple(
        {
            **fact,
            "grid": list(completion.image_grids[i]) if i < len(completion.image_grids) else None,
            "expected_prompt_tokens": expected,
            "actual_prompt_tokens": completion.num_prompt_tokens,
        }
        for i, fact in enumerate(facts)
    )


def all_results(outcomes: Sequence[GenerationResult | GenerationFailure]) -> list[GenerationResult]:
    """Return the outcomes as results; `RequestsFailed`, with all of them, if any is a failure."""
    failures = [outcome for outcome in outcomes if isinstance(outcome, GenerationFailure)]
    if failures:
        raise RequestsFailed(outcomes, [failure.problem for failure in failures]) from failures[0].error
    return [outcome for outcome in outcomes if isinstance(outcome, GenerationResult)]
