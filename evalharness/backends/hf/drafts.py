"""Batches whose answers have drafts: the model checks several tokens of each row in one step, and keeps those that it would have made.

Rows go on by different numbers of tokens, so the cache has gaps: what was drafted and not taken stays in it, masked. Positions are given
with every token, so a gap changes nothing. Only for greedy rows without anything else that looks at scores, and for models that keep keys
and values of all tokens: there a token depends on its own row's tokens alone, however many come at once.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from evalharness.api.errors import BackendError
from evalharness.backends.base import BackendOutput, Completion, SamplingPlan, UnderWay, failure_of
from evalharness.backends.drafting import DraftCounts, Drafter, Pace
from evalharness.backends.hf.decoding import BatchRunner, Row, StopRequested, collate
from evalharness.backends.hf.fixed_cache import module_with_shifts, plain_cache
from evalharness.backends.stops import RowEnd

LONGEST = 32
"""Drafted tokens of a row in one step; on a GPU a step takes as long as launching it, whatever its size."""
MAX_SCORES = {"cpu": 2**26, "cuda": 2**30}
"""Of a step, by device: float32 numbers, rows x tokens x vocabulary."""
_ATTENTION = ("sdpa", "eager")
"""Ways of computing attention that take a mask with gaps."""
_WASTE = 1.5
"""The cache is closed up when it is so many times as long as its longest row."""
_FEWEST_TOKENS = 5.0
"""A row must gain so many tokens a step, where the alternative are steps replayed on a GPU, many times as fast as launched ones."""
_ENOUGH_STEPS = 2000


class HfDrafts:
    """The drafts of one model's answers, kept over batches."""

    def __init__(self) -> None:
        self.drafter = Drafter(LONGEST)
        self.pace = Pace()
        self.names = map(str, itertools.count())
        self._total = DraftCounts()

    def can_run(self, rows: Sequence[Row], runner: BatchRunner) -> bool:
        """Return whether rows have drafts, and the model and all of the rows' options allow to check them."""
        if not any(row.prompt.draft_ids for row in rows) or not _is_plain(rows[0].prompt.plan) or runner.plugins:
            return False
        if runner.model.config._attn_implementation not in _ATTENTION:
            return False
        if any(row.per_image for row in rows) and module_with_shifts(runner.model) is None:
            return False  # it is not known how it places images
        total = self._total
        if runner.steps.are_fixed and total.num_row_steps > _ENOUGH_STEPS and total.num_tokens < _FEWEST_TOKENS * total.num_row_steps:
            return False
        return plain_cache(runner.model) is not None

    def run(self, rows: Sequence[Row], runner: BatchRunner) -> Iterator[BackendOutput]:
        """Yield one completion per row as rows end; see `BatchRunner.run`."""
        batch: Any = _Drafted(rows, runner, self)
        runner.work.start()
        runner._at_work[:] = [batch]
        try:
            for output in batch.outputs():
                self._count(runner)  # before its unit ends with it
                yield output
        finally:
            runner._at_work.clear()
            runner.work.stop()
            batch.close()

    def _count(self, runner: BatchRunner) -> None:
        counts, self.drafter.counts = self.drafter.counts, DraftCounts()
        counts.saved_s, counts.lost_s = self.pace.saved_s, self.pace.lost_s
        self.pace.saved_s = self.pace.lost_s = 0.0
        self._total.num_tokens += counts.num_tokens
        self._total.num_row_steps += counts.num_row_steps
        runner.work.add(counts.as_work())


def _is_plain(plan: SamplingPlan) -> bool:
    """Return whether the model's best token is taken, whatever came before, and nothing else is asked."""
    changes = (plan.no_repeat_ngram_size, plan.logprobs, plan.entropies, plan.extra, plan.structured, plan.thinking)
    return plan.temperature == 0 and plan.repetition_penalty == 1 and plan.use_cache and not any(changes)


