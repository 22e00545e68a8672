"""The run's folder as workers on other hosts use it: they see no folder of the controller's, so what they write is sent home.

A worker sends each line of its journal before any test sees what the line holds, over the channel that also carries its reports. So lines
that a report is about are written by the time the controller has it, and a host that dies takes with it only what nobody has seen. Cases in
flight go the same way. Of what others wrote, a worker needs what it takes over: the controller sends that before the unit itself.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from evalharness.api.errors import RecordError
from evalharness.api.temporary import OwnFolder
from evalharness.pytest_plugin.distributed._xdist_internals import sender_of
from evalharness.pytest_plugin.execution.takeover import InFlight, crash_file, read_crashes
from evalharness.pytest_plugin.execution.units import UnitKey
from evalharness.runs.journal import Journal, journals_of, session_of

FILE = "evalharness_file"
"""The event that writes a file in the run's journal folder."""
TAKE = "evalharness_take"
"""The command that gives a worker files for its own copy of the run's folder."""

Send = Callable[..., None]
_OUTCOMES = ("generation", "failure", "step", "step_failure")


class HomeJournal(Journal):
    """A worker's journal, whose lines the controller writes. `path` is where they would be here."""

    def __init__(self, run_dir: Path, worker: str, send: Send) -> None:
        self.path = run_dir / "journal" / f"{worker}.jsonl"
        self.worker = worker
        self._send = send

    def append(self, line: bytes) -> None:
        """Send whole lines as they are. Raises `RecordError`."""
        try:
            self._send(FILE, op="append", file=self.path.name, data=line)
        except OSError as error:
            raise RecordError(f"{self.path.name} cannot be sent to the controller: {error}; what it has so far is kept") from error

    def close(self) -> None:
        """Leave the file to the controller."""


class HomeInFlight(InFlight):
    """The cases in flight of a worker's unit, in a file that the controller writes."""

    def __init__(self, path: Path | None, unit: UnitKey, case_ids: Iterable[str], send: Send) -> None:
        self._send = send
        super().__init__(path, unit, case_ids)

    def _create(self, path: Path, content: bytes) -> None:
        self._name = path.name
        self._send(FILE, op="create", file=path.name, data=content)

    def _put(self, state: bytes, offset: int) -> None:
        self._send(FILE, op="put", file=self._name, data=state, at=offset)

    def _remove(self, path: Path) -> None:
        self._send(FILE, op="remove", file=self._name)


class Home:
    """A worker's way home. `copy` is its own copy of the run's folder, with what the controller sent.

    `recorded` are the files of a resumed run, {} where this host sees them at `run_dir`.
    """

    def __init__(self, config: pytest.Config, run_dir: Path, recorded: Mapping[str, bytes]) -> None:
        self._folder = OwnFolder("run")
        self.copy = self._folder.path / run_dir.name
        self.recorded_in = self.copy if recorded else run_dir
        self._send = sender_of(config)
        self.copy.mkdir()
        self.put(recorded)
        if config.option.basetemp:  # a path of the controller's, which makes its parents there
            Path(config.option.basetemp).parent.mkdir(parents=True, exist_ok=True)

    def journal(self, name: str) -> HomeJournal:
        """Return the journal of this name."""
        return HomeJournal(self.copy, name, self._send)

    def in_flight(self, path: Path | None, unit: UnitKey, case_ids: Iterable[str]) -> HomeInFlight:
        """Return the record of the cases of a unit that are in flight."""
        return HomeInFlight(path, unit, case_ids, self._send)

    def put(self, files: Mapping[str, bytes]) -> None:
        """Put files into the copy of the run's folder."""
        (self.copy / "journal").mkdir(exist_ok=True)
        for name, content in files.items():
            (self.copy / name).write_bytes(content)


class HomeFiles:
    """The controller's side: writes what workers on other hosts send. `take` is for any thread.

    `on_failure` is told, once, of the first file that cannot be written; nothing is written after that.
    """

    def __init__(self, run_dir: Path, on_failure: Callable[[str], None]) -> None:
        self._run_dir = run_dir
        self._on_failure = on_failure
        self._journals: dict[str, Journal] = {}
        self._has_failed = False
        self._lock = threading.Lock()  # of the dictionary; each worker writes its own files

    def take(self, values: Mapping[str, Any]) -> None:
        """Do what an event asks for."""
        if self._has_failed:
            return
        path = self._run_dir / "journal" / Path(values["file"]).name
        try:
            if values["op"] == "append":
                self._journal(path.stem).append(values["data"])
            elif values["op"] == "create":
                path.write_bytes(values["data"])
            else:
                with suppress(OSError):  # as where a worker writes them itself: no matter of life and death
                    _change(path, values)
        except (RecordError, OSError) as error:
            self._has_failed = True
            self._on_failure(str(error))

    def _journal(self, name: str) -> Journal:
        with self._lock:
            if name not in self._journals:
                self._journals[name] = Journal(self._run_dir, name)
            return self._journals[name]

    def close(self) -> None:
        """Close all journals."""
        with self._lock:
            for journal in self._journals.values():
                journal.close()


def _change(path: Path, values: Mapping[str, Any]) -> None:
    if values["op"] == "remove":
        return path.unlink()
    with path.open("r+b") as file:
        file.seek(values["at"])
        file.write(values["data"])


def takeover_files(run_dir: Path, unit: UnitKey, session: int, name_of: Callable[[str], str]) -> dict[str, bytes]:
    """Return what the next worker of a unit needs of the run's folder: the notes of deaths, and the unit's outcomes so far.

    `name_of(worker)` is the name of a worker's journal. {} where no worker has begun the unit.
    """
    notes = read_crashes(run_dir, session)
    workers = {note["worker"] for note in notes if UnitKey(note["engine"], note["path"], note["shard"]) == unit}
    if not workers:
        return {}
    notes_path = crash_file(run_dir, session)
    files = {f"journal/{notes_path.name}": notes_path.read_bytes()}
    starts = tuple(f'{{"kind":"{kind}","engine":{json.dumps(unit.engine)},'.encode("ascii") for kind in _OUTCOMES)
    for worker in sorted(workers):
        path = run_dir / "journal" / f"{name_of(worker)}.jsonl"
        with suppress(FileNotFoundError), path.open("rb") as lines:
            files[f"journal/{path.name}"] = b"".join(line for line in lines if line.startswith(starts) and line.endswith(b"\n"))
    return files


_SIZES = "import os; channel.send([os.path.getsize(path) if os.path.exists(path) else -1 for path in channel.receive()])"


def recorded_files(run_dir: Path, session: int, gateway: Any) -> dict[str, bytes]:
    """Return what a resumed run's earlier sessions left, for a worker that does not see the same at the same place; {} if it does."""
    paths = [path for path in journals_of(run_dir) if session_of(path.stem) < session]
    channel = gateway.remote_exec(_SIZES)
    channel.send([str(path.absolute()) for path in paths])
    if channel.receive() == [path.stat().st_size for path in paths]:
        return {}
    return {str(path.relative_to(run_dir)): path.read_bytes() for path in (run_dir / "run.json", *paths)}
