"""Answers of unequal length on several workers, in simulated time: how near the scheduler comes to one queue for all engines."""

from __future__ import annotations

import heapq
import itertools
from typing import Any

import pytest

from benchmarks.simulated.engine_model import CAPACITY, ROW_S, STEP_S, num_tokens, shared_queue_s
from evalharness.pytest_plugin.distributed.scheduler import UnitScheduler
from evalharness.pytest_plugin.execution import units
from evalharness.pytest_plugin.execution.units import assign_units
from tests.pytest_plugin.distributed.test_scheduler import Worker, joins

TEST_S = 0.03
LEAST = 0.95
"""Of what is possible; with as many cases ahead as an engine runs it was 0.82 at worst, with half as many again 0.86."""
ROWS_AHEAD = (2, 8)
"""Times as many cases ahead as an engine runs at once: vLLM's on large cards, and on others."""


class Machine(Worker):
    """Asks all that it was sent in order, as its engine has room; runs the tests in order, holding the last one back."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.unasked: list[int] = []
        self.rows: dict[int, int] = {}
        self.answered: set[int] = set()
        self.is_testing = self.is_generating = False

    def send_runtest_some(self, indices: list[int]) -> None:
        super().send_runtest_some(indices)
        self.unasked += indices

    def next_test(self) -> int | None:
        """Begin the next test, if it can run."""
        if self.is_testing or not self.can_run() or self.queue[0] not in self.answered:
            return None
        self.is_testing = True
        return self.queue.pop(0)

    def next_step_s(self, lengths: list[int]) -> float | None:
        """Begin the engine's next step, if it has anything to do."""
        if self.is_generating:
            return None
        while self.unasked and len(self.rows) < CAPACITY:
            index = self.unasked.pop(0)
            self.rows[index] = lengths[index]
        self.is_generating = bool(self.rows)
        return STEP_S + ROW_S * len(self.rows) if self.rows else None

    def end_step(self) -> None:
        self.is_generating = False
        self.rows = {index: left - 1 for index, left in self.rows.items()}
        self.answered |= {index for index, left in self.rows.items() if not left}
        self.rows = {index: left for index, left in self.rows.items() if left}


def seconds_a_worker(lengths: list[int], num_workers: int, apart_s: float) -> float:
    """Return the time from when a worker is ready to the last answer of all, on the average; they get ready one after the other."""
    collection = [f"test_a.py::test_s[fake:x-c{number:05}]" for number in range(len(lengths))]
    scheduler = UnitScheduler(num_workers, lambda nodeids: assign_units(nodeids, ["fake:x"], num_workers))
    workers = [Machine(f"gw{number}") for number in range(num_workers)]
    for worker in workers:
        joins(scheduler, worker, collection)
    scheduler.schedule()
    now, last_s, order = 0.0, 0.0, itertools.count()
    ends: list[tuple[float, int, Machine, int | None]] = []
    for number, worker in enumerate(workers):
        worker.is_generating = True
        heapq.heappush(ends, (number * apart_s, next(order), worker, None))
    while True:
        for worker in workers:
            if (index := worker.next_test()) is not None:
                heapq.heappush(ends, (now + TEST_S, next(order), worker, index))
            if (seconds := worker.next_step_s(lengths)) is not None:
                heapq.heappush(ends, (now + seconds, next(order), worker, None))
        if not ends:
            assert scheduler.tests_finished
            return last_s - apart_s * (num_workers - 1) / 2
        now, _, ended, tested = heapq.heappop(ends)
        if tested is None:
            ended.end_step()
            last_s = now
        else:
            ended.is_testing = False
            scheduler.mark_test_complete(ended, tested)


@pytest.mark.slow
@pytest.mark.parametrize(("num_workers", "num_cases"), [(2, 200), (4, 256), (4, 384), (4, 1000), (8, 384)])
@pytest.mark.parametrize("spread", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("apart_s", [0.0, 0.1])
@pytest.mark.parametrize("rows_ahead", ROWS_AHEAD)
def test_an_engine_is_kept_full_though_tests_wait_for_long_answers(
    num_workers: int, num_cases: int, spread: float, apart_s: float, rows_ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: dict[str, Any] = units._SMALLEST_FOR
    monkeypatch.setitem(sizes, "fake", 2)  # the model's scale
    monkeypatch.setattr(units, "_AHEAD", rows_ahead * CAPACITY)
    lengths = [num_tokens(f"c{number:05}", spread) for number in range(num_cases)]
    assert shared_queue_s(lengths, num_workers) / seconds_a_worker(lengths, num_workers, apart_s) >= LEAST
