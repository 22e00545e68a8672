"""Which worker gets which unit, on fake workers: no process is started."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from evalharness.pytest_plugin.distributed.scheduler import DeferredScheduler, UnitScheduler
from evalharness.pytest_plugin.execution.units import UnitKey, assign_units, num_cases_ahead

ENGINES = ["hf:x", "hf:y"]
CONFIG = SimpleNamespace(getvalue=lambda name: ["2*popen"], getoption=lambda name: None)
"""Of a session with two workers."""


class Worker:
    """A worker that runs what it is sent, one test at a time, holding the last one back as xdist's do."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.queue: list[int] = []
        self.ran: list[int] = []
        self.shutting_down = False

    def send_runtest_some(self, indices: list[int]) -> None:
        assert not self.shutting_down, "xdist would lose these tests"
        self.queue += indices

    def shutdown(self) -> None:
        self.shutting_down = True

    def can_run(self) -> bool:
        return len(self.queue) >= 2 or (bool(self.queue) and self.shutting_down)


def assign(nodeids: Any) -> dict[str, UnitKey]:
    return assign_units(nodeids, ENGINES, 2)


def started(collection: list[str], num_workers: int = 2, **more: Any) -> tuple[UnitScheduler, list[Worker]]:
    scheduler = UnitScheduler(num_workers, assign, **more)
    workers = [Worker(f"gw{n}") for n in range(num_workers)]
    for worker in workers:
        joins(scheduler, worker, collection)
    assert scheduler.collection_is_completed
    scheduler.schedule()
    return scheduler, workers


def joins(scheduler: UnitScheduler, worker: Worker, collection: list[str]) -> Worker:
    scheduler.add_node(worker)
    scheduler.add_node_collection(worker, collection)
    return worker


def replaced(scheduler: UnitScheduler, collection: list[str]) -> Worker:
    """Return a worker that was added after another one died, and has its units."""
    third = joins(scheduler, Worker("gw2"), collection)
    scheduler.schedule()
    return third


def run(scheduler: UnitScheduler, *workers: Worker, turns: int = 100_000) -> None:
    """Let the workers run in turn until none can."""
    for _ in range(turns):
        able = [worker for worker in workers if worker.can_run()]
        if not able:
            return
        for worker in able:
            index = worker.queue.pop(0)
            worker.ran.append(index)
            scheduler.mark_test_complete(worker, index)


def evals(num_cases: int, engine: str = "hf:x", path: str = "test_a.py") -> list[str]:
    return [f"{path}::test_s[{engine}-c{case}]" for case in range(num_cases)]


@pytest.mark.parametrize("num_cases", [1, 2, 3, 16, 100])
@pytest.mark.parametrize("num_plain", [0, 1, 7])
def test_every_test_runs_exactly_once_and_all_workers_end(num_cases: int, num_plain: int) -> None:
    collection = evals(num_cases) + [f"test_b.py::test_{n}" for n in range(num_plain)]
    scheduler, workers = started(collection)
    run(scheduler, *workers)
    assert sorted(workers[0].ran + workers[1].ran) == list(range(len(collection)))
    assert scheduler.tests_finished
    assert not scheduler.has_pending
    assert all(worker.shutting_down for worker in workers)


def test_a_unit_stays_on_one_worker() -> None:
    collection = evals(100)
    scheduler, workers = started(collection)
    run(scheduler, *workers)
    units = assign(collection)
    for unit in set(units.values()):
        assert len({n for n, worker in enumerate(workers) for index in worker.ran if units[collection[index]] == unit}) == 1


def test_each_worker_stays_with_the_engine_that_it_has_loaded() -> None:
    collection = evals(100, "hf:x") + evals(100, "hf:y")
    scheduler, workers = started(collection)
    run(scheduler, *workers)
    engines = [[collection[index].partition("[")[2][:4] for index in worker.ran] for worker in workers]
    assert [set(own) for own in engines] == [{"hf:x"}, {"hf:y"}]


def test_a_worker_goes_on_with_the_kind_of_engine_that_it_has_loaded() -> None:
    engines = ["hf:x", "hf:y", "vllm:x", "vllm:y"]
    collection = [nodeid for engine in engines for nodeid in evals(10, engine)]
    scheduler = UnitScheduler(2, lambda nodeids: assign_units(nodeids, engines, 2))
    first, second = (joins(scheduler, Worker(name), collection) for name in ("gw0", "gw1"))
    scheduler._workers[first].engine, scheduler._workers[second].engine = "hf:before", "vllm:before"
    scheduler.schedule()
    run(scheduler, first, second)
    assert {collection[index].partition("[")[2].partition(":")[0] for index in first.ran} == {"hf"}
    assert {collection[index].partition("[")[2].partition(":")[0] for index in second.ran} == {"vllm"}


