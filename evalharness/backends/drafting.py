"""Drafts: what an answer will probably be, token by token, for an engine that checks many tokens in one step. Plain Python, no torch.

A draft never changes an answer: the engine takes a drafted token only where it is the very token that it would have made. So a wrong draft
costs time alone, and the rules here are about time: follow the recorded answer, find the place again after a difference, take other
answers' words where there is no record, and draft fewer tokens where fewer are taken.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from statistics import fmean, median

NUM_MATCHED = 3
"""Tokens of an answer that must stand in its draft, in this order, for the place behind them to be taken as the answer's own."""
NUM_MATCHED_ELSEWHERE = 4
"""The same in other answers of the run."""
WORTH_DRAFTING = 0.3
"""A token is drafted if it is taken at least this often, until what one costs is measured; then within these limits."""
_LEAST_WORTH, _MOST_WORTH = 0.1, 0.9
_PRIOR = 4.0
"""How many tokens the experience with all answers counts for, beside an answer's own."""
_FORGET = 0.9
"""What an answer's experience is worth one step later."""
_LOOK_AGAIN = 16
"""Where nothing is worth drafting, one token is tried at every so many chances."""
_MAX_REMEMBERED = 100_000
"""Tokens of other answers that are searched, at most twice: about 30 MB."""
_END = -1
_NUM_LOOKS, _NUM_COMPARED = 5, 16
"""Steps without drafts, and drafted ones before them, that a comparison is made of."""
_EARLY, _LATE = 6, 32
"""One of so many steps goes without drafts, at first and later."""
_OFF_FOR = 128
"""Steps without drafts where they cost time, before they are tried again."""


@dataclass
class DraftCounts:
    """What has become of drafts. Times in seconds. Sums of these can be added up, so there are none below 0."""

    num_drafted: int = 0
    """Tokens that were drafted."""
    num_taken: int = 0
    """Those that the model made itself."""
    num_tokens: int = 0
    """Tokens of all answers, drafted or not."""
    num_row_steps: int = 0
    """Steps of all answers together: without drafts as many as tokens."""
    num_found: int = 0
    """Answers that had a recorded one to follow."""
    num_answers: int = 0
    saved_s: float = 0.0
    """Of the engine's time, measured by steps without drafts in between."""
    lost_s: float = 0.0
    """In steps that were slower with drafts."""

    def as_work(self) -> dict[str, float]:
        """Return the sums by the names that they have in a journal."""
        return {f"draft_{name}": float(value) for name, value in asdict(self).items()}


class Pace:
    """Whether drafts are faster than none: some steps go without, and each is compared with the drafted ones just before it.

    Medians, so that a machine's hiccups decide nothing. `saved_s`, `lost_s`: by how much steps without drafts would have taken longer, or
    less.
    """

    def __init__(self) -> None:
        self._with: deque[tuple[float, float, float]] = deque(maxlen=_NUM_COMPARED)
        """Of a row in a drafted step: seconds, tokens made, tokens drafted."""
        self._costs: deque[float] = deque(maxlen=_NUM_LOOKS)
        """Seconds of a drafted token, by those that it saves where it is taken."""
        self._gains: deque[float] = deque(maxlen=_NUM_LOOKS)
        self._without: deque[float] = deque(maxlen=_NUM_LOOKS)
        """Seconds of a row in a step without drafts."""
        self._num_steps = 0
        self._off_until = 0
        self.saved_s = self.lost_s = 0.0

    def note(self, num_rows: int, num_tokens: int, seconds: float, num_drafted: int) -> None:
        """Note a step in which every row went on, and how many tokens it had drafted."""
        row_s = seconds / num_rows
        if num_drafted:
            self._with.append((row_s, num_tokens / num_rows, num_drafted / num_rows))
            if self._without:
                gain_s = num_tokens * median(self._without) - seconds
                self.saved_s += max(0.0, gain_s)
                self.lost_s += max(0.0, -gain_s)
            return
        self._without.append(row_s)
        if self._with:
            num_made, num_checked = (fmean(entry[place] for entry in self._with) for place in (1, 2))
            with_s = median(entry[0] for entry in self._with)
            self._gains.append(row_s / with_s * num_made)
            self._costs.append((with_s - row_s) / (row_s * num_checked))

    @property
    def gain(self) -> float | None:
        """How many times as fast steps with drafts are; None while too little is known."""
        return median(self._gains) if len(self._gains) == _NUM_LOOKS else None

    @property
    def worth(self) -> float:
        """How often a token must be taken to be worth drafting: what it costs, as far as that is known."""
        if len(self._costs) < _NUM_LOOKS:
            return WORTH_DRAFTING
        return min(_MOST_WORTH, max(_LEAST_WORTH, median(self._costs)))

    def wants_drafts(self) -> bool:
        """Return whether the next step is to have drafts."""
        self._num_steps += 1
        if self._num_steps < self._off_until:
            return False
        gain = self.gain
        if gain is not None and gain < 1:
            self._off_until = self._num_steps + _OFF_FOR
            self._with.clear()  # then all is measured anew: another eval may have begun
            self._gains.clear()
            return False
        return self._num_steps % (_EARLY if gain is None else _LATE) != 0


