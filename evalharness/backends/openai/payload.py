"""Prompts → bodies of requests; what a server cannot be asked is refused. Pure: no network here. Answers: `openai_answers.py`."""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evalharness.api.errors import BackendError, RequestError, UnsupportedOption
from evalharness.backends.base import ChatCall, Completion, Prompt, SamplingPlan
from evalharness.backends.max.backend import max_seed
from evalharness.backends.openai.answers import IMPOSSIBLE, ROUNDING
from evalharness.backends.openai.flavours import Flavour

if TYPE_CHECKING:
    from PIL import Image

    from evalharness.api.structured_output import StructuredOutput

__all__ = ["chat_body", "check_plan", "completion_body", "completion_of_response", "scoring_body"]

_CUTS = ("top_k", "min_p")  # extra options that leave the distribution as it is, but for what may be drawn


def check_plan(plan: SamplingPlan, flavour: Flavour, name: str, *, tokenizer: Any, eos_token_ids: Sequence[int]) -> None:
    """Raise `UnsupportedOption` for what such a server would refuse, or change without saying so."""
    if plan.no_repeat_ngram_size:
        raise UnsupportedOption(f"options.no_repeat_ngram_size={plan.no_repeat_ngram_size} cannot be honoured by servers; set it to 0")
    if not plan.use_cache:
        raise UnsupportedOption("options.use_cache=False cannot be honoured by servers; leave it True")
    if plan.repetition_penalty != 1.0 and not flavour.repetition_penalty:
        raise UnsupportedOption(f"options.repetition_penalty={plan.repetition_penalty} cannot be honoured by server {name!r}; leave it 1")
    if plan.logprobs:
        _check_logprobs(plan, flavour, name)
    if not flavour.stop_ids:
        _check_ends(plan, name, tokenizer, eos_token_ids)
    for option, _ in plan.extra:
        if option not in flavour.extras:
            raise UnsupportedOption(
                f"option {option!r} cannot be honoured by server {name!r}; it knows: {', '.join(sorted(flavour.extras)) or 'none'}"
            )


def _check_logprobs(plan: SamplingPlan, flavour: Flavour, name: str) -> None:
    if not flavour.token_ids:
        raise UnsupportedOption(f"server {name!r} gives no token ids, so its log-probabilities belong to none; leave options.logprobs out")
    if not flavour.tempered_logprobs:
        if plan.structured is not None:
            raise UnsupportedOption(
                f"server {name!r} takes log-probabilities after the mask of options.structured, so they are not the model's own; "
                "leave one of the two out"
            )
        return
    given = {option for option, value in plan.extra if value and value != -1}
    is_changed = plan.repetition_penalty != 1.0 or plan.structured is not None or bool(given.difference(_CUTS))
    if plan.logprobs_kind == "raw" and (plan.temperature not in (0.0, 1.0) or is_changed):
        raise UnsupportedOption(
            f"server {name!r} gives log-probabilities after penalties, masks and temperature: raw ones only at temperature 0 or 1 without "
            "the others; ask so, for options.logprobs_kind 'processed', or without options.logprobs"
        )
    if plan.logprobs_kind == "processed" and plan.temperature > 0 and (plan.top_p < 1.0 or given.intersection(_CUTS)):
        raise UnsupportedOption(
            f"server {name!r} gives log-probabilities before top_p, top_k and min_p, which are none of what tokens are drawn by; leave "
            "these out, or options.logprobs"
        )


def _check_ends(plan: SamplingPlan, name: str, tokenizer: Any, eos_token_ids: Sequence[int]) -> None:
    """Refuse ends that a server of texts cannot be told: it keeps its own, and finds others by their text alone."""
    if not set(eos_token_ids) <= set(plan.stop_token_ids):
        raise UnsupportedOption(f"server {name!r} ends texts at the checkpoint's end tokens, told or not; leave options.eos_token_id unset")
    for token_id in plan.stop_token_ids:
        text = tokenizer.decode([token_id])
        if token_id not in eos_token_ids and (not text or "\ufffd" in text):
            raise UnsupportedOption(
                f"server {name!r} knows stops by their text alone, and token {token_id} has none of its own; stop at a text"
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
        strings += [text for token_id in others if (text := tokenizer.decode([token_id])) not in strings]
    if strings:
        values["stop"] = strings
    if flavour.token_ids:
        values["return_token_ids"] = True
    if plan.structured is not None:
        values.update(_structure(plan.structured, flavour))
    for name, value in plan.extra:
        if name == "top_k" and value in (0, -1):  # off, which servers write in two ways
            value = flavour.defaults.get(name, 0)
        if value is not None:
            values[flavour.extras[name]] = value
    return values


def _structure(structured: StructuredOutput, flavour: Flavour) -> dict[str, Any]:
    """Return the fields that hold an answer to a structure: vLLM takes all kinds in one of its own, SGLang in one each."""
    ((kind, value),) = structured.to_json().items()
    if "choice" in flavour.structures:
        return {"structured_outputs": {"json" if kind == "json_schema" else kind: value}}
    return {"ebnf" if kind == "grammar" else kind: json.dumps(value) if kind == "json_schema" else value}


def _stop_ids(plan: SamplingPlan, flavour: Flavour, vocab_size: int, eos_token_ids: Sequence[int]) -> dict[str, Any]:
    values: dict[str, Any] = {"stop_token_ids": [token_id for token_id in plan.stop_token_ids if token_id < vocab_size], "ignore_eos": True}
    if not flavour.is_max:
        values["skip_special_tokens"] = plan.skip_special_tokens
    if not flavour.eos_beside_ids:
        return values  # the plan's ids hold every end; the server's own idea of EOS must not add to them
    if set(eos_token_ids) <= set(plan.stop_token_ids):
        return {**values, "ignore_eos": False}
    del values["stop_token_ids"]  # given up together with its own; the text is cut at them here, once it is there
    return values


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


# Given responses at a vLLM server: prompt and response go as ids, and the log-probabilities of prompt tokens come back. Pure


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