def test_a_worker_helps_with_another_engine_when_its_own_is_done() -> None:
    collection = evals(100, "hf:x") + evals(8, "hf:y")
    scheduler, workers = started(collection)
    run(scheduler, *workers)
    assert min(len(worker.ran) for worker in workers) > 40


def test_a_crashed_workers_tests_go_to_the_other_but_for_the_culprit() -> None:
    collection = evals(40)
    scheduler, (first, second) = started(collection)
    run(scheduler, first, second, turns=3)
    culprit = first.queue[0]
    assert scheduler.remove_node(first) == collection[culprit]
    run(scheduler, second)
    assert sorted(first.ran + second.ran + [culprit]) == list(range(40))
    assert scheduler.tests_finished


def test_a_replacement_takes_part() -> None:
    collection = evals(200)
    scheduler, (first, second) = started(collection)
    run(scheduler, first, second, turns=2)
    culprit = first.queue[0]
    scheduler.remove_node(first)
    third = Worker("gw2")
    scheduler.add_node(third)
    run(scheduler, second, turns=1)
    assert third.queue == [], "it has not collected yet"
    scheduler.add_node_collection(third, collection)
    scheduler.schedule()
    run(scheduler, second, third)
    assert third.ran
    assert sorted(first.ran + second.ran + third.ran + [culprit]) == list(range(200))


def test_a_crash_of_the_only_busy_worker_after_the_others_ended_leaves_work_for_its_replacement() -> None:
    collection = evals(16)
    scheduler, (first, second) = started(collection)
    run(scheduler, first)
    assert first.shutting_down or not first.can_run()
    culprit = second.queue[0]
    scheduler.remove_node(second)
    third = replaced(scheduler, collection)
    run(scheduler, first, third)
    assert sorted(first.ran + third.ran + [culprit]) == list(range(16))


def test_a_worker_that_dies_as_it_is_sent_a_unit_leaves_it_to_the_others() -> None:
    """Its last message was read, its pipe is broken, and xdist has not heard of its end yet."""
    collection = evals(400)
    scheduler, (first, second) = started(collection)

    def broken(indices: list[int]) -> None:
        raise OSError("cannot send (already closed?)")

    first.send_runtest_some = broken  # type: ignore[method-assign]
    run(scheduler, first)
    assert len(first.queue) < 2, "it has had all that it was sent"
    culprit = first.queue[0]
    assert scheduler.has_work(first)
    assert scheduler.remove_node(first) == collection[culprit]
    run(scheduler, second)
    assert sorted(first.ran + second.ran + [culprit]) == list(range(400))


def test_a_worker_that_ended_or_was_interrupted_is_removed_without_a_culprit() -> None:
    scheduler, (first, second) = started(evals(40))
    run(scheduler, first, second, turns=3)
    queued = list(second.queue)
    first.workeroutput = {"exitstatus": 2}  # type: ignore[attr-defined]
    assert scheduler.remove_node(first) is None
    assert second.queue == queued, "its tests go to nobody"
    run(scheduler, second)
    assert scheduler.remove_node(second) is None
    assert scheduler.nodes == []


def test_a_worker_that_collected_something_else_ends_the_run() -> None:
    scheduler = UnitScheduler(2, assign)
    joins(scheduler, Worker("gw0"), evals(4))
    second = Worker("gw1")
    scheduler.add_node(second)
    with pytest.raises(RuntimeError, match="worker gw1 collected 3 tests, others 4: cases or checkpoints changed meanwhile"):
        scheduler.add_node_collection(second, evals(3))


def test_a_test_put_back_runs_again() -> None:
    collection = evals(4)
    scheduler, (first, second) = started(collection, 2)
    crashed = scheduler.remove_node(first)
    assert crashed is not None
    scheduler.mark_test_pending(crashed)
    third = replaced(scheduler, collection)
    run(scheduler, second, third)
    assert sorted(second.ran + third.ran) == [0, 1, 2, 3]


def test_before_the_choice_it_only_keeps_workers() -> None:
    scheduler = DeferredScheduler(CONFIG, None, assign, lambda: UnitScheduler(2, assign))
    worker = Worker("gw0")
    scheduler.add_node(worker)
    assert scheduler.nodes == [worker]
    assert (scheduler.collection_is_completed, scheduler.tests_finished, scheduler.has_pending) == (False, False, False)
    assert scheduler.remove_node(worker) is None
    assert scheduler.nodes == []
    with pytest.raises(KeyError):  # as xdist expects it of one that died before it was ready
        scheduler.remove_node(worker)


