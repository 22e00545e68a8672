"""Files that several processes may use: written whole or not at all, the lock of a run directory, and how its files are opened.

One process at a time may write in a run directory, on any host that shares the file system. The operating system holds the lock and
releases it when the process dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import itertools
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from evalharness.api.checks import open_regular
from evalharness.api.errors import EvalHarnessError, RecordError

_FILE = "run.lock"
_POLL_S = 0.2
_WRITING_S = 3600.0  # no file takes so long to be written
_LOOK_S = 1.0  # `is_written_now` locks for a moment; on a busy machine it may be paused while it does


MAX_BYTES = 1 << 30
"""Of a file that is read whole, and of one line of any other: more is not what evalharness writes."""


def open_for_reading(path: Path, inside: Path) -> BinaryIO:
    """Open a regular file below the folder `inside`, where no link leads out of it.

    Raises `RecordError` for a path that leads out, and `OSError` for anything else that cannot be opened.
    """
    check_inside(path, inside)
    return open_regular(path)


def read_whole(path: Path, inside: Path) -> bytes:
    """Return the content of a file as `open_for_reading` opens it; `RecordError` where it is too large."""
    with open_for_reading(path, inside) as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise RecordError(f"{path} has more than {MAX_BYTES:,} bytes; put the run's own back in place, or move it away")
    return content


def numbered_lines(file: BinaryIO, path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of an open file with their numbers; `RecordError` for one that is too long."""
    for number in itertools.count(1):
        line = file.readline(MAX_BYTES)
        if not line:
            return
        if len(line) == MAX_BYTES:
            raise RecordError(f"{path}:{number} has more than {MAX_BYTES:,} bytes; move the line away to read the rest")
        yield number, line


def check_inside(path: Path, folder: Path) -> None:
    """Raise `RecordError` for a path that a link leads out of the folder: a run from somebody else could name any file by it."""
    try:
        is_inside = path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # a loop of links
        is_inside = False
    if not is_inside:
        raise RecordError(f"{path} is a link, or lies below one, that leads out of the run's folder {folder}; put the run's own back")


def check_all_inside(folder: Path) -> None:
    """Raise `RecordError` if anything in a run's folder is a link that leads out of it: who writes there would write outside."""
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(parent, name)
            if path.is_symlink():
                check_inside(path, folder)


def lock_within(file: int, timeout_s: float) -> None:
    """Lock an open file for this process alone; `BlockingIOError` if another process still holds it after `timeout_s`.

    Raises another `OSError` on a file system without locks.
    """
    until = time.monotonic() + timeout_s
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise
            time.sleep(timeout_s / 50)


class RunLock:
    """Holds a run from its start or resumption until its reports are written; `RecordError` if another process holds it.

    `is_certain` is False on a file system without locks.
    """

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / "journal" / _FILE
        self.is_certain = True
        self._file = self._open()
        # An orderly end removes the file; a lock on a removed file protects nothing.
        while self._lock(run_dir) and not self._is_in_place():
            os.close(self._file)
            self._file = self._open()

    def _open(self) -> int:
        try:
            return os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise RecordError(f"{self._path} cannot be opened: {error.strerror}; the folder of a run must be writable") from error

    def _lock(self, run_dir: Path) -> bool:
        try:
            lock_within(self._file, _LOOK_S)
        except BlockingIOError:
            os.close(self._file)
            self._file = -1
            raise RecordError(f"run {run_dir.name!r} is still running, or another process resumes it; wait for it, or stop it") from None
        except OSError:
            self.is_certain = False
        return self.is_certain

    def _is_in_place(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._file), os.stat(self._path))
        except FileNotFoundError:
            return False

    def close(self) -> None:
        """Release the lock. Idempotent."""
        if self._file < 0:
            return
        if self.is_certain:
            with contextlib.suppress(OSError):  # the folder may be gone or read-only; an empty file left behind does no harm
                self._path.unlink()
        os.close(self._file)
        self._file = -1


def is_written_now(run_dir: Path) -> bool | None:
    """Return whether a process holds the run's lock; None if that cannot be known."""
    try:
        return _is_locked(run_dir / "journal" / _FILE)
    except FileNotFoundError:
        return False
    except OSError:
        return None


def wait_for_writers(run_dir: Path, timeout_s: float) -> None:
    """Wait until no worker writes to a journal of the run; `RecordError` if one still does after `timeout_s`.

    Workers outlive a killed controller by a few seconds, and their last generations should not be lost.
    """
    until = time.monotonic() + timeout_s
    for path in sorted((run_dir / "journal").glob("*.jsonl")):
        try:
            while _is_locked(path):  # None on a file system without locks: `RunLock.is_certain` says so
                if time.monotonic() > until:
                    raise RecordError(f"{path} is still being written, by a worker that outlives its run; end that process, then resume")
                time.sleep(_POLL_S)
        except OSError as error:
            raise RecordError(f"{path} cannot be read: {error.strerror}; put the run's own back in place") from error


def _is_locked(path: Path) -> bool | None:
    """Return whether a process holds the lock of a file, None if that cannot be known. Raises `OSError` if it cannot be opened."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(file)
    return False


def _remove_left(path: Path) -> None:
    """Remove what processes that were killed while they wrote the file left beside it."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        with suppress(OSError):
            if time.time() - left.lstat().st_mtime > _WRITING_S:
                left.unlink()


@contextmanager
def write_atomically(
    path: Path, advice: str = "", *, error: type[EvalHarnessError] = RecordError, make_folder: bool = False, durable: bool = False
) -> Iterator[BinaryIO]:
    """Open a binary file that replaces `path` when the block ends without an exception.

    On an exception `path` stays as it was, and the temporary file is removed. An error of the system raises `error`, whose message ends
    with `advice`. With `durable` the content is on disk before the rename: after a power failure `path` holds the old or the new content.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        if make_folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        _remove_left(path)
        temporary.unlink(missing_ok=True)  # of a process of the same number, or a link that somebody put there
        with temporary.open("xb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as problem:
        what_to_do = f"; {advice}" if advice else ""
        raise error(f"{path} cannot be written: {problem.strerror or problem}{what_to_do}") from problem
    finally:
        with suppress(OSError):  # renamed by now, or the error that matters is already on its way
            temporary.unlink()
