"""Answers of a server that wants to break its client: whole HTTP responses, byte by byte."""

from __future__ import annotations

import gzip
import json
import random
import zlib
from collections.abc import Iterator
from typing import Any

from benchmarks.hostile.files import odd_value

_GOOD: dict[str, Any] = {
    "choices": [
        {"text": "hi", "finish_reason": "stop", "stop_reason": None, "token_ids": [7, 2], "logprobs": {"token_logprobs": [-0.1, -0.2]}}
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2},
}


def _response(body: bytes, *headers: str, status: str = "200 OK", length: int | str | None = None) -> bytes:
    told = (f"Content-Length: {len(body) if length is None else length}", "Content-Type: application/json", *headers)
    return f"HTTP/1.1 {status}\r\n{chr(10).join(f'{line}{chr(13)}' for line in told)}\n\r\n".encode("latin-1") + body


def replies(seed: int) -> Iterator[tuple[str, bytes]]:
    """Yield (name, bytes of the response): about 150. Those named "…, then silence" are followed by nothing, the connection stays open."""
    draw = random.Random(f"replies {seed}")
    good = json.dumps(_GOOD).encode()
    yield "as it is", _response(good)
    for status in ("400 Bad Request", "500 Oops", "200 OK"):
        yield f"{status}, gzip bomb of 1 GB", _response(gzip.compress(b" " * 2**30, 9), "Content-Encoding: gzip", status=status)
        twice = gzip.compress(gzip.compress(b" " * 2**30, 9), 9)
        yield f"{status}, gzip of a gzip bomb", _response(twice, "Content-Encoding: gzip, gzip", status=status)
        yield f"{status}, deflate bomb", _response(zlib.compress(b" " * 2**30, 9), "Content-Encoding: deflate", status=status)
        yield f"{status}, 60 MB of text", _response(b"a secret " * 7_000_000, status=status)
        yield f"{status}, html", _response(b"<html><script>alert(1)</script></html>", status=status)
        for charset in ("rot13", "utf-7", "hex", "idna", "undefined", "utf-16", "nonsense", "\x00"):
            yield f"{status}, charset {charset!a}", _response(good, f"Content-Type: text/plain; charset={charset}", status=status)
    for status in (
        "100 Continue",
        "101 Switching",
        "204 No Content",
        "301 Moved",
        "307 Moved",
        "401 No",
        "429 Slow",
        "999 X",
        "abc",
        "200",
    ):
        yield f"status {status}", _response(good, "Location: http://192.0.2.1/steal", status=status)
    yield "wrong gzip", _response(b"\x1f\x8b" + b"x" * 50, "Content-Encoding: gzip")
    yield "unknown encoding", _response(good, "Content-Encoding: br2")
    yield "too short, then silence", _response(good, length=10**12)
    yield "too long", _response(good * 3, length=len(good))
    yield "no length at all", _response(good, length="x")
    yield "negative length", _response(good, length=-1)
    yield "nothing", b""
    yield "nothing, then silence", b""
    yield "not HTTP", b"SSH-2.0-OpenSSH_9.0\r\n"
    yield "a header of 50 MB", b"HTTP/1.1 200 OK\r\nX: " + b"a" * 50_000_000 + b"\r\n\r\n" + good
    yield "a million headers", b"HTTP/1.1 200 OK\r\n" + b"X: a\r\n" * 1_000_000 + b"\r\n"
    yield "chunks without end, then silence", _response(b"", "Transfer-Encoding: chunked") + b"1\r\na\r\n" * 1_000
    yield "a chunk of 2^60", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" + b"0" * 15 + b"\r\nabc"
    yield "cookies", _response(good, *("Set-Cookie: a=b; Domain=.com" for _ in range(1000)))
    for what, body in (
        ("nested", b"[" * 200_000),
        ("digits", b'{"choices":' + b"9" * 500_000 + b"}"),
        ("NaN", b'{"choices": [NaN, Infinity]}'),
    ):
        yield what, _response(body)
        yield f"{what}, with status 400", _response(body, status="400 Bad Request")
    for number in range(80):
        changed = odd_value(json.loads(good), draw)
        yield f"value {number}", _response(json.dumps(changed).encode())
