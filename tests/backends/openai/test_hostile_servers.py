"""Servers that send too much, too long, or something else than they say: an error in time, and others are served meanwhile."""

from __future__ import annotations

import gzip
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from evalharness.api.errors import BackendError, EvalHarnessError
from evalharness.api.redaction import Redactor
from evalharness.backends.openai import client as openai_client
from evalharness.backends.openai.client import HttpClient, RefusedRequest
from tests.backends.http_server import Reply, serving

pytestmark = pytest.mark.slow

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
REFUSED = OK.replace(b"200 OK", b"400 Bad Request")


@contextmanager
def raw_server(*sent: bytes, forever: bytes = b"") -> Iterator[str]:
    """A server that answers any request with these bytes, then with `forever` again and again; gives its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    has_ended = threading.Event()

    def serve(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.recv(1 << 16)
            for part in sent:
                connection.sendall(part)
            while forever and not has_ended.is_set():
                connection.sendall(forever)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 16):  # closed with unread bytes, what was sent would be lost
                pass

    def listen() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=listen, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        has_ended.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


@contextmanager
def client_of(url: str, timeout_s: float = 20.0, **more: object) -> Iterator[HttpClient]:
    client = HttpClient(url, timeout_s=timeout_s, max_attempts=1, **more)  # type: ignore[arg-type]
    try:
        yield client
    finally:
        client.close()


def encoded(head: bytes, body: bytes) -> bytes:
    return head + b"Content-Encoding: gzip\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body


@pytest.fixture(scope="module")
def bomb() -> bytes:
    """More than is read of an answer, in little."""
    return gzip.compress(b"x" * (64 << 20))


def test_a_compressed_body_is_decoded_up_to_a_limit(bomb: bytes) -> None:
    with raw_server(encoded(OK, bomb)) as url, client_of(url) as client:
        with pytest.raises(BackendError, match=r"answered with more than 32 MiB"):
            client.ask("/v1/x", {})
        with pytest.raises(BackendError, match=r"answered with more than 32 MiB"):
            client.submit("/v1/x").result()
    with raw_server(encoded(REFUSED, bomb)) as url, client_of(url) as client:
        with pytest.raises(RefusedRequest, match=r"\(400\): xxx"):
            client.ask("/v1/x", {})
        status, told = client.tell("/v1/load", {})
        assert (status, set(told)) == (400, {"x"})
        assert len(told) <= 10_000
    with raw_server(encoded(OK, gzip.compress(b'{"a": 1}'))) as url, client_of(url) as client:
        assert client.ask("/v1/x", {}) == {"a": 1}


def test_others_are_served_while_a_long_body_comes(bomb: bytes) -> None:
    with raw_server(encoded(OK, bomb)) as long, client_of(long) as client:
        waiting = client.submit("/v1/x", {})
        latest = []
        while not waiting.done():
            asked = time.monotonic()
            told = threading.Event()
            client._loop.call_soon_threadsafe(told.set)
            told.wait(10)
            latest.append(time.monotonic() - asked)
        assert max(latest) < 0.5


@pytest.mark.parametrize(
    ("sent", "forever"),
    [
        pytest.param(OK, b"X-More: and more\r\n", id="headers"),
        pytest.param(OK + b"X: ", b"y" * 5000, id="one-header"),
        pytest.param(b"", b"HTTP/1.1 100 Continue\r\n\r\n", id="informational"),
        pytest.param(OK + b"\r\n", b"x" * 5000, id="no-length"),
        pytest.param(OK + b"Content-Length: 999999999999\r\n\r\n", b"x" * 5000, id="long"),
        pytest.param(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"5\r\nabcde\r\n", id="chunks"),
        pytest.param(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1" * 500, id="size-of-a-chunk"),
        pytest.param(OK + b"Transfer-Encoding: chunked\r\n\r\n5;", b"y" * 500, id="extension-of-a-chunk"),
        pytest.param(OK + b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(b"{}"), b"\0" * 5000, id="behind-gzip"),
        pytest.param(OK + b"Content-Type: text/event-stream\r\n\r\ndata: ", b"{}", id="event-without-end"),
    ],
)
def test_what_has_no_end_is_given_up(monkeypatch: pytest.MonkeyPatch, sent: bytes, forever: bytes) -> None:
    monkeypatch.setattr(openai_client, "MAX_BODY_BYTES", 1 << 20)
    with raw_server(sent, forever=forever) as url, client_of(url, timeout_s=2.0) as client, pytest.raises(BackendError):
        client.ask("/v1/x", {})  # without the limits it would never come back


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(OK + b"Content-Length: 5\r\n\r\n{}", id="too-short"),
        pytest.param(OK + b"Content-Length: -1\r\n\r\n{}", id="negative"),
        pytest.param(OK + b"Content-Length: 1e3\r\n\r\n{}", id="no-number"),
        pytest.param(OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n{}", id="two-lengths"),
        pytest.param(OK + b"Content-Length: 1\r\n\r\n{}", id="too-long"),
        pytest.param(OK + b"Content-Encoding: br\r\nContent-Length: 2\r\n\r\n{}", id="other-encoding"),
        pytest.param(OK + b"Content-Encoding: gzip, gzip\r\nContent-Length: 2\r\n\r\n{}", id="encoded-twice"),
        pytest.param(OK + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}", id="no-gzip"),
        pytest.param(OK + b"Content-Length: 200000\r\n\r\n" + b"[" * 200_000, id="nested"),
        pytest.param(OK + b"Content-Length: 10000\r\n\r\n" + b"1" * 10_000, id="digits"),
        pytest.param(OK + b'Content-Length: 3\r\n\r\n"\xff"', id="no-utf-8"),
        pytest.param(b"\xff" * 200 + b"\r\n\r\n", id="no-http"),
        pytest.param(b"HTTP/1.1 99999 X\r\n\r\n", id="status"),
    ],
)
def test_a_malformed_answer_is_an_error_of_the_server(sent: bytes) -> None:
    with raw_server(sent) as url, client_of(url, timeout_s=5.0) as client, pytest.raises(BackendError):
        client.ask("/v1/x", {})


@pytest.mark.parametrize("charset", ["rot13", "hex", "zip", "no-such-one", "utf-16", "idna", "undefined", "\udc80"])
@pytest.mark.parametrize("status", [200, 400, 500])
def test_no_charset_is_an_error_of_its_own(charset: str, status: int) -> None:
    told = f"Content-Type: text/plain; charset={charset}\r\nConnection: close\r\nContent-Length: 4"  # this server takes one request each
    head = f"HTTP/1.1 {status} X\r\n{told}\r\n\r\nAhi!".encode("utf-8", "replace")
    with raw_server(head) as url, client_of(url) as client:
        with pytest.raises(EvalHarnessError, match="Ahi!"):
            client.ask("/v1/x", {})
        assert client.tell("/v1/x", {}) == (status, "Ahi!")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_the_key_never_follows_a_redirect(status: int) -> None:
    with serving(lambda asked: Reply({})) as other:
        moved = Reply("over there", status, {"Location": f"{other.url}/v1/x"})
        with (
            serving(lambda asked: moved) as server,
            client_of(server.url, api_key="key-0123456789") as client,
            pytest.raises(BackendError, match=f"status {status}: over there"),
        ):
            client.ask("/v1/x", {})
        assert other.asked == []


def test_a_long_error_is_shortened_before_it_is_searched_for_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[int] = []
    text = Redactor.text
    monkeypatch.setattr(Redactor, "text", lambda self, given: searched.append(len(given)) or text(self, given))
    body = "no: key-0123456789 " + "y" * 5_000_000
    with (
        serving(lambda asked: Reply(body, 400)) as server,
        client_of(server.url, api_key="key-0123456789") as client,
        pytest.raises(RefusedRequest, match=r"no: \[key hidden\] yyy"),
    ):
        client.ask("/v1/x", {})
    assert 0 < max(searched) <= 10_000
