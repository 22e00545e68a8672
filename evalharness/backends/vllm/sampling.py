"""From a `SamplingPlan` to vLLM's `SamplingParams`, and from vLLM's output to a `Completion`."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from evalharness.api.errors import UnsupportedOption
from evalharness.api.hooks import RowWatchers
from evalharness.api.requests import GenerationFailure
from evalharness.api.thinking import DEFAULT_MARKS
from evalharness.backends.base import Completion, Prompt, SamplingPlan
from evalharness.backends.vllm._internals import knows_thinking, uses_v2_runner
from evalharness.backends.vllm.drafts import with_draft


def thinking_arguments(tokenizer: Any) -> dict[str, Any]:
    """Return the engine argument that names the marks of thoughts, for tokenizers that have them as tokens; others' models do not think."""
    if any(len(tokenizer.encode(mark, add_special_tokens=False)) != 1 for mark in DEFAULT_MARKS):
        return {}
    start, end = DEFAULT_MARKS
    return {"reasoning_config": {"reasoning_start_str": start, "reasoning_end_str": end}}


def check_thinking(plan: SamplingPlan, engine_config: Any) -> None:
    """Raise `UnsupportedOption` for a budget that this engine cannot keep: its marks are chosen when it starts."""
    if plan.thinking is None:
        return
    if uses_v2_runner(engine_config) and not knows_thinking():
        raise UnsupportedOption(
            "options.max_thinking_tokens cannot be honoured by the V2 model runner of this vLLM; start with VLLM_USE_V2_MODEL_RUNNER=0 in "
            "the environment, take a newer vLLM, or use --backend hf"
        )
    known = getattr(engine_config, "reasoning_config", None)
    start, end = (getattr(known, f"reasoning_{which}_token_ids", None) or () for which in ("start", "end"))
    if (tuple(start), tuple(end)) != (plan.thinking.start_ids, plan.thinking.end_ids):
        raise UnsupportedOption(
            "options.max_thinking_tokens cannot be honoured by this vLLM engine, which was started with "
            f"{'other marks of thoughts' if known is not None else 'no marks of thoughts'}; give them with "
            """--engine-option reasoning_config='{"reasoning_start_str": "<think>", "reasoning_end_str": "</think>"}'"""
        )


MAX_LOGIT_BIAS = 100.0


def _token_bias(value: Mapping[int | str, float]) -> dict[int, float]:
    biases = {int(token_id): float(bias) for token_id, bias in value.items()}
    for bias in biases.values():
        if not abs(bias) <= MAX_LOGIT_BIAS:  # vLLM's servers cut to this range; here it would be taken as it is
            raise ValueError(f"{bias} is outside of -{MAX_LOGIT_BIAS} to {MAX_LOGIT_BIAS}")
    return biases


def _repetition_detection(value: Mapping[str, int]) -> Any:
    from vllm.sampling_params import RepetitionDetectionParams

    known = [name for name in inspect.signature(RepetitionDetectionParams).parameters if not name.startswith("_")]
    for name in value:  # vLLM itself passes over what it does not know
        if name not in known:
            raise ValueError(f"{name!r} is unknown; vLLM knows {', '.join(known)}")
    return RepetitionDetectionParams(**value)


EXTRA_OPTIONS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "top_k": ("top_k", lambda value: 0 if value is None else value),
    "min_p": ("min_p", lambda value: 0.0 if value is None else value),
    "min_new_tokens": ("min_tokens", lambda value: value or 0),
    "presence_penalty": ("presence_penalty", lambda value: value),
    "frequency_penalty": ("frequency_penalty", lambda value: value),
    "bad_words": ("bad_words", list),
    "logit_bias": ("logit_bias", _token_bias),
    "allowed_token_ids": ("allowed_token_ids", list),
    "repetition_detection": ("repetition_detection", _repetition_detection),
}
"""Extra option → vLLM's name for it, and how its value is passed on.

`repetition_detection`, `{"max_pattern_size": 64, "min_count": 4}` in tokens, ends a row that repeats itself, with
stop_reason `repetition_detected`.
"""


