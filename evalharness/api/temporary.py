"""Temporary folders of this process. One that a killed process has left is removed when the next one makes its own in the same place.

The process holds a lock on a file inside, which the operating system releases however the process ends.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from evalharness.api.errors import ConfigError

_PREFIX = "evalharness-"
_HELD = ".held"


def no_room(error: Exception) -> ConfigError:
    """Return the error for a temporary file that cannot be written."""
    return ConfigError(f"a temporary file cannot be written: {error}; name a folder with more room by TMPDIR")


class OwnFolder:
    """A new folder in `parent` (default: the system's place for temporary files), removed with this object or when a block ends."""

    def __init__(self, kind: str, parent: Path | str | None = None) -> None:
        _remove_left(Path(parent or tempfile.gettempdir()))
        self.path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{kind}-", dir=parent))
        self._remove = weakref.finalize(self, _remove, self.path, _hold(self.path), os.getpid())

    def remove(self) -> None:
        """Remove the folder and all in it. Idempotent."""
        self._remove()

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.remove()


def _hold(folder: Path) -> int | None:
    """Return the file whose lock says that the folder is in use; None on a file system without locks, where no folder is ever removed."""
    unlocked = folder / f"{_HELD}.new"
    file = os.open(unlocked, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unlocked.rename(folder / _HELD)  # only now may others look whether it is locked
    except OSError:
        os.close(file)
        return None
    return file


def _remove(folder: Path, held: int | None, owner: int) -> None:
    if os.getpid() != owner:
        return  # a forked process has a copy of the object
    shutil.rmtree(folder, ignore_errors=True)
    if held is not None:
        os.close(held)


def _remove_left(parent: Path) -> None:
    """Remove the folders there that were this user's, and that no process holds any more."""
    with suppress(OSError):
        for entry in os.scandir(parent):
            if entry.name.startswith(_PREFIX) and entry.is_dir(follow_symlinks=False):
                with suppress(OSError):  # another user's, in use, or gone by now
                    _remove_if_left(Path(entry.path))


def _remove_if_left(folder: Path) -> None:
    if folder.lstat().st_uid != os.getuid():
        return
    file = os.open(folder / _HELD, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(file)
