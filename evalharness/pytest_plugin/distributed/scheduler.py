"""Hands whole work units to xdist's workers, so that a unit's requests reach one engine together.

A worker that needs work gets, in this order: the longest unit of the engine that it has loaded, units of repeats last; a unit of the engine
with most work among those that no worker has loaded, engines split for all workers last; a test that needs no engine; a unit of the engine
that gains most from one more worker. So no worker idles while there is a unit to start, and K engines on N workers are loaded at most about
K + N - 1 times.

A worker gets further units of its engine while its tests still run, so that the engine need not wait for them: enough to fill an engine,
and no more than the worker's share of the rest.
"""

from __future__ import annotations

import contextlib
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from xdist.scheduler import LoadScheduling

from evalharness.pytest_plugin.distributed.worker import STOP
from evalharness.pytest_plugin.execution.units import UnitKey, first_tests, num_cases_ahead

AssignUnits = Callable[[Sequence[str]], dict[str, UnitKey]]
Estimate = Callable[[UnitKey, Sequence[str]], float]
"""Seconds that the tests of a unit are expected to take; only how they compare to others' matters."""


class CrashJudge(Protocol):
    """Decides whether the test of a dead worker runs again, and which engines are given up."""

    def is_retried(self, worker: str, nodeid: str, unit: UnitKey, left: Mapping[UnitKey, Sequence[str]]) -> bool:
        """Return whether the test runs once more; `left` are all tests that the worker did not finish, by unit."""
        ...

    def is_given_up(self, engine: str) -> bool:
        """Return whether the engine has killed so many workers that no other worker should load it."""
        ...

    def give_up(self, nodeids: Sequence[str]) -> None:
        """Report tests that no worker will run."""
        ...


def _kind(engine: str | None) -> tuple[str, str] | None:
    """Return the backend and dtype of an engine by its id."""
    return None if engine is None else (engine.partition(":")[0], engine.rpartition("@")[2] if "@" in engine else "")


def count_tests(unit: UnitKey, nodeids: Sequence[str]) -> float:
    """Return an estimate that needs no history: all tests take equally long."""
    return float(len(nodeids))


@dataclass
class _Waiting:
    """Tests that go to one worker together: those of a work unit, or one test without an eval."""

    indices: list[int]
    seconds: float
    is_taken_over: bool
    """Whether a worker has died with them: they run alone then."""


@dataclass
class _Worker:
    """What a worker has to do. `engine`: the one that it has loaded, once it has got a unit."""

    node: Any
    pending: deque[int] = field(default_factory=deque)
    engine: str | None = None
    num_cases: int = 0
    left_s: float = 0.0
    is_alone: bool = False
    """Whether its last unit runs alone."""


