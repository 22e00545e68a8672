"""Prompts → bodies of requests, and answers of servers → completions. Pure: no network here.

A request that a server cannot take is refused; a malformed answer is a `BackendError`. Token ids are taken from `token_ids` of the choice
or of its logprobs, else from `logprobs.content`; else the text is tokenised again, and the completion says that its ids are not exact.
"""

from __future__ import annotations

import base64
import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evalharness.api.checks import excerpt
from evalharness.api.errors import BackendError, RequestError, UnsupportedOption
from evalharness.api.redaction import redactor
from evalharness.backends.base import ChatCall, Completion, Prompt, SamplingPlan
from evalharness.backends.max.backend import max_seed
from evalharness.backends.openai.flavours import FLAVOURS
from evalharness.backends.stops import check_stop_ids

if TYPE_CHECKING:
    from PIL import Image

    from evalharness.api.structured_output import StructuredOutput

_CUTS = ("top_k", "min_p")  # extra options that leave the distribution as it is, but for what may be drawn


class RequestWriter:
    """Writes the bodies of requests to one kind of server; `name` is that of its flavour in messages."""

    def __init__(self, name: str, tokenizer: Any, eos_token_ids: Sequence[int]) -> None:
        self._name, self._flavour = name, FLAVOURS[name]
        self._tokenizer, self._eos_token_ids = tokenizer, eos_token_ids

    def check_plan(self, plan: SamplingPlan) -> None:
        """Raise `ConfigError` (`UnsupportedOption`) for what such a server would refuse, or change without saying so."""
        if plan.repetition_penalty != 1.0 and not self._flavour.repetition_penalty:
            raise UnsupportedOption(
                f"options.repetition_penalty={plan.repetition_penalty} cannot be honoured by server {self._name!r}; leave it 1"
            )
        if plan.logprobs:
            self._check_logprobs(plan)
        if self._flavour.stop_ids:
            check_stop_ids(plan, vocab_size=len(self._tokenizer), eos_token_ids=self._eos_token_ids, tokenizer=self._tokenizer)
        else:
            self._check_ends(plan)

    def _check_logprobs(self, plan: SamplingPlan) -> None:
        if not self._flavour.token_ids:
            raise UnsupportedOption(
                f"server {self._name!r} gives no token ids, so its log-probabilities belong to none; leave options.logprobs out"
            )
        if not self._flavour.tempered_logprobs:
            if plan.structured is not None:
                raise UnsupportedOption(
                    f"server {self._name!r} takes log-probabilities after the mask of options.structured, so they are not the model's own; "
                    "leave one of the two out"
                )
            return
        options = {option for option, value in plan.extra if value and value != -1}
        is_changed = plan.repetition_penalty != 1.0 or plan.structured is not None or bool(options.difference(_CUTS))
        if plan.logprobs_kind == "raw" and (plan.temperature not in (0.0, 1.0) or is_changed):
            raise UnsupportedOption(
                f"server {self._name!r} gives log-probabilities after penalties, masks and temperature: raw ones only at temperature 0 or "
                "1 without the others; ask so, for options.logprobs_kind 'processed', or without options.logprobs"
            )
        if plan.logprobs_kind == "processed" and plan.temperature > 0 and (plan.top_p < 1.0 or options.intersection(_CUTS)):
            raise UnsupportedOption(
                f"server {self._name!r} gives log-probabilities before top_p, top_k and min_p, which are not those that tokens are drawn "
                "by; leave these out, or options.logprobs"
            )

    def _check_ends(self, plan: SamplingPlan) -> None:
        """Refuse ends that a server of texts cannot be told: it keeps its own, and finds others by their text alone."""
        if not set(self._eos_token_ids) <= set(plan.stop_token_ids):
            raise UnsupportedOption(
                f"server {self._name!r} ends texts at the checkpoint's end tokens, told or not; leave options.eos_token_id unset"
            )
        for token_id in plan.stop_token_ids:
            text = self._tokenizer.decode([token_id])
            if token_id not in self._eos_token_ids and (not text or "\ufffd" in text):
                raise UnsupportedOption(
                    f"server {self._name!r} knows stops by their text alone, and token {token_id} has none of its own; stop at a text"
                )

    def completion_body(self, prompt: Prompt, model: str, *, as_text: bool) -> dict[str, Any]:
        """Return the body for `/v1/completions`; `as_text`: the prompt as text although the server takes ids.

        `RequestError` for a prompt given as ids that would not be the same ones again after a way through text.
        """
        ids = self._flavour.token_ids and not as_text
        if (prompt.given_as_ids or prompt.bare is not None or prompt.kept is not None) and not ids:
            self._check_round_trip(prompt)
        body: dict[str, Any] = {"model": model, "prompt": list(prompt.token_ids) if ids else prompt.text}
        if prompt.plan.logprobs:
            body["logprobs"] = 1
        if self._flavour.token_ids and not ids:
            body["add_special_tokens"] = prompt.bare is not None  # a rendered text has them
        return {**body, **self._sampling(prompt.plan)}

    def _check_round_trip(self, prompt: Prompt) -> None:
        again = tuple(self._tokenizer.encode(prompt.text, add_special_tokens=prompt.bare is not None))
        if again != prompt.token_ids:
            raise RequestError(
                f"the server takes no token ids, and the text of these {len(prompt.token_ids)} ids is tokenised to {len(again)} others; "
                "ask a server that takes ids (--server vllm or sglang)"
            )

    def chat_body(self, prompt: Prompt, chat: ChatCall, images: Sequence[Image.Image], model: str) -> dict[str, Any]:
        """Return the body for `/v1/chat/completions`, the only way for images: the server renders the messages itself."""
        if chat.continue_final_message and (self._flavour.is_max or not self._flavour.token_ids):
            raise RequestError(
                f"server {self._name!r} cannot go on with a message (prefill, continue_final_message) where there are images; leave it "
                "out, or ask with --backend hf or vllm"
            )
        if prompt.kept is not None:
            raise RequestError(
                "a server renders messages with images itself, and would read special tokens in the data; ask with --backend hf or "
                "vllm, or say special_tokens=True"
            )
        body: dict[str, Any] = {"model": model, "messages": _with_images(chat.messages, images)}
        if chat.tools:
            body["tools"] = list(chat.tools)
        if self._flavour.token_ids:
            if not self._flavour.is_max:
                body["add_generation_prompt"] = chat.add_generation_prompt
                body["continue_final_message"] = chat.continue_final_message
            body["chat_template_kwargs"] = {"enable_thinking": chat.enable_thinking}
        if prompt.plan.logprobs:
            body["logprobs"] = True
        return {**body, **self._sampling(prompt.plan)}

    def _sampling(self, plan: SamplingPlan) -> dict[str, Any]:
        values: dict[str, Any] = {
            "n": 1,
            "stream": False,
            "max_tokens": plan.max_new_tokens,
            "temperature": plan.temperature,
            "top_p": plan.top_p,
            **self._flavour.defaults,
        }
        if plan.temperature > 0 and plan.seed is not None:
            values["seed"] = max_seed(plan.seed) if self._flavour.is_max else plan.seed
        if self._flavour.repetition_penalty:
            values["repetition_penalty"] = plan.repetition_penalty
        strings = list(plan.stop_strings)
        if self._flavour.stop_ids:
            values.update(self._stop_ids(plan))
        else:
            others = [token_id for token_id in plan.stop_token_ids if token_id not in self._eos_token_ids]
            strings += [text for token_id in others if (text := self._tokenizer.decode([token_id])) not in strings]
        if strings:
            values["stop"] = strings
        if self._flavour.token_ids:
            values["return_token_ids"] = True
        if plan.structured is not None:
            values.update(self._structure(plan.structured))
        for name, value in plan.extra:
            if name == "top_k" and value in (0, -1):  # off, which servers write in two ways
                value = self._flavour.defaults.get(name, 0)
            if value is not None:
                values[self._flavour.extras[name]] = value
        return values

    def _structure(self, structured: StructuredOutput) -> dict[str, Any]:
        """Return the fields that hold an answer to a structure: vLLM takes all kinds in one of its own, SGLang in one each."""
        kind, value = structured.kind, structured.value
        if "choice" in self._flavour.structures:
            return {"structured_outputs": {"json" if kind == "json_schema" else kind: value}}
        return {"ebnf" if kind == "grammar" else kind: json.dumps(value) if kind == "json_schema" else value}

    def _stop_ids(self, plan: SamplingPlan) -> dict[str, Any]:
        values: dict[str, Any] = {
            "stop_token_ids": [token_id for token_id in plan.stop_token_ids if token_id < len(self._tokenizer)],
            "ignore_eos": True,
        }
        if not self._flavour.is_max:
            values["skip_special_tokens"] = plan.skip_special_tokens
        if not self._flavour.eos_beside_ids:
            return values  # the plan's ids hold every end; the server's own idea of EOS must not add to them
        if set(self._eos_token_ids) <= set(plan.stop_token_ids):
            return {**values, "ignore_eos": False}
        del values["stop_token_ids"]  # given up together with its own; the text is cut at them here, once it is there
        return values


