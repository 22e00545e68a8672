"""Which test is in which unit, which cases a unit has, and which of them tests still wait for; known once tests are collected."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import pytest

from evalharness.api.cases import Case
from evalharness.api.errors import ConfigError
from evalharness.pytest_plugin.execution.units import UnitKey, assign_units, parse_nodeid

__all__ = ["UnitPlan", "is_eval_test"]

_FAR = 64  # nobody looks further ahead


class UnitPlan:
    """The plan of one process. `units` is by node id of every eval test, in order; the controller of workers knows no more."""

    def __init__(self) -> None:
        self.units: dict[str, UnitKey] = {}
        self._cases: dict[UnitKey, list[Case]] = {}
        self._case_ids: dict[str, str] = {}
        self._tests_left: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        """By engine and module, then by case."""
        self._order: list[UnitKey | None] = []
        """Of all tests, None for one that is none of an eval."""
        self._after: dict[UnitKey, list[UnitKey]] = {}

    def add_nodeids(self, nodeids: Sequence[str], engine_ids: Sequence[str], num_workers: int) -> None:
        """Note the unit of every eval test by its id."""
        self.units = assign_units(nodeids, engine_ids, num_workers)

    def add_items(self, items: Sequence[pytest.Item], engine_ids: Sequence[str], num_workers: int) -> None:
        """Note which tests share a unit, which cases each unit has, and how many tests wait for each case."""
        evals = {item.nodeid: item for item in items if is_eval_test(item)}
        self.add_nodeids(list(evals), engine_ids, num_workers)
        self._order = [self.units.get(item.nodeid) for item in items]
        self._after = {}
        for nodeid, item in evals.items():
            case, engine_id = item.callspec.params["case"], item.callspec.params["engine"]  # type: ignore[attr-defined]
            unit = self.units.get(nodeid)
            if unit is None or unit.engine != engine_id:
                raise ConfigError(
                    f"{nodeid} can be read as a case of several engines; rename the checkpoint of {engine_id} or the case {case.id!r}"
                )
            self._case_ids[nodeid] = case.id
            tests_left = self._tests_left[unit.engine, unit.path]
            if not tests_left[case.id]:
                self._cases.setdefault(unit, []).append(case)
            tests_left[case.id] += 1

    def lookalikes(self, items: Iterable[pytest.Item], engine_ids: Sequence[str]) -> list[str]:
        """Return the node ids that read like those of evals, of tests that are none."""
        return [item.nodeid for item in items if item.nodeid not in self.units and parse_nodeid(item.nodeid, engine_ids) is not None]

    def units_after(self, unit: UnitKey) -> list[UnitKey]:
        """Return the units whose tests come after a unit's, in order, up to the next test that is none of an eval.

        None where tests of several units take turns.
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
        """Return the unit's cases that tests of this process wait for; of these tests only, where `nodeids` are given."""
        wanted = None if nodeids is None else {self._case_ids[nodeid] for nodeid in nodeids if nodeid in self._case_ids}
        tests_left = self._tests_left[unit.engine, unit.path]
        return [case for case in self._cases[unit] if tests_left[case.id] and (wanted is None or case.id in wanted)]

    def test_ended(self, nodeid: str, case_id: str) -> bool:
        """Note the end of a test; return whether no test waits for its case any more."""
        unit = self.units[nodeid]
        tests_left = self._tests_left[unit.engine, unit.path]
        if self._case_ids.pop(nodeid, None) is not None:  # a test may be run again
            tests_left[case_id] -= 1
        return not tests_left[case_id]


def is_eval_test(item: pytest.Item) -> bool:
    """Return whether a collected test has a case and an engine."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    return "engine" in parameters and isinstance(parameters.get("case"), Case)
