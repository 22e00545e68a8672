"""Hands whole work units to xdist's workers, so that a unit's requests reach one engine together.

A worker that needs work gets, in this order: the longest unit of the engine that it has loaded; a unit of the engine with most work among
those that no worker has loaded, engines split for all workers last; a test that needs no engine; a unit of the engine that gains most from
one more worker. So no worker idles while there is a unit to start, and K engines on N workers are loaded at most about K + N - 1 times.

A worker gets further units of its engine while its tests still run, so that the engine need not wait for them: enough to fill an engine,
and no more than the worker's share of the rest.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
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


class UnitScheduler:
    """xdist's scheduling protocol over work units; a test without an eval is a unit of its own."""

    def __init__(self, num_nodes: int, assign: AssignUnits, estimate: Estimate = count_tests, judge: CrashJudge | None = None) -> None:
        self._num_nodes = num_nodes
        self._assign = assign
        self._estimate = estimate
        self._judge = judge
        self._collections: dict[Any, list[str]] = {}
        self._collection: list[str] | None = None
        self._units: dict[str, UnitKey] = {}
        self._waiting: dict[UnitKey | str, list[int]] = {}
        self._seconds: dict[UnitKey | str, float] = {}
        self._pending: dict[Any, deque[int]] = {}
        self._loaded: dict[Any, str | None] = {}
        self._first_tests: set[int] = set()
        """The first test of each case: of these as many are pending as cases."""
        self._num_cases: dict[Any, int] = {}
        self._left_s: dict[Any, float] = {}
        self._case_s: dict[UnitKey | str, float] = {}
        self._taken_over: set[UnitKey | str] = set()
        self._is_alone: dict[Any, bool] = {}
        self._is_stopped = False

    @property
    def nodes(self) -> list[Any]:
        """The workers that are up."""
        return list(self._pending)

    @property
    def collection_is_completed(self) -> bool:
        """Whether every worker has collected."""
        return len(self._collections) >= self._num_nodes

    @property
    def tests_finished(self) -> bool:
        """Whether nothing is queued and each worker has at most the one test that it holds back."""
        return self.collection_is_completed and not self._waiting and all(len(pending) < 2 for pending in self._pending.values())

    @property
    def has_pending(self) -> bool:
        """Whether any test has not run yet."""
        return bool(self._waiting) or any(self._pending.values())

    def has_collected(self, node: Any) -> bool:
        """Return whether a worker has collected."""
        return node in self._collections

    def has_work(self, node: Any) -> bool:
        """Return whether a worker has tests that have not run to their end."""
        return bool(self._pending.get(node))

    def add_node(self, node: Any) -> None:
        """Add a worker."""
        self._pending[node] = deque()
        self._loaded[node] = None
        self._num_cases[node] = 0
        self._left_s[node] = 0.0
        self._is_alone[node] = False

    def add_node_collection(self, node: Any, collection: Sequence[str]) -> None:
        """Note what a worker collected; it must be the same everywhere."""
        self._collections[node] = list(collection)
        first = next(iter(self._collections.values()))
        if list(collection) != first:
            raise RuntimeError(
                f"worker {node.gateway.id} collected {len(collection)} tests, others {len(first)}: cases or checkpoints changed meanwhile"
            )

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        """Note that a test ran and give the worker more tests if it needs some."""
        self._pending[node].remove(item_index)
        if item_index in self._first_tests:
            self._num_cases[node] -= 1
            self._left_s[node] -= self._case_s[self._unit_of(item_index)]
        self._feed(node)
        self._feed_ahead(node)

    def mark_test_pending(self, item: str) -> None:
        """Put a test back that its worker wants to run again."""
        assert self._collection is not None
        self._wait(item, [self._collection.index(item)])
        for node in self.nodes:
            self._feed(node)

    def remove_pending_tests_from_node(self, node: Any, indices: Sequence[int]) -> None:
        """Take back tests that a worker gives up."""
        raise NotImplementedError("only xdist's work stealing asks for this")

    def remove_node(self, node: Any) -> str | None:
        """Remove a worker; return the test that it crashed in, unless that runs once more. Its other tests wait for another worker."""
        pending = self._pending.pop(node)
        del self._loaded[node], self._num_cases[node], self._left_s[node], self._is_alone[node]
        if not pending or self._collection is None:
            return None
        crashed = self._collection[pending[0]]
        is_crash = not hasattr(node, "workeroutput")  # a worker that was interrupted ends in order, and so does the run
        units: defaultdict[UnitKey | str, list[int]] = defaultdict(list)
        for index in pending:
            units[self._unit_of(index)].append(index)
        if is_crash and not self._is_retried(node, crashed, units):
            units[self._unit_of(pending[0])].remove(pending[0])
        for key, indices in units.items():
            if indices:
                self._wait(key, indices)
                self._taken_over.add(key)
        if is_crash:
            self._give_up_engines()
            for other in self.nodes:
                self._feed(other)
        return None if pending[0] in units[self._unit_of(pending[0])] else crashed

    def stop(self, reason: str) -> None:
        """Tell every worker to end after its current test. Idempotent."""
        was_stopped, self._is_stopped = self._is_stopped, True
        for node in () if was_stopped else self.nodes:
            with contextlib.suppress(OSError):  # it has just died
                node.sendcommand(STOP, reason=reason)

    def _is_retried(self, node: Any, crashed: str, units: dict[UnitKey | str, list[int]]) -> bool:
        unit = self._units.get(crashed)
        if self._judge is None or unit is None:
            return False
        assert self._collection is not None
        left = {key: [self._collection[index] for index in indices] for key, indices in units.items() if isinstance(key, UnitKey)}
        return self._judge.is_retried(node.gateway.id, crashed, unit, left)

    def _give_up_engines(self) -> None:
        assert self._collection is not None
        in_use = set(self._loaded.values())
        for key in list(self._waiting):
            if isinstance(key, UnitKey) and self._judge is not None and key.engine not in in_use and self._judge.is_given_up(key.engine):
                self._judge.give_up([self._collection[index] for index in self._waiting.pop(key)])

    def schedule(self) -> None:
        """Give every worker its first units; called again when a worker was added."""
        if self._collection is None:
            self._collection = next(iter(self._collections.values()))
            self._units = self._assign(self._collection)
            first = first_tests(self._units)
            self._first_tests = {index for index, nodeid in enumerate(self._collection) if nodeid in first}
            units: defaultdict[UnitKey | str, list[int]] = defaultdict(list)
            for index in range(len(self._collection)):
                units[self._unit_of(index)].append(index)
            for key, indices in units.items():
                self._wait(key, indices)
        for node in self.nodes:
            self._feed(node)
        for node in self.nodes:  # once everybody has something
            self._feed_ahead(node)

    def _unit_of(self, index: int) -> UnitKey | str:
        assert self._collection is not None
        nodeid = self._collection[index]
        return self._units.get(nodeid, nodeid)

    def _wait(self, key: UnitKey | str, indices: list[int]) -> None:
        assert self._collection is not None
        self._waiting[key] = indices
        self._seconds[key] = self._estimate(key, [self._collection[index] for index in indices]) if isinstance(key, UnitKey) else 0.0

    def _feed(self, node: Any) -> None:
        if node not in self._collections:
            return  # a replacement that has not collected yet; `schedule` comes again when it has
        # A worker holds its last test back until it knows what comes next, so the next unit goes out one test early.
        while len(self._pending[node]) < 2:
            if not self._waiting:
                if not node.shutting_down:
                    node.shutdown()
                return
            if node.shutting_down:
                return
            self._send(node, self._next_key(node))

    def _send(self, node: Any, key: UnitKey | str) -> None:
        indices = self._waiting.pop(key)
        if isinstance(key, UnitKey):
            self._loaded[node] = key.engine
        self._pending[node].extend(indices)
        num_cases = sum(index in self._first_tests for index in indices)
        self._num_cases[node] += num_cases
        self._case_s[key] = self._seconds[key] / num_cases if num_cases else 0.0
        self._left_s[node] += self._case_s[key] * num_cases
        self._is_alone[node] = key in self._taken_over
        # The pipe of a worker that has just died breaks before xdist hears of its death; then `remove_node` finds the tests here.
        with contextlib.suppress(OSError):
            node.send_runtest_some(indices)

    def _feed_ahead(self, node: Any) -> None:
        """Send a worker the units that its engine can begin while tests still run; a unit that is taken over runs alone."""
        engine = self._loaded[node]
        if engine is None or self._is_alone[node] or not self._waiting or node.shutting_down:
            return
        while self._num_cases[node] < num_cases_ahead(engine):
            units = [key for key in self._waiting if isinstance(key, UnitKey) and key.engine == engine and key not in self._taken_over]
            if not units:
                return
            key = max(units, key=self._seconds.__getitem__)
            able = [other for other in self._left_s if not other.shutting_down]
            share_s = (sum(self._left_s[other] for other in able) + sum(self._seconds[unit] for unit in self._waiting)) / len(able)
            if self._left_s[node] + self._seconds[key] / 2 > share_s:
                return  # another worker has less to do, or will have
            self._send(node, key)

    def _next_key(self, node: Any) -> UnitKey | str:
        engine = self._next_engine(node)
        if engine is None:
            return next(key for key in self._waiting if not isinstance(key, UnitKey))
        units = [key for key in self._waiting if isinstance(key, UnitKey) and key.engine == engine]
        return max(units, key=self._seconds.__getitem__)

    def _next_engine(self, node: Any) -> str | None:
        """Return the engine whose unit the worker gets, None if it gets a test that needs no engine."""
        waiting_s: dict[str, float] = {}
        num_shards: dict[str, int] = {}
        for key in self._waiting:
            if isinstance(key, UnitKey):
                waiting_s[key.engine] = waiting_s.get(key.engine, 0.0) + self._seconds[key]
                num_shards[key.engine] = max(num_shards.get(key.engine, 0), key.shard + 1)
        if self._loaded[node] in waiting_s:
            return self._loaded[node]
        others = [engine for other, engine in self._loaded.items() if other is not node]
        untouched = [engine for engine in waiting_s if engine not in others]
        if untouched:
            # Those that were split for all to share come last; into an engine of the same kind weights may be swapped.
            kind = _kind(self._loaded[node])
            return min(untouched, key=lambda engine: (num_shards[engine], _kind(engine) != kind, -waiting_s[engine]))
        if any(not isinstance(key, UnitKey) for key in self._waiting):
            return None
        return max(waiting_s, key=lambda engine: waiting_s[engine] / (others.count(engine) + 1))