def _with_images(messages: Sequence[Mapping[str, Any]], images: Sequence[Image.Image]) -> list[dict[str, Any]]:
    waiting = list(images)
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


def _data_url(image: Image.Image) -> str:
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=1)  # lossless: the model must see the pixels that other backends see
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode('ascii')}"


def scoring_body(prompt: Prompt, model: str, *, has_adapter: bool = False) -> dict[str, Any]:
    """Return the body for `/v1/completions`; `RequestError` for a response to images, and where an adapter is in force."""
    if has_adapter:
        raise RequestError(
            "a vLLM server's log-probabilities of prompts leave out a part of an adapter (vLLM issue 51594), or end its engine (29955); "
            "score it with backend vllm or hf"
        )
    if prompt.has_images:
        raise RequestError("a server takes images with messages only, where a response cannot be given as ids; score it with hf or vllm")
    token_ids = [*prompt.token_ids, *(prompt.response_ids or ())]
    if len(token_ids) < 1:
        raise RequestError("there is neither a prompt nor a response to send")
    return {
        "model": model,
        "prompt": token_ids,
        "prompt_logprobs": int(prompt.asks_greedy),  # beside the token's own, so many of the most likely ones
        "max_tokens": 1,
        "n": 1,
        "stream": False,
        "temperature": 0.0,
        "return_token_ids": True,
    }


