"""Where each row of a running batch ends, and when the batch is interrupted so that finished rows leave it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from evalharness.api.hooks import GenerationPlugin, RowWatchers
from evalharness.backends.base import SamplingPlan
from evalharness.backends.hf._transformers import transformers
from evalharness.backends.stops import StopStringWatcher

__all__ = ["RowEnds", "StopRequested"]

_LOOK_EVERY = 8
"""Steps from one count of finished rows to the next: on a GPU each makes the host wait."""
_LEAVING_SHARE = 0.25
"""From this share of finished rows on it pays to go on without them."""
_LONGEST_WAIT = 32
"""Steps after which a finished row leaves even if it is the only one: its test waits for it."""


class StopRequested(BaseException):
    """Somebody wants generation to end. It is no error, and no `except Exception` on its way may take it for one."""


class RowEnds(transformers.StoppingCriteria):
    """Ends each row by itself at a stop string or at a plugin's wish, and remembers after how many tokens.

    `by_plugin` also says which plugin it was. `should_stop` is asked in every step; `StopRequested` then ends the batch.
    Where `rows_may_leave`, all rows are said to end once enough are finished: the batch is to go on without these.
    """

    def __init__(
        self,
        width: int,
        plan: SamplingPlan,
        num_rows: int,
        tokenizer: Any,
        plugins: Sequence[GenerationPlugin],
        should_stop: Callable[[], bool],
        *,
        rows_may_leave: bool = False,
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
        # A plugin's own criteria count rows from the start of the batch.
        self._may_leave = rows_may_leave and not self._criteria and num_rows > 1
        self._num_rows = num_rows
        self._num_looked = 0
        self._ended_by_id: set[int] = set()
        self._first_end: int | None = None

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
        if self._may_leave and num_new - self._num_looked >= _LOOK_EVERY and self._some_should_leave(input_ids, num_new):
            return torch.ones_like(ended)
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

    def _some_should_leave(self, input_ids: torch.Tensor, num_new: int) -> bool:
        latest = input_ids[:, self._width + self._num_looked :].tolist()
        self._num_looked = num_new
        self._ended_by_id |= {row for row, ids in enumerate(latest) if not self._stop_ids.isdisjoint(ids)}
        num_ended = len(self.ended_rows())
        if num_ended == 0:
            return False
        if self._first_end is None:
            self._first_end = num_new
        return num_ended >= _LEAVING_SHARE * self._num_rows or num_new - self._first_end >= _LONGEST_WAIT

    def ended_rows(self) -> set[int]:
        """Return the rows that had ended when they were last counted."""
        return {*self._ended_by_id, *self.by_string, *self.by_plugin}

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these rows alone, none of which has ended."""
        self._strings = {new: self._strings[old] for new, old in enumerate(rows) if old in self._strings}
        self._watchers = {new: self._watchers[old] for new, old in enumerate(rows) if old in self._watchers}
        self.by_string, self.by_plugin = {}, {}
        self._ended_by_id = set()
        self._first_end = None
        self._num_rows = len(rows)
        self._may_leave = self._may_leave and len(rows) > 1
