"""The run's folder as workers on other hosts use it: they see no folder of the controller's, so what they write is sent home.

A worker sends the lines of its journal over the channel that also carries its reports, before the next of them: lines that a report is
about are written by the time the controller has it, and a host that dies takes along what nobody has seen, a second's work at most. Cases
in flight go the same way, at once. Of what others wrote, a worker needs what it takes over: the controller sends that before the unit.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from evalharness.api.errors import RecordError
from evalharness.api.temporary import OwnFolder
from evalharness.pytest_plugin.distributed._xdist_internals import send_before_events
from evalharness.pytest_plugin.execution.takeover import InFlight, crash_file, read_crashes
from evalharness.pytest_plugin.execution.units import UnitKey
from evalharness.runs.journal import Journal, journals_of, session_of

FILES = "evalharness_files"
"""The event that changes files in the run's journal folder; its `changes` are packed."""
TAKE = "evalharness_take"
"""The command that gives a worker files for its own copy of the run's folder."""

Change = tuple[str, str, bytes, int]
"""Operation, file's name, content, offset."""
Send = Callable[[Change, bool], None]
"""`send(change, is_urgent)`: what is not urgent may wait for what comes next."""
_OUTCOMES = ("generation", "failure", "step", "step_failure")
_PATIENT = tuple(f'{{"kind":"{kind}"'.encode("ascii") for kind in (*_OUTCOMES, "row", "unit"))
"""Lines that nothing but a report is about. Of the others, the controller reads how a worker died."""
_MOST_WAITING = 64


class HomeJournal(Journal):
    """A worker's journal, whose lines the controller writes. `path` is where they would be here."""

    def __init__(self, run_dir: Path, worker: str, send: Send, flush: Callable[[], None]) -> None:
        self.path = run_dir / "journal" / f"{worker}.jsonl"
        self.worker = worker
        self._send, self._flush = send, flush

    def append(self, line: bytes) -> None:
        """Send whole lines as they are. Raises `RecordError`."""
        try:
            self._send(("append", self.path.name, line, 0), not line.startswith(_PATIENT))
        except OSError as error:
            raise RecordError(f"{self.path.name} cannot be sent to the controller: {error}; what it has so far is kept") from error

    def close(self) -> None:
        """Send what waits; the file is left to the controller."""
        with suppress(OSError):  # the controller has gone, and knows all that it wants to know
            self._flush()


class HomeInFlight(InFlight):
    """The cases in flight of a worker's unit, in a file that the controller writes."""

    def __init__(self, path: Path | None, unit: UnitKey, case_ids: Iterable[str], send: Send) -> None:
        self._send = send
        super().__init__(path, unit, case_ids)

    def _create(self, path: Path, content: bytes) -> None:
        self._name = path.name
        self._send(("create", path.name, content, 0), False)

    def _put(self, state: bytes, offset: int) -> None:
        self._send(("put", self._name, state, offset), state != b"\x00")  # a case that begins may kill this process

    def _remove(self, path: Path) -> None:
        self._send(("remove", self._name, b"", 0), False)


class Home:
    """A worker's way home. `copy` is its own copy of the run's folder, with what the controller sent.

    `recorded` are the files of a resumed run, {} where this host sees them at `run_dir`.
    """

    def __init__(self, config: pytest.Config, run_dir: Path, recorded: Mapping[str, bytes]) -> None:
        self._folder = OwnFolder("run")
        self.copy = self._folder.path / run_dir.name
        self.recorded_in = self.copy if recorded else run_dir
        self._waiting: list[Change] = []
        self._lock = threading.Lock()
        self._send_event = send_before_events(config, self._flush)
        self.copy.mkdir()
        self.put(recorded)
        if config.option.basetemp:  # a path of the controller's, which makes its parents there
            Path(config.option.basetemp).parent.mkdir(parents=True, exist_ok=True)

    def _send(self, change: Change, is_urgent: bool) -> None:
        with self._lock:
            self._waiting.append(change)
        if is_urgent or len(self._waiting) >= _MOST_WAITING:
            self._flush()

    def _flush(self) -> None:
        with self._lock:  # while it is sent, too: changes keep their order
            if self._waiting:
                changes, self._waiting = self._waiting, []
                self._send_event(FILES, changes=packed(changes))

    def journal(self, name: str) -> HomeJournal:
        """Return the journal of this name."""
        return HomeJournal(self.copy, name, self._send, self._flush)

    def in_flight(self, path: Path | None, unit: UnitKey, case_ids: Iterable[str]) -> HomeInFlight:
        """Return the record of the cases of a unit that are in flight."""
        return HomeInFlight(path, unit, case_ids, self._send)

    def put(self, files: Mapping[str, bytes]) -> None:
        """Put files into the copy of the run's folder."""
        (self.copy / "journal").mkdir(exist_ok=True)
        for name, content in files.items():
            (self.copy / name).write_bytes(content)


def packed(changes: Sequence[Change]) -> bytes:
    """Return changes as one text: xdist's channel takes ten times as long for each value as for a long text."""
    head = json.dumps([[operation, name, len(content), offset] for operation, name, content, offset in changes])
    return b"".join((head.encode("ascii"), b"\n", *(content for _, _, content, _ in changes)))


def unpacked(text: bytes) -> Iterator[Change]:
    """Yield the changes in a packed text."""
    head, _, contents = text.partition(b"\n")
    start = 0
    for operation, name, num_bytes, offset in json.loads(head):
        yield operation, name, contents[start : start + num_bytes], offset
        start += num_bytes


class HomeFiles:
    """The controller's side: writes what workers on other hosts send. `take` is for any thread, but one for each worker's files.

    `on_failure` is told, once, of the first file that cannot be written; nothing is written after that.
    """

    def __init__(self, run_dir: Path, on_failure: Callable[[str], None]) -> None:
        self._run_dir = run_dir
        self._on_failure = on_failure
        self._journals: dict[str, Journal] = {}
        self._in_flight: dict[str, int] = {}
        self._has_failed = False

    def take(self, values: Mapping[str, Any]) -> None:
        """Make the changes of an event."""
        try:
            for operation, name, content, offset in () if self._has_failed else unpacked(values["changes"]):
                if operation == "append":
                    self._journal(name).append(content)
                elif operation == "create":
                    self._in_flight[name] = os.open(self._path(name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
                    os.write(self._in_flight[name], content)
                else:
                    with suppress(OSError, KeyError):  # as where a worker writes them itself: no matter of life and death
                        self._change(operation, name, content, offset)
        except (RecordError, OSError) as error:
            self._has_failed = True
            self._on_failure(str(error))

    def _path(self, name: str) -> Path:
        return self._run_dir / "journal" / Path(name).name

    def _journal(self, name: str) -> Journal:
        if name not in self._journals:
            self._journals[name] = Journal(self._run_dir, self._path(name).stem)
        return self._journals[name]

    def _change(self, operation: str, name: str, content: bytes, offset: int) -> None:
        if operation == "put":
            os.pwrite(self._in_flight[name], content, offset)
        else:
            os.close(self._in_flight.pop(name))
            self._path(name).unlink()

    def ended(self, journal: str) -> None:
        """Let go of the files of a worker that has ended, by the name of its journal."""
        if (found := self._journals.pop(f"{journal}.jsonl", None)) is not None:
            found.close()
        for name in [name for name in list(self._in_flight) if name.startswith(f"{journal}.")]:
            os.close(self._in_flight.pop(name))


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
