"""An HTTP client with bounds: concurrency, timeouts, and retries for temporary failures (no connection, 429, 503) only.

An event loop in a thread of its own does the waiting; `submit` hands a request over and returns a future. Messages contain neither the key
nor anything that `redaction` knows. Proxies of the environment are used, but never for a server on this machine.

A server is a stranger: its bodies are read up to a limit, of decoded bytes too, and a time limit holds for the whole answer. No redirect is
followed, so the key goes to the named address alone.
"""

from __future__ import annotations

import asyncio
import datetime
import email.utils
import json
import math
import re
import threading
import time
import zlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx

from evalharness.api.checks import excerpt, refuse_constant
from evalharness.api.errors import BackendError, ConfigError, RequestError
from evalharness.api.redaction import redactor

_BACKOFF_S = 1.0
_LONGEST_WAIT_S = 60.0
_CANCELLING_S = 1.0
_RETRIED = (429, 503)
_SAMPLES_FAULT = (400, 413, 422)  # what a server says to a request that it understands and cannot take
_LONGEST_BODY = 300
_MOST_SHOWN = 10_000  # of what is searched for secrets before it is shortened to an excerpt
MAX_BODY_BYTES = 32 << 20
"""Of an answer, decoded: log-probabilities of a prompt of 260,000 tokens take 20 MB."""
_MAX_ERROR_BYTES = 1 << 16
_PIECE_BYTES = 1 << 16  # what is decoded at once; the event loop serves others in between
_ZLIB_OF_ANY_HEADER = 47
_HERE = ("127.0.0.1", "[::1]", "localhost")
_KEY = re.compile(r"[!-~]+")  # what a header can carry: else an error of the HTTP library would spell the key

Answer = TypeVar("Answer")


class _Unreadable(Exception):
    """The body of an answer is too long, or not encoded as its header says."""


@dataclass(frozen=True)
class _Reply:
    """What a server answered; of an error's body the beginning alone."""

    status: int
    retry_after: str | None
    content: bytes

    @property
    def text(self) -> str:
        """The body, whatever charset the server claims: one of a codec that is none would be an error of Python's."""
        return self.content.decode("utf-8", "replace")