def sampling_params(plan: SamplingPlan, *, vocab_size: int, is_watched: bool = False, draft_ids: Sequence[int] = ()) -> Any:
    """Return `vllm.SamplingParams` with every field set that a result depends on; `is_watched`: tokens come step by step.

    `draft_ids`: for an engine that checks drafts.

    `UnsupportedOption` where vLLM cannot honour the plan, or would change it without saying so.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    if plan.structured is not None and plan.logprobs:
        raise UnsupportedOption(
            "vLLM takes log-probabilities after the mask of options.structured, so they are not the model's own; leave one of the two "
            "out, or use --backend hf"
        )
    values: dict[str, Any] = {
        "n": 1,
        "temperature": plan.temperature,
        "top_p": plan.top_p,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": plan.repetition_penalty,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": plan.seed,
        "max_tokens": plan.max_new_tokens,
        "min_tokens": 0,
        "ignore_eos": True,  # the plan's ids hold every end; vLLM's own idea of EOS must not add to them
        # vLLM masks these ids for min_tokens, and one beyond the vocabulary breaks the engine; it can never be generated.
        "stop_token_ids": [token_id for token_id in plan.stop_token_ids if token_id < vocab_size],
        "stop": list(plan.stop_strings),
        "include_stop_str_in_output": False,
        "detokenize": bool(plan.stop_strings),  # texts are decoded from ids by the engine
        "skip_special_tokens": plan.skip_special_tokens,
        "logprobs": 0 if plan.logprobs else None,  # 0: of the token that was taken, none of the others
        "output_kind": RequestOutputKind.DELTA if is_watched else RequestOutputKind.FINAL_ONLY,
        **with_draft(draft_ids, vocab_size),
    }
    refusals: tuple[type[Exception], ...] = (TypeError, AttributeError, ImportError, *validation_errors())
    if plan.thinking is not None:
        values["thinking_token_budget"] = plan.thinking.max_tokens
    for name, value in plan.extra:
        vllm_name, convert = EXTRA_OPTIONS[name]
        try:
            values[vllm_name] = convert(value)
        except refusals as error:
            raise UnsupportedOption(f"option {name}={value!r} cannot be passed to vLLM: {' '.join(str(error).split())}") from error
    if plan.structured is not None:
        try:
            kind, value = plan.structured.kind, plan.structured.value
            values["structured_outputs"] = StructuredOutputsParams(**{"json" if kind == "json_schema" else kind: value})
        except refusals as error:
            raise UnsupportedOption(f"structured.{plan.structured.kind} cannot be passed to vLLM: {error}") from error
    if "skip_clone" in inspect.signature(SamplingParams).parameters:
        values["skip_clone"] = True  # made for one request, so vLLM need not copy it
    try:
        return SamplingParams(**values)
    except refusals as error:
        raise UnsupportedOption(f"vLLM refuses these generation options: {error}") from error


def validation_errors() -> tuple[type[Exception], ...]:
    """Return what vLLM raises for options and prompts it cannot take; in newer releases its own class is not a ValueError."""
    from vllm.exceptions import VLLMValidationError

    return ValueError, VLLMValidationError


class WatchedTokens:
    """The tokens of one request that come step by step, because plugins watch them; `ended_by` names the plugin that ended it."""

    def __init__(self, watchers: RowWatchers) -> None:
        self.token_ids: list[int] = []
        self.logprobs: list[Any] = []
        self.ended_by: str | None = None
        self._watchers = watchers

    def take(self, output: Any) -> bool:
        """Take the new tokens of a `RequestOutput` in, and return whether the request is over."""
        for taken in output.outputs:
            for position, token_id in enumerate(taken.token_ids):
                self.token_ids.append(token_id)
                if taken.logprobs:
                    self.logprobs.append(taken.logprobs[position])
                self.ended_by = self._watchers.push(token_id)
                if self.ended_by is not None:
                    return True
        return bool(output.finished)


def completion_of(
    prompt: Prompt, output: Any, image_grids: tuple[tuple[int, int, int], ...], watched: WatchedTokens | None = None
) -> Completion | tuple[int, GenerationFailure]:
    """Return what a request's last `RequestOutput` says; an aborted, broken or missing completion is a failure, never an empty text."""
    if not output.outputs:
        return prompt.index, GenerationFailure("error", "vLLM finished the request without a completion")
    taken = output.outputs[0]
    ended_by = watched.ended_by if watched is not None else None
    # Where a stop string is completed by the very token that a plugin ends on, the string counts, as everywhere.
    is_string = taken.finish_reason == "stop" and isinstance(taken.stop_reason, str)
    stopped_by = "plugin" if ended_by is not None and not is_string else _stopped_by(taken.finish_reason, taken.stop_reason)
    if stopped_by is None:
        return prompt.index, GenerationFailure("error", f"vLLM ended the request with {taken.finish_reason!r} ({taken.stop_reason!r})")
    source = taken if watched is None else watched
    token_ids = tuple(source.token_ids)
    logprobs = None
    if prompt.plan.logprobs:
        logprobs = tuple(float(entry[token_id].logprob) for token_id, entry in zip(token_ids, source.logprobs, strict=True))
    return Completion(
        index=prompt.index,
        token_ids=token_ids,
        num_prompt_tokens=len(output.prompt_token_ids),
        stopped_by=stopped_by,
        logprobs=logprobs,
        image_grids=image_grids,
        stop_name=(ended_by or str(taken.stop_reason)) if stopped_by == "plugin" else None,
    )


