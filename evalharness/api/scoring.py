"""What a given response is worth to a model: the request, and the log-probabilities that come back. Importable without torch and numpy.

    engine.get_logprobs(prompts, responses).values  # [batch, response]
    ScoringRequest(TextGenerationRequest(messages), "Paris")  # in an eval, in place of a request that generates

Prompt and response are joined as token ids, never as texts: no token reaches from one into the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from evalharness.api.checks import check_boolean, check_sequence, check_token_ids
from evalharness.api.errors import ContractTypeError
from evalharness.api.requests import GenerationResult, TextGenerationRequest, TokenGenerationRequest, VlmGenerationRequest

__all__ = ["Chat", "ResponseLogits", "ResponseScores", "ScoringRequest", "TokenIds", "asked_chat", "scores_of"]

Chat: TypeAlias = "TextGenerationRequest | VlmGenerationRequest"
TokenIds: TypeAlias = "str | Sequence[int]"
"""A text, which the tokenizer makes ids of, or ids."""


@dataclass(frozen=True)
class ScoringRequest:
    """How likely is this response to this prompt: nothing is generated.

    `prompt`: a chat, rendered as for generation; or a text, which gets the beginning-of-sequence token that its tokenizer adds and
    nothing else; or token ids, taken as they are. `response`: a text, or token ids. `ends`: the end-of-sequence token belongs to it
    (the checkpoint's first, or `GenerationOptions.eos_token_id`). Of the options only `logprobs_kind`, `entropies` and, where
    that is "processed", what cuts and shapes the distribution count.
    """

    prompt: Chat | TokenGenerationRequest | TokenIds
    response: TokenIds
    ends: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.prompt, TokenGenerationRequest):
            object.__setattr__(self, "prompt", tuple(self.prompt.prompt_token_ids))
        elif not isinstance(self.prompt, (TextGenerationRequest, VlmGenerationRequest)):
            object.__setattr__(self, "prompt", _text_or_ids("scoring.prompt", self.prompt))
        object.__setattr__(self, "response", _text_or_ids("scoring.response", self.response))
        check_boolean("scoring.ends", self.ends)


def _text_or_ids(path: str, value: TokenIds) -> str | tuple[int, ...]:
    if isinstance(value, str):
        return value
    check_sequence(path, value, "token ids, or a text")
    check_token_ids(path, value)
    return tuple(value)


def asked_chat(request: Any) -> Chat | None:
    """Return the chat that a request asks or scores, None where its prompt is a bare text or ids."""
    prompt = request.prompt if isinstance(request, ScoringRequest) else request
    return prompt if isinstance(prompt, (TextGenerationRequest, VlmGenerationRequest)) else None


@dataclass(frozen=True)
class ResponseScores:
    """Log-probabilities of given responses, one row each, natural log.

    `values` `[batch, response]` float32, NaN where a row has no token or its token no value (the first of all, without a prompt);
    `mask` `[batch, response]` is True where there is one. `entropies` `[batch, response]`, if asked for: nats of the whole raw
    distribution that each token was taken from. Arrays of numpy; with `grad=True` torch tensors on the model's device, `values` and
    `entropies` with gradients. `kind`: "raw", the model's own, or "processed", after temperature and cuts. `token_ids` are the
    responses', `num_prompt_tokens` where each begins, images expanded; `weight_version` says which weights judged.
    """

    values: Any
    mask: Any
    token_ids: tuple[tuple[int, ...], ...]
    num_prompt_tokens: tuple[int, ...]
    kind: Literal["raw", "processed"] = "raw"
    entropies: Any = None
    weight_version: str | None = None

    def rows(self) -> list[list[float | None]]:
        """Return each response's values as plain numbers, as many as it has tokens, None where there is none."""
        values, mask = self.values.tolist(), self.mask.tolist()
        return [[values[i][j] if mask[i][j] else None for j in range(len(ids))] for i, ids in enumerate(self.token_ids)]


def scores_of(results: Sequence[GenerationResult]) -> ResponseScores:
    """Return the scores in results of `ScoringRequest`s, as numpy arrays."""
    import numpy as np

    width = max((len(result.token_ids) for result in results), default=0)
    shape = (len(results), width)
    values: Any = np.full(shape, np.nan, dtype=np.float32)
    entropies: Any = np.full(shape, np.nan, dtype=np.float32) if results and results[0].entropies is not None else None
    mask: Any = np.zeros(shape, dtype=bool)
    for row, result in enumerate(results):
        if result.logprobs is None or len(result.logprobs) != len(result.token_ids):
            raise ContractTypeError("a result without a log-probability for each token; give results of ScoringRequests")
        for column, value in enumerate(result.logprobs):
            if value is not None:
                values[row, column], mask[row, column] = value, True
        for column, entropy in enumerate(result.entropies or ()):
            if entropies is not None and entropy is not None:
                entropies[row, column] = entropy
    return ResponseScores(
        values,
        mask,
        tuple(result.token_ids for result in results),
        tuple(result.num_prompt_tokens or 0 for result in results),
        results[0].logprobs_kind or "raw" if results else "raw",
        entropies,
        results[0].weight_version if results else None,
    )


@dataclass(frozen=True)
class ResponseLogits:
    """Raw logits of given responses: torch tensors on the model's device, with gradients where they were asked for.

    `values` `[batch, response, vocab]` float32: what each token was judged by, so `values[i, j]` was read before token j; NaN where
    `mask` `[batch, response]` is False. The others as in `ResponseScores`.
    """

    values: Any
    mask: Any
    token_ids: tuple[tuple[int, ...], ...]
    num_prompt_tokens: tuple[int, ...]
    weight_version: str | None = None
