"""Runs a function on hostile text in a process of its own, with a bound of processor time and memory per call.

Only another process can be stopped whatever it does: a regular expression and a power of whole numbers hold Python's lock, and a signal's
handler waits for them. Signals of this process stay as they are (pytest-timeout uses SIGALRM), and any thread may call.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from typing import Any, NoReturn

from evalharness.api.errors import EvalHarnessError

MEMORY_BYTES = 4 << 30
WALL_FACTOR = 20
"""Seconds that may pass per second of processor time, on a busy machine."""

_MEMORY_ENDED = 77  # an exit code that Python itself does not use


class OutOfBounds(Exception):
    """A call needed more processor time or memory than it may have."""


class BoundedFunction:
    """A function `module:name` of plain JSON values, called in one process per object, which starts with the first call.

    Processor time, not wall time, is bounded: a busy machine changes no result.
    """

    def __init__(self, function: str, *, limit_s: float) -> None:
        self.limit_s = limit_s
        self._function = function
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._pid = 0

    def __call__(self, *arguments: Any) -> Any:
        """Return what the function gives; `OutOfBounds` if it takes too much, `EvalHarnessError` with the text of its error."""
        with self._lock:
            if self._process is None or self._pid != os.getpid():  # a forked process shares no pipe with its parent
                self._process, self._pid = self._started(), os.getpid()
            try:
                reply = _exchange(self._process, json.dumps(arguments).encode() + b"\n", self.limit_s * WALL_FACTOR)
            except (OSError, EOFError) as error:
                code = None if isinstance(error, TimeoutError) else self._process.wait()
                self._end()
                self._raise_for(code)
            except BaseException:  # such as Ctrl-C: the next call would read this one's reply
                self._end()
                raise
        value, problem = json.loads(reply)
        if problem is not None:
            raise EvalHarnessError(problem)
        return value

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            _close(process, self._pid)

    def _raise_for(self, code: int | None) -> NoReturn:
        if code is not None and code > 0 and code != _MEMORY_ENDED:
            raise EvalHarnessError(f"the process that calls {self._function} ended with code {code} before it answered") from None
        reasons = {
            None: f"more than {self.limit_s * WALL_FACTOR:g} s",
            -signal.SIGPROF: f"more than {self.limit_s:g} s of processor time",
            _MEMORY_ENDED: f"more than {MEMORY_BYTES >> 30} GiB of memory",
        }
        raise OutOfBounds(reasons.get(code, f"its process down (signal {-(code or 0)})")) from None

    def _started(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", f"from {__name__} import serve; serve({self._function!r}, {self.limit_s!r})"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))}
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, start_new_session=True,
            cwd="/",  # `-c` makes the working folder importable, and it may be anyone's
        )  # fmt: skip
        weakref.finalize(self, _close, process, os.getpid())
        return process


def _close(process: subprocess.Popen[bytes], pid: int) -> None:
    if os.getpid() == pid:
        process.kill()
        process.communicate()


def _exchange(process: subprocess.Popen[bytes], line: bytes, limit_s: float) -> bytes:
    """Return the reply to a line; `BrokenPipeError` or `EOFError` if the process ends before, `TimeoutError` after `limit_s`."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line)
    process.stdin.flush()
    replies = select.poll()  # `select.select` takes no descriptor above 1,023
    replies.register(process.stdout, select.POLLIN)
    parts: list[bytes] = []
    deadline = time.monotonic() + limit_s
    while not parts or not parts[-1].endswith(b"\n"):
        if not replies.poll(max(deadline - time.monotonic(), 0) * 1000):
            raise TimeoutError
        parts.append(os.read(process.stdout.fileno(), 1 << 16))
        if not parts[-1]:
            raise EOFError
    return b"".join(parts)


def serve(function: str, limit_s: float) -> NoReturn:
    """Answer calls from standard input until it ends: the other side of `BoundedFunction`."""
    import resource
    from importlib import import_module

    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the function prints is no reply
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    most = MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    module, _, name = function.partition(":")
    called: Any = None
    for line in sys.stdin.buffer:
        try:
            called = called or getattr(import_module(module), name)
            signal.setitimer(signal.ITIMER_PROF, limit_s)  # its signal ends the process, also one whose parent is gone
            reply: tuple[Any, str | None] = (called(*json.loads(line)), None)
            signal.setitimer(signal.ITIMER_PROF, 0)
        except MemoryError:
            os._exit(_MEMORY_ENDED)
        except Exception as error:
            signal.setitimer(signal.ITIMER_PROF, 0)
            reply = (None, f"{type(error).__name__}: {error}")
        replies.write(json.dumps(reply).encode() + b"\n")
        replies.flush()
    sys.exit(0)