class UnitScheduler:
    """xdist's scheduling protocol over work units; a test without an eval is a unit of its own.

    Work is handed out once `num_nodes` workers have collected. `num_expected()` counts those that are still to come, too: they get their
    share. `hand_over` is called before a worker gets a unit that another one has begun. `num_ahead`: how many cases keep an engine full.
    `in_turns`: workers get units ahead one by one, so that the first units are the first to be worked on; a little less even.
    """

    def __init__(
        self,
        num_nodes: int,
        assign: AssignUnits,
        estimate: Estimate = count_tests,
        judge: CrashJudge | None = None,
        *,
        num_expected: Callable[[], int] = lambda: 0,
        hand_over: Callable[[Any, UnitKey], None] = lambda node, unit: None,
        num_ahead: Callable[[str], int] = num_cases_ahead,
        in_turns: bool = False,
    ) -> None:
        self._num_nodes = num_nodes
        self._num_expected = num_expected
        self._hand_over = hand_over
        self._num_ahead = num_ahead
        self._in_turns = in_turns
        self._assign = assign
        self._estimate = estimate
        self._judge = judge
        self._collection: list[str] = []
        self._collected: set[Any] = set()
        self._units: dict[str, UnitKey] = {}
        self._waiting: dict[UnitKey | str, _Waiting] = {}
        self._workers: dict[Any, _Worker] = {}
        self._case_s: dict[int, float] = {}
        """Seconds of a case, by its first test: of these as many are pending as cases."""
        self._is_stopped = False

    @property
    def nodes(self) -> list[Any]:
        """The workers that are up."""
        return list(self._workers)

    @property
    def collection_is_completed(self) -> bool:
        """Whether every worker has collected."""
        return len(self._collected) >= self._num_nodes

    @property
    def tests_finished(self) -> bool:
        """Whether nothing is queued and each worker has at most the one test that it holds back."""
        return self.collection_is_completed and not self._waiting and all(len(worker.pending) < 2 for worker in self._workers.values())

    @property
    def has_pending(self) -> bool:
        """Whether any test has not run yet."""
        return bool(self._waiting) or any(worker.pending for worker in self._workers.values())

    def has_collected(self, node: Any) -> bool:
        """Return whether a worker has collected."""
        return node in self._collected

    def has_work(self, node: Any) -> bool:
        """Return whether a worker has tests that have not run to their end."""
        return node in self._workers and bool(self._workers[node].pending)

    def add_node(self, node: Any) -> None:
        """Add a worker."""
        self._workers[node] = _Worker(node)

    def add_node_collection(self, node: Any, collection: Sequence[str]) -> None:
        """Note what a worker collected; it must be the same everywhere."""
        if not self._collected:
            self._collection = list(collection)
        self._collected.add(node)
        if list(collection) != self._collection:
            raise RuntimeError(
                f"worker {node.gateway.id} collected {len(collection)} tests, others {len(self._collection)}: "
                "cases or checkpoints changed meanwhile"
            )

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        """Note that a test ran and give the worker more tests if it needs some."""
        worker = self._workers[node]
        worker.pending.remove(item_index)
        if item_index in self._case_s:
            worker.num_cases -= 1
            worker.left_s -= self._case_s[item_index]
        self._feed(worker)
        self._feed_ahead(worker)

    def mark_test_pending(self, item: str) -> None:
        """Put a test back that its worker wants to run again."""
        self._waiting[item] = _Waiting([self._collection.index(item)], 0.0, is_taken_over=False)
        self._feed_all()

    def remove_pending_tests_from_node(self, node: Any, indices: Sequence[int]) -> None:
        """Take back tests that a worker gives up."""
        raise NotImplementedError("only xdist's work stealing asks for this")

    def remove_node(self, node: Any) -> str | None:
        """Remove a worker; return the test that it crashed in, unless that runs once more. Its other tests wait for another worker."""
        pending = self._workers.pop(node).pending
        if not pending:
            return None
        crashed = self._collection[pending[0]]
        is_crash = not hasattr(node, "workeroutput")  # a worker that was interrupted ends in order, and so does the run
        units = self._by_unit(pending)
        is_over = is_crash and not self._is_retried(node, crashed, units)
        if is_over:
            units[self._unit_of(pending[0])].remove(pending[0])
        for key, indices in units.items():
            if indices:
                self._wait(key, indices, is_taken_over=True)
        if is_crash:
            self._give_up_engines()
            self._feed_all()
        return crashed if is_over else None

    def stop(self, reason: str) -> None:
        """Tell every worker to end after its current test. Idempotent."""
        was_stopped, self._is_stopped = self._is_stopped, True
        for node in () if was_stopped else self.nodes:
            with contextlib.suppress(OSError):  # it has just died
                node.sendcommand(STOP, reason=reason)

    def tell(self, command: str, **arguments: Any) -> None:
        """Send every worker a command."""
        for node in self.nodes:
            with contextlib.suppress(OSError):  # it has just died
                node.sendcommand(command, **arguments)

    def _is_retried(self, node: Any, crashed: str, units: Mapping[UnitKey | str, Sequence[int]]) -> bool:
        unit = self._units.get(crashed)
        if self._judge is None or unit is None:
            return False
        left = {key: [self._collection[index] for index in indices] for key, indices in units.items() if isinstance(key, UnitKey)}
        return self._judge.is_retried(node.gateway.id, crashed, unit, left)

    def _give_up_engines(self) -> None:
        in_use = {worker.engine for worker in self._workers.values()}
        for key in list(self._waiting):
            if isinstance(key, UnitKey) and self._judge is not None and key.engine not in in_use and self._judge.is_given_up(key.engine):
                self._judge.give_up([self._collection[index] for index in self._waiting.pop(key).indices])

    def schedule(self) -> None:
        """Give every worker its first units; called again when a worker was added."""
        if not self._units:
            self._units = self._assign(self._collection)
            first = first_tests(self._units)
            self._case_s = {index: 0.0 for index, nodeid in enumerate(self._collection) if nodeid in first}
            for key, indices in self._by_unit(range(len(self._collection))).items():
                self._wait(key, indices)
        self._feed_all()
        most = 1 if self._in_turns else sys.maxsize
        # Once everybody has something.
        while sum(self._feed_ahead(worker, most) for worker in self._workers.values()) and self._in_turns:
            pass

    def _unit_of(self, index: int) -> UnitKey | str:
        nodeid = self._collection[index]
        return self._units.get(nodeid, nodeid)

    def _by_unit(self, indices: Iterable[int]) -> dict[UnitKey | str, list[int]]:
        units: defaultdict[UnitKey | str, list[int]] = defaultdict(list)
        for index in indices:
            units[self._unit_of(index)].append(index)
        return units

    def _wait(self, key: UnitKey | str, indices: list[int], *, is_taken_over: bool = False) -> None:
        seconds = self._estimate(key, [self._collection[index] for index in indices]) if isinstance(key, UnitKey) else 0.0
        self._waiting[key] = _Waiting(indices, seconds, is_taken_over)

    def _feed_all(self) -> None:
        for worker in self._workers.values():
            self._feed(worker)

    def _feed(self, worker: _Worker) -> None:
        if worker.node not in self._collected:
            return  # a replacement that has not collected yet; `schedule` comes again when it has
        # A worker holds its last test back until it knows what comes next, so the next unit goes out one test early.
        while len(worker.pending) < 2 and not worker.node.shutting_down:
            if not self._waiting:
                worker.node.shutdown()
                return
            self._send(worker, self._next_key(worker))

    def _send(self, worker: _Worker, key: UnitKey | str) -> None:
        unit = self._waiting.pop(key)
        worker.pending.extend(unit.indices)
        worker.is_alone = unit.is_taken_over
        if isinstance(key, UnitKey):
            worker.engine = key.engine
            if unit.is_taken_over:
                self._hand_over(worker.node, key)
        if first := [index for index in unit.indices if index in self._case_s]:
            self._case_s.update(dict.fromkeys(first, unit.seconds / len(first)))
            worker.num_cases += len(first)
            worker.left_s += unit.seconds
        # The pipe of a worker that has just died breaks before xdist hears of its death; then `remove_node` finds the tests here.
        with contextlib.suppress(OSError):
            worker.node.send_runtest_some(unit.indices)

    def _feed_ahead(self, worker: _Worker, most: int = sys.maxsize) -> int:
        """Send a worker up to `most` units that its engine can begin while tests still run; a unit that is taken over runs alone.

        Return how many.
        """
        engine, num = worker.engine, 0
        if engine is None or worker.is_alone or worker.node.shutting_down:
            return 0
        while num < most and self._waiting and worker.num_cases < self._num_ahead(engine):
            units = {key: unit.seconds for key, unit in self._waiting_for(engine).items() if not unit.is_taken_over}
            if not units:
                return num
            key = max(units, key=lambda key: (not key.repeat, units[key]))
            able = [other.left_s for other in self._workers.values() if not other.node.shutting_down]
            share_s = (sum(able) + sum(unit.seconds for unit in self._waiting.values())) / max(len(able), self._num_expected())
            if worker.left_s + units[key] / 2 > share_s:
                return num  # another worker has less to do, or will have
            self._send(worker, key)
            num += 1
        return num

    def _waiting_for(self, engine: str) -> dict[UnitKey, _Waiting]:
        return {key: unit for key, unit in self._waiting.items() if isinstance(key, UnitKey) and key.engine == engine}

    def _next_key(self, worker: _Worker) -> UnitKey | str:
        engine = self._next_engine(worker)
        if engine is None:
            return next(key for key in self._waiting if not isinstance(key, UnitKey))
        units = self._waiting_for(engine)
        return max(units, key=lambda key: (not key.repeat, units[key].seconds))

    def _next_engine(self, worker: _Worker) -> str | None:
        """Return the engine whose unit the worker gets, None if it gets a test that needs no engine."""
        waiting_s: dict[str, float] = {}
        num_shards: dict[str, int] = {}
        for key, unit in self._waiting.items():
            if isinstance(key, UnitKey):
                waiting_s[key.engine] = waiting_s.get(key.engine, 0.0) + unit.seconds
                num_shards[key.engine] = max(num_shards.get(key.engine, 0), key.shard + 1)
        if worker.engine in waiting_s:
            return worker.engine
        others = [other.engine for other in self._workers.values() if other is not worker]
        untouched = [engine for engine in waiting_s if engine not in others]
        if untouched:
            # Those that were split for all to share come last; into an engine of the same kind weights may be swapped.
            kind = _kind(worker.engine)
            return min(untouched, key=lambda engine: (num_shards[engine], _kind(engine) != kind, -waiting_s[engine]))
        if any(not isinstance(key, UnitKey) for key in self._waiting):
            return None
        return max(waiting_s, key=lambda engine: waiting_s[engine] / (others.count(engine) + 1))


