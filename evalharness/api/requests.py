"""What an engine is asked and what it answers: frozen, validated, importable without torch.

Every field error names the field by its dotted path (`request.prompt_token_ids[2]`). Wrong type: `ContractTypeError`;
out of range: `ContractValueError`. A `bool` is never accepted where a number is asked for. How requests are decoded is in
generation_options.py, how an engine is made in engine_options.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeAlias

from evalharness.api.checks import check_boolean, check_sequence, check_token_ids
from evalharness.api.errors import (
    ContractTypeError,
    ContractValueError,
    ImageError,
    PromptTooLong,
    RequestError,
    RequestsFailed,
    TemplateError,
)
from evalharness.api.options import LogprobsKind
from evalharness.api.thinking import Thinking
from evalharness.api.tools import Tool, read_tools

__all__ = [
    "FinishReason",
    "GenerationFailure",
    "GenerationResult",
    "TextGenerationRequest",
    "TokenGenerationRequest",
    "VlmGenerationRequest",
    "nothing_ran",
]

FinishReason: TypeAlias = Literal["stop", "length", "tool", "scored"]


@dataclass(frozen=True)
class TextGenerationRequest:
    """One chat without images. An empty list is accepted here and answered with a `TemplateError` of this request.

    `tools` are what the model may call (`evalharness.api.tools`): the chat template gets them, or else a part of the
    system message tells of them.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Tool | Mapping[str, Any]] = ()

    def __post_init__(self) -> None:
        _check_messages(self.messages)
        object.__setattr__(self, "tools", read_tools(self.tools))


@dataclass(frozen=True)
class VlmGenerationRequest:
    """One chat with images: content parts `{"type": "image", "image": SOURCE}`, any number, in message order.

    SOURCE is a path, bytes or a PIL image. A part without a source takes the next of `images`; both must come out even.
    Images are opened when their request is about to run, and let go with it; their sizes, SHA-256 and paths are recorded.
    `verify` records each image's patch grid too, and the expected and actual number of image tokens. `tools`: as for text.
    """

    messages: Sequence[Mapping[str, Any]]
    images: Sequence[Any] = ()
    verify: bool = False
    tools: Sequence[Tool | Mapping[str, Any]] = ()

    def __post_init__(self) -> None:
        _check_messages(self.messages)
        check_sequence("request.images", self.images, "image sources")
        check_boolean("request.verify", self.verify)
        object.__setattr__(self, "tools", read_tools(self.tools))
        object.__setattr__(self, "images", tuple(self.images))


@dataclass(frozen=True)
class TokenGenerationRequest:
    """One prompt as token ids, asked as it is: no chat template, no special tokens added. For callers that tokenise themselves.

    No ids at all, ids that the vocabulary has not, and more than the context holds make this one request `invalid`.
    """

    prompt_token_ids: Sequence[int]

    def __post_init__(self) -> None:
        check_sequence("request.prompt_token_ids", self.prompt_token_ids, "ints")
        check_token_ids("request.prompt_token_ids", self.prompt_token_ids)
        object.__setattr__(self, "prompt_token_ids", tuple(self.prompt_token_ids))


def _check_messages(messages: Sequence[object]) -> None:
    check_sequence("request.messages", messages, "mappings")
    for position, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise ContractTypeError(f"request.messages[{position}] must be a mapping, got {message!r} ({type(message).__name__})")
        if message.get("content") is None and "tool_calls" not in message:
            raise ContractValueError(
                f"request.messages[{position}].content is missing, which would be asked as an empty message; "
                f"give text or a list of parts, got the keys {', '.join(map(repr, message)) or 'none'}"
            )


@dataclass(frozen=True)
class GenerationResult:
    """What one request produced.

    `text` is for consumers: cut at the first stop, special tokens skipped, stripped. `raw_text` is the decoded ids up to
    and including the end-of-sequence or stop token (with a stop string: the token that completes it). Token counts never include padding;
    `num_completion_tokens` includes the stop token. `token_ids` are the completion's ids; `logprobs`, if asked for, is
    one float per id (natural log, `logprobs_kind` tells raw or processed), None where there is none; `entropies` likewise, in nats.
    finish_reason "scored": nothing was generated, texts and ids are those of a given response (`ScoringRequest`). `cached`: nothing
    was generated for it, see `response_cache`. `exact_ids` False: a server gave text only, and `token_ids` are that text's, not
    those it generated. `thinking`: of a model that was to think, what it thought and answered; `answer` is the text without the thought.
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

    @property
    def answer(self) -> str:
        """What the model says behind its thought; the whole text where it did not think."""
        return self.text if self.thinking is None else self.thinking.answer

    @property
    def num_total_tokens(self) -> int | None:
        """Prompt plus completion, None when either is unknown."""
        if self.num_prompt_tokens is None or self.num_completion_tokens is None:
            return None
        return self.num_prompt_tokens + self.num_completion_tokens

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain JSON types."""
        values: dict[str, Any] = dict(vars(self))  # asked for every generation; `fields` would take three times as long
        values["token_ids"] = list(self.token_ids)
        values["logprobs"] = _written(self.logprobs)
        values["entropies"] = _written(self.entropies)
        values["ignored_options"] = list(self.ignored_options)
        values["images"] = [dict(image) for image in self.images]
        values["thinking"] = None if self.thinking is None else self.thinking.to_json()
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> GenerationResult:
        """Return the result that `to_json` wrote; keys of newer versions are ignored."""
        known = {f.name for f in fields(cls)}
        given = {key: value for key, value in values.items() if key in known}
        for name in ("token_ids", "ignored_options", "images"):
            given[name] = tuple(given.get(name) or ())
        for name in ("logprobs", "entropies"):
            if given.get(name) is not None:
                given[name] = tuple(None if value is None else float(value) for value in given[name])
        if given.get("thinking") is not None:
            given["thinking"] = Thinking.from_json(given["thinking"])
        return cls(**given)


def _written(values: Sequence[float | None] | None) -> list[float | str | None] | None:
    """Return log-probabilities as JSON, which has no infinity: a token that was cut away has "-inf"."""
    if values is None or -math.inf not in values:
        return None if values is None else list(values)
    return ["-inf" if value == -math.inf else value for value in values]


@dataclass(frozen=True)
class GenerationFailure:
    """Why one request has no result: `invalid` (it cannot be asked) or `error` (machine, network or code)."""

    kind: Literal["invalid", "error"]
    problem: str
    error: Exception | None = field(default=None, compare=False, repr=False)

    @property
    def cause(self) -> str | None:
        """The name of the request error that it comes from (`PromptTooLong`, `ImageError`…), None where it is another's."""
        return type(self.error).__name__ if isinstance(self.error, RequestError) else None

    @classmethod
    def recorded(cls, kind: str, problem: str, cause: str | None) -> GenerationFailure:
        """Return the failure that a record tells of; a `cause` that is not known any more is left out."""
        known = {error.__name__: error for error in (RequestError, PromptTooLong, ImageError, TemplateError)}
        return cls("invalid" if kind == "invalid" else "error", problem, known[cause](problem) if cause in known else None)


def nothing_ran(refused: Mapping[int, RequestError], num_requests: int) -> RequestsFailed:
    """Return the error of a call that is run as a whole or not at all, where some requests, by position, cannot be asked."""
    first = min(refused)
    not_run = GenerationFailure("error", f"not run: request {first} of the call cannot be, and they run together or not at all")
    outcomes = [GenerationFailure("invalid", str(refused[i]), refused[i]) if i in refused else not_run for i in range(num_requests)]
    return RequestsFailed(outcomes, [outcomes[i].problem for i in sorted(refused)])
