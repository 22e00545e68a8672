"""One batch: padded inputs in, one completion per row out, each when its row has ended.

Each row carries its prompt's ids and, with images, the tensors of its images. Padding is on the left, by hand, so that
no setting of a tokenizer can change it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch

from evalharness.api.checks import shown
from evalharness.api.errors import BackendError
from evalharness.api.hooks import LOGITS_PROCESSOR, STOPPING_CRITERIA, GenerationPlugin
from evalharness.backends.base import BackendOutput, Completion, Prompt, SamplingPlan, StoppedBy, UnderWay, failure_of
from evalharness.backends.hf._transformers import transformers
from evalharness.backends.hf.fixed_cache import (
    CHECKED_ROWS,
    FixedDecoder,
    Steps,
    Unfit,
    decode,
    module_with_shifts,
    plain_cache,
    why_not_fixed,
)
from evalharness.backends.hf.sampling import Grammars, OfBatch, TokenBans, WithoutPadding, processors_for
from evalharness.backends.stops import RowEnd, trim_at_stop_id
from evalharness.backends.work import WorkSums

_LOOK_EVERY = 8
"""Steps from one count of finished rows to the next: on a GPU each makes the host wait."""
_LEAVING_SHARE = 0.25
"""From this share of finished rows on it pays to go on without them."""
_LONGEST_WAIT = 32
"""Steps after which a finished row leaves even if it is the only one: its test waits for it."""

_FEWEST_STEPS = 8
"""Tokens from which a cache of fixed size pays: capturing its step takes as long as two or three of them."""


class StopRequested(BaseException):
    """Generation was asked to end. Not an `Exception`: no handler on its way may take it for an error."""


def _wishes(name: str, made: Any, rows: torch.Tensor) -> torch.Tensor:
    """Return which of the `rows` a stopping criterion ends: it may give one bool for all of them. `TypeError` for anything else."""
    try:
        return torch.as_tensor(made, device=rows.device).to(torch.bool).expand(len(rows))
    except (RuntimeError, TypeError, ValueError):
        raise TypeError(f"{name} gave {shown(made)}; stopping criteria must return a bool, or a tensor of {len(rows)} bools") from None


class RowEnds(transformers.StoppingCriteria):
    """Ends each row by itself at a stop string or at a plugin's wish.

    `ended`: after how many tokens, by what, and the plugin's name. `on_step` is told the rows and the time of every step,
    `should_stop` asked in each; `StopRequested` then ends the batch. Where `rows_may_leave`, all rows are said to end once enough are
    finished: the batch is to go on without these.
    """

    def __init__(
        self,
        width: int,
        plan: SamplingPlan,
        num_padding: Sequence[int],
        tokenizer: Any,
        plugins: Sequence[GenerationPlugin],
        should_stop: Callable[[], bool],
        on_step: Callable[[int, float], None],
        *,
        rows_may_leave: bool = False,
    ) -> None:
        num_rows = len(num_padding)
        self._on_step = on_step
        self.ended: dict[int, tuple[int, StoppedBy, str | None]] = {}
        self._num_padding = tuple(num_padding)
        self._should_stop = should_stop
        self._width = width
        self._stop_ids = frozenset(plan.stop_token_ids)
        self._criteria = [(plugin.name, each) for plugin in plugins for each in plugin.hf_stopping_criteria([width] * num_rows)]
        is_watched = bool(plan.stop_strings) or any(plugin.watches_tokens for plugin in plugins)
        self._going = {row: RowEnd(plan, tokenizer, plugins) for row in range(num_rows if is_watched else 0)}
        copied = [plugin for plugin in plugins if STOPPING_CRITERIA in plugin.hooks]
        self._of_rows = [[(plugin.name, plugin.for_row()) for plugin in copied] for _ in range(num_rows)] if copied else []
        # A plugin's criteria for the batch count rows from its start.
        self._may_leave = rows_may_leave and not self._criteria and num_rows > 1
        self._num_rows = num_rows
        self._num_looked = 0
        self._num_new = 0
        self._num_counted = 0
        """Tokens of all rows up to the step that was looked at last, without padding."""
        self._ended_by_id: set[int] = set()
        self._first_end: int | None = None
        self.should_leave = False
        """Whether the batch is to go on without those that have ended."""

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self._num_new = num_new = input_ids.shape[1] - self._width
        if num_new == 1 and input_ids.is_cuda:
            torch.cuda.synchronize(input_ids.device)  # once a batch: else reading its prompts would count as the step after it
        self._on_step(self._num_rows, time.monotonic())
        if self._should_stop():
            raise StopRequested
        if self._going:
            self._watch(input_ids[:, -1].tolist(), num_new)
        ended = torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)
        for name, criterion in self._criteria:
            wishes = _wishes(name, criterion(input_ids, scores, **kwargs), ended)
            ended = ended | wishes
            for row, has_ended in enumerate(wishes.tolist()):
                if has_ended:
                    self.ended.setdefault(row, (num_new, "plugin", name))
        for row, criteria in enumerate(self._of_rows):
            if not self.has_ended(row, input_ids[row]):
                self._ask(row, criteria, input_ids[row : row + 1, self._num_padding[row] :], num_new, kwargs)
        if self.ended:
            ended[list(self.ended)] = True
        if self._num_rows > 1 and num_new - self._num_looked >= _LOOK_EVERY:
            self._look(input_ids, num_new)
            self.should_leave = self._may_leave and self._some_should_leave(num_new)
            if self.should_leave:
                return torch.ones_like(ended)
        return ended

    @property
    def under_way(self) -> UnderWay:
        """How far the rows are that have not left; exact at every look, in between as if no row had ended since. For any thread."""
        num_going = self._num_rows - len(self.ended_rows())
        return UnderWay(self._num_rows, self._num_counted + num_going * max(0, self._num_new - self._num_looked))

    def has_ended(self, row: int, ids: torch.Tensor) -> bool:
        """Return whether a row has ended: what follows is padding. Call it in every step with the row's padded ids so far."""
        if len(ids) > self._width and int(ids[-1]) in self._stop_ids:
            self._ended_by_id.add(row)
        return row in self.ended or row in self._ended_by_id

    def _ask(self, row: int, criteria: Sequence[tuple[str, Any]], ids: torch.Tensor, num_new: int, kwargs: dict[str, Any]) -> None:
        """Ask a row's own criteria, of which each sees every token, about its ids `(1, length)`, without padding."""
        one_row = torch.zeros(1, dtype=torch.bool)
        wishes = [name for name, criterion in criteria if bool(_wishes(name, criterion(ids, None, **kwargs), one_row).any())]
        if wishes:
            self.ended[row] = (num_new, "plugin", wishes[0])

    def _watch(self, newest: Sequence[int], num_new: int) -> None:
        for row, watched in list(self._going.items()):
            if (end := watched.push(newest[row])) is not None:
                del self._going[row]  # what follows is padding
                if end[0] in ("string", "plugin"):
                    self.ended.setdefault(row, (num_new, *end))

    def _look(self, input_ids: torch.Tensor, num_new: int) -> None:
        """Count the rows that have ended, and the tokens of all."""
        latest = input_ids[:, self._width + self._num_looked :].tolist()
        by_id = {row for row, ids in enumerate(latest) if not self._stop_ids.isdisjoint(ids)}
        going = [row for row in range(self._num_rows) if row not in self._ended_by_id]
        for row in going:
            num_more = len(trim_at_stop_id(latest[row], tuple(self._stop_ids))[0]) if row in by_id else len(latest[row])
            has_ended = self.ended.get(row)
            self._num_counted += num_more if has_ended is None else max(0, min(num_more, has_ended[0] - self._num_looked))
        self._num_looked = num_new
        self._ended_by_id |= by_id

    def _some_should_leave(self, num_new: int) -> bool:
        num_ended = len(self.ended_rows())
        if num_ended == 0:
            return False
        if self._first_end is None:
            self._first_end = num_new
        return num_ended >= _LEAVING_SHARE * self._num_rows or num_new - self._first_end >= _LONGEST_WAIT

    def ended_rows(self) -> set[int]:
        """Return the rows that had ended when they were last counted."""
        return {*self._ended_by_id, *self.ended}

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these rows alone, none of which has ended."""
        self._going = {new: self._going[old] for new, old in enumerate(rows) if old in self._going}
        self._of_rows = [self._of_rows[row] for row in rows] if self._of_rows else []
        self._num_padding = tuple(self._num_padding[row] for row in rows)
        self.ended = {}
        self._ended_by_id = set()
        self._first_end = None
        self.should_leave = False
        self._num_rows = len(rows)
        self._num_looked, self._num_counted = self._num_new, self._num_new * len(rows)
        self._may_leave = self._may_leave and len(rows) > 1


def selectable_cache(model: Any) -> Any:
    """Return an empty cache that rows can be taken out of; None for a model that keeps anything else than keys and values by row.

    Only plain growing layers are taken for that: what recurrent and windowed layers, or caches of a model's own, keep, and
    where, is theirs to know. Vision models that keep positions by row beside the cache (`rope_deltas`) are not taken either.
    """
    return plain_cache(model) if module_with_shifts(model) is None else None


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


@dataclass(frozen=True)
class BatchRunner:
    """What the batches of one `generate` call have in common."""

    model: Any
    tokenizer: Any
    plugins: Sequence[GenerationPlugin]
    should_stop: Callable[[], bool]
    grammars: Grammars
    computing: Callable[[], AbstractContextManager[Any]] = torch.inference_mode
    """What the model must be in while tokens are made."""
    work: WorkSums = field(default_factory=WorkSums)
    steps: Steps = field(default_factory=lambda: Steps(are_fixed=False))
    _at_work: list[RowEnds] = field(default_factory=list)
    """Of the running batch, if any."""

    def run(self, rows: Sequence[Row]) -> Iterator[BackendOutput]:
        """Yield one completion per row as rows end; a row for which the model gave no usable numbers is an `error`.

        The rows' plans are equal apart from the seed. Raises `StopRequested`, and whatever torch and transformers raise.
        """
        self.work.start()
        batch = _Batch(rows, self)
        self._at_work[:] = [batch.ends]
        try:
            while batch.rows:
                try:
                    outputs = batch.go_on()
                except Unfit as problem:
                    self.steps.are_fixed, self.steps.problem = False, str(problem)
                    batch = _Batch(batch.rows, self)  # from the prompts: what was made so far is not to be trusted
                    self._at_work[:] = [batch.ends]
                    continue
                yield from outputs
        finally:
            self._at_work.clear()
            self.work.stop()

    def under_way(self) -> UnderWay:
        """Return what is generated now. For any thread."""
        return next((ends.under_way for ends in tuple(self._at_work)), UnderWay())


class _Batch:
    """One batch as it runs: `rows` are those that have not ended.

    It runs in stretches of `model.generate`, or of `fixed_cache.decode`. Between two stretches the rows that have ended leave, with their
    keys, values and whatever else is kept for each row. That changes no other row's numbers: none ever looks at another.
    """

    def __init__(self, rows: Sequence[Row], runner: BatchRunner) -> None:
        model, tokenizer, plugins, grammars = runner.model, runner.tokenizer, runner.plugins, runner.grammars
        self.rows = list(rows)
        self._model = model
        self._computing = runner.computing
        self._plan = plan = rows[0].prompt.plan
        self._pad_id = _pad_id(plan, tokenizer)
        self._inputs = collate(rows, self._pad_id, model.device, model.dtype)
        self._width = self._inputs["input_ids"].shape[1]
        prompts = [row.token_ids for row in rows]
        num_padding = [self._width - len(ids) for ids in prompts]
        # Vision models keep positions of their own beside the cache: batches with images stay whole. So do those with processors for the
        # whole batch, which count its rows.
        for_batch = any("hf_logits_processor" in plugin.hooks for plugin in plugins)
        is_whole = for_batch or len(rows) == 1 or not plan.use_cache
        self._has_images = any(row.per_image for row in rows)
        self._steps = runner.steps
        self._decoder = self._fixed_decoder(has_images=self._has_images)
        self._cache = None if is_whole or self._has_images or self._decoder is not None else selectable_cache(model)
        self._rows_may_leave = self._cache is not None or (self._decoder is not None and not is_whole)
        ending = (self._width, plan, num_padding, tokenizer, plugins, runner.should_stop, runner.work.step)
        self.ends = RowEnds(*ending, rows_may_leave=self._rows_may_leave)
        banning = [plugin for plugin in plugins if plugin.bans_tokens]
        bans = [TokenBans(banning, tokenizer, grammars.vocab_size, len(rows))] if banning else []
        self._processors, self._raw = processors_for(
            plan,
            prompts,
            [row.prompt.plan.seed for row in rows],
            self._inputs["attention_mask"],
            [*self._processors_of(plugins, num_padding), *bans, *grammars.processors(plan, prompts)],
        )

    def _fixed_decoder(self, *, has_images: bool) -> FixedDecoder | None:
        """Return what decodes with a cache of fixed size, None where the model cannot, or it does not pay."""
        plan, steps, model = self._plan, self._steps, self._model
        if not steps.are_fixed or not plan.use_cache or plan.max_new_tokens < _FEWEST_STEPS:
            return None
        cache = plain_cache(model)
        steps.problem = why_not_fixed(model, cache, has_images=has_images)
        if steps.problem is not None:
            return None
        to_check = None if has_images in steps.checked else collate(self.rows[:CHECKED_ROWS], self._pad_id, model.device, model.dtype)
        return FixedDecoder(model, cache, self._inputs["attention_mask"], plan.max_new_tokens, to_check)

    def _processors_of(self, plugins: Sequence[GenerationPlugin], num_padding: Sequence[int]) -> list[Any]:
        processors: list[Any] = []
        for plugin in plugins:
            processors += map(OfBatch, plugin.hf_logits_processor([self._width] * len(num_padding)))
            if LOGITS_PROCESSOR in plugin.hooks:
                processors.append(WithoutPadding([plugin.for_row() for _ in num_padding], num_padding, self.ends.has_ended))
        return processors

    def go_on(self) -> list[BackendOutput]:
        """Generate until rows are to leave, or the last one has ended; return the completions of those that have."""
        num_left = self._plan.max_new_tokens - (self._inputs["input_ids"].shape[1] - self._width)
        with self._computing():
            sequences = self._generate(num_left) if self._decoder is None else self._decode(self._decoder, num_left)
            num_new = sequences.shape[1] - self._width
            is_over = not self._rows_may_leave or num_new >= self._plan.max_new_tokens
            leaving = set(range(len(self.rows))) if is_over else self._ended(sequences)
            outputs = self._outputs(sequences, sorted(leaving))
            stay = [row for row in range(len(self.rows)) if row not in leaving]
            self.rows = [self.rows[row] for row in stay]
            if stay:
                self._keep(stay, sequences)
        return outputs

    def _generate(self, max_new_tokens: int) -> torch.Tensor:
        more = {} if self._cache is None else {"past_key_values": self._cache}
        sequences: torch.Tensor = self._model.generate(
            **self._inputs,
            **more,
            # Sampling and penalties are done by our own processors; here is only what ends a row.
            generation_config=transformers.GenerationConfig(
                max_new_tokens=max_new_tokens,
                do_sample=False,
                num_beams=1,
                use_cache=self._plan.use_cache,
                eos_token_id=list(self._plan.stop_token_ids) or None,
                pad_token_id=self._pad_id,
            ),
            logits_processor=self._processors,
            stopping_criteria=[self.ends],
        )
        return sequences

    def _decode(self, decoder: FixedDecoder, max_new_tokens: int) -> torch.Tensor:
        sequences = decode(
            decoder,
            self._inputs,
            self._processors,
            self.ends,
            max_new_tokens=max_new_tokens,
            stop_token_ids=self._plan.stop_token_ids,
            pad_id=self._pad_id,
            look_every=_LOOK_EVERY,
        )
        self._steps.checked.add(self._has_images)
        return sequences

    def _ended(self, sequences: torch.Tensor) -> set[int]:
        stop_ids = frozenset(self._plan.stop_token_ids)
        by_id = {row for row, ids in enumerate(sequences[:, self._width :].tolist()) if not stop_ids.isdisjoint(ids)}
        return by_id | self.ends.ended_rows()

    def _outputs(self, sequences: torch.Tensor, ended: Sequence[int]) -> list[BackendOutput]:
        new_ids = sequences[ended, self._width :].tolist()
        logprobs, entropies = (
            torch.stack(steps, dim=1)[ended].tolist() if steps else [None] * len(ended)
            for steps in (self._raw.logprobs, self._raw.entropies)
        )
        broken_at = self._raw.broken_at[ended].tolist()
        return [
            _output(self.rows[row], new_ids[i], self.ends.ended.get(row), (logprobs[i], entropies[i]), broken_at[i])
            for i, row in enumerate(ended)
        ]

    def _keep(self, stay: Sequence[int], sequences: torch.Tensor) -> None:
        indices = torch.tensor(stay, device=sequences.device)
        mask = self._inputs["attention_mask"][indices]
        self._inputs = {  # images are in keys and values by now
            "input_ids": sequences[indices],
            "attention_mask": torch.nn.functional.pad(mask, (0, sequences.shape[1] - mask.shape[1]), value=1),
        }
        if self._decoder is not None:
            self._decoder.keep(indices)
        else:
            assert self._cache is not None  # else the batch stays whole
            self._cache.batch_select_indices(indices)
        for processor in self._processors:
            if hasattr(processor, "keep_rows"):
                processor.keep_rows(indices)
        self.ends.keep(stay)


def _pad_id(plan: SamplingPlan, tokenizer: Any) -> int:
    """Return what fills the left edge and the rows that have ended: it is masked, so its value changes nothing."""
    candidates = (plan.pad_token_id, getattr(tokenizer, "pad_token_id", None), *plan.stop_token_ids, 0)
    return next(int(token_id) for token_id in candidates if token_id is not None)


def collate(rows: Sequence[Row], pad_id: int, device: torch.device, dtype: torch.dtype, *, left: bool = True) -> dict[str, torch.Tensor]:
    """Return the model's inputs: ids, mask and per-token values `(rows, width)`, padded; image tensors one after another."""
    width = max(len(row.token_ids) for row in rows)
    padding = [width - len(row.token_ids) for row in rows]

    def padded(values: Sequence[Sequence[int]], fill: int) -> torch.Tensor:
        filled = [[fill] * gap + list(row) if left else list(row) + [fill] * gap for gap, row in zip(padding, values, strict=True)]
        return torch.tensor(filled, dtype=torch.long, device=device)

    inputs = {
        "input_ids": padded([row.token_ids for row in rows], pad_id),
        "attention_mask": padded([[1] * len(row.token_ids) for row in rows], 0),
    }
    # A row without images may stand beside rows with some.
    for name in dict.fromkeys(name for row in rows for name in row.per_token):
        inputs[name] = padded([row.per_token.get(name) or (0,) * len(row.token_ids) for row in rows], 0)
    for name in dict.fromkeys(name for row in rows for name in row.per_image):
        parts = [row.per_image[name] for row in rows if name in row.per_image]  # joined on the device: on a CPU of many cores that is slow
        inputs[name] = torch.cat([part.to(device, dtype if part.is_floating_point() else part.dtype) for part in parts])
    return inputs


def _output(
    row: Row,
    new_ids: Sequence[int],
    end: tuple[int, StoppedBy, str | None] | None,
    numbers: tuple[Sequence[float] | None, Sequence[float] | None],
    broken_at: int,
) -> BackendOutput:
    token_ids, found_id = trim_at_stop_id(new_ids[: end[0] if end is not None else None], row.prompt.plan.stop_token_ids)
    num_tokens = len(token_ids)
    if broken_at < num_tokens:
        problem = BackendError(f"the model gave no usable scores (NaN, infinite, or every token banned) at token {broken_at}")
        return row.prompt.index, failure_of(problem)
    stopped_by, stop_name = ("id", None) if found_id else (end[1], end[2]) if end is not None else ("length", None)
    return Completion(
        index=row.prompt.index,
        token_ids=token_ids,
        num_prompt_tokens=len(row.token_ids),
        stopped_by=stopped_by,
        logprobs=tuple(numbers[0][:num_tokens]) if numbers[0] is not None else None,
        entropies=tuple(numbers[1][:num_tokens]) if numbers[1] is not None else None,
        image_grids=row.image_grids,
        stop_name=stop_name,
    )
