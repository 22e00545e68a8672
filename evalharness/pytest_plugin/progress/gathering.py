"""Puts the snapshots of a run's processes together: one `RunProgress`, with rates and the time left. Pure: time is given."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from evalharness.pytest_plugin.progress.counts import Snapshot
from evalharness.pytest_plugin.progress.estimate import EvalWork, TimeLeft, TokenRate, Work
from evalharness.runs.progress import EngineProgress, RunProgress, WorkerProgress


class Gathering:
    """The newest snapshot of each process. `engine_ids`: the engines of the run, in order. `is_resumed`: earlier answers count as there.

    A worker that takes over from a dead one copies its answers, which are counted already: those of the dead one.
    """

    def __init__(self, engine_ids: Sequence[str], *, is_resumed: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine_ids = list(engine_ids)
        self._is_resumed = is_resumed
        self._clock = clock
        self._started = self._looked_at = clock()
        self._snapshots: dict[str, tuple[float, Snapshot]] = {}
        self._ended: dict[str, str] = {}
        self._rates: defaultdict[str, TokenRate] = defaultdict(TokenRate)
        self._busy_s: defaultdict[str, float] = defaultdict(float)
        self._asked: list[list[Any]] = []
        self._most_rows = 0
        self._generating_s = 0.0
        """Seconds in which any engine generated: the clock of the estimate, which stands still while engines load."""
        self._left = TimeLeft()
        self.num_tests = 0
        self.num_tests_done = 0
        self.num_problems = 0

    def test_ended(self, *, is_problem: bool) -> None:
        """Count a test."""
        self.num_tests_done += 1
        self.num_problems += is_problem

    def take(self, worker: str, taken: Snapshot) -> None:
        """Take the newest snapshot of a process. For any thread."""
        if taken["asked"]:  # every process knows all of it, and tells it once
            self._asked = taken["asked"]
        self._snapshots[worker] = (self._clock(), taken)

    def ended(self, worker: str, *, died: bool) -> None:
        """Note that a process has ended: what it has made is kept, and nothing is on its way there."""
        self._ended[worker] = "dead" if died else "done"

    def look(self) -> RunProgress:
        """Return how far the run is now. Call it every second or so: rates are of what has changed since."""
        now = self._clock()
        passed_s, self._looked_at = now - self._looked_at, now
        alive = {name: each for name, (_, each) in list(self._snapshots.items()) if name not in self._ended}
        every = [each for _, each in list(self._snapshots.values())]
        busy = [each for each in alive.values() if each["doing"] == "generating"]
        work = self._work(every, busy, num_alive=len(alive))
        for engine in {each["engine"] for each in busy}:
            self._busy_s[engine] += passed_s
        self._generating_s += passed_s if busy else 0.0
        return RunProgress(
            elapsed_s=round(now - self._started, 1),
            num_tests=self.num_tests,
            num_tests_done=self.num_tests_done,
            num_problems=self.num_problems,
            left_s=self._left.look(self._generating_s, work),
            engines=tuple(self._engines(every, busy, work.period_s)),
            workers=tuple(self._worker(name, now) for name in list(self._snapshots)),
        )

    def _engines(self, every: Sequence[Snapshot], busy: Sequence[Snapshot], period_s: float) -> Iterator[EngineProgress]:
        """Yield the run's engines, then those that only tests without cases asked."""
        asked, done, tokens = Counter[str](), Counter[str](), Counter[str]()
        for engine, _, num_asked in self._asked:
            asked[engine] += num_asked
        for engine, _, num_new, num_copied, num_tokens in _rows(every):
            done[engine] += num_new + (num_copied if self._is_resumed else 0)
            tokens[engine] += num_tokens
        for engine in dict.fromkeys([*self._engine_ids, *done]):
            under_way = [each for each in busy if each["engine"] == engine]
            num_tokens = tokens[engine] + sum(each["num_row_tokens"] or 0 for each in under_way)
            yield EngineProgress(
                id=engine,
                num_done=min(done[engine], asked[engine] or done[engine]),
                num_asked=asked[engine],
                num_in_flight=sum(each["num_rows"] for each in under_way),
                num_tokens=num_tokens,
                tokens_per_s=self._rates[engine].look(self._busy_s[engine], num_tokens, period_s),
                is_told=all(each["num_row_tokens"] is not None for each in under_way),
            )

    def _work(self, every: Sequence[Snapshot], busy: Sequence[Snapshot], *, num_alive: int) -> Work:
        evals: defaultdict[str, EvalWork] = defaultdict(EvalWork)
        for _, name, num_asked in self._asked:
            evals[name].num_asked += num_asked
        for _, name, num_new, num_copied, num_tokens in _rows(every):
            entry = evals[name]
            entry.num_new += num_new
            entry.num_done += num_new + (num_copied if self._is_resumed else 0)
            entry.num_tokens += num_tokens
        num_rows = sum(each["num_rows"] for each in busy)
        self._most_rows = max(self._most_rows, num_rows)
        return Work(
            evals=evals,
            busy_s=sum(each["busy_s"] for each in every),
            num_busy=len(busy) or num_alive,
            num_rows=num_rows,
            most_rows=self._most_rows,
            num_row_tokens=sum(each["num_row_tokens"] or 0 for each in busy),
            at_work=frozenset(each["eval"] for each in busy),
        )

    def _worker(self, name: str, now: float) -> WorkerProgress:
        taken_at, each = self._snapshots[name]
        doing = self._ended.get(name, each["doing"])
        return WorkerProgress(name, doing, each["engine"], each["eval"], round(each["for_s"] + now - taken_at, 1))


def _rows(every: Iterable[Snapshot]) -> Iterator[list[Any]]:
    return (row for each in every for row in each["evals"])
