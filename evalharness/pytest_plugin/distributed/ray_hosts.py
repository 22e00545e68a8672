"""A worker on a host of a Ray cluster: the actor that starts its process there, and the connection to it.

The process is the one that xdist starts on this host, with a socket to the controller as its standard input and output: xdist's protocol
runs unchanged. The actor then waits for the process and says how it ended.
"""

from __future__ import annotations

import signal
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

_LOSS_S = 3.0
"""After a connection has broken: so long the actor may take to say how its process ended; then both are lost."""

STARTED = b"s"
"""The first that a process sends."""

# With the process that started it, ends the worker: a killed actor cannot end it any more. 1 is PR_SET_PDEATHSIG.
START = """
import os, sys
if sys.platform == "linux":
    import ctypes
    ctypes.CDLL(None).prctl(1, 9)
    if os.getppid() != {parent}: os._exit(1)
os.write(1, {started})
exec(eval(sys.stdin.readline()))
"""


@dataclass(eq=False)
class Host:
    """An actor and the process that it starts; `connection` once that has connected."""

    number: int
    actor: Any
    ended: Any
    """Ray's promise of the process's exit status."""
    group: Any = None
    """Ray's placement group, where the engine spans hosts."""
    connection: socket.socket | None = None
    address: str = ""
    """Of its node."""
    cards: str | None = None
    """CUDA_VISIBLE_DEVICES as Ray set it there."""
    is_over: threading.Event = field(default_factory=threading.Event)
    exit_status: int | None = None
    """Of the process; None where it was lost with its actor."""
    problem: str = ""
    """Why the actor is gone, or the last that the process said."""
    broke_at_s: float | None = None
    was_killed: bool = False
    """By this process."""

    def kill(self) -> None:
        """End actor and process."""
        import ray

        with suppress(Exception):  # Ray's own errors, of an actor or a cluster that has gone
            ray.kill(self.actor)
            if self.group is not None:
                ray.util.remove_placement_group(self.group)

    def hang_up(self) -> None:
        """Break the connection, so that whoever reads or writes it goes on."""
        if self.connection is not None:
            with suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)

    def how_it_ended(self) -> tuple[str, bool]:
        """Return how a process ended whose connection broke, and whether it was lost with its actor or host."""
        self.is_over.wait(max(0.0, (self.broke_at_s or time.monotonic()) + _LOSS_S - time.monotonic()))
        if self.was_killed:
            return f"was killed on {self.address}", False
        if self.exit_status is None:
            return f"was lost with its host {self.address}", True
        how = f"exit code {self.exit_status}"
        if self.exit_status < 0:
            with suppress(ValueError):
                how = signal.Signals(-self.exit_status).name
        return f"died on {self.address} ({how}{f': {self.problem}' if self.problem else ''})", False


def actor_class() -> type:
    """Return the actor's class: defined here so that Ray sends its code, and the host need not import this package for it."""

    class WorkerHost:
        def __init__(self, address: str, port: int, token: str, number: int, start: str, started: bytes) -> None:
            import json
            import os
            import socket
            import struct
            import subprocess
            import sys
            import threading
            from collections import deque

            import ray

            connection = socket.create_connection((address, port), timeout=60)
            facts = {
                "token": token,
                "number": number,
                "node": ray.get_runtime_context().get_node_id(),
                "address": ray.util.get_node_ip_address(),
                "cards": os.environ.get("CUDA_VISIBLE_DEVICES"),
            }
            content = json.dumps(facts).encode("ascii")
            connection.sendall(struct.pack("!I", len(content)) + content)

            def receive(num_bytes: int) -> bytes:
                received = b""
                while len(received) < num_bytes:
                    part = connection.recv(num_bytes - len(received))  # no more: what follows is the process's
                    if not part:
                        raise ConnectionError("the controller has hung up")
                    received += part
                return received

            told = json.loads(receive(struct.unpack("!I", receive(4))[0]))
            if not os.path.isdir(told["folder"]):
                raise FileNotFoundError(f"{told['folder']} is not there")
            connection.settimeout(None)
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-c", start.format(parent=os.getpid(), started=started)],
                stdin=connection.fileno(),
                stdout=connection.fileno(),
                stderr=subprocess.PIPE,
                cwd=told["folder"],
                env={**told["environment"], **os.environ, **told["own"]},
            )
            connection.close()
            self._last = last = deque[bytes](maxlen=20)
            errors = self._process.stderr
            assert errors is not None

            def pass_on() -> None:
                for line in errors:
                    last.append(line)
                    sys.stderr.buffer.write(line)  # Ray keeps it with its logs
                    sys.stderr.flush()

            self._errors = threading.Thread(target=pass_on, daemon=True)
            self._errors.start()

        def wait(self) -> tuple[int, str]:
            status = self._process.wait()
            self._errors.join(timeout=1)
            lines = [line.strip() for line in self._last if line.strip()]
            return status, lines[-1].decode("utf-8", "replace") if lines else ""

    return WorkerHost


class WorkerChannel:
    """What execnet reads and writes of a worker on another host: its end is an end of file, however it came about."""

    def __init__(self, host: Host, execmodel: Any) -> None:
        assert host.connection is not None
        self.host = host
        self.execmodel = execmodel
        self.remoteaddress = host.address
        self._connection = host.connection
        self._reader = host.connection.makefile("rb")

    def read(self, num_bytes: int) -> bytes:
        """Return exactly so many bytes. Raises `EOFError`."""
        try:
            received = self._reader.read(num_bytes)
        except (OSError, ValueError):
            received = b""
        if len(received) < num_bytes:
            self.host.broke_at_s = self.host.broke_at_s or time.monotonic()
            raise EOFError(f"expected {num_bytes} bytes, got {len(received)}")
        return received

    def write(self, data: bytes) -> None:
        """Send all bytes. Raises `OSError`."""
        self._connection.sendall(data)

    def close_read(self) -> None:
        """Read no more."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RD)

    def close_write(self) -> None:
        """Tell the worker that nothing more comes."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)

    def wait(self) -> int | None:
        """Wait for the end of the process and return its exit status, None where it is not known."""
        self.host.is_over.wait()
        return self.host.exit_status

    def kill(self) -> None:
        """End the process."""
        self.host.was_killed = True
        self.host.kill()