class RefusedRequest(RequestError):
    """The server refuses this one request; `status` is its HTTP status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class HttpCounts:
    """How often something was sent, sent again, and refused."""

    num_requests: int = 0
    num_retries: int = 0
    num_refused: int = 0


class HttpClient:
    """Speaks JSON with one server; `sleep` is for tests of what takes minutes.

    `ConfigError` for an address or a key that cannot be used, and for proxies and certificates of the environment that cannot.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        concurrency: int = 64,
        timeout_s: float = 120.0,
        max_attempts: int = 3,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.url = url
        self.counts = HttpCounts()
        self._max_attempts = max_attempts
        self._sleep = sleep
        self._timeout_s = timeout_s
        self._key = api_key
        self._http = _http_client(url, api_key, concurrency)
        self._lock = threading.Lock()
        self._is_closed = False
        self._asking: set[asyncio.Task[Any]] = set()  # touched in the loop's thread alone
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="evalharness-http", daemon=True)
        self._thread.start()

    def submit(self, path: str, body: Mapping[str, Any] | None = None) -> Future[Any]:
        """Return a future of the server's answer to a POST (GET without a body); cancel it to give the request up.

        It fails with `RefusedRequest` where the request itself is at fault, else with `BackendError`.
        """
        return self._begin(lambda: self._ask(path, body))

    def _begin(self, ask: Callable[[], Coroutine[Any, Any, Answer]]) -> Future[Answer]:
        with self._lock:  # what came between the end of the others and that of the loop would never be answered
            if self._is_closed:
                raise BackendError(f"the connection to {self.url} is closed; make a new engine")
            return asyncio.run_coroutine_threadsafe(self._counted(ask), self._loop)

    async def _counted(self, ask: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        task = asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        self._asking.add(task)
        try:
            return await ask()
        finally:
            self._asking.discard(task)

    def tell(self, path: str, body: Mapping[str, Any], *, timeout_s: float | None = None) -> tuple[int, str]:
        """Return status and text of the answer to a POST that changes the server; `BackendError` where none comes.

        It is sent once: what a server may have begun to load it must not be told to load again.
        """
        return self._begin(lambda: self._tell(path, body, timeout_s or self._timeout_s)).result()

    async def _tell(self, path: str, body: Mapping[str, Any], timeout_s: float) -> tuple[int, str]:
        self.counts.num_requests += 1
        try:
            answer = await self._send(path, _json(body), timeout_s)
        except (httpx.HTTPError, asyncio.TimeoutError) as error:
            raise BackendError(f"{self.url}{path} gave no answer ({self._what(error)})") from error
        except _Unreadable as error:
            raise BackendError(f"{self.url}{path} answered with {error}") from error
        self.counts.num_refused += answer.status != 200
        return answer.status, self._shown(answer.text[:_MOST_SHOWN])

    def ask(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return the server's answer; see `submit`."""
        return self.submit(path, body).result()

    async def _ask(self, path: str, body: Mapping[str, Any] | None) -> Any:
        content = None if body is None else _json(body)
        wait_s = _BACKOFF_S
        for attempt in range(1, self._max_attempts + 1):
            self.counts.num_requests += 1
            self.counts.num_retries += attempt > 1
            is_last = attempt == self._max_attempts
            try:
                answer = await self._send(path, content, self._timeout_s)
            except _Unreadable as error:
                raise BackendError(f"{self.url} answered with {error}") from error
            except (httpx.HTTPError, asyncio.TimeoutError) as error:
                if is_last:
                    raise BackendError(
                        f"{self.url} gave no answer ({self._what(error)}), asked {attempt} times; is the server there and quick enough "
                        "(--base-url, --request-timeout)?"
                    ) from error
                # A timeout has taken its time already.
                await self._sleep(0.0 if isinstance(error, (httpx.TimeoutException, asyncio.TimeoutError)) else wait_s)
            else:
                if answer.status not in _RETRIED or is_last:
                    return self._read(answer, attempt)
                await self._sleep(_retry_after_s(answer.retry_after, wait_s))
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
        raise AssertionError("the last attempt returns or raises")

    async def _send(self, path: str, content: bytes | None, timeout_s: float) -> _Reply:
        # httpx's timeouts are of single reads, so a server that sends a byte now and then would never be given up.
        return await asyncio.wait_for(self._exchange(path, content, timeout_s), timeout_s)

    async def _exchange(self, path: str, content: bytes | None, timeout_s: float) -> _Reply:
        method = "GET" if content is None else "POST"
        headers = {"Content-Type": "application/json", "Accept-Encoding": "gzip"}
        async with self._http.stream(method, self.url + path, content=content, headers=headers, timeout=timeout_s) as answer:
            is_error = answer.status_code != 200
            body = await _body_of(answer, _MAX_ERROR_BYTES if is_error else MAX_BODY_BYTES, may_be_cut=is_error)
            return _Reply(answer.status_code, answer.headers.get("retry-after"), body)

    def _read(self, answer: _Reply, attempts: int) -> Any:
        self._check_status(answer, attempts)
        try:
            return json.loads(answer.content, parse_constant=refuse_constant)
        except (ValueError, RecursionError) as error:
            raise BackendError(f"{self.url} answered with something that is not JSON ({error}): {self._body(answer)}") from error

    def _check_status(self, answer: _Reply, attempts: int) -> None:
        if answer.status in _SAMPLES_FAULT:
            self.counts.num_refused += 1
            raise RefusedRequest(f"the server refuses this request ({answer.status}): {self._body(answer)}", answer.status)
        if answer.status != 200:
            hint = "; is its key in EVALHARNESS_API_KEY?" if answer.status in (401, 403) else ""
            times = f" after {attempts} attempts" if attempts > 1 else ""
            raise BackendError(f"{self.url} answered with status {answer.status}{times}: {self._body(answer)}{hint}")

    def _what(self, error: Exception) -> str:
        return f"{type(error).__name__}: {self._shown(str(error))}" if str(error) else type(error).__name__

    def _body(self, answer: _Reply) -> str:
        return excerpt(self._shown(" ".join(answer.text[:_MOST_SHOWN].split())), _LONGEST_BODY)

    def _shown(self, text: str) -> str:
        """Return a text without secrets; the key by itself, as the environment may have changed since."""
        return redactor().text(text.replace(self._key, "[key hidden]") if self._key else text)

    def close(self) -> None:
        """Give up what still waits, and end the thread; may be called twice, and by several threads."""
        with self._lock:
            is_first, self._is_closed = not self._is_closed, True
        if not is_first:
            return
        try:
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _end(self) -> None:
        # Not `asyncio.all_tasks()`: the tasks that httpx starts for a request end with it, and one cancelled before its first step
        # would leave a coroutine that was never awaited.
        while waiting := set(self._asking):
            for task in waiting:
                task.cancel()
            # Else the loop would stop before their futures hear of it. Again: one whose answer has just come may miss it.
            await asyncio.wait(waiting, timeout=_CANCELLING_S)
        await self._http.aclose()


def _http_client(url: str, api_key: str | None, concurrency: int) -> httpx.AsyncClient:
    if api_key is not None and not _KEY.fullmatch(api_key):
        raise ConfigError(
            "the server's key holds a space, a line break or a character that is not ASCII, so it cannot be sent; set "
            "EVALHARNESS_API_KEY or OPENAI_API_KEY to the key alone"
        )
    try:
        httpx.URL(url)
        return httpx.AsyncClient(
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            limits=httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency),
            mounts={f"all://{host}": None for host in _HERE},  # a proxy sees another machine under these names
        )
    except httpx.InvalidURL as error:
        raise ConfigError(f"base_url {redactor().text(url)!r} is not an address ({error}); write it like http://127.0.0.1:8000") from error
    except (ImportError, OSError, ValueError) as error:
        problem = redactor().text(str(error))
        raise ConfigError(
            f"proxies or certificates named in the environment cannot be used: {problem}; mend HTTP_PROXY and the like"
        ) from error


async def _body_of(answer: httpx.Response, max_bytes: int, *, may_be_cut: bool) -> bytes:
    """Return the decoded body, at most `max_bytes` of it. A few bytes may stand for gigabytes, so each piece is decoded up to a limit."""
    coding = answer.headers.get("content-encoding", "").strip().lower()
    if coding not in ("", "identity", "gzip", "x-gzip"):
        raise _Unreadable(f"a body of encoding {excerpt(coding, 40)!r}, which it was not asked for")
    decoder = zlib.decompressobj(_ZLIB_OF_ANY_HEADER) if coding not in ("", "identity") else None
    body, num_sent = bytearray(), 0
    async for raw in answer.aiter_raw(_PIECE_BYTES):
        num_sent += len(raw)
        try:
            while raw and len(body) <= max_bytes and not (decoder is not None and decoder.eof):
                body += raw if decoder is None else decoder.decompress(raw, _PIECE_BYTES)
                raw = b"" if decoder is None else decoder.unconsumed_tail
                await asyncio.sleep(0)
        except zlib.error as error:
            raise _Unreadable(f"a body that is not {coding} ({error})") from error
        if max(len(body), num_sent) > max_bytes:
            if may_be_cut:
                break
            raise _Unreadable(f"more than {max_bytes >> 20} MiB")
    return bytes(body[:max_bytes])


def _json(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, allow_nan=False).encode("ascii")


def _retry_after_s(header: str | None, default_s: float) -> float:
    """Return the seconds that a Retry-After header asks for, as seconds or as a date, a minute at most; else the default."""
    if not header:
        return default_s
    try:
        wanted = float(header)
    except ValueError:
        try:
            date = email.utils.parsedate_to_datetime(header)
            # Dates of HTTP are of Greenwich, whether they say so or not.
            wanted = (date if date.tzinfo is not None else date.replace(tzinfo=datetime.timezone.utc)).timestamp() - time.time()
        except (ValueError, OverflowError):
            return default_s
    return min(max(wanted, 0.0), _LONGEST_WAIT_S) if math.isfinite(wanted) else default_s
