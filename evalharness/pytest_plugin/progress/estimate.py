"""How fast answers are made, and how long the rest takes: from the work done since the first request. Pure: time is given.

Work is counted in tokens: those of finished answers, and of those on their way. What an answer of an eval takes is the mean of its finished
ones; of an eval without any, of all. Time is the engines' own: seconds in which they generated, so loading is in no estimate.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

_MIN_BUSY_S = 5.0
_MIN_ANSWERS = 5
_SHORTEST_S, _LONGEST_S = 10.0, 300.0
_MOST_CREDIT = 0.95  # of an answer on its way: it may be a long one


@dataclass
class EvalWork:
    """The answers of one eval: asked for, there (`num_done`), made by this session (`num_new`), and the tokens of the new ones."""

    num_asked: int = 0
    num_done: int = 0
    num_new: int = 0
    num_tokens: int = 0


@dataclass
class Work:
    """The work of a run at one moment. `busy_s`: the seconds that engines have generated, summed over `num_busy` of them.

    `num_rows`, `num_row_tokens`: answers on their way, and their tokens so far; `at_work` names their evals.
    """

    evals: Mapping[str, EvalWork]
    busy_s: float
    num_busy: int
    num_rows: int = 0
    num_row_tokens: int = 0
    most_rows: int = 0
    """On their way at once at most, so far."""
    at_work: frozenset[str] = frozenset()

    @property
    def num_new(self) -> int:
        """Answers that this session has made."""
        return sum(each.num_new for each in self.evals.values())

    @property
    def period_s(self) -> float:
        """How long an answer is on its way, by Little's law; for an engine that runs batches, the length of one."""
        return self.most_rows * self.busy_s / (self.num_new * max(1, self.num_busy)) if self.num_new else 0.0

    def left_s(self) -> float | None:
        """Return the seconds that all engines need for the rest, None if nothing can be said."""
        usual = sum(each.num_tokens for each in self.evals.values()) / max(1, self.num_new)
        done = left = heaviest = 0.0
        for name, each in self.evals.items():
            weight = self._tokens_per_answer(name, each) or max(1.0, usual)
            done += each.num_tokens or each.num_new * weight
            left += max(0, each.num_asked - each.num_done) * weight
            if name in self.at_work:
                heaviest = max(heaviest, weight)
        credit = min(float(self.num_row_tokens), _MOST_CREDIT * self.num_rows * heaviest)
        if done + credit <= 0 or not self.num_busy:
            return None
        return self.busy_s / (done + credit) * max(0.0, left - credit) / self.num_busy

    def _tokens_per_answer(self, name: str, each: EvalWork) -> float:
        """Return the mean of the finished answers, or of all that have begun where that is more: the first to finish are the short ones."""
        finished = each.num_tokens / max(1, each.num_new)
        if {name} != self.at_work:
            return finished
        return max(finished, (each.num_tokens + self.num_row_tokens) / max(1, each.num_new + self.num_rows))


@dataclass
class TimeLeft:
    """The time left, smoothed over one period.

    While a batch reads its prompts, or only its longest answers run, work stands still and an estimate would grow, though all goes well. So
    the earliest end that was estimated within a period holds.
    """

    _ends: deque[tuple[float, float]] = field(default_factory=deque)
    _is_known: bool = False

    def look(self, now: float, work: Work) -> float | None:
        """Return the seconds left at this moment, None while too little is known or nothing is left to generate."""
        self._is_known = self._is_known or self._is_enough(work)
        left_s = work.left_s() if self._is_known else None
        if not left_s:
            return None
        self._ends.append((now, now + left_s))
        while self._ends[0][0] < now - _window_s(work.period_s, 3 * _SHORTEST_S):
            self._ends.popleft()
        return max(min(end for _, end in self._ends) - now, left_s / 3)

    @staticmethod
    def _is_enough(work: Work) -> bool:
        """Return whether what is done tells how long the rest takes: as many answers as are ever on their way at once, or half of all.

        The first to finish are the short ones, and say too little of the others.
        """
        half = sum(each.num_asked for each in work.evals.values()) // 2
        return work.busy_s >= _MIN_BUSY_S and work.num_new >= max(1, min(max(work.most_rows, _MIN_ANSWERS), half))


def _window_s(period_s: float, at_least_s: float = _SHORTEST_S) -> float:
    return min(_LONGEST_S, max(at_least_s, period_s))


class TokenRate:
    """Tokens per second of one engine, over a period: in a batch's pauses it is not 0, which would read as if it hung."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def look(self, busy_s: float, num_tokens: int, period_s: float) -> float | None:
        """Return the rate, given the seconds generated and the tokens made so far; None before the first token."""
        if self._seen:  # an answer that has just ended may be counted a moment after it was taken from those on their way
            num_tokens = max(num_tokens, self._seen[-1][1])
        self._seen.append((busy_s, num_tokens))
        while len(self._seen) > 2 and self._seen[1][0] <= busy_s - _window_s(period_s):
            self._seen.popleft()
        first_s, first = self._seen[0]
        return (num_tokens - first) / (busy_s - first_s) if num_tokens and busy_s > first_s else None
