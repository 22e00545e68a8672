"""Answers of servers → completions; `BackendError` for whatever an answer should not be. Pure: no network here.

Order of trust for token ids: those that the server gives (`token_ids`, in the choice or its logprobs), those that stand in
`logprobs.content`; else the text is tokenised again, and the completion says that its ids are not exact.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from evalharness.api.errors import BackendError
from evalharness.api.redaction import redactor
from evalharness.api.showing import excerpt
from evalharness.backends.base import Completion, Prompt, SamplingPlan

__all__ = ["IMPOSSIBLE", "ROUNDING", "completion_of"]

IMPOSSIBLE = -9999.0
"""What vLLM's server says for minus infinity, which JSON does not have."""
ROUNDING = 1e-3
"""How far above 0 a log-probability may lie by rounding."""
_DIGITS = re.compile(r"[0-9]{1,18}")


def completion_of(answer: Any, prompt: Prompt, *, tokenizer: Any, vocab_size: int, exact_prompt: bool) -> Completion:
    """Return the completion that a server's answer holds.

    `exact_prompt`: the server was given ids, or is to make the same of the messages: then its count of the prompt must be ours.
    """
    choice = _choice(answer)
    usage = _mapping(answer.get("usage"))
    num_prompt = _count(usage.get("prompt_tokens"))
    if exact_prompt and None not in (num_prompt, prompt.num_tokens) and num_prompt != prompt.num_tokens:
        raise BackendError(
            f"the server made {num_prompt} tokens of a prompt that has {prompt.num_tokens}: its tokenizer, chat template or image "
            "processor is not the checkpoint's"
        )
    token_ids, logprobs = _ids_and_logprobs(choice, prompt.plan.logprobs)
    stopped_by, stop_string = _ending(choice, prompt.plan)
    exact = token_ids is not None
    if token_ids is not None:
        _check_ids(token_ids, prompt.plan, vocab_size, stopped_by)
        if stopped_by == "id" and not set(token_ids) & set(prompt.plan.stop_token_ids):
            stopped_by = _unseen_end(choice, prompt.plan)
    else:
        spelled = _text(choice) + (stop_string or "")
        token_ids = tuple(tokenizer.encode(spelled, add_special_tokens=False))
        if stopped_by == "id":
            token_ids += _end_ids(choice, prompt.plan, tokenizer)
    return Completion(
        index=prompt.index,
        token_ids=token_ids,
        num_prompt_tokens=num_prompt if num_prompt is not None else prompt.num_tokens or len(prompt.token_ids),
        stopped_by=stopped_by,
        logprobs=logprobs,
        exact_ids=exact,
        num_completion_tokens=None if exact else _count(usage.get("completion_tokens")),
    )


def _check_ids(token_ids: Sequence[int], plan: SamplingPlan, vocab_size: int, stopped_by: str) -> None:
    if len(token_ids) > plan.max_new_tokens:
        raise BackendError(f"the server gave {len(token_ids)} tokens where {plan.max_new_tokens} were allowed")
    if not token_ids and stopped_by == "length":
        raise BackendError(f"the server gave no token and says that the room for {plan.max_new_tokens} is used up")
    if token_ids and max(token_ids) >= vocab_size:
        raise BackendError(
            f"the server gave token id {max(token_ids)}, and the checkpoint's vocabulary ends at {vocab_size - 1}: it serves another model"
        )


