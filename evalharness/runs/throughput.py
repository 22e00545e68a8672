"""Tokens and seconds of each engine of a run, as its journals tell of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any, TypeAlias

__all__ = ["Throughput"]

Row: TypeAlias = "dict[str, Any]"
_COUNTS = ("num_generations", "num_prompt_tokens", "num_completion_tokens")


class Throughput:
    """Seconds and tokens by engine. Tokens of a unit that broke, so that its seconds are not known, count for no rate.

    `generation_s` is the sum over workers, which generate side by side: tokens by it are a rate per worker.
    """

    def __init__(self) -> None:
        self._totals: dict[str, Row] = {}
        self._workers: defaultdict[str, set[str]] = defaultdict(set)
        self._open: defaultdict[str, dict[str, Counter[str]]] = defaultdict(dict)

    def start_unit(self, worker: str) -> None:
        """Note that a worker begins a unit; one that it had not ended has no seconds."""
        for engine, counts in self._open.pop(worker, {}).items():
            self._total(engine)["num_untimed_generations"] += counts["num_generations"]

    def add_generation(self, worker: str, engine: str, made: Mapping[str, Any]) -> None:
        """Note a generation of the worker's unit."""
        counts = self._open[worker].setdefault(engine, Counter())
        counts["num_generations"] += 1
        counts["num_prompt_tokens"] += made.get("num_prompt_tokens") or 0
        if made.get("finish_reason") != "scored":  # a given response is nobody's throughput
            counts["num_completion_tokens"] += made.get("num_completion_tokens") or 0

    def end_unit(self, worker: str, engine: str, generation_s: float) -> None:
        """Note the seconds of the worker's unit."""
        total = self._total(engine)
        total["generation_s"] += generation_s
        self._workers[engine].add(worker)
        for counts in self._open.pop(worker, {}).values():
            for name in _COUNTS:
                total[name] += counts[name]

    def entries(self) -> list[Row]:
        """Return one entry per engine, in order of first use; what is still open has no seconds."""
        for worker in list(self._open):
            self.start_unit(worker)
        return [{**total, "num_workers": len(self._workers[engine])} for engine, total in self._totals.items()]

    def _total(self, engine: str) -> Row:
        return self._totals.setdefault(
            engine, {"engine": engine, "generation_s": 0.0, **dict.fromkeys(_COUNTS, 0), "num_untimed_generations": 0}
        )
