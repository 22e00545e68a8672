"""K checkpoints on N workers, on simulated durations: wall time and number of loads against what is possible at all."""

from __future__ import annotations

import heapq
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, strategies as st

from evalharness.pytest_plugin.distributed.scheduler import UnitScheduler
from evalharness.pytest_plugin.execution.units import UnitKey, assign_units
from tests.pytest_plugin.distributed.test_scheduler import Worker, joins


class Machine(Worker):
    """A worker that loads engines and runs tests in simulated time."""

    loaded: str | None = None
    num_loads = 0


@dataclass
class Outcome:
    wall_s: float
    num_loads: int
    idle_while_work_waits_s: float


def simulate(case_s: Mapping[str, float], num_cases: int, num_workers: int, load_s: float, *, known: bool = True) -> Outcome:
    """Run `num_cases` of each engine; `case_s` says how long one takes on each. `known`: whether an earlier run has told."""
    engines = list(case_s)
    collection = [f"test_a.py::test_s[{engine}-c{case}]" for engine in engines for case in range(num_cases)]

    def estimate(unit: UnitKey, nodeids: Any) -> float:
        return len(nodeids) * (case_s[unit.engine] if known else 1.0)

    scheduler = UnitScheduler(num_workers, lambda ids: assign_units(ids, engines, num_workers), estimate)
    machines = [Machine(f"gw{number}") for number in range(num_workers)]
    for machine in machines:
        joins(scheduler, machine, collection)
    scheduler.schedule()
    now, waste_s = 0.0, 0.0
    running: list[tuple[float, int, int]] = []
    resting = set(range(num_workers))
    while True:
        for number in sorted(resting):
            machine = machines[number]
            if machine.can_run():
                index = machine.queue.pop(0)
                engine = engines[index // num_cases]
                seconds = case_s[engine] + (load_s if machine.loaded != engine else 0.0)
                machine.num_loads += machine.loaded != engine
                machine.loaded = engine
                heapq.heappush(running, (now + seconds, number, index))
                resting.discard(number)
        if not running:
            break
        ended, number, index = heapq.heappop(running)
        if scheduler._waiting:
            waste_s += (ended - now) * len(resting)
        now = ended
        resting.add(number)
        scheduler.mark_test_complete(machines[number], index)
    assert scheduler.tests_finished
    return Outcome(now, sum(machine.num_loads for machine in machines), waste_s)


def fewest_s(case_s: Mapping[str, float], num_cases: int, num_workers: int, load_s: float) -> float:
    """Return a time that no schedule can beat: all work and one load of each engine, spread evenly without a gap."""
    return (sum(case_s.values()) * num_cases + load_s * max(len(case_s), num_workers)) / num_workers


@pytest.mark.parametrize(
    ("num_engines", "num_workers"), [(1, 1), (1, 4), (2, 4), (3, 2), (4, 4), (5, 4), (8, 4), (10, 4), (10, 3), (7, 8), (20, 8)]
)
def test_equal_checkpoints_need_little_more_than_the_least_time_and_loads(num_engines: int, num_workers: int) -> None:
    case_s = {f"fake:c{number}": 1.0 for number in range(num_engines)}
    ran = simulate(case_s, 120, num_workers, load_s=10.0)
    assert ran.num_loads <= num_engines + num_workers - 1
    assert ran.num_loads == num_engines or num_engines % num_workers, "whole rounds need one load per engine"
    longest_unit_s = 120 * num_engines / max(num_engines, 3 * num_workers)
    assert ran.wall_s <= fewest_s(case_s, 120, num_workers, 10.0) + min(longest_unit_s, 120.0) + 10.0
    assert ran.idle_while_work_waits_s == 0


def test_ten_checkpoints_on_four_workers_end_within_a_twentieth_of_the_ideal() -> None:
    case_s = {f"fake:c{number}": 0.1 for number in range(10)}
    ran = simulate(case_s, 3000, 4, load_s=60.0)
    assert ran.num_loads == 12  # 8 whole, and two pairs of workers share the last two
    assert ran.wall_s <= 1.05 * fewest_s(case_s, 3000, 4, 60.0)


def test_recorded_durations_put_a_slow_checkpoint_first() -> None:
    case_s = {**{f"fake:c{number}": 1.0 for number in range(6)}, "fake:endless": 6.0}
    told = simulate(case_s, 100, 2, load_s=5.0)
    untold = simulate(case_s, 100, 2, load_s=5.0, known=False)
    assert told.wall_s <= 1.03 * fewest_s(case_s, 100, 2, 5.0)
    assert told.wall_s <= untold.wall_s


@given(num_engines=st.integers(1, 9), num_workers=st.integers(1, 6), seed=st.integers(0, 999), known=st.booleans())
def test_unequal_checkpoints_are_balanced_too(num_engines: int, num_workers: int, seed: int, known: bool) -> None:
    draw = random.Random(seed)
    case_s = {f"fake:c{number}": draw.choice([0.5, 1.0, 1.0, 2.0]) for number in range(num_engines)}
    ran = simulate(case_s, 60, num_workers, load_s=3.0, known=known)
    assert ran.idle_while_work_waits_s == 0
    # Whoever helps does so at the end; each round of helping halves what is left at least.
    assert ran.num_loads <= num_engines + 2 * (num_workers - 1)
    longest_unit_s = 2.0 * 60
    assert ran.wall_s <= fewest_s(case_s, 60, num_workers, 3.0) + longest_unit_s + 3.0