class AnswersSoFar:
    """Finished answers of the run, searched for the latest place of a few tokens in a row; the oldest are forgotten."""

    def __init__(self) -> None:
        self._old: tuple[array[int], dict[tuple[int, ...], int]] = (array("i"), {})
        self._new: tuple[array[int], dict[tuple[int, ...], int]] = (array("i"), {})

    def add(self, ids: Sequence[int]) -> None:
        """Add an answer, with the end of its prompt."""
        tokens, places = self._new
        first = len(tokens)
        tokens.extend(ids)
        tokens.append(_END)
        shifted = (islice(ids, start, None) for start in range(NUM_MATCHED_ELSEWHERE))
        places.update(zip(zip(*shifted, strict=False), range(first + NUM_MATCHED_ELSEWHERE, len(tokens)), strict=False))
        if len(tokens) >= _MAX_REMEMBERED:
            self._old, self._new = self._new, (array("i"), {})

    def find(self, ids: tuple[int, ...]) -> tuple[array[int], int] | None:
        """Return tokens and the place in them behind these ids, None where they never stood in a row."""
        for tokens, places in (self._new, self._old):
            place = places.get(ids)
            if place is not None:
                return tokens, place
        return None


@dataclass(slots=True)
class _Experience:
    """How often drafted tokens of one kind were taken; begins with little, and good."""

    num_taken: float = 3.0
    num_tried: float = 4.0
    num_chances: int = 0

    def note(self, num_taken: int, num_tried: int, keep: float = 1.0) -> None:
        self.num_taken = keep * self.num_taken + num_taken
        self.num_tried = keep * self.num_tried + num_tried


@dataclass(slots=True)
class _Row:
    """One answer as it grows. `text`: the end of its prompt, and its tokens so far; it follows `tokens` from `place` on."""

    draft: Sequence[int]
    text: list[int]
    stop_ids: frozenset[int]
    num_prompt: int
    tokens: Sequence[int] = ()
    place: int | None = None
    kind: str = "draft"
    last_place: int = 0
    """In the draft: where the answer would be had it gone on as the draft does."""
    drafted: list[int] = field(default_factory=list)
    own: _Experience = field(default_factory=lambda: _Experience(0.0, 0.0))
    has_ended: bool = False
    places: dict[tuple[int, ...], list[int]] | None = None

    def follow(self, tokens: Sequence[int], place: int, kind: str) -> None:
        """Follow these tokens from this place on; what was learned of another kind of draft says nothing of this one."""
        if kind != self.kind:
            self.own = _Experience(0.0, 0.0)
        self.tokens, self.place, self.kind = tokens, place, kind


