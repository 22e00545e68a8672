"""Who may write into a run's folder: one process at a time, however it ended, on whatever host shares the file system.

The lock is the operating system's, so a process that was killed has given it back. Knows nothing of what the folder holds.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

from evalharness.api.errors import RecordError

__all__ = ["RunLock", "is_written_now", "wait_for_writers"]

_FILE = "run.lock"
_POLL_S = 0.2
_LOOK_S = 1.0  # a look takes a moment, but a busy machine may stop whoever looks in the middle of it


class RunLock:
    """Holds a run from its start, or its resumption, until its reports are written; `RecordError` where another process does.

    `is_certain` is False on a file system without locks: then nobody can tell.
    """

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / "journal" / _FILE
        self.is_certain = True
        self._file = self._open()
        # Whoever ends in order takes the file away; a lock on a file that is gone by now is worth nothing.
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
            self._try_for_a_moment()
        except BlockingIOError:
            os.close(self._file)
            self._file = -1
            raise RecordError(f"run {run_dir.name!r} still goes on, or another process resumes it; wait for it, or stop it") from None
        except OSError:
            self.is_certain = False
        return self.is_certain

    def _try_for_a_moment(self) -> None:
        until = time.monotonic() + _LOOK_S  # `is_written_now` holds a lock while it looks
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until:
                    raise
                time.sleep(_LOOK_S / 50)
            else:
                return

    def _is_in_place(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._file), os.stat(self._path))
        except FileNotFoundError:
            return False

    def close(self) -> None:
        """Let the run go; may be called twice."""
        if self._file < 0:
            return
        if self.is_certain:
            with contextlib.suppress(OSError):  # the folder may be gone, or read-only by now; an empty file that is left harms nobody
                self._path.unlink()
        os.close(self._file)
        self._file = -1


def is_written_now(run_dir: Path) -> bool | None:
    """Return whether a process holds the run: it still goes on, or is resumed. None where nobody can tell."""
    try:
        file = os.open(run_dir / "journal" / _FILE, os.O_RDONLY)
    except FileNotFoundError:
        return False
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return None
    finally:
        os.close(file)
    return False


def wait_for_writers(run_dir: Path, timeout_s: float) -> None:
    """Wait until no worker writes any journal of the run; `RecordError` where one still does after `timeout_s`.

    Workers outlive a controller that was killed by a few seconds, and what they still generate is not lost.
    """
    until = time.monotonic() + timeout_s
    for path in sorted((run_dir / "journal").glob("*.jsonl")):
        while _is_written(path):
            if time.monotonic() > until:
                raise RecordError(f"{path} is still being written, by a worker that outlives its run; end that process, then resume")
            time.sleep(_POLL_S)


def _is_written(path: Path) -> bool:
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error.strerror}; put the run's own back in place") from error
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # no locks here: `RunLock.is_certain` says so
    finally:
        os.close(file)
    return False