class DeferredScheduler:
    """xdist's own load scheduling until the first collection, and after it if that holds no evals; else work units."""

    def __init__(self, config: Any, log: Any, assign: AssignUnits, new_units: Callable[[], UnitScheduler]) -> None:
        self._assign = assign
        self._new_units: Callable[[], UnitScheduler] | None = new_units
        self._chosen: Any = LoadScheduling(config, log)

    def add_node_collection(self, node: Any, collection: Sequence[str]) -> None:
        """Choose at the first collection, then pass it on."""
        new_units, self._new_units = self._new_units, None
        if new_units is not None and self._assign(collection):
            early, self._chosen = self._chosen.nodes, new_units()
            for other in early:
                self._chosen.add_node(other)
        self._chosen.add_node_collection(node, collection)

    def has_collected(self, node: Any) -> bool:
        """Return whether a worker has collected."""
        return isinstance(self._chosen, UnitScheduler) and self._chosen.has_collected(node)

    def has_work(self, node: Any) -> bool:
        """Return whether a worker has units to run."""
        return isinstance(self._chosen, UnitScheduler) and self._chosen.has_work(node)

    def stop(self, reason: str) -> None:
        """End the workers that run units, each after its current test."""
        if isinstance(self._chosen, UnitScheduler):
            self._chosen.stop(reason)

    def tell(self, command: str, **arguments: Any) -> None:
        """Send a command to the workers that run units."""
        if isinstance(self._chosen, UnitScheduler):
            self._chosen.tell(command, **arguments)

    def __getattr__(self, name: str) -> Any:
        """Return the chosen scheduler's attribute: the other parts of xdist's scheduling protocol."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._chosen, name)
