"""Work units: which tests' requests go to an engine together. Plain functions on node ids, the same in every process.

A unit is (engine, eval module, shard). Controller and workers compute the same units from the same collection.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evalharness.nodeids import EvalNode, parse_nodeid

__all__ = ["EvalNode", "UnitKey", "assign_units", "parse_nodeid"]

_UNITS_PER_WORKER = 3
_FEW_CASES = 8  # smaller batches leave an engine idle
_FEW_CASES_FOR = {"hf": 32, "vllm": 512}
"""By backend: hf pads rows of like length together; vLLM on a GPU runs hundreds of requests in about the time of one."""


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
    num_shards = _num_shards({key: len(known) for key, known in cases.items()}, num_workers)
    units = {}
    for nodeid, (path, _, engine, case_id) in parsed.items():
        known = cases[engine, path]
        shard = known[case_id] * num_shards[engine, path] // len(known)
        units[nodeid] = UnitKey(engine, path, shard)
    return units


def _num_shards(num_cases: Mapping[tuple[str, str], int], num_workers: int) -> dict[tuple[str, str], int]:
    """Return into how many units the cases of each (engine, eval) are split.

    A split costs: an engine runs empty at the end of each unit. So there are about three units per worker over the whole
    run, and none smaller than what the backend runs at once. The engines that are left over when each worker has had
    equally many are shared by all workers: their larger evals are split so that every worker gets the same share.
    """
    if num_workers <= 1:
        return dict.fromkeys(num_cases, 1)
    engines = list(dict.fromkeys(engine for engine, _ in num_cases))
    num_left = len(engines) % num_workers
    shared = set(engines[len(engines) - num_left :])
    num_shares = num_workers // math.gcd(num_workers, num_left) if num_left else 1
    total = sum(num_cases.values())
    of_engine = {engine: sum(num for (other, _), num in num_cases.items() if other == engine) for engine in engines}
    shards = {}
    for (engine, path), num in num_cases.items():
        wanted = -(-num * num_workers * _UNITS_PER_WORKER // total)
        filled = num // _FEW_CASES_FOR.get(engine.partition(":")[0], _FEW_CASES)
        is_large = num * num_workers * _UNITS_PER_WORKER >= of_engine[engine]
        shards[engine, path] = max(1, min(num, max(min(wanted, filled), num_shares if engine in shared and is_large else 1)))
    return shards
