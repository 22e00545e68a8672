"""Scores of given responses, asked of an engine: `Engine.get_logprobs` and `Engine.get_logits`.

Without gradients they are requests like any other and go through `Engine.stream`, on every backend that can. Tensors (logits, gradients)
come from the backend that has the model in this process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from evalharness.api.checks import check_integer, check_sequence
from evalharness.api.errors import CapabilityError, ConfigError, ContractTypeError, ContractValueError
from evalharness.api.options import GenerationOptions
from evalharness.api.scoring import Chat, ResponseLogits, ResponseScores, ScoringRequest, TokenIds, scores_of
from evalharness.backends.base import Backend, Prompt, TensorBackend
from evalharness.engine.results import all_results

if TYPE_CHECKING:
    from evalharness.engine.engine import Engine

__all__ = ["MAX_LOGIT_BYTES", "response_logits", "response_logprobs"]

MAX_LOGIT_BYTES = 2 * 1024**3
"""How large the answer of `get_logits` may be unless another size is allowed: 2 GiB is 3,500 tokens of a vocabulary of 150,000."""
_FLOAT32_BYTES = 4


def response_logprobs(
    engine: Engine,
    prompts: Sequence[Chat | TokenIds],
    responses: Sequence[TokenIds],
    options: GenerationOptions,
    *,
    ends: bool,
    grad: bool,
) -> ResponseScores:
    """See `Engine.get_logprobs`."""
    requests = _requests(prompts, responses, ends)
    if not grad:
        outcomes: dict[int, Any] = dict(engine.stream(requests, options))
        return scores_of(all_results([outcomes[index] for index in range(len(requests))]))
    backend = _tensor_backend(engine.backend, "give gradients")
    return engine.with_prompts(
        requests, options, lambda made: replace(backend.response_logprobs(made, grad=True), weight_version=engine.weight_version)
    )


def response_logits(
    engine: Engine, prompts: Sequence[Chat | TokenIds], responses: Sequence[TokenIds], *, ends: bool, grad: bool, max_bytes: int
) -> ResponseLogits:
    """See `Engine.get_logits`."""
    requests = _requests(prompts, responses, ends)
    check_integer("max_bytes", max_bytes, minimum=0)
    backend = _tensor_backend(engine.backend, "give logits")

    def run(made: Sequence[Prompt]) -> ResponseLogits:
        shape = (len(made), max((len(prompt.response_ids or ()) for prompt in made), default=0), backend.vocab_size)
        num_bytes = shape[0] * shape[1] * shape[2] * _FLOAT32_BYTES
        if num_bytes > max_bytes:
            raise ConfigError(
                f"the logits {list(shape)} in float32 would take {num_bytes:,} bytes, more than max_bytes={max_bytes:,}; "
                "ask for fewer or shorter responses at once, use get_logprobs, or allow more"
            )
        return replace(backend.response_logits(made, grad=grad), weight_version=engine.weight_version)

    return engine.with_prompts(requests, GenerationOptions(), run)


def _requests(prompts: Sequence[Chat | TokenIds], responses: Sequence[TokenIds], ends: bool) -> list[ScoringRequest]:
    for name, given in (("prompts", prompts), ("responses", responses)):
        if isinstance(given, str):
            raise ContractValueError(f"{name} must be a list, one per pair, got one text: {given[:80]!r}")
        check_sequence(name, given, "texts, token ids or chats, one per pair")
    if len(prompts) != len(responses):
        raise ContractValueError(f"{len(prompts)} prompts but {len(responses)} responses; give one response for each prompt")
    requests = []
    for number, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        try:
            requests.append(ScoringRequest(prompt, response, ends))
        except (ContractTypeError, ContractValueError) as error:
            raise type(error)(f"pair {number}: {error}") from None
    return requests


def _tensor_backend(backend: Backend, what: str) -> TensorBackend:
    if not backend.capabilities.supports_logits:
        raise CapabilityError(f"backend {backend.name!r} cannot {what}: its model is not a torch module of this process; use --backend hf")
    assert isinstance(backend, TensorBackend)
    return backend
