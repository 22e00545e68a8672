"""Which cases went worst: what each score should be, and the order in which every report names cases."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from operator import eq, ge, gt, le, lt
from typing import NamedTuple

from evalharness.analysis.gates import usual_direction
from evalharness.report.findings import is_on_mean
from evalharness.report.tables import RunTables
from evalharness.runs.schema import GateVerdict, entries_of, mapping, text_of

ORDER = ("fail", "miss", "error", "invalid", "other", "skip", "pass")
"""Outcomes, what says most about the checkpoint first: a broken machine is a reason to look into the machine."""
_HOLDS: Mapping[str, Callable[[float, float], bool]] = {">=": ge, ">": gt, "<=": le, "<": lt, "==": eq}
_COMPARISON = re.compile(r"(>=|<=|==|>|<)")


class Goal(NamedTuple):
    """Which way a score is better (1: higher, -1: lower, 0: neither), and the gate on it, "" where there is none."""

    way: int
    comparison: str = ""
    threshold: float = 0.0

    def holds(self, value: float) -> bool:
        """Return whether a value is as the gate wants it, also where there is none."""
        return self.comparison not in _HOLDS or _HOLDS[self.comparison](value, self.threshold)


_NONE = Goal(1)


def goals(tables: RunTables) -> dict[tuple[str, str, str], Goal]:
    """Return the goal of every score of every test, and of what else has a gate, by eval, test and metric."""
    ways = {"lower": -1, "none": 0}
    directions = {text_of(entry.get("name")): mapping(entry.get("directions")) for entry in entries_of(tables.run.get("evals"))}
    found = {key: Goal(ways.get(text_of(directions.get(key[0], {}).get(key[2])) or usual_direction(key[2]), 1)) for key in _scored(tables)}
    for gate in entries_of(tables.run.get("gates")):
        key = text_of(gate.get("eval")), text_of(gate.get("test")), text_of(gate.get("metric"))
        comparison, threshold = parts_of(gate)[1], gate.get("threshold")
        if gate.get("measure"):  # a percentile, a difference or a speed is nothing that a case has
            continue
        # What is asked of all cases is asked of a slice; a gate on a slice, or on the end of an interval, says which way is better.
        if (
            comparison
            and isinstance(threshold, (int, float))
            and isfinite(threshold)
            and (is_on_mean(gate) or not found.get(key, _NONE)[1])
        ):
            found[key] = Goal({">": 1, "<": -1}.get(comparison[0], 0), comparison, threshold)
    return found


def parts_of(gate: GateVerdict) -> tuple[str, str, str]:
    """Return what a gate is on, its comparison and its limit: "f1[site=a]", ">=", "0.8"; the latter two empty for `no_regression`."""
    metric, comparison, limit = [*_COMPARISON.split(text_of(gate.get("expression")), maxsplit=1), "", ""][:3]
    return metric.strip(), comparison, limit.strip()


def _scored(tables: RunTables) -> Iterable[tuple[str, str, str]]:
    return ((eval_name, test, metric) for eval_name, test, _, metric in tables.scores)


def deciding(tables: RunTables, found: dict[tuple[str, str, str], Goal]) -> dict[tuple[str, str, str], int]:
    """Return the ways of the scores that decide: those with a gate, of a test without any its first one."""
    decide = {key: goal.way for key, goal in found.items() if goal.comparison and goal.way}
    gated = {key[:2] for key in decide}
    for key in _scored(tables):
        if key[:2] not in gated and not key[2].startswith("num_") and found[key].way:
            gated.add(key[:2])
            decide[key] = found[key].way
    return decide


def worst_first(tables: RunTables) -> list[int]:
    """Return the numbers of all rows: by outcome as in `ORDER`, then by how much the deciding scores within 0…1 lack, then as run."""
    decide = deciding(tables, goals(tables))
    names = tables.evals.names, tables.tests.names, tables.score_names.names
    ways: dict[tuple[int, int, int], int] = {}
    lacks = [0.0] * tables.num_rows
    for row, metric, value in tables.row_scores:
        eval_code, test, _ = tables.row_keys[row]
        way = ways.get((eval_code, test, metric))
        if way is None:
            way = decide.get((names[0][eval_code], names[1][test], names[2][metric]), 0)
            ways[eval_code, test, metric] = way
        if way and 0.0 <= value <= 1.0:
            lacks[row] += 1.0 - value if way > 0 else value
    ranks = {outcome: place for place, outcome in enumerate(ORDER)}
    return sorted(range(tables.num_rows), key=lambda row: (ranks[tables.outcomes[row]], -lacks[row], row))
