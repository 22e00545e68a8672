"""One batch: padded inputs in, one completion per row out.

Each row carries its prompt's ids and, with images, the tensors of its pictures. Padding is on the left, by hand, so that
no setting of a tokenizer can change it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from evalharness.backends.base import BackendOutput, Completion, Prompt, SamplingPlan
from evalharness.backends.hf_sampling import TokenBans, processors_for
from evalharness.backends.hf_transformers import transformers
from evalharness.contracts import GenerationFailure
from evalharness.errors import BackendError
from evalharness.generation_plugins import GenerationPlugin, RowWatchers
from evalharness.stop_policy import StopStringWatcher, trim_at_stop_id

__all__ = ["BatchRunner", "Row", "StopRequested"]


class StopRequested(BaseException):
    """Somebody wants generation to end. It is no error, and no `except Exception` on its way may take it for one."""


@dataclass(frozen=True)
class Row:
    """A prompt ready for the model.

    `token_ids` have their images expanded. `per_token` are further inputs with one value per id; `per_image` are
    tensors whose first dimension runs over this row's images or patches.
    """

    prompt: Prompt
    token_ids: tuple[int, ...]
    per_token: dict[str, tuple[int, ...]] = field(default_factory=dict)
    per_image: dict[str, torch.Tensor] = field(default_factory=dict)
    image_grids: tuple[tuple[int, int, int], ...] = ()


class RowEnds(transformers.StoppingCriteria):
    """Ends each row by itself at a stop string or at a plugin's wish, and remembers after how many tokens.

    `by_plugin` also says which plugin it was. `should_stop` is asked in every step; `StopRequested` then ends the batch.
    """

    def __init__(
        self,
        width: int,
        plan: SamplingPlan,
        num_rows: int,
        tokenizer: Any,
        plugins: Sequence[GenerationPlugin],
        should_stop: Callable[[], bool],
    ) -> None:
        self.by_string: dict[int, int] = {}
        self.by_plugin: dict[int, tuple[int, str]] = {}
        self._should_stop = should_stop
        self._width = width
        self._stop_ids = frozenset(plan.stop_token_ids)
        self._criteria = [(plugin.name, each) for plugin in plugins for each in plugin.hf_stopping_criteria([width] * num_rows)]
        self._strings = {
            row: StopStringWatcher(tokenizer, plan.stop_strings, plan.skip_special_tokens)
            for row in range(num_rows if plan.stop_strings else 0)
        }
        is_watched = any(plugin.watches_tokens for plugin in plugins)
        self._watchers = {row: RowWatchers(plugins, tokenizer, plan.stop_token_ids) for row in range(num_rows if is_watched else 0)}

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        num_new = input_ids.shape[1] - self._width
        if self._should_stop():
            raise StopRequested
        if self._strings or self._watchers:
            self._watch(input_ids[:, -1].tolist(), num_new)
        ended = torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)
        for name, criterion in self._criteria:
            wishes = criterion(input_ids, scores, **kwargs)
            ended = ended | wishes
            for row, has_ended in enumerate(wishes.tolist()):
                if has_ended:
                    self.by_plugin.setdefault(row, (num_new, name))
        for rows in (self.by_string, self.by_plugin):
            if rows:
                ended[list(rows)] = True
        return ended

    def _watch(self, newest: Sequence[int], num_new: int) -> None:
        for row in {*self._strings, *self._watchers}:
            if row in self._strings and self._strings[row].push(newest[row]):
                self.by_string[row] = num_new
            if row in self._watchers and (name := self._watchers[row].push(newest[row])) is not None:
                self.by_plugin[row] = (num_new, name)
            if row in self.by_string or row in self.by_plugin or newest[row] in self._stop_ids:
                self._strings.pop(row, None)  # what follows is padding
                self._watchers.pop(row, None)


@dataclass(frozen=True)
class BatchRunner:
    """What the batches of one `generate` call have in common."""

    model: Any
    tokenizer: Any
    plugins: Sequence[GenerationPlugin]
    should_stop: Callable[[], bool]

    def run(self, rows: Sequence[Row]) -> list[BackendOutput]:
        """Return one completion per row, in order; a row for which the model gave no usable numbers is an `error`.

        The rows' plans are equal apart from the seed. Raises `StopRequested`, and whatever torch and transformers raise.
        """
        plan = rows[0].prompt.plan
        pad_id = _pad_id(plan, self.tokenizer)
        inputs = _collate(rows, pad_id, self.model.device, self.model.dtype)
        width = inputs["input_ids"].shape[1]
        prompt_lengths = [width] * len(rows)
        processors, raw = processors_for(
            plan,
            [row.token_ids for row in rows],
            [row.prompt.plan.seed for row in rows],
            inputs["attention_mask"],
            self._processors(prompt_lengths),
        )
        ends = RowEnds(width, plan, len(rows), self.tokenizer, self.plugins, self.should_stop)
        with torch.inference_mode():
            sequences = self.model.generate(
                **inputs, generation_config=_generation_config(plan, pad_id), logits_processor=processors, stopping_criteria=[ends]
            )
            new_ids = sequences[:, width:].tolist()
            logprobs = torch.stack(raw.logprobs, dim=1).tolist() if raw.logprobs else None
            broken_at = raw.broken_at.tolist()
        return [
            _output(row, new_ids[i], (ends.by_string.get(i), ends.by_plugin.get(i)), logprobs[i] if logprobs else None, broken_at[i])
            for i, row in enumerate(rows)
        ]

    def _processors(self, prompt_lengths: Sequence[int]) -> list[Any]:
        processors = [processor for plugin in self.plugins for processor in plugin.hf_logits_processor(prompt_lengths)]
        banning = [plugin for plugin in self.plugins if plugin.bans_tokens]
        return [*processors, TokenBans(banning, self.tokenizer, len(prompt_lengths))] if banning else processors


def _pad_id(plan: SamplingPlan, tokenizer: Any) -> int:
    """Return what fills the left edge and the rows that have ended: it is masked, so its value changes nothing."""
    candidates = (plan.pad_token_id, getattr(tokenizer, "pad_token_id", None), *plan.stop_token_ids, 0)
    return next(int(token_id) for token_id in candidates if token_id is not None)


def _collate(rows: Sequence[Row], pad_id: int, device: torch.device, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return the model's inputs: ids, mask and per-token values `(rows, width)`, left-padded; image tensors one after another."""
    width = max(len(row.token_ids) for row in rows)
    padding = [width - len(row.token_ids) for row in rows]

    def padded(values: Sequence[Sequence[int]], fill: int) -> torch.Tensor:
        return torch.tensor([[fill] * gap + list(row) for gap, row in zip(padding, values, strict=True)], dtype=torch.long, device=device)

    inputs = {
        "input_ids": padded([row.token_ids for row in rows], pad_id),
        "attention_mask": padded([[1] * len(row.token_ids) for row in rows], 0),
    }
    # A row without pictures may stand beside rows with some.
    for name in dict.fromkeys(name for row in rows for name in row.per_token):
        inputs[name] = padded([row.per_token.get(name) or (0,) * len(row.token_ids) for row in rows], 0)
    for name in dict.fromkeys(name for row in rows for name in row.per_image):
        joined = torch.cat([row.per_image[name] for row in rows if name in row.per_image])
        inputs[name] = joined.to(device, dtype if joined.is_floating_point() else joined.dtype)
    return inputs


