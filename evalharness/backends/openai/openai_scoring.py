"""Given responses at a vLLM server: prompt and response go as ids, and the log-probabilities of prompt tokens come back. Pure.

`/v1/completions` with `prompt_logprobs`. The server generates one token, which is thrown away. It tells an impossible token as −9999,
since JSON has no infinity. Pictures go to servers with messages only, where a response cannot be given as ids. On a CPU, a server
that was started with --enable-lora dies of two such requests at once, adapter or not: ask it with a concurrency of 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from evalharness.api.errors import BackendError, RequestError
from evalharness.backends.base import Completion, Prompt
from evalharness.backends.openai.answers import IMPOSSIBLE, ROUNDING

__all__ = ["completion_of_response", "scoring_body"]


def scoring_body(prompt: Prompt, model: str, *, has_adapter: bool = False) -> dict[str, Any]:
    """Return the body for `/v1/completions`; `RequestError` for a response to pictures, and where an adapter is in force."""
    if has_adapter:
        raise RequestError(
            "a vLLM server's log-probabilities of prompts leave out a part of an adapter (vLLM issue 51594), or end its engine (29955); "
            "score it with backend vllm or hf"
        )
    if prompt.has_images:
        raise RequestError("a server takes pictures with messages only, where a response cannot be given as ids; score it with hf or vllm")
    token_ids = [*prompt.token_ids, *(prompt.response_ids or ())]
    if len(token_ids) < 1:
        raise RequestError("there is neither a prompt nor a response to send")
    return {
        "model": model,
        "prompt": token_ids,
        "prompt_logprobs": 0,
        "max_tokens": 1,
        "n": 1,
        "stream": False,
        "temperature": 0.0,
        "return_token_ids": True,
    }


def completion_of_response(answer: Any, prompt: Prompt) -> Completion:
    """Return what a server's answer says of the prompt's response; `BackendError` for whatever it should not be."""
    response = prompt.response_ids or ()
    sent = [*prompt.token_ids, *response]
    choices = answer.get("choices") if isinstance(answer, Mapping) else None
    choice = choices[0] if isinstance(choices, list) and len(choices) == 1 else None
    if not isinstance(choice, Mapping):
        raise BackendError("the server's answer has no choice to read log-probabilities from")
    entries, ids = choice.get("prompt_logprobs"), choice.get("prompt_token_ids")
    if ids is not None and ids != sent:
        raise BackendError("the server scored other tokens than those that it was sent")
    if not isinstance(entries, list) or len(entries) != len(sent):
        found = f"{len(entries)}" if isinstance(entries, list) else "no"
        raise BackendError(f"the server gave {found} log-probabilities for {len(sent)} prompt tokens; is it a vLLM server?")
    start = len(prompt.token_ids)
    values = tuple(_value(entries[place], sent[place], place) for place in range(start, len(sent)))
    return Completion(prompt.index, response, start, "given", values)


def _value(entry: Any, token_id: int, place: int) -> float | None:
    if entry is None and place == 0:
        return None
    told = entry.get(str(token_id)) if isinstance(entry, Mapping) else None
    value = told.get("logprob") if isinstance(told, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
        raise BackendError(f"the server's log-probability of prompt token {place} is no number: {str(entry)[:80]}")
    if value > ROUNDING:
        raise BackendError(f"the server's log-probability of prompt token {place} is above 0: {value}")
    return -math.inf if value <= IMPOSSIBLE else float(value)
