"""Runs a reader on one input in a process of its own, and says what it must not have done.

Allowed are a value and an error of ours. Not allowed: any other exception, more CPU time or memory than the limits, files read or written
outside the input's folder, connections to other machines, programs, code or modules from the input, pickles.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from evalharness.api.errors import EvalHarnessError

ROOT = Path(__file__).parents[2]
SECONDS_A_MB = 2.0
START_S = {"text": 0.1}
"""What a reader may take besides, by kind of input."""
LONG_START_S = 2.0
"""Of all others: commands import statistics, and read and write whole runs."""
MEMORY_MB = 1_500
"""Beyond what the process has when it begins. A reader may keep a file of a megabyte in some forms, but no bomb."""
_KILLED_AFTER = 4.0  # times the limit; a reader that is slow is measured, one that hangs is ended


@dataclass
class Watched:
    """What a reader did with an input. `faults` is empty where all is well."""

    outcome: str = "died"
    cpu_s: float = 0.0
    faults: list[str] = field(default_factory=list)


def run_watched(read: Callable[[Path], Any], folder: Path, num_bytes: int, start_s: float) -> Watched:
    """Run `read(folder)` in a child and return what came of it."""
    limit_s = start_s + SECONDS_A_MB * num_bytes / 1e6
    inlet, outlet = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(inlet)
        code = 1
        try:
            _child(read, folder, limit_s, outlet)
            code = 0
        finally:
            os._exit(code)
    os.close(outlet)
    with open(inlet, encoding="utf-8") as file:
        said = file.read()
    _, status = os.waitpid(pid, 0)
    if said:
        return Watched(**json.loads(said))
    ended = f"signal {signal.Signals(os.WTERMSIG(status)).name}" if os.WIFSIGNALED(status) else f"exit code {os.WEXITSTATUS(status)}"
    return Watched(faults=[f"the process ended with {ended} (limits: {limit_s * _KILLED_AFTER:.0f} s of CPU, {MEMORY_MB} MB)"])


def _child(read: Callable[[Path], Any], folder: Path, limit_s: float, outlet: int) -> None:
    used = _status_mb("VmSize")
    resource.setrlimit(resource.RLIMIT_AS, (int((used + MEMORY_MB) * 2**20),) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time() + limit_s * _KILLED_AFTER) + 1,) * 2)
    signal.alarm(int(limit_s * _KILLED_AFTER * 2) + 30)  # one that waits, for a pipe perhaps
    done = Watched()
    faults: dict[str, None] = {}
    sys.addaudithook(_auditor(folder, faults))
    os.chdir(folder)
    started = time.process_time()
    try:
        with contextlib.redirect_stdout(_unread()), contextlib.redirect_stderr(_unread()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            read(folder)
        done.outcome = "read"
    except EvalHarnessError as error:
        done.outcome = f"refused: {type(error).__name__}"
    except BaseException as error:
        done.outcome = "raised"
        place = traceback.extract_tb(error.__traceback__)[-1]
        faults[
            f"raised {type(error).__name__}: {str(error).replace(str(folder), '…')[:120]!a} at {Path(place.filename).name}:{place.lineno}"
        ] = None
    done.cpu_s = time.process_time() - started
    if done.cpu_s > limit_s:
        faults[f"took {done.cpu_s:.1f} s, more than {limit_s:.1f}"] = None
    done.faults = list(faults)
    os.write(outlet, json.dumps(asdict(done)).encode())


def _unread() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace")


def _status_mb(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:"))


_PROGRAMS = ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system", "os.fork", "os.forkpty", "pty.spawn")


def _auditor(folder: Path, faults: dict[str, None]) -> Callable[[str, tuple[Any, ...]], None]:
    """Return an audit hook that notes what a reader must not do; see PEP 578 for the events."""
    inside = os.path.realpath(folder)
    ours = tuple(os.path.realpath(path) for path in (*sys.path, sys.prefix, sys.base_prefix, ROOT, folder.parent / "bases") if path)

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], (str, bytes, os.PathLike)):
            path, mode, flags = os.fsdecode(arguments[0]), arguments[1], arguments[2] or 0
            real = os.path.realpath(path)
            writes = bool(flags & (os.O_WRONLY | os.O_RDWR)) or (isinstance(mode, str) and any(letter in mode for letter in "wax+"))
            known = real.startswith(inside) or (
                not writes and real.startswith((*ours, "/proc/", "/sys/", "/usr/", "/dev/null", "/etc/mime"))
            )
            if not known:
                faults[f"{'wrote' if writes else 'read'} {real.replace(os.path.realpath(folder.parent), '…')}"] = None
        elif event in _PROGRAMS:
            faults[f"started a program ({event}): {arguments[0]!a:.80}"] = None
        elif event == "socket.connect" and isinstance(arguments[1], tuple) and arguments[1][0] not in ("127.0.0.1", "::1"):
            faults[f"connected to {arguments[1]!a:.80}"] = None
        elif event == "pickle.find_class":
            faults[f"unpickled {arguments!a:.80}"] = None
        elif event == "exec" and os.path.isabs(arguments[0].co_filename) and os.path.realpath(arguments[0].co_filename).startswith(inside):
            faults[f"ran code of the input: {arguments[0].co_filename}"] = None

    return note