class DeferredScheduler:
    """Chooses a scheduler at the first collection: work units for evals, else xdist's own load scheduling."""

    def __init__(self, config: Any, log: Any, assign: AssignUnits, new_units: Callable[[], UnitScheduler]) -> None:
        self._assign = assign
        self._new_units = new_units
        self._new_load = functools.partial(LoadScheduling, config, log)
        self._early_nodes: list[Any] = []
        self._chosen: Any = None

    def add_node(self, node: Any) -> None:
        """Add a worker, now or once the scheduler is chosen."""
        if self._chosen is None:
            self._early_nodes.append(node)
        else:
            self._chosen.add_node(node)

    def add_node_collection(self, node: Any, collection: Sequence[str]) -> None:
        """Choose at the first collection, then pass it on."""
        if self._chosen is None:
            self._chosen = self._new_units() if self._assign(collection) else self._new_load()
            for early in self._early_nodes:
                self._chosen.add_node(early)
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

    @property
    def nodes(self) -> list[Any]:
        """The workers that are up."""
        return self._early_nodes if self._chosen is None else self._chosen.nodes

    @property
    def collection_is_completed(self) -> bool:
        """Whether every worker has collected."""
        return self._chosen is not None and self._chosen.collection_is_completed

    @property
    def tests_finished(self) -> bool:
        """Whether nothing is left to hand out."""
        return self._chosen is not None and self._chosen.tests_finished

    @property
    def has_pending(self) -> bool:
        """Whether any test has not run yet."""
        return self._chosen is not None and self._chosen.has_pending

    def remove_node(self, node: Any) -> str | None:
        """Remove a worker; returns the test that it crashed in, if any."""
        if self._chosen is not None:
            return self._chosen.remove_node(node)
        if node not in self._early_nodes:
            raise KeyError(node)  # what xdist expects of a worker that died before it was ready
        self._early_nodes.remove(node)
        return None

    def __getattr__(self, name: str) -> Any:
        """Return the chosen scheduler's attribute: `schedule`, `mark_test_complete`, `mark_test_pending`, …"""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._chosen, name)


