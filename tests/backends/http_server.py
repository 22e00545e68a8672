"""A server on this machine that answers as it is told, also badly: slowly, with errors, with half an answer, never."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Reply:
    """What is sent back: JSON, or a text as it is; `delay_s` before it all, `drip_s` a byte.

    `cut`: the connection ends amid the body; `hang_up`: before anything is said.
    """

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    cut: bool = False
    drip_s: float = 0.0
    hang_up: bool = False


@dataclass
class Asked:
    """One request as it arrived."""

    path: str
    body: Any
    headers: dict[str, str]


class Server:
    """Answers by a function of the request; keeps all requests, and how many were there at once at most."""

    def __init__(self, answer: Callable[[Asked], Reply]) -> None:
        self.asked: list[Asked] = []
        self.most_at_once = 0
        self._now = 0
        self._lock = threading.Lock()
        self._answer = answer
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                server.handle(self, None)

            def do_POST(self) -> None:
                server.handle(self, json.loads(self.rfile.read(int(self.headers["content-length"]))))

            def log_message(self, *_: object) -> None:
                pass

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                pass  # clients that gave up

        self._http = Quiet(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def handle(self, handler: BaseHTTPRequestHandler, body: Any) -> None:
        asked = Asked(handler.path, body, {name.lower(): value for name, value in handler.headers.items()})
        with self._lock:
            self.asked.append(asked)
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
        try:
            reply = self._answer(asked)
            time.sleep(reply.delay_s)
        finally:
            with self._lock:
                self._now -= 1
        if reply.hang_up:
            handler.connection.shutdown(socket.SHUT_RDWR)
            handler.close_connection = True
            return
        content = reply.body.encode() if isinstance(reply.body, str) else json.dumps(reply.body).encode()
        handler.send_response(reply.status)
        handler.send_header("Content-Length", str(len(content)))
        for name, value in reply.headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        sent = content[: len(content) // 2] if reply.cut else content
        for part in [sent[i : i + 1] for i in range(len(sent))] if reply.drip_s else [sent]:
            handler.wfile.write(part)
            time.sleep(reply.drip_s)
        if reply.cut:
            handler.wfile.flush()
            handler.connection.shutdown(socket.SHUT_RDWR)
            handler.close_connection = True

    def posts(self) -> list[Asked]:
        """The requests that asked for something, in order."""
        return [asked for asked in self.asked if asked.body is not None]

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


def pass_time(engine: Any, seconds: float) -> None:
    """Let the client of an engine see so many seconds pass: its timeouts go by the clock of its event loop."""
    loop = engine.backend._client._loop
    ahead_s = loop.time() + seconds - time.monotonic()
    loop.time = lambda: time.monotonic() + ahead_s
    loop.call_soon_threadsafe(lambda: None)


@contextmanager
def serving(answer: Callable[[Asked], Reply]) -> Iterator[Server]:
    """A server for a block."""
    server = Server(answer)
    try:
        yield server
    finally:
        server.close()
