"""What is done to a running process: signals, a full disk, exhausted descriptors, files that cannot grow, a clock set back."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

SIGNALS = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "hup": signal.SIGHUP, "stop": signal.SIGSTOP}
FAULTS = (*SIGNALS, "disk", "files", "size", "clock")
"""`disk` fills a file system of its own (tmpfs, which needs the right to mount), `files` leaves a process no descriptor, with `size` its
files cannot grow (RLIMIT_FSIZE, which needs no rights), and with `clock` the time of day jumps back by hours in all processes."""
_STOPPED_S = 2.0
_PAGE_BYTES = 4096
_DISK = "16m"
_ROOM_BYTES = 8 << 20
"""What the sessions of one run need at most, with much to spare."""
_CLOCK = "FAULT_CAMPAIGN_CLOCK"
# Python runs this first in each process. The system's own clock would be that of everybody else on the machine.
_SHIM = f"""
import datetime, os, time

_now, _now_ns, _datetime = time.time, time.time_ns, datetime.datetime

def _back_s():
    try:
        with open(os.environ[{_CLOCK!r}]) as file:
            return int(file.read() or 0)
    except OSError:
        return 0

class _Class(type(_datetime)):
    def __instancecheck__(cls, value):
        return isinstance(value, _datetime)

class Shifted(_datetime, metaclass=_Class):
    @classmethod
    def now(cls, tz=None):
        return _datetime.fromtimestamp(time.time(), tz)

time.time = lambda: _now() - _back_s()
time.time_ns = lambda: _now_ns() - _back_s() * 10**9
datetime.datetime = Shifted
"""


class Faults:
    """Does harm to the processes of one campaign's sessions, and takes it back."""

    def __init__(self, root: Path, draw: random.Random) -> None:
        self._draw = draw
        self.disk = root / "disk"
        """Where reports and temporary files lie."""
        self._ballast, self._clock = self.disk / "ballast", root / "clock"
        (root / "shim").mkdir()
        (root / "shim" / "sitecustomize.py").write_text(_SHIM)
        self.disk.mkdir()

    @contextlib.contextmanager
    def mounted(self) -> Iterator[bool]:
        """Give the campaign a small disk of its own; yields False where this machine does not allow that."""
        size = ("-o", f"size={_DISK}")
        is_mounted = subprocess.run(["mount", "-t", "tmpfs", *size, "tmpfs", self.disk], capture_output=True, check=False).returncode == 0
        try:
            (self.disk / "tmp").mkdir()
            yield is_mounted
        finally:
            if is_mounted:
                subprocess.run(["umount", "--lazy", self.disk], check=True)

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables for the sessions."""
        path = [str(self._clock.parent / "shim"), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {"PYTHONPATH": os.pathsep.join(path), _CLOCK: str(self._clock), "TMPDIR": str(self.disk / "tmp")}

    def strike(self, fault: str, pid: int) -> None:
        """Do it. Raises `ProcessLookupError` where the process has just ended."""
        if fault in SIGNALS:
            os.kill(pid, SIGNALS[fault])
            if fault == "stop":
                time.sleep(self._draw.uniform(0.0, _STOPPED_S))
                os.kill(pid, signal.SIGCONT)
        elif fault == "disk":
            self._fill()
        elif fault == "clock":
            self._clock.write_text(str(self._draw.randrange(1, 48 * 3600)))
        else:
            kind = resource.RLIMIT_NOFILE if fault == "files" else resource.RLIMIT_FSIZE
            with contextlib.suppress(psutil.Error):
                _, hard = resource.prlimit(pid, kind)
                resource.prlimit(pid, kind, (self._limit(fault, psutil.Process(pid)), hard))

    def _limit(self, fault: str, process: psutil.Process) -> int:
        if fault == "files":
            return process.num_fds() + self._draw.randrange(4)
        sizes = [os.path.getsize(file.path) for file in process.open_files() if file.path.startswith(str(self.disk))]
        return max(sizes, default=0) + self._draw.randrange(2000)

    def _fill(self) -> None:
        with self._ballast.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(16 * _PAGE_BYTES))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
            file.truncate(max(0, file.tell() - _PAGE_BYTES * self._draw.randrange(8)))

    def check_room(self) -> None:
        """Raise `OSError` where a session could meet a full disk without a fault: something else has filled it."""
        if (free := shutil.disk_usage(self.disk).free) < _ROOM_BYTES:
            sizes = {path.name: sum(file.lstat().st_size for file in [path, *path.rglob("*")]) for path in self.disk.iterdir()}
            raise OSError(errno.ENOSPC, f"{free:,} bytes free, {_ROOM_BYTES:,} are needed for a run; there lie {sizes}", str(self.disk))

    def lift(self) -> None:
        """Make room, and half of the time put the clock right."""
        self._ballast.unlink(missing_ok=True)
        if self._draw.random() < 0.5:
            self._clock.unlink(missing_ok=True)
