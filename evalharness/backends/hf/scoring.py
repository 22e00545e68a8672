"""Scores given responses with a transformers model: log-probabilities, entropies and logits of their tokens, with gradients on request.

One forward pass over prompt and response, padded on the right: padding then follows everything that counts, so positions and states of a
row equal those of the row alone, in models of every kind. Logits are computed only where they are needed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch

from evalharness.api.errors import BackendError, CapabilityError
from evalharness.api.scoring import ResponseLogits, ResponseScores
from evalharness.backends.base import BackendOutput, Completion, SamplingPlan, describe_error, failure_of
from evalharness.backends.hf.batching import is_out_of_memory
from evalharness.backends.hf.decoding import Row, collate
from evalharness.backends.hf.sampling import entropies_of, warpers_for
from evalharness.backends.hf.shared_prefixes import SharedPrefixes


def row_to_score(row: Row) -> Row:
    """Return the row with its response behind it."""
    response = row.prompt.response_ids or ()
    per_token = {name: (*values, *(0,) * len(response)) for name, values in row.per_token.items()}  # text, whatever the prompt has
    return replace(row, token_ids=row.token_ids + response, per_token=per_token)


@dataclass(frozen=True)
class ScoringRunner:
    """Runs batches of rows whose prompts have responses; the counterpart of `BatchRunner`."""

    model: Any
    should_stop: Callable[[], bool]
    computing: Callable[[], AbstractContextManager[Any]] = torch.inference_mode
    """What the model must be in meanwhile."""
    prefixes: SharedPrefixes | None = None
    """Reads once what rows have in common; None: every row is read on its own."""

    def run(self, rows: Sequence[Row]) -> Iterator[BackendOutput]:
        """Yield one completion per row, its ids those of the response; an `error` where the model gave no usable numbers."""
        packs = None if self.prefixes is None else self.prefixes.packs(self.model, rows)
        outputs: list[BackendOutput] = []
        with self.computing():
            if self.prefixes is None or packs is None:
                all_logits: Iterable[torch.Tensor] = logits_of_responses(self.model, rows)
            else:
                rows = [row for pack in packs for row in pack.rows]
                all_logits = self.prefixes.logits(self.model, packs, logits_of_responses)
            for row, logits in zip(rows, all_logits, strict=True):
                outputs.append(_completion(row, logits))
        yield from outputs


def logits_of_responses(model: Any, rows: Sequence[Row]) -> list[torch.Tensor]:
    """Return, per row, the raw logits that its response's tokens are judged by: the model's dtype, `(num_known, vocab)`.

    `num_known` is the number of response tokens, less the first of all where there is no prompt: nothing stands before it.
    """
    starts = [max(len(row.token_ids) - _num_response(row), 1) - 1 for row in rows]  # logits at i judge token i + 1
    ends = [max(len(row.token_ids) - 1, start) for row, start in zip(rows, starts, strict=True)]  # neither prompt nor response: none
    if all(start >= end for start, end in zip(starts, ends, strict=True)):
        return [torch.empty(0, int(model.config.get_text_config().vocab_size), device=model.device) for _ in rows]
    # What fills the gaps is masked, and comes last; no tokenizer's setting has a say.
    inputs = collate(rows, 0, model.device, model.dtype, left=False)
    first, last = min(starts), max(ends)
    kept = {}
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        kept["logits_to_keep"] = torch.arange(first, last, device=model.device)
    logits = model(**inputs, **kept, use_cache=False).logits
    first = first if kept else 0
    return [logits[i, start - first : end - first] for i, (start, end) in enumerate(zip(starts, ends, strict=True))]


def through_model(model: Any, batches: Sequence[list[Row]], *, grad: bool) -> list[tuple[list[Row], list[torch.Tensor]]]:
    """Return each batch's rows with their responses' logits; with `grad` attached to the model's weights.

    `CapabilityError` where no gradient could be taken, `BackendError` where memory is not enough.
    """
    if grad and torch.is_inference_mode_enabled():
        raise CapabilityError("gradients are asked for inside torch.inference_mode(), which keeps none; call it outside")
    if grad and not any(parameter.requires_grad for parameter in model.parameters()):
        raise CapabilityError("gradients are asked for, but every weight of the model has requires_grad=False; set it for some")
    try:
        with torch.set_grad_enabled(grad):
            return [(rows, logits_of_responses(model, rows)) for rows in batches]
    except Exception as error:
        if is_out_of_memory(error):
            raise BackendError(f"not enough memory to score {sum(map(len, batches))} responses at once: {describe_error(error)}") from None
        raise


def _num_response(row: Row) -> int:
    return len(row.prompt.response_ids or ())


def _logprobs(logits: torch.Tensor, row: Row) -> torch.Tensor:
    """Return the log-probabilities of a response's tokens under the plan's kind, float32 `(num_known,)`."""
    plan = row.prompt.plan
    token_ids = torch.tensor(row.token_ids[len(row.token_ids) - logits.shape[0] :], dtype=torch.long, device=logits.device)
    scores = _processed(logits.float(), plan) if plan.logprobs_kind == "processed" else logits.float()
    return scores.log_softmax(dim=-1).gather(1, token_ids[:, None]).squeeze(1)


def _processed(scores: torch.Tensor, plan: SamplingPlan) -> torch.Tensor:
    """Return scores `(tokens, vocab)` after temperature and cuts; greedy: as they are."""
    if plan.temperature > 0:
        scores = scores / plan.temperature
        for warper in warpers_for(plan):
            scores = warper(torch.empty(0, dtype=torch.long), scores)
    return scores


def _completion(row: Row, logits: torch.Tensor) -> BackendOutput:
    response = row.prompt.response_ids or ()
    unknown = (None,) * (len(response) - logits.shape[0])
    values = _logprobs(logits, row)
    if bool(values.isnan().any()):
        return row.prompt.index, failure_of(BackendError(_unusable(values)))
    entropies = (*unknown, *entropies_of(logits.float().log_softmax(dim=-1)).tolist()) if row.prompt.plan.entropies else None
    return Completion(
        index=row.prompt.index,
        token_ids=response,
        num_prompt_tokens=len(row.token_ids) - len(response),
        stopped_by="given",
        logprobs=(*unknown, *values.tolist()),
        image_grids=row.image_grids,
        entropies=entropies,
        is_greedy=_is_greedy(row, logits) if row.prompt.asks_greedy else None,
    )


def _is_greedy(row: Row, logits: torch.Tensor) -> bool | None:
    """Return whether greedy decoding gives a row's response, None where there is nothing to tell it by."""
    response = row.prompt.response_ids or ()
    if not response or len(response) > logits.shape[0]:
        return None
    return bool(logits.argmax(dim=-1).tolist() == list(response))