def _choice(answer: Any) -> Mapping[str, Any]:
    if not isinstance(answer, Mapping):
        raise BackendError(f"the server's answer is no object: {_shown(answer)}")
    choices = answer.get("choices")
    if not isinstance(choices, list):
        raise BackendError(f"the server's answer has no list of choices: {_shown(answer)}")
    if len(choices) != 1:
        raise BackendError(f"the server's answer has the wrong number of choices: expected 1, got {len(choices)}")
    if not isinstance(choices[0], Mapping):
        raise BackendError(f"the server's choice is no object: {_shown(choices[0])}")
    return choices[0]


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(choice: Mapping[str, Any]) -> str:
    """Return the text, of a server that gives no ids; a text that the server took parts out of would be scored as if it were whole."""
    message = choice.get("message")
    if isinstance(message, Mapping) and message.get("tool_calls"):
        raise BackendError("the server took tool calls out of the text, which is lost; start it without a parser of tool calls")
    text = choice.get("text") if not isinstance(message, Mapping) else message.get("content")
    if not isinstance(text, str):
        raise BackendError(f"the server's choice has no text: {_shown(choice)}")
    return text


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _ids_and_logprobs(choice: Mapping[str, Any], wanted: bool) -> tuple[tuple[int, ...] | None, tuple[float, ...] | None]:
    given = _mapping(choice.get("logprobs"))
    ids = _ids(choice.get("token_ids"))
    for key in ("token_ids", "completion_ids"):
        ids = _ids(given.get(key)) if ids is None else ids
    content = given.get("content")
    content = content if isinstance(content, list) else None
    if ids is None and content is not None and all(isinstance(part, Mapping) and "token_id" in part for part in content):
        ids = _ids([part["token_id"] for part in content])
    if not wanted:
        return ids, None
    if ids is None:
        raise BackendError("the server gave no token ids, so its log-probabilities belong to none")
    values = given.get("token_logprobs") if content is None else [_mapping(part).get("logprob") for part in content]
    return ids, _logprobs(values, len(ids))


def _ids(values: object) -> tuple[int, ...] | None:
    if not isinstance(values, list):
        return None
    if not all(isinstance(value, (int, str)) and _DIGITS.fullmatch(str(value)) for value in values):
        raise BackendError(f"the server's token ids are none: {_shown(values)}")
    return tuple(int(value) for value in values)


def _logprobs(values: object, num_ids: int) -> tuple[float, ...]:
    if not isinstance(values, list) or len(values) != num_ids:
        raise BackendError(f"the server gave {len(values) if isinstance(values, list) else 'no'} log-probabilities for {num_ids} tokens")
    try:
        numbers = tuple(float(value) for value in values)
    except (TypeError, ValueError):
        raise BackendError(f"a log-probability of the server is no number: {_shown(values)}") from None
    if not all(math.isfinite(number) and number > IMPOSSIBLE for number in numbers):
        raise BackendError("a log-probability of the server is not finite")
    if any(number > ROUNDING for number in numbers):
        raise BackendError(f"a log-probability of the server is above 0: {_shown(max(numbers))}")
    return numbers


def _ending(choice: Mapping[str, Any], plan: SamplingPlan) -> tuple[Any, str | None]:
    """Return what ended the text, and the stop string if the server names it."""
    reason = choice.get("finish_reason")
    if reason == "length":
        return "length", None
    if reason not in ("stop", "tool_calls", "eos"):
        raise BackendError(f"the server ended the answer with finish_reason {_shown(reason)}, which is no end of a text")
    told = _stop_reason(choice)
    if isinstance(told, str) and told in plan.stop_strings:
        return "string", told
    return "id", None


def _stop_reason(choice: Mapping[str, Any]) -> object:
    return choice.get("stop_reason", choice.get("matched_stop"))


def _unseen_end(choice: Mapping[str, Any], plan: SamplingPlan) -> str:
    """Return what ended a text whose ids hold no end: a stop string that the server does not name, else nothing of ours."""
    if plan.stop_strings:
        return "string"
    raise BackendError(
        f"the server says that the text ended (stop reason {_shown(_stop_reason(choice))}), and none of the tokens that end one is there: "
        "it has ends of its own, or keeps the last token to itself"
    )


def _end_ids(choice: Mapping[str, Any], plan: SamplingPlan, tokenizer: Any) -> tuple[int, ...]:
    """Return the id that ended a text, of a server that gives no ids: the one that it names, else the checkpoint's end."""
    told = _stop_reason(choice)
    if told is not None:
        for token_id in plan.stop_token_ids:
            if told in (token_id, tokenizer.decode([token_id])):
                return (token_id,)
    return plan.stop_token_ids[:1]


def _shown(value: object) -> str:
    return excerpt(redactor().text(repr(value)[:10_000]), 200)
