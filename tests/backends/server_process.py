"""A server of somebody else's in a process of its own, on this machine, for as long as a block runs."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

_ENDING_S = 20.0


def free_ports(count: int) -> list[int]:
    """Return ports of this machine that nobody listens on, each once."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for free in sockets:
            free.bind(("127.0.0.1", 0))
        return [free.getsockname()[1] for free in sockets]


@contextmanager
def server_process(command: Sequence[str], port: int, log: Path, *, environment: Mapping[str, str], start_s: float) -> Iterator[str]:
    """Start a server and give its address once it says that it is well; it and its children are gone afterwards.

    `environment`: what it has beside this process's. The test fails with the end of the log where it is not up after `start_s` seconds.
    """
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **environment}, start_new_session=True)
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_until_up(url, process, log, start_s)
        yield url
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_ENDING_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_until_up(url: str, process: subprocess.Popen[bytes], log: Path, start_s: float) -> None:
    deadline = time.monotonic() + start_s
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(urllib.error.URLError, OSError):
            urllib.request.urlopen(f"{url}/health", timeout=2).close()
            return
        time.sleep(0.3)
    pytest.fail(f"the server did not start (exit code {process.poll()}):\n{log.read_text(errors='replace')[-3000:]}")
