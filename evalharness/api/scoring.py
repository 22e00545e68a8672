"""Scoring of given responses: the request, and the log-probabilities that come back. Importable without torch and numpy.

    engine.get_logprobs(prompts, responses).values  # [batch, response]
    ScoringRequest(TextGenerationRequest(messages), "Paris")  # in an eval, in place of a request that generates

Prompt and response are joined as token ids, so that no token spans both; `join="text"` joins them as lm-evaluation-harness does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from evalharness.api.checks import check_boolean, check_sequence, check_token_ids
from evalharness.api.errors import ContractTypeError, ContractValueError
from evalharness.api.requests import (
    CompletionRequest,
    GenerationResult,
    TextGenerationRequest,
    TokenGenerationRequest,
    VlmGenerationRequest,
)

Chat: TypeAlias = "TextGenerationRequest | VlmGenerationRequest"
TokenIds: TypeAlias = "str | Sequence[int]"
"""A text, to be tokenised, or token ids."""
Context: TypeAlias = "Chat | CompletionRequest | TokenIds"
"""What stands before a response."""


@dataclass(frozen=True)
class ScoringRequest:
    """Requests the likelihood of a response, given a prompt; nothing is generated.

    `prompt`: a chat, rendered as for generation; a text, to which only the tokenizer's beginning-of-sequence token is added; or token ids,
    used unchanged. `response`: a text or token ids. Special tokens in texts are read, and the result's `ignored_options` name them, but for
    those in the response to a chat; behind a `CompletionRequest`, or a chat with `special_tokens=False`, they are text. `ends`: score the
    end-of-sequence token too (the checkpoint's first, or `GenerationOptions.eos_token_id`). Only the options `logprobs_kind` and
    `entropies` apply, and for "processed" those that shape the distribution.

    `join`: "ids", or "text" for two texts (or a chat and a text) that are tokenised as one. Spaces at the prompt's end then belong to the
    response, the prompt's ids are those of the rest, and the response's are the ids behind as many of the whole. Before an empty prompt
    stands the tokenizer's BOS or else its EOS. The numbers are those of lm-evaluation-harness.

    `rolling`, of an empty prompt with `join="text"`: a response of more tokens than this, or for True than the context has room for (two
    fewer than its length), is scored in windows: each token once, behind the token before its window, those of the last behind as many as
    fit. The numbers are those of lm-evaluation-harness with `max_length` of so many tokens.

    `greedy`: also tell whether greedy decoding gives this response (`GenerationResult.is_greedy`).
    """

    prompt: Chat | CompletionRequest | TokenGenerationRequest | TokenIds
    response: TokenIds
    ends: bool = False
    join: Literal["ids", "text"] = "ids"
    rolling: bool | int = False
    greedy: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.prompt, TokenGenerationRequest):
            object.__setattr__(self, "prompt", tuple(self.prompt.prompt_token_ids))
        elif not isinstance(self.prompt, (TextGenerationRequest, VlmGenerationRequest, CompletionRequest)):
            object.__setattr__(self, "prompt", _text_or_ids("scoring.prompt", self.prompt))
        object.__setattr__(self, "response", _text_or_ids("scoring.response", self.response))
        check_boolean("scoring.ends", self.ends)
        check_boolean("scoring.greedy", self.greedy)
        if self.join not in ("ids", "text"):
            raise ContractValueError(f"scoring.join must be 'ids' or 'text', got {self.join!r}")
        if self.join == "text" and (isinstance(self.prompt, tuple) or not isinstance(self.response, str)):
            raise ContractValueError("scoring.join='text' joins texts; give prompt and response as texts, or join='ids'")
        if not isinstance(self.rolling, int) or self.rolling < 0:
            raise ContractValueError(f"scoring.rolling must be True, False or a number of tokens, got {self.rolling!r}")
        if self.rolling and (self.prompt not in ("", CompletionRequest("")) or self.join != "text"):
            raise ContractValueError("scoring.rolling is for a text alone: give prompt='' and join='text'")


def _text_or_ids(path: str, value: TokenIds) -> str | tuple[int, ...]:
    if isinstance(value, str):
        return value
    check_sequence(path, value, "token ids, or a text")
    check_token_ids(path, value)
    return tuple(value)


def chat_of(request: Any) -> Chat | None:
    """Return the chat of a request or scoring request, None if its prompt is a bare text or ids."""
    prompt = request.prompt if isinstance(request, ScoringRequest) else request
    return prompt if isinstance(prompt, (TextGenerationRequest, VlmGenerationRequest)) else None


def shots_of(request: Any) -> tuple[str, ...]:
    """Return the ids of the worked examples in a request, or in the prompt of a scoring request."""
    return tuple(getattr(request.prompt if isinstance(request, ScoringRequest) else request, "shots", ()))


@dataclass(frozen=True)
class ResponseScores:
    """Log-probabilities of given responses, one row each, natural log.

    `values` `[batch, response]` float32, NaN where a row has no token or its token has no value (the very first, without a prompt);
    `mask` `[batch, response]` is True where there is a value. `entropies` `[batch, response]`, if requested: entropy in nats of the whole
    raw distribution of each token. Numpy arrays; with `grad=True` torch tensors on the model's device, `values` and `entropies` with
    gradients. `kind`: "raw", the model's own, or "processed", after temperature and cuts. `token_ids`: those of the responses;
    `num_prompt_tokens`: tokens before each response, images expanded; `weight_version`: the weights that scored.
    """

    values: Any
    mask: Any
    token_ids: tuple[tuple[int, ...], ...]
    num_prompt_tokens: tuple[int, ...]
    kind: Literal["raw", "processed"] = "raw"
    entropies: Any = None
    weight_version: str | None = None

    def rows(self) -> list[list[float | None]]:
        """Return each response's values as plain numbers, one per token, None where there is no value."""
        values, mask = self.values.tolist(), self.mask.tolist()
        return [[values[i][j] if mask[i][j] else None for j in range(len(ids))] for i, ids in enumerate(self.token_ids)]


def scores_of(results: Sequence[GenerationResult]) -> ResponseScores:
    """Return the scores of results of `ScoringRequest`s, as numpy arrays. Raises `ContractTypeError` for other results."""
    import numpy as np

    width = max((len(result.token_ids) for result in results), default=0)
    values: Any = np.full((len(results), width), np.nan, dtype=np.float32)
    entropies = values.copy()
    mask: Any = np.zeros((len(results), width), dtype=bool)
    for row, result in enumerate(results):
        num = len(result.token_ids)
        if result.logprobs is None or len(result.logprobs) != num:
            raise ContractTypeError("a result without a log-probability for each token; give results of ScoringRequests")
        values[row, :num] = [np.nan if value is None else value for value in result.logprobs]
        mask[row, :num] = [value is not None for value in result.logprobs]
        if result.entropies is not None:
            entropies[row, :num] = [np.nan if value is None else value for value in result.entropies]
    return ResponseScores(
        values,
        mask,
        tuple(result.token_ids for result in results),
        tuple(result.num_prompt_tokens or 0 for result in results),
        results[0].logprobs_kind or "raw" if results else "raw",
        entropies if results and results[0].entropies is not None else None,
        results[0].weight_version if results else None,
    )


@dataclass(frozen=True)
class ResponseLogits:
    """Raw logits of given responses: torch tensors on the model's device, with gradients if requested.

    `values` `[batch, response, vocab]` float32: `values[i, j]` are the logits from which token j was predicted, NaN where `mask`
    `[batch, response]` is False. The other fields are as in `ResponseScores`.
    """

    values: Any
    mask: Any
    token_ids: tuple[tuple[int, ...], ...]
    num_prompt_tokens: tuple[int, ...]
    weight_version: str | None = None