def _usable(token_ids: list[int]) -> list[int] | None:
    return None if -1 in token_ids else token_ids


class _Going:
    """A row that has not ended. `column`: its place in the batch's tensors."""

    def __init__(self, row: Row, name: str, tokenizer: Any) -> None:
        self.row, self.name = row, name
        self.end = RowEnd(row.prompt.plan, tokenizer)
        self.made: list[int] = []

    def take(self, token_ids: Sequence[int]) -> tuple[str, str | None] | None:
        """Add tokens until one ends the row; return what ended it."""
        for token_id in token_ids:
            self.made.append(token_id)
            if (ended := self.end.push(token_id)) is not None:
                return ended
        return None


class _Drafted:
    """One batch as it runs. `mask`: which columns of the cache count, by row."""

    def __init__(self, rows: Sequence[Row], runner: BatchRunner, drafts: HfDrafts) -> None:
        self._runner, self._drafts = runner, drafts
        self._model, self._device = runner.model, runner.model.device
        vocab_size = int(runner.model.config.get_text_config().vocab_size)
        self.going = [_Going(row, next(drafts.names), runner.tokenizer) for row in rows]
        for going in self.going:
            prompt = going.row.prompt
            fits = max(prompt.draft_ids, default=0) < vocab_size  # another tokenizer's ids may not
            draft = prompt.draft_ids if fits else ()
            drafts.drafter.begin(going.name, going.row.token_ids, draft, frozenset(prompt.plan.stop_token_ids))
        self._cache = plain_cache(runner.model)
        self._most = max(1, MAX_SCORES.get(self._device.type, 2**26) // (len(rows) * vocab_size) - 1)

    @property
    def under_way(self) -> UnderWay:
        """How far the rows are. For any thread."""
        going = tuple(self.going)
        return UnderWay(len(going), sum(len(one.made) for one in going))

    def close(self) -> None:
        """Forget rows that were not finished."""
        for going in self.going:
            if going.name in self._drafts.drafter:
                self._drafts.drafter.end(going.name)

    def outputs(self) -> Iterator[BackendOutput]:
        """Yield the rows' completions."""
        inputs = collate([one.row for one in self.going], 0, self._device, self._model.dtype)
        token_ids, self._mask = inputs.pop("input_ids"), inputs.pop("attention_mask")
        self._shifts = torch.zeros((len(self.going), 1), dtype=torch.long, device=self._device)
        if inputs:  # images: the model works out positions by itself, and says how far the text behind them is shifted
            first = self._step(token_ids, None, inputs)
            self._shifts = module_with_shifts(self._model).rope_deltas.to(self._device)
        else:
            first = self._step(token_ids, (self._mask.cumsum(-1) - 1).clamp(min=0))
        new_ids: list[list[int] | None] = [_usable(ids) for ids in first]
        since, num_drafted = time.perf_counter(), 0
        while True:
            num_before = len(self.going)
            yield from self._take(new_ids)
            if not self.going:
                return
            now, num_new = time.perf_counter(), sum(len(ids or ()) for ids in new_ids)
            if len(self.going) == num_before and len(self.going[0].made) > 1:
                self._drafts.pace.note(num_before, num_new, now - since, num_drafted)
            since = now
            wanted, self._drafts.drafter.worth = self._drafts.pace.wants_drafts(), self._drafts.pace.worth
            given = [self._draft(one) if wanted else [] for one in self.going]
            num_drafted = sum(map(len, given))
            new_ids = self._check(given)

    def _draft(self, going: _Going) -> list[int]:
        return self._drafts.drafter.draft(going.name, min(self._most, going.row.prompt.plan.max_new_tokens - len(going.made) - 1))

    def _take(self, new_ids: Sequence[list[int] | None]) -> Iterator[BackendOutput]:
        """Add each row's new tokens, None where there are no usable scores, and yield the rows that end with them, which leave."""
        stay = []
        done: list[BackendOutput] = []
        for column, (going, token_ids) in enumerate(zip(self.going, new_ids, strict=True)):
            prompt = going.row.prompt
            if token_ids is None:
                problem = f"the model gave no usable scores (NaN, infinite, or every token banned) at token {len(going.made)}"
                done.append((prompt.index, failure_of(BackendError(problem))))
                continue
            num_before = len(going.made)
            ended = going.take(token_ids)
            self._drafts.drafter.take(going.name, going.made[num_before:])
            if ended is None:
                stay.append(column)
                continue
            self._drafts.drafter.end(going.name)
            stopped_by: Any = ended[0]
            row = going.row
            done.append(Completion(prompt.index, tuple(going.made), len(row.token_ids), stopped_by, image_grids=row.image_grids))
        self._runner.work.step(len(self.going), time.monotonic())
        if len(stay) < len(self.going):
            self._keep(stay)
        yield from done

    def _check(self, drafts: Sequence[Sequence[int]]) -> list[list[int] | None]:
        """Return each row's new tokens: those of its draft that are the model's own, and one more."""
        width = 1 + max(map(len, drafts))
        newest = [[one.made[-1], *draft, *(0,) * (width - 1 - len(draft))] for one, draft in zip(self.going, drafts, strict=True)]
        filled = torch.tensor([[1] * (1 + len(draft)) + [0] * (width - 1 - len(draft)) for draft in drafts], device=self._device)
        next_position = self._mask.sum(-1, keepdim=True) + self._shifts
        num_columns = self._mask.shape[1]
        self._mask = torch.cat([self._mask, filled], dim=-1)
        positions = next_position + torch.arange(width, device=self._device)
        best = self._step(torch.tensor(newest, device=self._device), positions, num_scored=width)
        taken: list[list[int]] = []
        for draft, tokens in zip(drafts, best, strict=True):
            num = 0
            while num < len(draft) and tokens[num] == draft[num]:
                num += 1
            taken.append(tokens[: num + 1])
        lengths = torch.tensor([len(tokens) for tokens in taken], device=self._device)
        self._mask[:, num_columns:] = torch.arange(width, device=self._device) < lengths[:, None]
        if self._mask.shape[1] > _WASTE * int(self._mask.sum(-1).max()) + LONGEST:
            self._close_up()
        return [_usable(tokens) for tokens in taken]

    def _step(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor | None,
        more: Mapping[str, torch.Tensor] = MappingProxyType({}),
        *,
        num_scored: int = 1,
    ) -> list[list[int]]:
        """Return the best token behind each of the last `num_scored`, -1 where no score can be used."""
        if self._runner.should_stop():
            raise StopRequested
        with self._runner.computing():
            logits = self._model(
                input_ids=token_ids,
                attention_mask=self._mask,
                **({} if positions is None else {"position_ids": positions}),
                **more,
                past_key_values=self._cache,
                use_cache=True,
                logits_to_keep=num_scored,
            ).logits[:, -num_scored:]
            top, best = logits.float().max(dim=-1)
            made: list[list[int]] = torch.where(top.isfinite(), best, -1).tolist()
        return made

    def _keep(self, stay: Sequence[int]) -> None:
        self.going = [self.going[column] for column in stay]
        if stay:
            indices = torch.tensor(stay, device=self._device)
            self._cache.batch_select_indices(indices)
            self._mask, self._shifts = self._mask[indices], self._shifts[indices]

    def _close_up(self) -> None:
        """Take the gaps out of the cache: each row's own columns move to the right, behind padding."""
        width = int(self._mask.sum(-1).max())
        order = self._mask.argsort(dim=-1, stable=True)[:, -width:]
        with self._runner.computing():
            for layer in self._cache.layers:
                index = order[:, None, :, None].expand(-1, layer.keys.shape[1], -1, layer.keys.shape[3])
                layer.keys, layer.values = layer.keys.gather(2, index), layer.values.gather(2, index)
        self._mask = self._mask.gather(1, order)
