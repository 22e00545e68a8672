"""Models that think before they answer: how many tokens they may think, and where the thought ends and the answer begins.

A thought stands between two marks, `<think>` and `</think>` unless told otherwise. Pure: ids in, ids out; knows no backend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["DEFAULT_MARKS", "Thinking", "ThinkingBudget", "ThinkingRow", "num_thought", "within_budget"]

DEFAULT_MARKS = ("<think>", "</think>")


@dataclass(frozen=True)
class Thinking:
    """What a model thought before it answered.

    `text`: between the marks. `answer`: what follows, ended and stripped like every text, "" where the thought has no end
    (`is_closed` False). `num_tokens`: generated ids up to the mark that closes it, that one included.
    """

    text: str
    answer: str
    is_closed: bool
    num_tokens: int

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain JSON types."""
        return dict(vars(self))

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Thinking:
        """Return what `to_json` wrote."""
        return cls(str(values["text"]), str(values["answer"]), bool(values["is_closed"]), int(values["num_tokens"]))


@dataclass(frozen=True)
class ThinkingBudget:
    """At most `max_tokens` ids behind the start mark, those of the prompt included; then the end mark is written for the model."""

    start_ids: tuple[int, ...]
    end_ids: tuple[int, ...]
    max_tokens: int


class ThinkingRow:
    """Follows the ids of one row. `forced` is the id that must come next, None where the model may choose."""

    def __init__(self, budget: ThinkingBudget, prompt_ids: Sequence[int]) -> None:
        self._budget = budget
        self._tail: tuple[int, ...] = ()
        self._keep = max(len(budget.start_ids), len(budget.end_ids))
        self._num_thought: int | None = None  # None: it does not think
        self._num_forced = 0
        started, ended = (_last(prompt_ids, mark) for mark in (budget.start_ids, budget.end_ids))
        if started > ended:
            self._num_thought = len(prompt_ids) - started - len(budget.start_ids)

    @property
    def forced(self) -> int | None:
        """The next id where the budget is used up."""
        if self._num_forced == 0 and (self._num_thought is None or self._num_thought < self._budget.max_tokens):
            return None
        return self._budget.end_ids[self._num_forced]

    def push(self, token_id: int) -> None:
        """Take the next id in."""
        if self.forced is not None:
            self._num_forced += 1
            if self._num_forced == len(self._budget.end_ids):
                self._num_forced, self._num_thought, self._tail = 0, None, ()
            return
        self._tail = (*self._tail, token_id)[-self._keep :]
        mark = self._budget.start_ids if self._num_thought is None else self._budget.end_ids
        if self._tail[-len(mark) :] == mark:
            self._num_thought, self._tail = (0 if self._num_thought is None else None), ()
        elif self._num_thought is not None:
            self._num_thought += 1


def _last(ids: Sequence[int], mark: Sequence[int]) -> int:
    """Return where the mark begins last, -1 where it is not."""
    return next((i for i in range(len(ids) - len(mark), -1, -1) if tuple(ids[i : i + len(mark)]) == tuple(mark)), -1)


def within_budget(ids: Iterable[int], budget: ThinkingBudget, prompt_ids: Sequence[int]) -> list[int]:
    """Return ids that were written beforehand as they come out within a budget: the rest of a thought that is too long is dropped."""
    row, kept, is_dropping = ThinkingRow(budget, prompt_ids), [], False
    tail: tuple[int, ...] = ()
    for token_id in ids:
        while (forced := row.forced) is not None:
            row.push(forced)
            kept.append(forced)
            is_dropping, tail = True, ()
        if is_dropping:
            tail = (*tail, token_id)[-len(budget.end_ids) :]
            is_dropping = tail != budget.end_ids
            continue
        row.push(token_id)
        kept.append(token_id)
    return kept


def num_thought(ids: Sequence[int], end_mark: str, decode: Callable[[Sequence[int]], str]) -> int | None:
    """Return how many ids it takes until the end mark stands in their text, None where it does not.

    `decode` keeps special tokens: models' marks are special in some tokenizers and plain in others.
    """
    if end_mark not in decode(ids):
        return None
    too_few, enough = 0, len(ids)
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if end_mark in decode(ids[:middle]):
            enough = middle
        else:
            too_few = middle
    return enough
