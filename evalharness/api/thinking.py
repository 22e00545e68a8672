"""Models that think before they answer: the budget of a thought, and where the thought ends and the answer begins.

A thought stands between two marks, by default `<think>` and `</think>`. Pure: ids in, ids out; knows nothing about backends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

DEFAULT_MARKS = ("<think>", "</think>")


@dataclass(frozen=True)
class Thinking:
    """A model's thought and answer.

    `text` stands between the marks. `answer` follows, cut and stripped like every text; it is "" if the thought has no end (`is_closed`
    is False). `num_tokens` counts the generated ids up to and including the closing mark. `is_expected`: it was asked for, or the template
    began it; a model may think all the same.
    """

    text: str
    answer: str
    is_closed: bool
    num_tokens: int
    is_expected: bool = True

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain JSON types."""
        return dict(vars(self))

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Thinking:
        """Return what `to_json` wrote."""
        is_expected = bool(values.get("is_expected", True))
        return cls(str(values["text"]), str(values["answer"]), bool(values["is_closed"]), int(values["num_tokens"]), is_expected)


@dataclass(frozen=True)
class ThinkingMarks:
    """Marks of a thought; `is_open`: the prompt ends within one, `is_expected`: thinking was asked for, or begun by the template."""

    start: str
    end: str
    is_open: bool
    is_expected: bool

    def thoughts_of(self, raw: str) -> tuple[int, bool] | None:
        """Return how many thoughts a text with all its tokens begins with that have an end, and whether one follows without; None: none.

        In every mode a text that opens with the mark is a thought, and so is another pair behind it. Where a thought is expected, its
        opening mark may be missing.
        """
        rest, num_closed = raw, 0
        is_open = self.is_open or (self.is_expected and (self.start in raw or self.end in raw))
        while is_open or rest.lstrip().startswith(self.start):
            _, mark, rest = rest.partition(self.end)
            if not mark:
                return num_closed, True
            num_closed, is_open = num_closed + 1, False
        return (num_closed, False) if num_closed else None


@dataclass(frozen=True)
class ThinkingBudget:
    """At most `max_tokens` ids after the start mark, those of the prompt included; then the end mark is written for the model.

    `texts`: both marks, if the tokenizer lacks a token for one of them, so that one token may end a mark and begin the next text (`>`
    and a line break); None if the marks always have the same ids.
    """

    start_ids: tuple[int, ...]
    end_ids: tuple[int, ...]
    max_tokens: int
    texts: tuple[str, str] | None = None


class ThinkingRow:
    """Follows the ids of one row. `forced` is the id that must come next, None if the model may choose.

    `decode`, which keeps special tokens, finds marks that are plain text; without it marks are compared by their ids.
    """

    def __init__(self, budget: ThinkingBudget, prompt_ids: Sequence[int], decode: Callable[[Sequence[int]], str] | None = None) -> None:
        self._budget = budget
        self._marks = _IdMarks(budget) if decode is None or budget.texts is None else _TextMarks(budget.texts, decode)
        self._num_thought = self._marks.num_thought_in(prompt_ids)  # None: outside a thought
        self._num_forced = 0

    @property
    def forced(self) -> int | None:
        """The next id if the budget is used up."""
        if self._num_forced == 0 and (self._num_thought is None or self._num_thought < self._budget.max_tokens):
            return None
        return self._budget.end_ids[self._num_forced]

    def push(self, token_id: int) -> None:
        """Take the next id."""
        if self.forced is not None:
            self._num_forced += 1
            if self._num_forced == len(self._budget.end_ids):
                self._num_forced, self._num_thought = 0, None
                self._marks.forget()
            return
        if self._marks.is_complete(token_id, opens=self._num_thought is None):
            self._num_thought = 0 if self._num_thought is None else None
        elif self._num_thought is not None:
            self._num_thought += 1


class _IdMarks:
    """Finds marks in the ids of one row by their ids."""

    def __init__(self, budget: ThinkingBudget) -> None:
        self._start, self._end = budget.start_ids, budget.end_ids
        self._keep = max(len(self._start), len(self._end))
        self._tail: tuple[int, ...] = ()

    def num_thought_in(self, prompt_ids: Sequence[int]) -> int | None:
        """Return the number of ids after the mark that opened a thought, None if no thought is open."""
        started, ended = (_last(prompt_ids, mark) for mark in (self._start, self._end))
        return len(prompt_ids) - started - len(self._start) if started > ended else None

    def is_complete(self, token_id: int, *, opens: bool) -> bool:
        """Return whether the next id completes the opening mark, or the closing one."""
        self._tail = (*self._tail, token_id)[-self._keep :]
        mark = self._start if opens else self._end
        if self._tail[-len(mark) :] != mark:
            return False
        self.forget()
        return True

    def forget(self) -> None:
        """Start anew: no id so far is part of a mark."""
        self._tail = ()


class _TextMarks:
    """Finds marks as `_IdMarks` does, but by their text, whichever tokens it consists of."""

    def __init__(self, texts: tuple[str, str], decode: Callable[[Sequence[int]], str]) -> None:
        self._start, self._end = texts
        self._decode = decode
        self._keep = max(len(text.encode("utf-8", "surrogatepass")) for text in texts) + 1  # a token has a byte at least
        self._tail: list[int] = []
        self._num_used = 0  # characters of the tail's text that belong to the mark before

    def num_thought_in(self, prompt_ids: Sequence[int]) -> int | None:
        text = self._decode(prompt_ids)
        if text.rfind(self._start) <= text.rfind(self._end):
            return None
        return len(prompt_ids) - num_ids_until(prompt_ids, self._start, text.count(self._start), self._decode)

    def is_complete(self, token_id: int, *, opens: bool) -> bool:
        if len(self._tail) == self._keep:
            del self._tail[0]
            self._num_used = 0
        self._tail.append(token_id)
        text, mark = self._decode(self._tail), self._start if opens else self._end
        start = text.find(mark, self._num_used)
        if start < 0:
            return False
        num_after = len(text) - start - len(mark)
        self._tail = [token_id]
        self._num_used = max(len(self._decode(self._tail)) - num_after, 0)
        return True

    def forget(self) -> None:
        self._tail, self._num_used = [], 0


def _last(ids: Sequence[int], mark: Sequence[int]) -> int:
    """Return the position of the mark's last occurrence, -1 if there is none."""
    return next((i for i in range(len(ids) - len(mark), -1, -1) if tuple(ids[i : i + len(mark)]) == tuple(mark)), -1)


def within_budget(ids: Iterable[int], budget: ThinkingBudget, prompt_ids: Sequence[int]) -> list[int]:
    """Return scripted ids as a budget allows them: the excess of a long thought is dropped."""
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


def num_ids_until(ids: Sequence[int], mark: str, num_marks: int, decode: Callable[[Sequence[int]], str]) -> int:
    """Return how many ids it takes until their text contains the mark so many times, by bisection; all ids contain it.

    `decode` keeps special tokens: marks are special tokens in some tokenizers and plain text in others.
    """
    too_few, enough = 0, len(ids)
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if decode(ids[:middle]).count(mark) >= num_marks:
            enough = middle
        else:
            too_few = middle
    return enough