def completion_of_response(answer: Any, prompt: Prompt) -> Completion:
    """Return the scores of the prompt's response from a server's answer; `BackendError` for a malformed answer."""
    response = prompt.response_ids or ()
    sent = [*prompt.token_ids, *response]
    choice = _choice(answer)
    entries, ids = choice.get("prompt_logprobs"), choice.get("prompt_token_ids")
    if ids is not None and ids != sent:
        raise BackendError("the server scored other tokens than those that it was sent")
    if not isinstance(entries, list) or len(entries) != len(sent):
        count = f"{len(entries)}" if isinstance(entries, list) else "no"
        raise BackendError(f"the server gave {count} log-probabilities for {len(sent)} prompt tokens; is it a vLLM server?")
    start = len(prompt.token_ids)
    values = tuple(_value(entries[place], sent[place], place) for place in range(start, len(sent)))
    is_greedy = _are_greedy(entries, values, start) if prompt.asks_greedy and response and None not in values else None
    return Completion(prompt.index, response, start, "given", values, is_greedy=is_greedy)


def _are_greedy(entries: Sequence[Mapping[str, Any]], values: Sequence[float | None], start: int) -> bool:
    """Return whether none of the most likely tokens is more likely than those that were scored, from the place `start` on."""
    for place, value in enumerate(values, start):
        others = [_value(entries[place], other, place) for other in entries[place]]
        if any(other is not None and value is not None and other > value for other in others):
            return False
    return True