_NUM_RUNS = 10


class Durations:
    """Mean seconds per case of (engine, eval) in the latest runs, from their run.json; a new engine is assumed to be like its backend.

    Unreadable files are skipped.
    """

    def __init__(self) -> None:
        self._of_engine: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        self._of_backend: defaultdict[tuple[str, str], list[float]] = defaultdict(list)

    @classmethod
    def read(cls, report_dir: Path) -> Durations:
        """Return the durations in the latest runs of a folder."""
        durations = cls()
        for run in _latest(report_dir):
            for entry in run.get("durations") or ():
                try:
                    durations._add(entry["engine"], entry["eval"], entry["generation_s"] / entry["num_outcomes"])
                except (KeyError, TypeError, ZeroDivisionError):
                    continue
        return durations

    def _add(self, engine: str, evaluation: str, case_s: float) -> None:
        self._of_engine[engine, evaluation].append(case_s)
        self._of_backend[engine.partition(":")[0], evaluation].append(case_s)

    def case_s(self, engine: str, evaluation: str) -> float:
        """Return the expected seconds of a case; for a new eval those of the backend's other evals, then of all evals, then 1."""
        backend = engine.partition(":")[0]
        if known := self._of_engine.get((engine, evaluation)) or self._of_backend.get((backend, evaluation)):
            return fmean(known)
        others = [case_s for (name, _), known in self._of_backend.items() if name == backend for case_s in known]
        every = others or [case_s for known in self._of_backend.values() for case_s in known]
        return fmean(every) if every else 1.0


def _latest(report_dir: Path) -> Iterator[dict[str, Any]]:
    """Yield the content of the newest run.json files."""
    paths = []
    for path in report_dir.glob("*/run.json"):
        try:
            paths.append((path.stat().st_mtime, path))
        except OSError:  # it is being removed
            continue
    for _, path in sorted(paths, reverse=True)[:_NUM_RUNS]:
        try:
            run = json.loads(path.read_bytes())
        except (OSError, ValueError):
            continue
        if isinstance(run, dict):
            yield run
