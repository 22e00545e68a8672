"""Work units: which tests' requests go to an engine together. Plain functions on node ids, the same in every process.

A unit is (engine, eval module, shard). Controller and workers compute the same units from the same collection.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pytest

from evalharness.api.cases import Case
from evalharness.api.errors import ConfigError
from evalharness.runs.journal import parse_nodeid
from evalharness.runs.repeats import split_repeat

_UNITS_PER_WORKER = 3
_FEW_CASES = 8  # smaller batches leave an engine idle
_FEW_CASES_FOR = {"hf": 32, "vllm": 512}
"""By backend: hf pads rows of like length together; vLLM on a GPU runs hundreds of requests in about the time of one."""
_SMALLEST_FOR = {"hf": 32, "vllm": 32}
"""Where units follow one another without a pause, their size costs little; but the last ones run with nothing after them."""
_AHEAD = 64
_AHEAD_FOR = {"vllm": 2048}
"""Twice as many as an engine runs at once; vLLM runs 1,024 on cards of 70 GiB and more, 256 on others. Tests run in order: behind one
that waits for a long answer lie some whose answers are there; they count as ahead, so with no more than an engine runs it would be
partly empty. Eight times as many do no harm, for no worker gets more than its share (`test_unequal_answers.py`)."""


@dataclass(frozen=True)
class UnitKey:
    """Names one work unit."""

    engine: str
    path: str
    shard: int
    """From 0; below that, the number of the repeat (--noise) whose cases it has."""

    @property
    def repeat(self) -> int:
        """The number of the repeat, 0 for the cases themselves."""
        return max(0, -self.shard)


def num_cases_ahead(engine_id: str) -> int:
    """Return how many cases in begun or queued units keep an engine full; more would only take memory.

    A worker with that many gets and begins no further unit: another worker may have room.
    """
    return _AHEAD_FOR.get(engine_id.partition(":")[0], _AHEAD)


def assign_units(nodeids: Sequence[str], engine_ids: Sequence[str], num_workers: int, *, in_order: bool = False) -> dict[str, UnitKey]:
    """Return the unit of every eval test, in collection order; all tests of one case and engine share a unit.

    `in_order`: small units, so that several workers ask the first cases together.
    """
    parsed = {nodeid: key for nodeid in nodeids if (key := parse_nodeid(nodeid, engine_ids)) is not None}
    cases: dict[tuple[str, str], dict[str, int]] = {}
    repeats = {nodeid: number for nodeid, node in parsed.items() if (number := split_repeat(node.case_id)[1])}
    for nodeid, (path, _, engine, case_id) in parsed.items():
        if nodeid in repeats:
            continue
        known = cases.setdefault((engine, path), {})
        known.setdefault(case_id, len(known))
    num_cases = {key: len(known) for key, known in cases.items()}
    sizes = {key: _alike(key[0], num) for key, num in num_cases.items()} if in_order and num_workers > 1 else _sizes(num_cases, num_workers)
    shards = {key: [shard for shard, size in enumerate(each) for _ in range(size)] for key, each in sizes.items()}
    keys = {(engine, path): [UnitKey(engine, path, shard) for shard in range(len(each))] for (engine, path), each in sizes.items()}
    units = {}
    for nodeid, (path, _, engine, case_id) in parsed.items():
        if nodeid in repeats:
            units[sys.intern(nodeid)] = UnitKey(engine, path, -repeats[nodeid])
            continue
        shard = shards[engine, path][cases[engine, path][case_id]]
        units[sys.intern(nodeid)] = keys[engine, path][shard]  # interned: the rows that are read at the end hold the same ids
    return units


def first_tests(units: Mapping[str, UnitKey]) -> set[str]:
    """Return the first test of each case: as these run, their unit's generations are used up."""
    first: dict[tuple[UnitKey, str], str] = {}
    for nodeid, unit in units.items():
        node = parse_nodeid(nodeid, (unit.engine,))
        assert node is not None
        first.setdefault((unit, node.case_id), nodeid)
    return set(first.values())


