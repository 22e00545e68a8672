"""Prompts → bodies of requests, and answers of servers → completions. Pure: no network here.

Order of trust for token ids: those that the server gives (`token_ids`, in the choice or its logprobs), those that stand in
`logprobs.content`; else the text is tokenised again, and the completion says that its ids are not exact.
"""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evalharness.backends.base import ChatCall, Completion, Prompt, SamplingPlan
from evalharness.backends.max_seeds import max_seed
from evalharness.backends.openai_flavours import Flavour
from evalharness.errors import BackendError, RequestError, UnsupportedOption

if TYPE_CHECKING:
    from PIL import Image

    from evalharness.structured_output import StructuredOutput

__all__ = ["chat_body", "check_plan", "completion_body", "completion_of"]

MAX_TEMPERATURE = 2.0


def check_plan(plan: SamplingPlan, flavour: Flavour, name: str, eos_token_ids: Sequence[int]) -> None:
    """Raise `UnsupportedOption` for what such a server would refuse, or change without saying so."""
    if plan.temperature > MAX_TEMPERATURE or 0 < plan.temperature < 0.01:
        raise UnsupportedOption(f"options.temperature={plan.temperature} cannot be honoured by servers, which take 0 or 0.01 to 2")
    if plan.no_repeat_ngram_size:
        raise UnsupportedOption(f"options.no_repeat_ngram_size={plan.no_repeat_ngram_size} cannot be honoured by servers; set it to 0")
    if not plan.use_cache:
        raise UnsupportedOption("options.use_cache=False cannot be honoured by servers; leave it True")
    if plan.repetition_penalty != 1.0 and not flavour.repetition_penalty:
        raise UnsupportedOption(f"options.repetition_penalty={plan.repetition_penalty} cannot be honoured by server {name!r}; leave it 1")
    if plan.logprobs and not flavour.token_ids:
        raise UnsupportedOption(f"server {name!r} gives no token ids, so its log-probabilities belong to none; leave options.logprobs out")
    for option, _ in plan.extra:
        if option not in flavour.extras:
            raise UnsupportedOption(
                f"option {option!r} cannot be honoured by server {name!r}; it knows: {', '.join(sorted(flavour.extras)) or 'none'}"
            )


def completion_body(
    prompt: Prompt, flavour: Flavour, model: str, *, as_text: bool, tokenizer: Any, eos_token_ids: Sequence[int]
) -> dict[str, Any]:
    """Return the body for `/v1/completions`; `as_text`: the prompt as text although the server takes ids.

    `RequestError` for a prompt given as ids that would not be the same ones again after a way through text.
    """
    ids = flavour.token_ids and not as_text
    if prompt.given_as_ids and not ids:
        _check_round_trip(prompt, tokenizer)
    body: dict[str, Any] = {"model": model, "prompt": list(prompt.token_ids) if ids else prompt.text}
    if prompt.plan.logprobs:
        body["logprobs"] = 1
    if flavour.token_ids and not ids:
        body["add_special_tokens"] = False  # the rendered text has them
    return {**body, **_sampling(prompt.plan, flavour, tokenizer, eos_token_ids)}


def _check_round_trip(prompt: Prompt, tokenizer: Any) -> None:
    again = tuple(tokenizer.encode(prompt.text, add_special_tokens=False))
    if again != prompt.token_ids:
        raise RequestError(
            f"the server takes no token ids, and the text of these {len(prompt.token_ids)} ids is tokenised to {len(again)} others; "
            "ask a server that takes ids (--server vllm or sglang)"
        )


def chat_body(
    prompt: Prompt,
    chat: ChatCall,
    pictures: Sequence[Image.Image],
    flavour: Flavour,
    model: str,
    *,
    tokenizer: Any,
    eos_token_ids: Sequence[int],
) -> dict[str, Any]:
    """Return the body for `/v1/chat/completions`, the only way for images: the server renders the messages itself."""
    body: dict[str, Any] = {"model": model, "messages": _with_pictures(chat.messages, pictures)}
    if chat.tools:
        body["tools"] = list(chat.tools)
    if flavour.token_ids:
        if not flavour.is_max:
            body["add_generation_prompt"] = chat.add_generation_prompt
            body["continue_final_message"] = chat.continue_final_message
        body["chat_template_kwargs"] = {"enable_thinking": chat.enable_thinking}
    if prompt.plan.logprobs:
        body["logprobs"] = True
    return {**body, **_sampling(prompt.plan, flavour, tokenizer, eos_token_ids)}


