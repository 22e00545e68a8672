"""Folders of a process in shared memory, which the system keeps until it restarts: they are removed with the process, or after it.

Each holds a file that its process, and whatever it has forked, has locked. The system gives the lock back however a process ends, SIGKILL
too; so a folder whose lock can be had belongs to nobody. Locks tell it on one machine only: for folders that others see, use another way.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import weakref
from pathlib import Path

__all__ = ["HeldFolder", "remove_abandoned"]

_LOCK = "held"
_PREPARING = "new-"


class HeldFolder:
    """A new folder `<prefix>…`, readable for its owner alone. It goes with `remove()`, this object, or the process."""

    def __init__(self, prefix: str, parent: Path | None) -> None:
        # Under another name until it is locked, so that nobody takes it for an abandoned one before.
        made = Path(tempfile.mkdtemp(prefix=_PREPARING + prefix, dir=parent))
        try:
            lock = os.open(made / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self.path = made.with_name(made.name.removeprefix(_PREPARING))
                made.rename(self.path)
            except BaseException:
                os.close(lock)
                raise
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
        self.remove = weakref.finalize(self, _remove, self.path, lock, os.getpid())


def _remove(path: Path, lock: int, owner: int) -> None:
    if os.getpid() == owner:  # a forked process has this object, too, and the folder is not its own
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def remove_abandoned(prefix: str, parent: Path) -> None:
    """Remove this user's folders `<prefix>…` in `parent` whose processes are gone. What cannot be removed stays."""
    with contextlib.suppress(OSError):
        for path in parent.glob(f"{prefix}*"):
            with contextlib.suppress(OSError):
                if not path.is_symlink() and path.stat().st_uid == os.getuid():
                    _remove_if_abandoned(path)


def _remove_if_abandoned(path: Path) -> None:
    lock = os.open(path / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(lock)