def _sizes(num_cases: Mapping[tuple[str, str], int], num_workers: int) -> dict[tuple[str, str], list[int]]:
    """Return the numbers of cases of the units that each (engine, eval) is split into.

    A split costs where another engine follows, as an engine runs empty at the end of each unit. So there are about three units per worker
    over the whole run, none smaller than the backend's batch. Engines are spread evenly over workers; those left over are shared by all
    workers: their larger evals are split so that every worker gets the same share. If only one is left over, it ends the run and is split
    ever finer, so that all workers end together.
    """
    if num_workers <= 1:
        return {key: [num] for key, num in num_cases.items()}
    engines = list(dict.fromkeys(engine for engine, _ in num_cases))
    num_left = len(engines) % num_workers
    shared = set(engines[len(engines) - num_left :])
    num_shares = num_workers // math.gcd(num_workers, num_left) if num_left else 1
    total = sum(num_cases.values())
    of_engine = {engine: sum(num for (other, _), num in num_cases.items() if other == engine) for engine in engines}
    sizes = {}
    for (engine, path), num in num_cases.items():
        backend = engine.partition(":")[0]
        wanted = -(-num * num_workers * _UNITS_PER_WORKER // total)
        is_split = engine in shared and num * num_workers * _UNITS_PER_WORKER >= of_engine[engine]
        smallest = _SMALLEST_FOR.get(backend, _FEW_CASES)
        if is_split and num_left == 1 and num >= num_workers * smallest:
            sizes[engine, path] = _ever_smaller(num, num_workers, smallest)
        else:
            filled = num // _FEW_CASES_FOR.get(backend, _FEW_CASES)
            sizes[engine, path] = _equal(num, max(1, min(num, max(min(wanted, filled), num_shares if is_split else 1))))
    return sizes


def _alike(engine: str, num: int) -> list[int]:
    """Return sizes of units of the smallest size that a backend takes well; the last one is what is left."""
    size = _SMALLEST_FOR.get(engine.partition(":")[0], _FEW_CASES)
    return [size] * (num // size) + ([num % size] if num % size else [])


def _equal(num: int, parts: int) -> list[int]:
    return [(part + 1) * num // parts - part * num // parts for part in range(parts)]


def _ever_smaller(num: int, num_workers: int, smallest: int) -> list[int]:
    """Return sizes that add up to `num`: one per worker of half its share, again of the remainder, down to about `smallest`.

    Equally fast workers get equally many cases: one case more would be generated alone, in the time of a whole batch.
    """
    sizes = []
    while (size := num // (2 * num_workers)) >= smallest:
        sizes += [size] * num_workers
        num -= size * num_workers
    return [*sizes, *_equal(num, num_workers)]


_FAR = 64  # units; nothing looks further ahead


class UnitPlan:
    """Which tests and cases each unit of a process has, and which cases tests still wait for; filled once tests are collected.

    `units` maps the node id of every eval test, in order, to its unit; an xdist controller fills only this.
    """

    def __init__(self) -> None:
        self.units: dict[str, UnitKey] = {}
        self.plain: list[str] = []
        """Node ids of tests that take an engine and no case."""
        self._cases: dict[UnitKey, list[Case]] = {}
        self._case_ids: dict[str, str] = {}
        self._tests_left: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        """By engine and module, then by case."""
        self._order: list[UnitKey | None] = []
        """The unit of each test, None for a test without an eval."""
        self._after: dict[UnitKey, list[UnitKey]] = {}

    def add_items(self, items: Sequence[pytest.Item], units: Mapping[str, UnitKey]) -> None:
        """Note each unit's tests and cases, and how many tests wait for each case; `units`: see `assign_units`."""
        evals = {item.nodeid: item for item in items if is_eval_test(item)}
        self.units = dict(units)
        self._order = [self.units.get(item.nodeid) for item in items]
        self._after = {}
        for nodeid, item in evals.items():
            case: Case = item.callspec.params["case"]  # type: ignore[attr-defined]
            unit = self.units[nodeid]
            self._case_ids[nodeid] = sys.intern(str(case.id))
            tests_left = self._tests_left[unit.engine, unit.path]
            if not tests_left[case.id]:
                self._cases.setdefault(unit, []).append(case)
            tests_left[case.id] += 1

    def ambiguous_node_ids(self, items: Iterable[pytest.Item], engine_ids: Sequence[str]) -> list[str]:
        """Return the node ids that read like those of eval tests but are not."""
        return [item.nodeid for item in items if item.nodeid not in self.units and parse_nodeid(item.nodeid, engine_ids) is not None]

    def units_after(self, unit: UnitKey) -> list[UnitKey]:
        """Return the units whose tests come after a unit's, in order, up to the next test without an eval.

        Empty if tests of several units alternate.
        """
        if not self._after:
            in_order = [key for key, _ in itertools.groupby(self._order)]
            is_in_turns = len({key for key in in_order if key is not None}) < sum(key is not None for key in in_order)
            for place, key in enumerate(in_order):
                if key is not None:
                    following = itertools.takewhile(lambda other: other is not None, in_order[place + 1 : place + _FAR])
                    self._after[key] = [] if is_in_turns else [other for other in following if other is not None]
        return self._after.get(unit, [])

    def cases_left(self, unit: UnitKey, nodeids: Iterable[str] | None = None) -> list[Case]:
        """Return the unit's cases that tests of this process wait for, or, where `nodeids` are given, that these tests wait for."""
        wanted = None if nodeids is None else {self._case_ids[nodeid] for nodeid in nodeids if nodeid in self._case_ids}
        tests_left = self._tests_left[unit.engine, unit.path]
        return [case for case in self._cases[unit] if tests_left[case.id] and (wanted is None or case.id in wanted)]

    def num_cases(self) -> dict[tuple[str, str], int]:
        """Return how many cases the tests of each engine and module have; an xdist controller does not know."""
        return {key: len(tests_left) for key, tests_left in self._tests_left.items()}

    def test_ended(self, nodeid: str, case_id: str) -> bool:
        """Note the end of a test; return True if no other test waits for its case."""
        unit = self.units[nodeid]
        tests_left = self._tests_left[unit.engine, unit.path]
        if self._case_ids.pop(nodeid, None) is not None:  # a test may be run again
            tests_left[case_id] -= 1
        return not tests_left[case_id]

    def release_cases(self) -> None:
        """Release what only running tests need, and keep `units`: the end of the run needs memory, too."""
        for kept in (self._cases, self._case_ids, self._tests_left, self._after, self._order):
            kept.clear()


def misread(item: pytest.Item, engine_ids: Sequence[str]) -> ConfigError | None:
    """Return an error for an eval test whose id is read as another engine's, test's or case's: rows and units go by ids."""
    if not is_eval_test(item):
        return None
    case, engine_id = item.callspec.params["case"], item.callspec.params["engine"]  # type: ignore[attr-defined]
    node = parse_nodeid(item.nodeid, engine_ids)
    if node is None or node.engine != engine_id:
        what_to_do = f"rename the checkpoint of {engine_id} or the case {case.id!r}"
        return ConfigError(f"{item.nodeid} can be read as a case of several engines; {what_to_do}")
    if node.case_id not in (case.id, case.id.encode("unicode_escape").decode("ascii")):  # pytest may have escaped it
        what_to_do = f"give the test's other parameters ids without -{engine_id}-"
        return ConfigError(f"{item.nodeid} can be read as the case {node.case_id!r} of {node.test}, and is {case.id!r}; {what_to_do}")
    return None


def is_eval_test(item: pytest.Item) -> bool:
    """Return whether a collected test has a case and an engine."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    return "engine" in parameters and isinstance(parameters.get("case"), Case)
