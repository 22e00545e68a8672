"""From a `SamplingPlan` to vLLM's `SamplingParams`, and from vLLM's output to a `Completion`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal

from evalharness.backends.base import Completion, Prompt, SamplingPlan
from evalharness.contracts import GenerationFailure
from evalharness.errors import UnsupportedOption

__all__ = ["EXTRA_OPTIONS", "completion_of", "sampling_params", "validation_errors"]

MIN_TEMPERATURE, MAX_TEMPERATURE = 0.01, 2.0  # vLLM raises what is lower without an error, and refuses what is higher
MAX_LOGIT_BIAS = 100.0


def _token_bias(value: Mapping[int | str, float]) -> dict[int, float]:
    biases = {int(token_id): float(bias) for token_id, bias in value.items()}
    for bias in biases.values():
        if not abs(bias) <= MAX_LOGIT_BIAS:  # vLLM's servers cut to this range; here it would be taken as it is
            raise ValueError(f"{bias} is outside of -{MAX_LOGIT_BIAS} to {MAX_LOGIT_BIAS}")
    return biases


EXTRA_OPTIONS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "top_k": ("top_k", lambda value: 0 if value is None else value),
    "min_p": ("min_p", lambda value: 0.0 if value is None else value),
    "min_new_tokens": ("min_tokens", lambda value: value or 0),
    "presence_penalty": ("presence_penalty", lambda value: value),
    "frequency_penalty": ("frequency_penalty", lambda value: value),
    "bad_words": ("bad_words", list),
    "logit_bias": ("logit_bias", _token_bias),
    "allowed_token_ids": ("allowed_token_ids", list),
}
"""Extra option → vLLM's name for it, and how its value is passed on."""


def sampling_params(plan: SamplingPlan, *, vocab_size: int) -> Any:
    """Return `vllm.SamplingParams` with every field set that a result depends on.

    `UnsupportedOption` where vLLM cannot honour the plan, or would change it without saying so.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    _check(plan)
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
        "output_kind": RequestOutputKind.FINAL_ONLY,
    }
    for name, value in plan.extra:
        if name not in EXTRA_OPTIONS:
            raise UnsupportedOption(f"option {name!r} cannot be honoured by the vllm backend; it knows: {', '.join(sorted(EXTRA_OPTIONS))}")
        vllm_name, convert = EXTRA_OPTIONS[name]
        try:
            values[vllm_name] = convert(value)
        except (TypeError, ValueError, AttributeError) as error:
            raise UnsupportedOption(f"option {name}={value!r} cannot be passed to vLLM: {error}") from error
    if "skip_clone" in inspect.signature(SamplingParams).parameters:
        values["skip_clone"] = True  # made for one request, so vLLM need not copy it
    refusals: tuple[type[Exception], ...] = (TypeError, *validation_errors())
    try:
        return SamplingParams(**values)
    except refusals as error:
        raise UnsupportedOption(f"vLLM refuses these generation options: {error}") from error


def validation_errors() -> tuple[type[Exception], ...]:
    """Return what vLLM raises for options and prompts it cannot take; its own class is no ValueError in newer releases."""
    from vllm.exceptions import VLLMValidationError

    return ValueError, VLLMValidationError


def _check(plan: SamplingPlan) -> None:
    if 0 < plan.temperature < MIN_TEMPERATURE or plan.temperature > MAX_TEMPERATURE:
        raise UnsupportedOption(
            f"options.temperature={plan.temperature} cannot be honoured by vLLM, "
            f"which takes 0 (greedy) or {MIN_TEMPERATURE} to {MAX_TEMPERATURE}"
        )
    if plan.no_repeat_ngram_size:
        raise UnsupportedOption(
            f"options.no_repeat_ngram_size={plan.no_repeat_ngram_size} cannot be honoured by vLLM; set it to 0 or use --backend hf"
        )
    if not plan.use_cache:
        raise UnsupportedOption("options.use_cache=False cannot be honoured by vLLM; leave it True or use --backend hf")


def completion_of(prompt: Prompt, output: Any, image_grids: tuple[tuple[int, int, int], ...]) -> Completion | tuple[int, GenerationFailure]:
    """Return what a finished `RequestOutput` says; an aborted, broken or missing completion is a failure, never an empty text."""
    if not output.outputs:
        return prompt.index, GenerationFailure("error", "vLLM finished the request without a completion")
    taken = output.outputs[0]
    stopped_by = _stopped_by(taken.finish_reason, taken.stop_reason)
    if stopped_by is None:
        return prompt.index, GenerationFailure("error", f"vLLM ended the request with {taken.finish_reason!r} ({taken.stop_reason!r})")
    token_ids = tuple(taken.token_ids)
    logprobs = None
    if prompt.plan.logprobs:
        logprobs = tuple(float(entry[token_id].logprob) for token_id, entry in zip(token_ids, taken.logprobs, strict=True))
    return Completion(
        index=prompt.index,
        token_ids=token_ids,
        num_prompt_tokens=len(output.prompt_token_ids),
        stopped_by=stopped_by,
        logprobs=logprobs,
        image_grids=image_grids,
    )


def _stopped_by(finish_reason: str | None, stop_reason: int | str | None) -> Literal["id", "string", "length"] | None:
    if finish_reason == "length":
        return "length"
    if finish_reason == "stop":
        return "string" if isinstance(stop_reason, str) else "id"
    return None