class Drafter:
    """Drafts for the answers of one engine, by their names.

    `longest`: tokens that it checks for an answer in one step; `worth`: how often one must be taken to be drafted, see `Pace.worth`.
    """

    def __init__(self, longest: int) -> None:
        self.worth = WORTH_DRAFTING
        self._longest = longest
        self._rows: dict[str, _Row] = {}
        self._others = AnswersSoFar()
        self._experience = {kind: _Experience() for kind in ("draft", "guess", "found", "elsewhere")}
        self.counts = DraftCounts()

    def __contains__(self, name: str) -> bool:
        return name in self._rows

    def begin(self, name: str, prompt_end: Sequence[int], draft: Sequence[int], stop_ids: frozenset[int] = frozenset()) -> None:
        """Begin an answer. `prompt_end`: the prompt's last ids, a few will do; `draft`: a recorded answer, or nothing."""
        row = _Row(list(draft), list(prompt_end[-NUM_MATCHED_ELSEWHERE:]), stop_ids, min(len(prompt_end), NUM_MATCHED_ELSEWHERE))
        if draft:
            row.tokens, row.place = row.draft, 0
        self._rows[name] = row
        self.counts.num_answers += 1
        self.counts.num_found += bool(draft)

    def take(self, name: str, new_ids: list[int]) -> None:
        """Note the tokens that one step has added to an answer: those of the draft that were taken, and one more."""
        row = self._rows[name]
        if row.has_ended or not new_ids:
            return
        counts, drafted = self.counts, row.drafted
        counts.num_tokens += len(new_ids)
        counts.num_row_steps += 1
        if drafted:
            num_taken = len(new_ids) - 1
            if drafted[:num_taken] != new_ids[:num_taken]:  # an engine that takes what it would not have made is no engine of ours
                num_taken = next(place for place in range(num_taken) if place >= len(drafted) or drafted[place] != new_ids[place])
            counts.num_taken += num_taken
            # A draft that the engine cut, for a grammar or for want of room, was not wrong.
            was_wrong = num_taken < len(drafted) and new_ids[num_taken] != drafted[num_taken]
            self._experience[row.kind].note(num_taken, num_taken + was_wrong, keep=0.999)
            row.own.note(num_taken, num_taken + was_wrong, keep=_FORGET)
        row.drafted = []
        row.text.extend(new_ids)
        row.has_ended = not row.stop_ids.isdisjoint(new_ids)
        self._follow(row, new_ids)

    def _follow(self, row: _Row, new_ids: list[int]) -> None:
        """Find the place of an answer in what it follows, or in something else."""
        was_own = row.tokens is row.draft
        place = row.place
        if place is not None:
            behind = place + len(new_ids)
            place = behind if list(row.tokens[place:behind]) == new_ids else None
        differs = place is None and row.place is not None
        row.place = place
        row.last_place = place if place is not None and was_own else row.last_place + len(new_ids)
        if place is not None and not was_own and row.draft:
            self._find(row)  # its own draft is the better one
        elif place is None:
            self._find(row)
            if row.place is None and differs and was_own and row.last_place < len(row.draft):
                row.follow(row.draft, row.last_place, "guess")  # as if one token stood for another
        elif was_own and len(new_ids) > 1:
            row.follow(row.draft, place, "draft")

    def _find(self, row: _Row) -> None:
        """Set the row's place where its last tokens stood before: in its own draft as near as can be, else in other answers."""
        if row.draft and len(row.text) - row.num_prompt >= NUM_MATCHED:
            if row.places is None:
                row.places = {}
                for end in range(NUM_MATCHED, len(row.draft)):
                    row.places.setdefault(tuple(row.draft[end - NUM_MATCHED : end]), []).append(end)
            if places := row.places.get(tuple(row.text[-NUM_MATCHED:])):
                row.last_place = min(places, key=lambda place: abs(place - row.last_place))
                row.follow(row.draft, row.last_place, "found")
                return
        if row.place is None and (found := self._others.find(tuple(row.text[-NUM_MATCHED_ELSEWHERE:]))) is not None:
            row.follow(*found, "elsewhere")

    def draft(self, name: str, room: int) -> list[int]:
        """Return the next tokens as they will probably be, at most `room`; nothing where it would not pay."""
        row = self._rows[name]
        row.drafted = []
        if row.has_ended or room <= 0:
            return []
        if row.place is None:
            return []
        num = min(room, self._num_worth(row))
        drafted = list(row.tokens[row.place : row.place + num]) if num else []
        if row.kind == "elsewhere" and _END in drafted:
            del drafted[drafted.index(_END) :]
        row.drafted = drafted
        self.counts.num_drafted += len(drafted)
        return drafted

    def _num_worth(self, row: _Row) -> int:
        """Return how many tokens are worth drafting, by how often they were taken in this answer and in all."""
        every = self._experience[row.kind]
        rate = (row.own.num_taken + _PRIOR * every.num_taken / every.num_tried) / (row.own.num_tried + _PRIOR)
        if rate < self.worth:
            every.num_chances += 1
            return int(every.num_chances % _LOOK_AGAIN == 0)
        if rate > 1 - 1e-6:
            return self._longest
        return max(1, min(self._longest, math.floor(math.log(self.worth) / math.log(rate))))

    def end(self, name: str) -> None:
        """Forget an answer, but for what others may draw from it."""
        row = self._rows.pop(name)
        end = next((place + 1 for place in range(row.num_prompt, len(row.text)) if row.text[place] in row.stop_ids), None)
        self._others.add(row.text[:end])
