"""Work units: which tests' requests go to an engine together. Plain functions on node ids, the same in every process.

A unit is (engine, eval module, shard). Controller and workers compute the same units from the same collection.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evalharness.nodeids import EvalNode, parse_nodeid

__all__ = ["EvalNode", "UnitKey", "assign_units", "parse_nodeid"]

_SHARDS_PER_WORKER = 3  # enough for the last units to end at about the same time
_MIN_CASES_PER_SHARD = 8  # smaller batches leave an engine idle


@dataclass(frozen=True)
class UnitKey:
    """Names one work unit."""

    engine: str
    path: str
    shard: int


def assign_units(nodeids: Sequence[str], engine_ids: Sequence[str], num_workers: int) -> dict[str, UnitKey]:
    """Return the unit of every eval test, in collection order; all tests of one case and engine share a unit."""
    parsed = {nodeid: key for nodeid in nodeids if (key := parse_nodeid(nodeid, engine_ids)) is not None}
    cases: dict[tuple[str, str], dict[str, int]] = {}
    for path, _, engine, case_id in parsed.values():
        known = cases.setdefault((engine, path), {})
        known.setdefault(case_id, len(known))
    units = {}
    for nodeid, (path, _, engine, case_id) in parsed.items():
        known = cases[engine, path]
        shard = known[case_id] * _num_shards(len(known), num_workers) // len(known)
        units[nodeid] = UnitKey(engine, path, shard)
    return units


def _num_shards(num_cases: int, num_workers: int) -> int:
    if num_workers <= 1:
        return 1
    return min(num_cases, max(num_workers, min(num_workers * _SHARDS_PER_WORKER, num_cases // _MIN_CASES_PER_SHARD)))