def cases_of(worker: Worker) -> int:
    return len(worker.queue)  # one test a case


def test_the_next_unit_comes_before_an_engine_has_less_than_it_can_hold() -> None:
    scheduler, workers = started(evals(3000))
    while True:
        run(scheduler, *workers, turns=1)
        if not scheduler._waiting:
            break
        assert all(cases_of(worker) >= num_cases_ahead("hf:x") for worker in workers)
        assert all(cases_of(worker) <= num_cases_ahead("hf:x") + 3000 / 4 for worker in workers)


def test_several_tests_of_a_case_count_as_one_case_ahead() -> None:
    collection = [f"test_a.py::test_{test}[hf:x-c{case}]" for test in "abc" for case in range(600)]
    scheduler, (first, _) = started(collection)
    unit = assign(collection)
    cases = [index for index in first.queue if unit[collection[index]].shard == unit[collection[first.queue[0]]].shard]
    num_sent = len(first.queue)
    for index in cases[: len(cases) // 3]:  # all that generate something
        first.queue.remove(index)
        scheduler.mark_test_complete(first, index)
    assert len(first.queue) + len(cases) // 3 > num_sent, "two thirds of the unit's tests are still to run"


def test_at_the_end_no_worker_is_sent_more_than_its_share() -> None:
    scheduler, workers = started(evals(400), num_workers=2)
    run(scheduler, workers[0])
    assert len(workers[0].ran) > 200, "whoever is quicker does more"
    assert cases_of(workers[1]) <= 2 * num_cases_ahead("hf:x")
    run(scheduler, *workers)
    assert sorted(workers[0].ran + workers[1].ran) == list(range(400))


def test_a_small_run_is_shared_though_one_worker_could_hold_it_all() -> None:
    _, workers = started(evals(40))
    assert sorted(cases_of(worker) for worker in workers) == [20, 20]


def test_a_unit_that_is_taken_over_has_the_worker_to_itself() -> None:
    class Judge:
        def is_retried(self, *given: Any) -> bool:
            return True

        def is_given_up(self, engine: str) -> bool:
            return False

        def give_up(self, nodeids: Any) -> None:
            raise AssertionError

    collection = evals(3000)
    scheduler, (first, second) = started(collection, judge=Judge())
    left = set(first.queue)
    scheduler.remove_node(first)
    units = assign(collection)
    third = replaced(scheduler, collection)
    while third.can_run() or second.can_run():
        for worker in (second, third):
            if worker.can_run():
                queued = {units[collection[index]] for index in worker.queue[2:]}
                if left & set(worker.queue[2:]):
                    assert len(queued) == 1, "nothing is sent ahead of it, nor after it before its last test"
                index = worker.queue.pop(0)
                worker.ran.append(index)
                scheduler.mark_test_complete(worker, index)
    assert left <= {*second.ran, *third.ran}


def alone(collection: list[str], num_expected: int) -> tuple[UnitScheduler, Worker]:
    """Return the first worker of so many, and its scheduler."""
    scheduler = UnitScheduler(1, lambda nodeids: assign_units(nodeids, ENGINES, 4), num_expected=lambda: num_expected)
    first = joins(scheduler, Worker("gw0"), collection)
    scheduler.schedule()
    return scheduler, first


def test_workers_that_are_still_to_come_find_their_share() -> None:
    collection = evals(120)
    assert len(alone(collection, num_expected=1)[1].queue) > 40
    scheduler, first = alone(collection, num_expected=4)
    assert 0 < len(first.queue) <= 40
    others = [joins(scheduler, Worker(f"gw{number}"), collection) for number in (1, 2, 3)]
    scheduler.schedule()
    run(scheduler, first, *others)
    assert min(len(worker.ran) for worker in (first, *others)) > 15


def test_a_unit_that_another_worker_has_begun_is_handed_over_before_it_is_sent() -> None:
    collection = evals(40)
    handed_over: list[tuple[str, UnitKey, int]] = []
    scheduler, (first, second) = started(
        collection, hand_over=lambda node, unit: handed_over.append((node.gateway.id, unit, len(node.queue)))
    )
    assert handed_over == []
    units = {assign(collection)[collection[index]] for index in first.queue}
    num_queued = len(second.queue)
    scheduler.remove_node(first)
    third = replaced(scheduler, collection)
    run(scheduler, second, third)
    assert {unit for _, unit, _ in handed_over} == units
    assert all(num <= num_queued for _, _, num in handed_over)