def _value(entry: Any, token_id: int | str, place: int) -> float | None:
    if entry is None and place == 0:
        return None
    score = entry.get(str(token_id)) if isinstance(entry, Mapping) else None
    value = score.get("logprob") if isinstance(score, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
        raise BackendError(f"the server's log-probability of prompt token {place} is not a number: {str(entry)[:80]}")
    if value > ROUNDING:
        raise BackendError(f"the server's log-probability of prompt token {place} is above 0: {value}")
    return -math.inf if value <= IMPOSSIBLE else float(value)


IMPOSSIBLE = -9999.0
"""What vLLM's server says for minus infinity, which JSON does not have."""
ROUNDING = 1e-3
"""How far above 0 a log-probability may lie by rounding."""
_SOME_COUNT = 10**9  # a server may say any number, which no sum of floats could take
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
        spelled = _whole_characters(_text(choice) + (stop_string or ""))
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


def _whole_characters(text: str) -> str:
    """Return the text with a replacement character for each half of a surrogate pair, which JSON can hold and no tokenizer takes."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


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
        raise BackendError(f"the server's answer is not an object: {_shown(answer)}")
    choices = answer.get("choices")
    if not isinstance(choices, list):
        raise BackendError(f"the server's answer has no list of choices: {_shown(answer)}")
    if len(choices) != 1:
        raise BackendError(f"the server's answer has the wrong number of choices: expected 1, got {len(choices)}")
    if not isinstance(choices[0], Mapping):
        raise BackendError(f"the server's choice is not an object: {_shown(choices[0])}")
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
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _SOME_COUNT else None


def _ids_and_logprobs(choice: Mapping[str, Any], wanted: bool) -> tuple[tuple[int, ...] | None, tuple[float, ...] | None]:
    logprobs = _mapping(choice.get("logprobs"))
    ids = _ids(choice.get("token_ids"))
    for key in ("token_ids", "completion_ids"):
        ids = _ids(logprobs.get(key)) if ids is None else ids
    content = logprobs.get("content")
    content = content if isinstance(content, list) else None
    if ids is None and content is not None and all(isinstance(part, Mapping) and "token_id" in part for part in content):
        ids = _ids([part["token_id"] for part in content])
    if not wanted:
        return ids, None
    if ids is None:
        raise BackendError("the server gave no token ids, so its log-probabilities belong to none")
    values = logprobs.get("token_logprobs") if content is None else [_mapping(part).get("logprob") for part in content]
    return ids, _logprobs(values, len(ids))


def _ids(values: object) -> tuple[int, ...] | None:
    if not isinstance(values, list):
        return None
    if not all(isinstance(value, (int, str)) and _DIGITS.fullmatch(str(value)) for value in values):
        raise BackendError(f"the server's token ids are not integers: {_shown(values)}")
    return tuple(int(value) for value in values)


def _logprobs(values: object, num_ids: int) -> tuple[float, ...]:
    if not isinstance(values, list) or len(values) != num_ids:
        raise BackendError(f"the server gave {len(values) if isinstance(values, list) else 'no'} log-probabilities for {num_ids} tokens")
    try:
        numbers = tuple(float(value) for value in values)
    except (TypeError, ValueError):
        raise BackendError(f"a log-probability of the server is not a number: {_shown(values)}") from None
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
        raise BackendError(f"the server ended the answer with finish_reason {_shown(reason)}, which does not end a text")
    stop_reason = _stop_reason(choice)
    if isinstance(stop_reason, str) and stop_reason in plan.stop_strings:
        return "string", stop_reason
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
    stop_reason = _stop_reason(choice)
    if stop_reason is not None:
        for token_id in plan.stop_token_ids:
            if stop_reason in (token_id, tokenizer.decode([token_id])):
                return (token_id,)
    return plan.stop_token_ids[:1]


def _shown(value: object) -> str:
    return excerpt(redactor().text(repr(value)[:10_000]), 200)