def _sampling(plan: SamplingPlan, flavour: Flavour, tokenizer: Any, eos_token_ids: Sequence[int]) -> dict[str, Any]:
    values: dict[str, Any] = {
        "n": 1,
        "stream": False,
        "max_tokens": plan.max_new_tokens,
        "temperature": plan.temperature,
        "top_p": plan.top_p,
        **flavour.defaults,
    }
    if plan.temperature > 0 and plan.seed is not None:
        values["seed"] = max_seed(plan.seed) if flavour.is_max else plan.seed
    if flavour.repetition_penalty:
        values["repetition_penalty"] = plan.repetition_penalty
    strings = list(plan.stop_strings)
    if flavour.stop_ids:
        values.update(_stop_ids(plan, flavour, len(tokenizer), eos_token_ids))
    else:
        others = [token_id for token_id in plan.stop_token_ids if token_id not in eos_token_ids]
        strings += [text for token_id in others if (text := tokenizer.decode([token_id])) and text not in strings]
    if strings:
        values["stop"] = strings
    if flavour.token_ids:
        values["return_token_ids"] = True
    if plan.structured is not None:
        values.update(_structure(plan.structured, flavour))
    for name, value in plan.extra:
        values[flavour.extras[name]] = value
    return values


def _structure(structured: StructuredOutput, flavour: Flavour) -> dict[str, Any]:
    """Return the fields that hold an answer to a structure: vLLM takes all kinds in one of its own, SGLang in one each."""
    ((kind, value),) = structured.to_json().items()
    if "choice" in flavour.structures:
        return {"structured_outputs": {"json" if kind == "json_schema" else kind: value}}
    return {"ebnf" if kind == "grammar" else kind: json.dumps(value) if kind == "json_schema" else value}


def _stop_ids(plan: SamplingPlan, flavour: Flavour, vocab_size: int, eos_token_ids: Sequence[int]) -> dict[str, Any]:
    ids = [token_id for token_id in plan.stop_token_ids if token_id < vocab_size]
    if not flavour.is_max:
        # The plan's ids hold every end; the server's own idea of EOS must not add to them.
        return {"stop_token_ids": ids, "ignore_eos": True, "skip_special_tokens": plan.skip_special_tokens}
    if set(eos_token_ids) <= set(plan.stop_token_ids):
        return {"stop_token_ids": ids, "ignore_eos": False}
    # MAX gives up the ids that it is told together with its own. The text is cut at them here, once it is there.
    return {"ignore_eos": True}


def _with_pictures(messages: Sequence[Mapping[str, Any]], pictures: Sequence[Image.Image]) -> list[dict[str, Any]]:
    waiting = list(pictures)
    sent = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, Sequence) and not isinstance(content, str):
            content = [
                {"type": "image_url", "image_url": {"url": _data_url(waiting.pop(0))}} if part.get("type") == "image" else dict(part)
                for part in content
            ]
        sent.append({**message, "content": content})
    return sent


def _data_url(picture: Image.Image) -> str:
    file = io.BytesIO()
    picture.save(file, "PNG", compress_level=1)  # lossless: the model must see the pixels that other backends see
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode('ascii')}"


def completion_of(answer: Any, prompt: Prompt, *, tokenizer: Any, eos_token_ids: Sequence[int], exact_prompt: bool) -> Completion:
    """Return the completion that a server's answer holds; `BackendError` for whatever it should not be.

    `exact_prompt`: the server was given ids, or is to make the same of the messages: then its count of the prompt must be ours.
    """
    choice = _choice(answer)
    told = answer.get("usage")
    usage: Mapping[str, Any] = told if isinstance(told, Mapping) else {}
    num_prompt = _count(usage.get("prompt_tokens"))
    if exact_prompt and None not in (num_prompt, prompt.num_tokens) and num_prompt != prompt.num_tokens:
        raise BackendError(
            f"the server made {num_prompt} tokens of a prompt that has {prompt.num_tokens}: its tokenizer, chat template or image "
            "processor is not the checkpoint's"
        )
    token_ids, logprobs = _ids_and_logprobs(choice, prompt.plan.logprobs)
    if token_ids is not None and len(token_ids) > prompt.plan.max_new_tokens:
        raise BackendError(f"the server gave {len(token_ids)} tokens where {prompt.plan.max_new_tokens} were allowed")
    stopped_by, stop_string = _ending(choice, prompt.plan)
    exact = token_ids is not None
    if token_ids is None:
        spelled = _text(choice) + (stop_string or "")
        token_ids = tuple(tokenizer.encode(spelled, add_special_tokens=False))
        if stopped_by == "id" and eos_token_ids:
            token_ids += (eos_token_ids[0],)
    return Completion(
        index=prompt.index,
        token_ids=token_ids,
        num_prompt_tokens=num_prompt if num_prompt is not None else prompt.num_tokens or len(prompt.token_ids),
        stopped_by=stopped_by,
        logprobs=logprobs,
        exact_ids=exact,
        num_completion_tokens=None if exact else _count(usage.get("completion_tokens")),
    )