def _stopped_by(finish_reason: str | None, stop_reason: int | str | None) -> Literal["id", "string", "plugin", "length"] | None:
    if finish_reason == "length":
        return "length"
    if finish_reason == "stop":
        return "string" if isinstance(stop_reason, str) else "id"
    return "plugin" if finish_reason == "repetition" else None


def scoring_params(*, reads_prefix: bool = False, asks_greedy: bool = False) -> Any:
    """Return `vllm.SamplingParams` that ask for the log-probability of each prompt token; `asks_greedy`: and of the most likely one.

    `reads_prefix`: what other requests have computed of the prompt is read, and has no log-probabilities.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    more = {"skip_reading_prefix_cache": False} if reads_prefix else {}
    kind = RequestOutputKind.FINAL_ONLY
    num = int(asks_greedy)  # its rank alone does not tell a token from an equal one
    return SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=num, detokenize=False, ignore_eos=True, output_kind=kind, **more)


def nothing_to_score(prompt: Prompt, num_tokens: int) -> Completion | None:
    """Return the answer for a response without tokens, or with one that nothing stands before: no model is needed for it."""
    response = prompt.response_ids or ()
    if len(response) > 1 or (response and num_tokens > 1):
        return None
    return Completion(prompt.index, response, num_tokens - len(response), "given", logprobs=(None,) * len(response))


def completion_of_response(
    prompt: Prompt, output: Any, image_grids: tuple[tuple[int, int, int], ...]
) -> Completion | tuple[int, GenerationFailure]:
    """Return what a finished `RequestOutput` says of the prompt's response: the last of its prompt log-probabilities."""
    response = prompt.response_ids or ()
    entries: Sequence[Mapping[int, Any] | None] = output.prompt_logprobs or ()
    ids = output.prompt_token_ids or ()
    # Of a request that has read a part, V2's runner gives the others alone.
    if not len(response) <= len(entries) <= len(ids) or tuple(ids[len(ids) - len(response) :]) != response:
        problem = f"vLLM gave {len(entries)} log-probabilities for {len(ids)} prompt tokens, of which {len(response)} were to be scored"
        return prompt.index, GenerationFailure("error", problem)
    values: list[float | None] = []
    is_greedy: bool | None = True if prompt.asks_greedy and response else None
    for token_id, entry in zip(response, entries[len(entries) - len(response) :], strict=True):
        if entry is not None and token_id not in entry:
            return prompt.index, GenerationFailure("error", f"vLLM gave no log-probability of token {len(values)} of the response")
        value = None if entry is None else float(entry[token_id].logprob)
        if value is not None and math.isnan(value):
            return prompt.index, GenerationFailure("error", f"vLLM gave no usable score (NaN) at token {len(values)} of the response")
        values.append(value)
        if entry is None or value is None:
            is_greedy = None
        elif is_greedy:
            is_greedy = all(other.logprob <= value for other in entry.values())
    return Completion(prompt.index, response, len(ids) - len(response), "given", tuple(values), image_grids, is_greedy=is_greedy)