def _unusable(values: torch.Tensor) -> str:
    return f"the model gave no usable scores (NaN) at token {int(values.isnan().nonzero()[0])} of the response"


def padded_logprobs(batches: Sequence[tuple[Sequence[Row], Sequence[torch.Tensor]]], num_prompts: int) -> ResponseScores:
    """Return the scores of all rows as tensors `[batch, response]`, in the order of the prompts; `BackendError` where one is NaN."""
    rows = _in_order(batches, num_prompts)
    known = [_logprobs(logits, row) for row, logits in rows]
    for number, each in enumerate(known):
        if bool(each.isnan().any()):
            raise BackendError(f"response {number}: {_unusable(each)}")
    values = [_behind(each, row) for each, (row, _) in zip(known, rows, strict=True)]
    with_entropies = bool(rows) and rows[0][0].prompt.plan.entropies
    entropies = [_behind(entropies_of(logits.float().log_softmax(dim=-1)), row) for row, logits in rows] if with_entropies else []
    padded = _padded(values)
    return ResponseScores(
        padded,
        ~padded.detach().isnan(),
        tuple(row.prompt.response_ids or () for row, _ in rows),
        tuple(len(row.token_ids) - _num_response(row) for row, _ in rows),
        rows[0][0].prompt.plan.logprobs_kind if rows else "raw",
        _padded(entropies) if with_entropies else None,
    )


def padded_logits(batches: Sequence[tuple[Sequence[Row], Sequence[torch.Tensor]]], num_prompts: int) -> ResponseLogits:
    """Return the logits of all rows, float32 `[batch, response, vocab]`, in the order of the prompts."""
    rows = _in_order(batches, num_prompts)
    values = _padded([_behind(logits.float(), row) for row, logits in rows])
    width = values.shape[1] if rows else 0
    lengths = [(_num_response(row) - logits.shape[0], _num_response(row)) for row, logits in rows]
    places = torch.arange(width, device=values.device)
    mask = torch.stack([(places >= first) & (places < end) for first, end in lengths]) if rows else values.bool()
    token_ids = tuple(row.prompt.response_ids or () for row, _ in rows)
    return ResponseLogits(values, mask, token_ids, tuple(len(row.token_ids) - _num_response(row) for row, _ in rows))


def _in_order(batches: Sequence[tuple[Sequence[Row], Sequence[torch.Tensor]]], num_prompts: int) -> list[tuple[Row, torch.Tensor]]:
    by_index = {row.prompt.index: (row, logits) for rows, each in batches for row, logits in zip(rows, each, strict=True)}
    return [by_index[index] for index in range(num_prompts)]


def _behind(values: torch.Tensor, row: Row) -> torch.Tensor:
    """Return values with NaN before them for response tokens that have none."""
    missing = _num_response(row) - values.shape[0]
    return torch.cat([values.new_full((missing, *values.shape[1:]), torch.nan), values]) if missing else values


def _padded(values: Sequence[torch.Tensor]) -> torch.Tensor:
    if not values:
        return torch.empty(0, 0)
    return torch.nn.utils.rnn.pad_sequence(list(values), batch_first=True, padding_value=torch.nan)
