"""Hands a dead worker's units to others: the controller writes a note of each unit that it did not finish.

    journal/crashes.jsonl   {"kind": "crash", "worker", "engine", "path", "shard", "nodeids", "isolation", "gave_up"}

The next worker of the unit gives its tests the outcomes in the run's journals and generates only the rest. Where one of the cases may
have killed the worker, they are generated in groups, one group at a time, so that the next death says more.
"""

from __future__ import annotations

import contextlib
import glob
import json
import math
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from evalharness.api.errors import RecordError
from evalharness.pytest_plugin.execution.units import UnitKey
from evalharness.runs.journal import Journal, journal_name, read_journal
from evalharness.runs.records import CaseRecords
from evalharness.runs.schema import CrashLine

_WRITER = "crashes"
_FEW = 16
"""So many suspects are generated one by one at once; more of them in groups first."""


@dataclass(frozen=True)
class CrashIsolation:
    """Which cases of a unit may have killed its workers.

    `suspects` were being generated when a worker died. `isolated` were so again, or with few others: each is generated alone from now on.
    `confirmed` were alone at the second death, each with the message of its failure; they are not generated again.
    """

    suspects: tuple[str, ...] = ()
    isolated: tuple[str, ...] = ()
    confirmed: Mapping[str, str] = field(default_factory=dict)

    def confirms(self, in_flight: Sequence[str]) -> bool:
        """Return whether a death while these cases were generated confirms which case caused it."""
        return len(in_flight) == 1 and in_flight[0] in (*self.suspects, *self.isolated)

    def after(self, in_flight: Sequence[str], problem: str) -> CrashIsolation:
        """Return the isolation after a death while these cases were generated."""
        if self.confirms(in_flight):
            return replace(self, confirmed={**self.confirmed, in_flight[0]: problem})
        if len(in_flight) <= _FEW or not set(in_flight).isdisjoint(self.suspects):
            return replace(self, isolated=tuple(dict.fromkeys((*self.isolated, *in_flight))))
        return replace(self, suspects=tuple(dict.fromkeys((*self.suspects, *in_flight))))

    def groups(self, case_ids: Sequence[str]) -> list[tuple[str, ...]]:
        """Return the groups in which the cases are generated, one after the other.

        Isolated cases come one by one, suspects in groups as large as there are groups, all others in one group.
        """
        isolated = set(self.isolated)
        grouped = set(self.suspects) - isolated
        known = isolated | grouped
        suspects = [case_id for case_id in case_ids if case_id in grouped]
        size = math.isqrt(max(0, len(suspects) - 1)) + 1
        others = tuple(case_id for case_id in case_ids if case_id not in known)
        return [
            *((case_id,) for case_id in case_ids if case_id in isolated),
            *(tuple(suspects[start : start + size]) for start in range(0, len(suspects), size)),
            *([others] if others else []),
        ]


@dataclass(frozen=True)
class Takeover:
    """How a unit continues: `recorded(case id)` gives a case's recorded outcomes; `nodeids` are the remaining tests, None for all."""

    nodeids: frozenset[str] | None
    recorded: Callable[[str], CaseRecords | None]
    isolation: CrashIsolation | None = None

    @property
    def is_alone(self) -> bool:
        """Whether no other unit runs beside it: otherwise a second death would not show which case caused it."""
        return self.nodeids is not None


def note_crash(run_dir: Path, note: CrashLine, session: int = 0) -> None:
    """Append a note to the crash file of the run's `session`. Raises `RecordError`."""
    journal = Journal(run_dir, journal_name(_WRITER, session))
    try:
        journal.write("crash", note)
    finally:
        journal.close()


def crash_file(run_dir: Path, session: int = 0) -> Path:
    """Return the file of the notes of a run's session."""
    return run_dir / "journal" / f"{journal_name(_WRITER, session)}.jsonl"


def read_crashes(run_dir: Path, session: int = 0) -> list[CrashLine]:
    """Return the notes of a run's session so far, in order; a torn last line is left out."""
    path = crash_file(run_dir, session)
    if not os.path.lexists(path):  # no worker has crashed
        return []
    lines = [line.values for line in read_journal(path)]
    return [cast("CrashLine", values) for values in lines if values.pop("kind") == "crash"]


