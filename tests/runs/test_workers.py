"""What each worker did, from made-up journal lines."""

from __future__ import annotations

import pytest

from evalharness.runs.workers import WorkerTimes


def opened(load_s: float, ended_s: float, how: str = "load") -> dict[str, object]:
    return {"id": "hf:x", "load_s": load_s, "ended_s": ended_s, "how": how, "devices": ["0"]}


def ran(times: WorkerTimes, worker: str, num: int, generation_s: float, ended_s: float, engine: str = "hf:x") -> None:
    times.start_unit(worker)
    for _ in range(num):
        times.add_outcome(worker)
    times.end_unit(worker, {"engine": engine, "eval": "a", "generation_s": generation_s, "ended_s": ended_s})


@pytest.fixture
def times() -> WorkerTimes:
    """Two workers over 100 s: one loads 10 s, swaps 2 s and generates 70 s; the other loads 10 s and generates 40 s."""
    made = WorkerTimes()
    made.add_engine("gw10", opened(10, 1010))
    ran(made, "gw10", 4, 40, 1050)
    made.add_engine("gw2", opened(10, 1010))
    ran(made, "gw2", 3, 30, 1040)
    made.add_engine("gw2", opened(2, 1060, "swap"))
    ran(made, "gw2", 2, 40, 1100, "hf:y")
    return made


def test_loads_swaps_units_and_seconds_are_counted_by_worker_in_natural_order(times: WorkerTimes) -> None:
    second, tenth = times.entries()
    assert (second["worker"], tenth["worker"]) == ("gw2", "gw10")
    assert (second["num_loads"], second["num_swaps"], second["num_units"]) == (1, 1, 2)
    assert (second["load_s"], second["generation_s"], second["devices"]) == (12.0, 70.0, ["0"])


def test_idle_is_what_is_left_of_the_time_that_all_worked_in(times: WorkerTimes) -> None:
    assert [entry["idle_share"] for entry in times.entries()] == [0.18, 0.5]


def test_durations_are_by_engine_and_eval(times: WorkerTimes) -> None:
    assert times.durations() == [
        {"engine": "hf:x", "eval": "a", "num_outcomes": 7, "generation_s": 70.0},
        {"engine": "hf:y", "eval": "a", "num_outcomes": 2, "generation_s": 40.0},
    ]


def test_a_unit_that_did_not_end_lends_its_outcomes_to_no_other() -> None:
    times = WorkerTimes()
    times.add_engine("gw0", opened(1, 1))
    times.start_unit("gw0")
    times.add_outcome("gw0")
    ran(times, "gw0", 2, 5, 20)
    assert times.durations()[0]["num_outcomes"] == 2


def test_lines_of_older_journals_and_of_closing_engines_are_passed_over() -> None:
    times = WorkerTimes()
    times.add_engine("gw0", {"id": "hf:x", "settings": {}})
    times.add_engine("gw0", {"id": "hf:x", "load_s": 3.0})
    times.start_unit("gw0")
    times.end_unit("gw0", {"engine": "hf:x", "eval": "a", "generation_s": 1.0})
    assert times.entries() == []
    assert times.durations() == []


def test_the_time_before_a_run_was_resumed_is_nobodys() -> None:
    times = WorkerTimes()
    for worker, start in (("gw0", 0), ("resumed-001-gw0", 100_000)):
        times.add_engine(worker, opened(10, start + 10))
        times.start_unit(worker)
        ran(times, worker, 1, 10, start + 20)
    assert [entry["idle_share"] for entry in times.entries()] == [0.0, 0.0]
