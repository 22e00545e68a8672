"""What one process counts of its work, and the snapshot of it that the reporting process gets.

The thread that generates counts whole answers; what is on its way, the backend tells when it is asked, so nothing is done per token.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from evalharness.backends.base import UnderWay

if TYPE_CHECKING:
    from evalharness.pytest_plugin.execution.execution import Execution


@dataclass(slots=True)
class EvalCounts:
    """The answers of one eval from one engine: generated now (`num_new`), taken from a record, and the tokens of new ones with steps."""

    num_new: int = 0
    num_copied: int = 0
    num_tokens: int = 0


class UnitProgress:
    """Running counts of one process. Written by the thread that generates, read by others."""

    def __init__(self) -> None:
        self.num_signs = 0
        """Signs of life: phases of tests, generations, decoding steps."""
        self.evals: dict[tuple[str, str], EvalCounts] = {}
        """By engine and eval."""
        self.at_work = ("", "")
        """The engine and the eval that were asked, or answered, last."""
        self._busy_s = 0.0
        self._busy_since: float | None = None

    def of(self, engine_id: str, eval_name: str) -> EvalCounts:
        """Return the counts of an eval on an engine."""
        return self.evals.setdefault((engine_id, eval_name), EvalCounts())

    @property
    def busy_since(self) -> float | None:
        """Since when the engine has been generating, by the monotonic clock; None while it is not."""
        return self._busy_since

    def busy_s(self, now: float) -> float:
        """Return for how many seconds the engine has been asked in all, without loading and waiting for tests."""
        since = self._busy_since
        return self._busy_s + (0.0 if since is None else now - since)

    @contextmanager
    def generating(self, engine_id: str, eval_name: str) -> Iterator[None]:
        """Count the time of the block, in which the engine generates."""
        self.at_work = (engine_id, eval_name)
        started = self._busy_since = time.monotonic()
        try:
            yield
        finally:
            self._busy_since = None
            self._busy_s += time.monotonic() - started


class Snapshot(TypedDict):
    """The work of one process at one moment; plain data that xdist carries. `for_s`: how long it has been doing what it does."""

    doing: str
    engine: str
    eval: str
    for_s: float
    busy_s: float
    num_rows: int
    num_row_tokens: int | None
    """None where the backend learns of tokens with finished answers only."""
    evals: list[list[Any]]
    """Engine, eval, new answers, copied answers, tokens."""
    asked: list[list[Any]]
    """Engine, eval, answers that the whole run is to have; empty where that was told before."""


def snapshot(execution: Execution) -> Snapshot:
    """Return what this process has done and does. For any thread."""
    counts, engines, now = execution.progress, execution.engines, time.monotonic()
    opening, since = engines.opening, counts.busy_since
    (engine, eval_name), doing, started = counts.at_work, "testing", now
    if opening is not None:
        (engine, started), eval_name, doing = opening, "", "loading"
    elif since is not None:
        doing, started = "generating", since
    under_way: UnderWay | None = None
    with suppress(RuntimeError):  # what changes while it is read; a moment later there is another look
        under_way = None if engines.current is None else engines.current.under_way()
    num_rows, num_row_tokens = under_way or UnderWay(0, None)
    return {
        "doing": doing,
        "engine": engine,
        "eval": eval_name,
        "for_s": round(now - started, 1),
        "busy_s": round(counts.busy_s(now), 3),
        "num_rows": num_rows,
        "num_row_tokens": num_row_tokens,
        "evals": [[*key, each.num_new, each.num_copied, each.num_tokens] for key, each in list(counts.evals.items())],
        "asked": execution.asked,
    }