def takeover_of(run_dir: Path, unit: UnitKey, eval_name: str, session: int = 0) -> Takeover | None:
    """Return how a unit continues, None if no worker has begun it in this session.

    A resumed run generates failures again: they may date from an earlier session.
    """
    notes = [note for note in read_crashes(run_dir, session) if UnitKey(note["engine"], note["path"], note["shard"]) == unit]
    if not notes:
        return None
    from evalharness.runs.recorded import RecordedRun  # needed only after a crash
    from evalharness.runs.records import read_records

    run = RecordedRun(run_dir, {}, read_records(run_dir))
    find = run.find_made if session else run.find
    known = notes[-1]["isolation"]
    isolation = None if known is None else CrashIsolation(tuple(known["suspects"]), tuple(known["isolated"]), known["confirmed"])
    return Takeover(frozenset(notes[-1]["nodeids"]), lambda case_id: find(unit.engine, eval_name, case_id), isolation)


class InFlight:
    """The cases of a unit that are being generated, in a small file that outlives the worker: one of them may have killed it.

    Safe to call from several threads. `path` None writes nothing: this process is not a worker.
    """

    def __init__(self, path: Path | None, unit: UnitKey, case_ids: Iterable[str] = ()) -> None:
        self._lock = threading.Lock()
        self._num_running: Counter[str] = Counter()
        self._path = path
        self._is_open = False
        if path is None:
            return
        listed = list(case_ids)
        head = json.dumps([unit.engine, unit.path, unit.shard, listed]).encode("ascii") + b"\n"
        self._offsets = {case_id: len(head) + position for position, case_id in enumerate(listed)}
        try:
            self._create(path, head + bytes(len(listed)))
        except OSError as error:
            raise RecordError(f"{path} cannot be written: {error.strerror or error}") from error
        self._is_open = True

    def _create(self, path: Path, content: bytes) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            os.write(self._file, content)
        except OSError:
            os.close(self._file)
            raise

    def _put(self, state: bytes, offset: int) -> None:
        os.pwrite(self._file, state, offset)

    def _remove(self, path: Path) -> None:
        os.close(self._file)
        path.unlink()

    def begin(self, case_id: str) -> None:
        """Note that a request of a case is being prepared, or that the case's own code computes its next step."""
        self._add(case_id, 1)

    def end(self, case_id: str) -> None:
        """Note that such a request or computation has ended."""
        self._add(case_id, -1)

    def _add(self, case_id: str, number: int) -> None:
        with self._lock:
            if not self._is_open:
                return
            before = self._num_running[case_id]
            self._num_running[case_id] = before + number
            if (before > 0) != (before + number > 0):
                # The byte has its place on the disk already; where it can be written all the same is no matter of life and death.
                with contextlib.suppress(OSError):
                    self._put(b"\x01" if before + number > 0 else b"\x00", self._offsets[case_id])

    def close(self) -> None:
        """Remove the file: the unit or its process has ended. Idempotent."""
        with self._lock:
            if self._is_open and self._path is not None:
                self._is_open = False
                with contextlib.suppress(OSError):  # a folder that is gone or read-only by now
                    self._remove(self._path)


def take_in_flight(journal: Path) -> dict[UnitKey, tuple[str, ...]]:
    """Return the cases in flight when the process of a journal died, by unit, and remove the files; a torn file gives none."""
    in_flight = {}
    for path in sorted(journal.parent.glob(f"{glob.escape(journal.stem)}.*.asked")):
        try:
            head, _, states = path.read_bytes().partition(b"\n")
            *unit, case_ids = json.loads(head)
        except (OSError, ValueError):
            continue
        with contextlib.suppress(OSError):
            path.unlink()
        if case_ids := tuple(case_id for case_id, state in zip(case_ids, states, strict=False) if state):
            in_flight[UnitKey(*unit)] = case_ids
    return in_flight


def forget_in_flight(run_dir: Path) -> None:
    """Remove what killed workers of all sessions left: the run has come to its end, and nobody asks any more whose deaths those were."""
    for path in (run_dir / "journal").glob("*.asked"):
        with contextlib.suppress(OSError):
            path.unlink()


def in_flight_path(journal: Path, number: int) -> Path:
    """Return the file for a process's unit of this number."""
    return journal.with_suffix(f".{number}.asked")
