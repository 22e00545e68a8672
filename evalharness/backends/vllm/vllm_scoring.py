"""Given responses in vLLM: they are prompts, with their prompt before them, whose log-probabilities are asked for.

vLLM must generate at least one token, which is thrown away; so a response needs one place less than the context. It reads nothing
from its prefix cache for such requests.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from evalharness.api.errors import PromptTooLong
from evalharness.api.requests import GenerationFailure
from evalharness.backends.base import Completion, Prompt

__all__ = ["check_response_length", "completion_of_response", "nothing_to_score", "scoring_params"]


def scoring_params() -> Any:
    """Return `vllm.SamplingParams` that ask for the log-probability of each prompt token, and none of the others."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        temperature=0.0, max_tokens=1, prompt_logprobs=0, detokenize=False, ignore_eos=True, output_kind=RequestOutputKind.FINAL_ONLY
    )


def check_response_length(num_tokens: int, num_response: int, max_model_len: int | None) -> None:
    """Raise `PromptTooLong` where prompt and response, `num_tokens` together, leave no room for the one token that vLLM generates."""
    if max_model_len is not None and num_tokens + 1 > max_model_len:
        raise PromptTooLong(
            f"prompt ({num_tokens - num_response} tokens) + response ({num_response} tokens) exceed the {max_model_len - 1} tokens that "
            f"vLLM can score in a context of {max_model_len}; shorten one of them or raise max_model_len"
        )


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
    if len(entries) != len(ids) or tuple(ids[len(ids) - len(response) :]) != response:
        problem = f"vLLM gave {len(entries)} log-probabilities for {len(ids)} prompt tokens, of which {len(response)} were to be scored"
        return prompt.index, GenerationFailure("error", problem)
    values: list[float | None] = []
    for token_id, entry in zip(response, entries[len(ids) - len(response) :], strict=True):
        value = None if entry is None else float(entry[token_id].logprob)
        if value is not None and math.isnan(value):
            return prompt.index, GenerationFailure("error", f"vLLM gave no usable score (NaN) at token {len(values)} of the response")
        values.append(value)
    return Completion(prompt.index, response, len(ids) - len(response), "given", tuple(values), image_grids)