def _choice(answer: Any) -> Mapping[str, Any]:
    if not isinstance(answer, Mapping):
        raise BackendError(f"the server's answer is no object: {_short(answer)}")
    choices = answer.get("choices")
    if not isinstance(choices, list):
        raise BackendError(f"the server's answer has no list of choices: {_short(answer)}")
    if len(choices) != 1:
        raise BackendError(f"the server's answer has the wrong number of choices: expected 1, got {len(choices)}")
    if not isinstance(choices[0], Mapping):
        raise BackendError(f"the server's choice is no object: {_short(choices[0])}")
    return choices[0]


def _text(choice: Mapping[str, Any]) -> str:
    """Return the text, of a server that gives no ids; a text that the server took parts out of would be scored as if it were whole."""
    message = choice.get("message")
    if isinstance(message, Mapping) and message.get("tool_calls"):
        raise BackendError("the server took tool calls out of the text, which is lost; start it without a parser of tool calls")
    text = choice.get("text") if not isinstance(message, Mapping) else message.get("content")
    if not isinstance(text, str):
        raise BackendError(f"the server's choice has no text: {_short(choice)}")
    return text


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _ids_and_logprobs(choice: Mapping[str, Any], wanted: bool) -> tuple[tuple[int, ...] | None, tuple[float, ...] | None]:
    told = choice.get("logprobs")
    given: Mapping[str, Any] = told if isinstance(told, Mapping) else {}
    ids = _ids(choice.get("token_ids"))
    for key in ("token_ids", "completion_ids"):
        ids = _ids(given.get(key)) if ids is None else ids
    content = given.get("content")
    content = content if isinstance(content, list) else None
    if ids is None and content is not None and all(isinstance(part, Mapping) and "token_id" in part for part in content):
        ids = _ids([part["token_id"] for part in content])
    if not wanted or ids is None:
        return ids, None
    values = given.get("token_logprobs") if content is None else [part.get("logprob") for part in content]
    return ids, _logprobs(values, len(ids))


def _ids(values: object) -> tuple[int, ...] | None:
    if not isinstance(values, list):
        return None
    try:
        ids = tuple(int(value) for value in values)
    except (TypeError, ValueError):
        ids = (-1,)
    if ids and min(ids) < 0:
        raise BackendError(f"the server's token ids are none: {_short(values)}")
    return ids


def _logprobs(values: object, num_ids: int) -> tuple[float, ...]:
    if not isinstance(values, list) or len(values) != num_ids:
        raise BackendError(f"the server gave {len(values) if isinstance(values, list) else 'no'} log-probabilities for {num_ids} tokens")
    try:
        numbers = tuple(float(value) for value in values)
    except (TypeError, ValueError):
        raise BackendError(f"a log-probability of the server is no number: {_short(values)}") from None
    if not all(math.isfinite(number) for number in numbers):
        raise BackendError("a log-probability of the server is not finite")
    return numbers


def _ending(choice: Mapping[str, Any], plan: SamplingPlan) -> tuple[Any, str | None]:
    """Return what ended the text, and the stop string if the server names it."""
    reason = choice.get("finish_reason")
    if reason == "length":
        return "length", None
    if reason not in ("stop", "tool_calls", "eos"):
        raise BackendError(f"the server ended the answer with finish_reason {reason!r}, which is no end of a text")
    told = choice.get("stop_reason", choice.get("matched_stop"))
    if isinstance(told, str) and told in plan.stop_strings:
        return "string", told
    return "id", None


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"
