"""Requests to an engine and their results: frozen, validated, importable without torch. Options are in `api/options.py`.

Errors name the field by its dotted path (`request.prompt_token_ids[2]`). Wrong type: `ContractTypeError`; out of range:
`ContractValueError`. A `bool` is never a number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from evalharness.api import errors
from evalharness.api.checks import check_boolean, check_sequence, check_text, check_token_ids, excerpt, named_arguments, shown
from evalharness.api.options import LogprobsKind
from evalharness.api.thinking import Thinking
from evalharness.api.tools import Tool, read_tools

if TYPE_CHECKING:
    from evalharness.api.scoring import ScoringRequest

_SHOWN_CHARS = 60
"""Of an answer in a repr: pytest shows it below failed assertions."""
FinishReason: TypeAlias = Literal["stop", "length", "tool", "scored"]


@named_arguments(prompt="messages=[{'role': 'user', 'content': …}]", images="VlmGenerationRequest(messages, images)")
@dataclass(frozen=True)
class TextGenerationRequest:
    """One chat without images. An empty list is accepted here and gives this request a `TemplateError`.

    `tools` are the tools that the model may call: passed to the chat template, or described in the system message. `prefill` is how the
    model's answer begins: it goes on from there, and its result has only what it adds. `shots` are the ids of worked examples among the
    messages, for the record. `special_tokens`: what the messages or tools write like a special token (`<|im_end|>`) is one, as in training
    and on servers, and the result's `ignored_options` say so; False: it stays text. Those of `prefill` are always read.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Tool | Mapping[str, Any]] = ()
    prefill: str = ""
    shots: Sequence[str] = ()
    special_tokens: bool = True

    def __post_init__(self) -> None:
        _check_messages(self.messages)
        _check_start(self)
        object.__setattr__(self, "tools", read_tools(self.tools))


@named_arguments(image="images=[…]", prompt="messages=[{'role': 'user', 'content': …}]")
@dataclass(frozen=True)
class VlmGenerationRequest:
    """One chat with images: any number of content parts `{"type": "image", "image": SOURCE}`, in message order.

    SOURCE is a path, bytes or a PIL image. A part without a source takes the next of `images`, which must all be used.
    Images are opened just before their request runs, and released after it; their sizes, SHA-256 and paths are recorded.
    With `verify`, so are each image's patch grid and the expected and actual number of image tokens. `tools`, `prefill`, `shots`,
    `special_tokens`: as for text.
    """

    messages: Sequence[Mapping[str, Any]]
    images: Sequence[Any] = ()
    verify: bool = False
    tools: Sequence[Tool | Mapping[str, Any]] = ()
    prefill: str = ""
    shots: Sequence[str] = ()
    special_tokens: bool = True

    def __post_init__(self) -> None:
        _check_messages(self.messages)
        _check_start(self)
        check_sequence("request.images", self.images, "image sources")
        check_boolean("request.verify", self.verify)
        object.__setattr__(self, "tools", read_tools(self.tools))
        object.__setattr__(self, "images", tuple(self.images))


@named_arguments(**dict.fromkeys(("token_ids", "input_ids", "prompt_ids"), "prompt_token_ids"))
@dataclass(frozen=True)
class TokenGenerationRequest:
    """One prompt as token ids, used as they are: no chat template, no special tokens. For callers with a tokeniser of their own.

    An empty prompt, ids beyond the vocabulary and a prompt beyond the context make this request `invalid`.
    """

    prompt_token_ids: Sequence[int]

    def __post_init__(self) -> None:
        check_sequence("request.prompt_token_ids", self.prompt_token_ids, "ints")
        check_token_ids("request.prompt_token_ids", self.prompt_token_ids)
        object.__setattr__(self, "prompt_token_ids", tuple(self.prompt_token_ids))


@named_arguments(text="prompt", messages="TextGenerationRequest(messages)")
@dataclass(frozen=True)
class CompletionRequest:
    """One text that the model continues: no chat template, for base models. The tokenizer's own beginning (BOS) stands before it, no end.

    Special tokens in the text (`<|im_end|>` in data) stay text, unless `special_tokens`. `shots`: ids of worked examples in it.
    """

    prompt: str
    special_tokens: bool = False
    shots: Sequence[str] = ()

    def __post_init__(self) -> None:
        check_text("request.prompt", self.prompt)
        check_boolean("request.special_tokens", self.special_tokens)
        _check_shots(self)


