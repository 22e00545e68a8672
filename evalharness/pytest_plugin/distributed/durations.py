"""How long things took in earlier runs, from their run.json: what a scheduler goes by. Whatever cannot be read tells nothing."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

__all__ = ["Durations"]

_NUM_RUNS = 10


class Durations:
    """Mean seconds per case of (engine, eval) in the latest runs; an engine that is new is taken to be like its backend."""

    def __init__(self) -> None:
        self._of_engine: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        self._of_backend: defaultdict[tuple[str, str], list[float]] = defaultdict(list)

    @classmethod
    def read(cls, report_dir: Path) -> Durations:
        """Return what the latest runs of a folder tell."""
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
        """Return the seconds that a case is expected to take; 1 where nothing is known of anything.

        What is not known of an eval is taken from the backend's others, then from all.
        """
        backend = engine.partition(":")[0]
        if found := self._of_engine.get((engine, evaluation)) or self._of_backend.get((backend, evaluation)):
            return fmean(found)
        others = [case_s for (name, _), known in self._of_backend.items() if name == backend for case_s in known]
        every = others or [case_s for known in self._of_backend.values() for case_s in known]
        return fmean(every) if every else 1.0


def _latest(report_dir: Path) -> Iterator[dict[str, Any]]:
    """Yield the content of the newest run.json files."""
    found = []
    for path in report_dir.glob("*/run.json"):
        try:
            found.append((path.stat().st_mtime, path))
        except OSError:  # it is being removed
            continue
    for _, path in sorted(found, reverse=True)[:_NUM_RUNS]:
        try:
            run = json.loads(path.read_bytes())
        except (OSError, ValueError):
            continue
        if isinstance(run, dict):
            yield run
