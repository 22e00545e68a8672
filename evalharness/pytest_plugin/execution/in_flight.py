"""Which cases a worker's engine is at work on, in a small file that outlives the worker: one of them may have killed it.

    journal/<worker>.<number>.asked   a line of JSON: the unit and the ids of its cases; then one byte for each case: 0x01 while it is asked

A file for each unit that is not through yet: there may be several.
Not the journal: that would grow by half for what concerns nobody once a case is answered. A byte in place costs a microsecond.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import threading
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from evalharness.api.errors import RecordError
from evalharness.pytest_plugin.execution.units import UnitKey

__all__ = ["InFlight", "in_flight_path", "take_in_flight"]


class InFlight:
    """The cases of one unit; safe to call from several threads. `path` None keeps nothing: there is no worker to be judged."""

    def __init__(self, path: Path | None, unit: UnitKey, case_ids: Iterable[str] = ()) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._num_asked: Counter[str] = Counter()
        self._file = -1
        if path is None:
            return
        listed = list(case_ids)
        head = json.dumps([unit.engine, unit.path, unit.shard, listed]).encode("ascii") + b"\n"
        self._offsets = {case_id: len(head) + position for position, case_id in enumerate(listed)}
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
            os.write(self._file, head + bytes(len(listed)))
        except OSError as error:
            self.close()
            raise RecordError(f"{path} cannot be written: {error.strerror}") from error

    def begin(self, case_id: str) -> None:
        """Note that one more request of a case is made ready, or that its next step is worked out."""
        self._add(case_id, 1)

    def end(self, case_id: str) -> None:
        """Note that one of them has come to its end."""
        self._add(case_id, -1)

    def _add(self, case_id: str, number: int) -> None:
        with self._lock:
            if self._file < 0:
                return
            before = self._num_asked[case_id]
            self._num_asked[case_id] = before + number
            if (before > 0) != (before + number > 0):
                # The byte has its place on the disk already; where it can be written all the same is no matter of life and death.
                with contextlib.suppress(OSError):
                    os.pwrite(self._file, b"\x01" if before + number > 0 else b"\x00", self._offsets[case_id])

    def close(self) -> None:
        """Remove the file: the unit has ended, or its process has. May be called twice."""
        with self._lock:
            if self._file >= 0 and self._path is not None:
                os.close(self._file)
                self._file = -1
                with contextlib.suppress(OSError):  # a folder that is gone or read-only by now
                    self._path.unlink()


def take_in_flight(journal: Path) -> dict[UnitKey, tuple[str, ...]]:
    """Return the cases that were asked when the process of a journal died, by unit, and remove the files; none of half a file."""
    found = {}
    for path in sorted(journal.parent.glob(f"{glob.escape(journal.stem)}.*.asked")):
        try:
            head, _, states = path.read_bytes().partition(b"\n")
            *unit, case_ids = json.loads(head)
        except (OSError, ValueError):
            continue
        with contextlib.suppress(OSError):
            path.unlink()
        asked = tuple(case_id for case_id, state in zip(case_ids, states, strict=False) if state)
        if asked:
            found[UnitKey(*unit)] = asked
    return found


def in_flight_path(journal: Path, number: int) -> Path:
    """Return the file of a process's so-and-so-many-th unit."""
    return journal.with_suffix(f".{number}.asked")