def _check_start(request: TextGenerationRequest | VlmGenerationRequest) -> None:
    check_text("request.prefill", request.prefill)
    check_boolean("request.special_tokens", request.special_tokens)
    _check_shots(request)


def _check_shots(request: TextGenerationRequest | VlmGenerationRequest | CompletionRequest) -> None:
    if request.shots == ():
        return
    check_sequence("request.shots", request.shots, "ids of worked examples")
    for position, shot in enumerate(request.shots):
        check_text(f"request.shots[{position}]", shot)
    object.__setattr__(request, "shots", tuple(request.shots))


def _check_messages(messages: Sequence[object]) -> None:
    check_sequence("request.messages", messages, "mappings")
    for position, message in enumerate(messages):
        where = f"request.messages[{position}]"
        if not isinstance(message, Mapping):
            raise errors.ContractTypeError(f"{where} must be a mapping, got {message!r} ({type(message).__name__})")
        if message.get("content") is None and "tool_calls" not in message:
            raise errors.ContractValueError(
                f"{where}.content is missing, which would render as an empty message; "
                f"give text or a list of parts, got the keys {', '.join(map(repr, message)) or 'none'}"
            )
        content = message.get("content")
        for number, part in enumerate(content if isinstance(content, (list, tuple)) else ()):
            if not isinstance(part, Mapping):  # templates pass over it
                legal = "a mapping such as {'type': 'text', 'text': …}"
                raise errors.ContractTypeError(f"{where}.content[{number}] must be {legal}, got {part!r} ({type(part).__name__})")