def _generation_config(plan: SamplingPlan, pad_id: int) -> Any:
    # Sampling and penalties are done by our own processors; here is only what ends a row.
    return transformers.GenerationConfig(
        max_new_tokens=plan.max_new_tokens,
        do_sample=False,
        num_beams=1,
        use_cache=plan.use_cache,
        eos_token_id=list(plan.stop_token_ids) or None,
        pad_token_id=pad_id,
    )


def _output(
    row: Row,
    new_ids: Sequence[int],
    ends: tuple[int | None, tuple[int, str] | None],
    logprobs: Sequence[float] | None,
    broken_at: int,
) -> BackendOutput:
    by_string, (by_plugin, name) = ends[0], ends[1] or (None, None)
    budget = min(end for end in (by_string, by_plugin, len(new_ids)) if end is not None)
    token_ids, found_id = trim_at_stop_id(new_ids[:budget], row.prompt.plan.stop_token_ids)
    num_tokens = len(token_ids)
    if broken_at < num_tokens:
        problem = f"the model gave no usable scores (NaN, infinite, or every token banned) at token {broken_at}"
        return row.prompt.index, GenerationFailure("error", problem, BackendError(problem))
    stopped_by: Literal["id", "string", "plugin", "length"] = "length"
    if found_id:
        stopped_by = "id"
    elif by_string == num_tokens:
        stopped_by = "string"
    elif by_plugin == num_tokens:
        stopped_by = "plugin"
    return Completion(
        index=row.prompt.index,
        token_ids=token_ids,
        num_prompt_tokens=len(row.token_ids),
        stopped_by=stopped_by,
        logprobs=tuple(logprobs[:num_tokens]) if logprobs is not None else None,
        image_grids=row.image_grids,
        stop_name=name if stopped_by == "plugin" else None,
    )
