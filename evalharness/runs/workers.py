"""What each worker of a run did with its time, and how long each eval's cases took, for run.json and for later schedules.

Plain data from journal lines; no pytest. Times are of one machine's clock.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from evalharness.runs.journal import session_of

__all__ = ["WorkerTimes"]

Row: TypeAlias = "dict[str, Any]"


@dataclass
class _Worker:
    starts: Counter[str] = field(default_factory=Counter)
    devices: list[str] | None = None
    load_s: float = 0.0
    generation_s: float = 0.0
    num_units: int = 0
    first_s: float | None = None
    last_s: float = 0.0

    def note(self, began_s: float, ended_s: float) -> None:
        self.first_s = began_s if self.first_s is None else min(self.first_s, began_s)
        self.last_s = max(self.last_s, ended_s)


class WorkerTimes:
    """Adds up the journal's lines of engines and units, by worker, and by engine and eval."""

    def __init__(self) -> None:
        self._workers: defaultdict[str, _Worker] = defaultdict(_Worker)
        self._evals: dict[tuple[str, str], Row] = {}
        self._num_cases: Counter[str] = Counter()

    def add_engine(self, worker: str, values: Mapping[str, Any]) -> None:
        """Note that a worker opened an engine; `how` says whether by a load, or by a swap of weights into a running one."""
        if "load_s" not in values or "ended_s" not in values:
            return  # closed, or of an older journal
        entry = self._workers[worker]
        entry.starts[values.get("how", "load")] += 1
        entry.devices = values.get("devices")
        entry.load_s += values["load_s"]
        entry.note(values["ended_s"] - values["load_s"], values["ended_s"])

    def start_unit(self, worker: str) -> None:
        """Note that a worker begins a unit."""
        self._num_cases[worker] = 0

    def add_outcome(self, worker: str) -> None:
        """Note that the worker's unit has the outcome of one sample."""
        self._num_cases[worker] += 1

    def end_unit(self, worker: str, values: Mapping[str, Any]) -> None:
        """Note that a unit has come to its end."""
        if "ended_s" not in values:
            return
        entry = self._workers[worker]
        entry.num_units += 1
        entry.generation_s += values["generation_s"]
        entry.note(values["ended_s"] - values["generation_s"], values["ended_s"])
        key = values["engine"], values["eval"]
        total = self._evals.setdefault(key, {"engine": key[0], "eval": key[1], "num_outcomes": 0, "generation_s": 0.0})
        counted = self._num_cases.pop(worker, 0)  # where the next unit has begun already, some of these are its own
        total["num_outcomes"] += values.get("num_outcomes", counted)
        total["generation_s"] += values["generation_s"]

    def entries(self) -> list[Row]:
        """Return one entry per worker that opened an engine.

        `idle_share` is the part of the run's working time, from the first engine that any worker began to open to the last
        result, in which this one neither opened an engine nor generated; a worker that died is idle from then on. The time
        before a run was resumed is nobody's.
        """
        sessions: defaultdict[int, list[_Worker]] = defaultdict(list)
        for name, entry in self._workers.items():
            sessions[session_of(name)].append(entry)
        spans = {session: _span_s(entries) for session, entries in sessions.items()}
        return [
            {
                "worker": name,
                "devices": entry.devices,
                "num_loads": entry.starts["load"],
                "num_swaps": entry.starts["swap"],
                "num_units": entry.num_units,
                "load_s": round(entry.load_s, 3),
                "generation_s": round(entry.generation_s, 3),
                "idle_share": _idle_share(entry, spans[session_of(name)]),
            }
            for name, entry in sorted(self._workers.items(), key=lambda item: (len(item[0]), item[0]))
        ]

    def durations(self) -> list[Row]:
        """Return the seconds and outcomes of each engine's evals, units that broke left out."""
        return [{**total, "generation_s": round(total["generation_s"], 3)} for total in self._evals.values()]


def _span_s(workers: Sequence[_Worker]) -> float:
    firsts = [entry.first_s for entry in workers if entry.first_s is not None]
    return max((entry.last_s for entry in workers), default=0.0) - min(firsts, default=0.0)


def _idle_share(worker: _Worker, span_s: float) -> float | None:
    return round(max(0.0, 1 - (worker.load_s + worker.generation_s) / span_s), 4) if span_s > 0 else None