@dataclass(frozen=True)
class GenerationResult:
    """The result of one request.

    `text` is cut at the first stop, without special tokens, stripped. `raw_text` is the decoded ids up to and including the
    end-of-sequence or stop token (of a stop string: the token that completes it). Token counts never include padding;
    `num_completion_tokens` includes the stop token. `token_ids` are the completion's ids; `logprobs`, if requested, has one float per id
    (natural log, raw or processed by `logprobs_kind`), None where the engine gave no value; `entropies` likewise, in nats.
    `finish_reason` "scored": nothing was generated; texts and ids are those of a given response (`ScoringRequest`). `cached`: the answer
    comes from the cache. `exact_ids` False: a server returned text only, and `token_ids` are the text's, not the generated ones.
    `thinking`: thought and answer of a model with thinking on; `answer` is the text without the thought. `num_bytes_scored`: UTF-8 bytes
    of a given response without its first tokens that have no value; None for generated texts. `shots`, `prefill`, `join`: as the
    request has them. `is_greedy`: whether each token of a given response is the most likely one, as lm-evaluation-harness has it; None if
    that was not asked (`ScoringRequest(greedy=True)`), or where a token has no value.
    """

    text: str
    raw_text: str
    finish_reason: FinishReason
    stop_reason: str | int | None = None
    num_prompt_tokens: int | None = None
    num_completion_tokens: int | None = None
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float | None, ...] | None = None
    logprobs_kind: LogprobsKind | None = None
    seed: int | None = None
    backend: str = ""
    fallback: str | None = None
    ignored_options: tuple[str, ...] = ()
    prompt_sha256: str = ""
    prompt_text: str = ""
    weight_version: str | None = None
    images: tuple[Mapping[str, Any], ...] = ()
    cached: bool = False
    exact_ids: bool = True
    entropies: tuple[float | None, ...] | None = None
    thinking: Thinking | None = None
    num_bytes_scored: int | None = None
    shots: tuple[str, ...] = ()
    prefill: str = ""
    join: Literal["ids", "text"] = "ids"
    is_greedy: bool | None = None

    def __repr__(self) -> str:
        return f"Generation({excerpt(self.text, _SHOWN_CHARS)!r})"

    @property
    def answer(self) -> str:
        """The text after the thought; the whole text if the model did not think."""
        return self.text if self.thinking is None else self.thinking.answer

    @property
    def num_total_tokens(self) -> int | None:
        """Prompt plus completion tokens, None if either is unknown."""
        if self.num_prompt_tokens is None or self.num_completion_tokens is None:
            return None
        return self.num_prompt_tokens + self.num_completion_tokens

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain JSON types."""
        values: dict[str, Any] = dict(vars(self))  # called for every generation; `fields` would take three times as long
        values["token_ids"] = list(self.token_ids)
        values["logprobs"] = _json_numbers(self.logprobs)
        values["entropies"] = _json_numbers(self.entropies)
        values["ignored_options"] = list(self.ignored_options)
        values["images"] = [dict(image) for image in self.images]
        values["thinking"] = None if self.thinking is None else self.thinking.to_json()
        values["shots"] = list(self.shots)
        for name, usual in _LEFT_OUT:
            if values[name] == usual:
                del values[name]
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> GenerationResult:
        """Return the result that `to_json` wrote; keys of newer versions are ignored."""
        names = {f.name for f in fields(cls)}
        known = {key: value for key, value in values.items() if key in names}
        for name in ("token_ids", "ignored_options", "images", "shots"):
            known[name] = tuple(known.get(name) or ())
        for name in ("logprobs", "entropies"):
            if known.get(name) is not None:
                known[name] = tuple(None if value is None else float(value) for value in known[name])
        if known.get("thinking") is not None:
            known["thinking"] = Thinking.from_json(known["thinking"])
        return cls(**known)


_LEFT_OUT: tuple[tuple[str, Any], ...] = (("shots", []), ("prefill", ""), ("join", "ids"), ("is_greedy", None))
"""Fields that few results have otherwise: not in their JSON."""


def _json_numbers(values: Sequence[float | None] | None) -> list[float | str | None] | None:
    """Return numbers for JSON, which has no infinity: the log-probability of a cut-off token is "-inf"."""
    if values is None or -math.inf not in values:
        return None if values is None else list(values)
    return ["-inf" if value == -math.inf else value for value in values]


@dataclass(frozen=True)
class GenerationFailure:
    """Why one request has no result: it is `invalid` and cannot be run, or an `error` of machine, network or code stopped it."""

    kind: Literal["invalid", "error"]
    problem: str
    error: Exception | None = field(default=None, compare=False, repr=False)

    @property
    def cause(self) -> str | None:
        """The name of the request error behind it (`PromptTooLong`, `ImageError`…), None for any other error."""
        return type(self.error).__name__ if isinstance(self.error, errors.RequestError) else None

    @classmethod
    def recorded(cls, kind: str, problem: str, cause: str | None) -> GenerationFailure:
        """Return a recorded failure; an unknown `cause` is dropped."""
        known = {error.__name__: error for error in (errors.RequestError, errors.PromptTooLong, errors.ImageError, errors.TemplateError)}
        return cls("invalid" if kind == "invalid" else "error", problem, known[cause](problem) if cause in known else None)


Request: TypeAlias = "TextGenerationRequest | VlmGenerationRequest | CompletionRequest | TokenGenerationRequest | ScoringRequest"
"""What an engine can be asked."""
Outcome: TypeAlias = "GenerationResult | GenerationFailure"
"""What becomes of a request."""


def check_requests(requests: Any) -> None:
    """Raise `ContractTypeError` unless these are requests, in a sequence."""
    from evalharness.api.scoring import ScoringRequest

    kinds = (TextGenerationRequest, VlmGenerationRequest, CompletionRequest, TokenGenerationRequest, ScoringRequest)
    names = f"{', '.join(kind.__name__ for kind in kinds[:-1])} or {kinds[-1].__name__}"
    if isinstance(requests, kinds):
        raise errors.ContractTypeError(f"requests must be a list, got one {type(requests).__name__}; did you mean [request]?")
    check_sequence("requests", requests, names)
    for position, request in enumerate(requests):
        if not isinstance(request, kinds):
            got = f"requests[{position}] must be a {names}, got {shown(request)} ({type(request).__name__})"
            raise errors.ContractTypeError(f"{got}; a text is CompletionRequest(…) or TextGenerationRequest([{{'role': …, 'content': …}}])")


def nothing_ran(refused: Mapping[int, errors.RequestError], num_requests: int) -> errors.RequestsFailed:
    """Return the error of an all-or-nothing call in which some requests, given by position, cannot run."""
    first = min(refused)
    not_run = GenerationFailure("error", f"not run: request {first} of the call cannot be run, and all run together or not at all")
    outcomes = [GenerationFailure("invalid", str(refused[i]), refused[i]) if i in refused else not_run for i in range(num_requests)]
    return errors.RequestsFailed(outcomes, [outcomes[i].problem for i in sorted(refused)])
