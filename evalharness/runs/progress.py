"""How far a running run is: `progress.json` in its folder, rewritten a few times a minute by the session and removed at its end.

No reader of the journal knows it: a run is resumed, merged and reported without it. One that is left behind is of a run that was killed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from evalharness.api.checks import finite_number, refuse_constant
from evalharness.api.errors import RecordError
from evalharness.api.redaction import redactor
from evalharness.runs.files import is_written_now, read_whole, write_atomically
from evalharness.runs.schema import entries_of, mapping, text_of

PROGRESS = "progress.json"
EVERY_S = 15.0
"""How often a session writes it."""
_MAX_ENTRIES, _MAX_NUMBER = 10_000, 10**15


@dataclass(frozen=True)
class EngineProgress:
    """One engine: answers that are there, those of earlier sessions too, and those asked for; what is generated now.

    `tokens_per_s`: of the newest tokens, None before the first. `is_told`: tokens count as they are made, not with their finished answer.
    """

    id: str
    num_done: int = 0
    num_asked: int = 0
    num_in_flight: int = 0
    num_tokens: int = 0
    tokens_per_s: float | None = None
    is_told: bool = True


@dataclass(frozen=True)
class WorkerProgress:
    """One process: "loading" an engine, "generating" with it, "testing" what is there, "done" with it, or "dead"; since `for_s` seconds."""

    name: str
    doing: str = "testing"
    engine: str = ""
    eval: str = ""
    for_s: float = 0.0


@dataclass(frozen=True)
class RunProgress:
    """A run at one moment. `left_s`: seconds of generating that are left, None while too little is known; no load time is in it."""

    elapsed_s: float = 0.0
    num_tests: int = 0
    num_tests_done: int = 0
    num_problems: int = 0
    left_s: float | None = None
    engines: tuple[EngineProgress, ...] = ()
    workers: tuple[WorkerProgress, ...] = ()


def write_progress(run_dir: Path, progress: RunProgress) -> None:
    """Write the record whole or not at all; raises `RecordError`."""
    with write_atomically(run_dir / PROGRESS) as file:
        file.write(json.dumps(redactor().data(asdict(progress)), allow_nan=False).encode("ascii"))


def remove_progress(run_dir: Path) -> None:
    """Remove the record of a run that has ended."""
    with suppress(OSError):
        (run_dir / PROGRESS).unlink(missing_ok=True)


def read_progress(run_dir: Path) -> RunProgress | None:
    """Return the record as far as it is one, None where there is none."""
    try:
        values = json.loads(read_whole(run_dir / PROGRESS, run_dir), parse_constant=refuse_constant, parse_float=finite_number)
    except (OSError, ValueError, RecursionError, RecordError):
        return None
    known = mapping(values)
    return RunProgress(
        **_fitting(RunProgress(), known),
        engines=tuple(EngineProgress(**_fitting(EngineProgress(""), entry)) for entry in entries_of(known.get("engines"))[:_MAX_ENTRIES]),
        workers=tuple(WorkerProgress(**_fitting(WorkerProgress(""), entry)) for entry in entries_of(known.get("workers"))[:_MAX_ENTRIES]),
    )


def _fitting(blank: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that have the types of a blank record's; the rest is the blank's own."""
    found: dict[str, Any] = {}
    for name, usual in vars(blank).items():
        value = values.get(name, usual)
        if isinstance(usual, str):
            found[name] = text_of(value)
        elif not isinstance(usual, tuple):
            is_fit = isinstance(value, (int, float)) and isinstance(value, bool) == isinstance(usual, bool) and abs(value) < _MAX_NUMBER
            found[name] = value if is_fit else usual
    return found


def seconds_since_written(run_dir: Path) -> float | None:
    """Return how long ago a session wrote its record, by this machine's clock; None where there is none."""
    try:
        return max(0.0, time.time() - (run_dir / PROGRESS).stat().st_mtime)
    except OSError:
        return None


def state_without_end(run_dir: Path) -> str:
    """Return "running" or "killed" for a run whose run.json has no end, "unfinished" where that cannot be known.

    A fresh record is a sign of life where the file system has no locks.
    """
    is_held = is_written_now(run_dir)
    since_s = seconds_since_written(run_dir)
    if is_held is None and since_s is not None:
        is_held = since_s < 4 * EVERY_S
    return {True: "running", False: "killed", None: "unfinished"}[is_held]
