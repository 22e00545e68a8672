"""What a worker that died leaves to the others: a note of each unit that it did not finish, written by the controller.

    journal/crashes.jsonl   {"kind": "crash", "worker", "engine", "path", "shard", "nodeids", "one_by_one", "gave_up"}

Whoever gets the unit next gives its tests what the run's journals have of their cases, and generates only the rest.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from evalharness.journal import Journal, journal_name
from evalharness.pytest_plugin.units import UnitKey

if TYPE_CHECKING:
    from evalharness.run_merge import CaseRecords

__all__ = ["CrashNote", "Takeover", "note_crash", "read_crashes", "takeover_of"]

_WRITER = "crashes"


@dataclass(frozen=True)
class CrashNote:
    """One unit of a worker that died. `nodeids` are the tests that are left of it."""

    worker: str
    engine: str
    path: str
    shard: int
    nodeids: tuple[str, ...]
    one_by_one: bool
    """Whether its cases are asked one at a time from now on, so that the one that kills its worker is known."""
    gave_up: bool
    """Whether the worker ended itself because its engine was beyond repair."""


@dataclass(frozen=True)
class Takeover:
    """How a unit goes on; `recorded(case id)` is what the journals have of a case. `nodeids`: its tests that are left, None for all."""

    nodeids: frozenset[str] | None
    one_by_one: bool
    recorded: Callable[[str], CaseRecords | None]


def note_crash(run_dir: Path, note: CrashNote, session: int = 0) -> None:
    """Write a note; raises `RecordError`. Of what broke in an earlier `session` of the run nothing is left to note."""
    journal = Journal(run_dir, journal_name(_WRITER, session))
    try:
        journal.write("crash", asdict(note))
    finally:
        journal.close()


def read_crashes(run_dir: Path, session: int = 0) -> list[CrashNote]:
    """Return the notes of a run's session so far, in order; a torn last line is left out."""
    try:
        lines = (run_dir / "journal" / f"{journal_name(_WRITER, session)}.jsonl").read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    noted = (json.loads(line) for line in lines[:-1])
    return [CrashNote(**{**values, "nodeids": tuple(values["nodeids"])}) for values in noted if values.pop("kind") == "crash"]


def takeover_of(run_dir: Path, unit: UnitKey, eval_name: str, session: int = 0) -> Takeover | None:
    """Return how a unit goes on, None where nobody has begun it in this session.

    In a session that resumes the run failures are asked again: they may be of an earlier one.
    """
    notes = [note for note in read_crashes(run_dir, session) if UnitKey(note.engine, note.path, note.shard) == unit]
    if not notes:
        return None
    from evalharness.recorded import RecordedRun  # only now: it knows reports
    from evalharness.run_merge import read_records

    run = RecordedRun(run_dir, {}, read_records(run_dir))
    find = run.find_made if session else run.find
    return Takeover(frozenset(notes[-1].nodeids), notes[-1].one_by_one, lambda case_id: find(unit.engine, eval_name, case_id))
