"""HTTP with a server that misbehaves: what is asked again, how often, after which pauses."""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import gc
import threading
import time
from concurrent.futures import CancelledError
from typing import Any

import pytest
from hypothesis import given, strategies as st

from evalharness.api.errors import BackendError, ConfigError
from evalharness.backends.openai import client as openai_client
from evalharness.backends.openai.client import HttpClient, HttpCounts, RefusedRequest
from tests.backends.http_server import Asked, Reply, serving


class Pauses:
    """Notes how long it would have slept."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


PATIENCE_S = 120


def ask(*replies: Reply, timeout_s: float = PATIENCE_S, **more: Any) -> tuple[Any, list[Asked], list[float]]:
    """Ask once, with these replies one after the other; return the answer or the error, the requests, the pauses."""
    waiting, pauses = list(replies), Pauses()
    with serving(lambda asked: waiting.pop(0) if len(waiting) > 1 else waiting[0]) as server:
        client = HttpClient(server.url, timeout_s=timeout_s, sleep=pauses, **more)
        try:
            answer = client.ask("/v1/x", {"a": 1})
        except (BackendError, RefusedRequest) as error:
            answer = error
        finally:
            client.close()
        return answer, server.asked, pauses.seconds


def wait_for(asked: list[Asked], number: int) -> None:
    """Wait until so many requests have arrived, which may be after the client has given them up; no more may."""
    until = time.monotonic() + PATIENCE_S
    while len(asked) < number and time.monotonic() < until:
        time.sleep(0.01)
    assert len(asked) == number


def test_an_answer_is_its_json() -> None:
    answer, asked, pauses = ask(Reply({"ok": ["ü"]}))
    assert (answer, len(asked), pauses) == ({"ok": ["ü"]}, 1, [])
    assert asked[0].body == {"a": 1}


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_is_asked_again_with_growing_pauses(status: int) -> None:
    answer, asked, pauses = ask(Reply("busy", status), Reply("busy", status), Reply({"ok": 1}))
    assert (answer, len(asked), pauses) == ({"ok": 1}, 3, [1.0, 2.0])


@pytest.mark.parametrize(
    ("header", "pause"), [("7", 7.0), ("100000", 60.0), ("soon", 1.0), (email.utils.formatdate(0, usegmt=True), 0.0)], ids=str
)
def test_a_server_says_when_to_come_back(header: str, pause: float) -> None:
    _, _, pauses = ask(Reply("busy", 429, {"Retry-After": header}), Reply({}))
    assert pauses == [pause]


def test_a_server_that_stays_busy_is_an_error_after_three_attempts() -> None:
    answer, asked, _ = ask(Reply("no room", 503))
    assert len(asked) == 3
    assert "status 503 after 3 attempts: no room" in str(answer)


def test_no_connection_is_tried_three_times() -> None:
    pauses = Pauses()
    with serving(lambda asked: Reply({})) as server:
        url = server.url
    client = HttpClient(url, sleep=pauses)
    with pytest.raises(BackendError, match=r"gave no answer \(ConnectError.*asked 3 times; is the server there"):
        client.ask("/v1/x", {})
    client.close()
    assert pauses.seconds == [1.0, 2.0]


def test_a_server_that_never_answers_is_given_up_after_three_timeouts() -> None:
    answer, asked, pauses = ask(Reply({}, delay_s=PATIENCE_S), timeout_s=0.5)
    assert pauses == [0.0, 0.0]
    assert "Timeout" in str(answer)
    assert "asked 3 times" in str(answer)
    wait_for(asked, 3)


def test_a_server_that_answers_byte_by_byte_is_given_up_as_well() -> None:
    answer, asked, _ = ask(Reply({"long": "x" * 10_000}, drip_s=0.05), timeout_s=0.3)
    assert "Timeout" in str(answer)
    assert "asked 3 times" in str(answer)
    wait_for(asked, 3)


def test_a_broken_server_is_asked_once() -> None:
    answer, asked, _ = ask(Reply("error 400 inside", 500))
    assert len(asked) == 1
    assert isinstance(answer, BackendError)
    assert "status 500" in str(answer)


@pytest.mark.parametrize("broken", [Reply({"long": "x" * 1000}, cut=True), Reply(hang_up=True)], ids=["cut", "hung up"])
def test_a_connection_that_breaks_is_tried_again_and_given_up(broken: Reply) -> None:
    answer, asked, pauses = ask(broken, Reply({"ok": 1}))
    assert (answer, len(asked), pauses) == ({"ok": 1}, 2, [1.0])
    answer, asked, _ = ask(broken)
    assert (type(answer), len(asked)) == (BackendError, 3)


@pytest.mark.parametrize("form", ["%a, %d %b %Y %H:%M:%S", "%a, %d %b %Y %H:%M:%S -0000", "%a %b %d %H:%M:%S %Y"])
def test_dates_of_servers_are_of_greenwich_wherever_this_machine_is(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        _, _, [pause] = ask(Reply("busy", 503, {"Retry-After": time.strftime(form, time.gmtime(time.time() + 55))}), Reply({}))
    finally:
        monkeypatch.undo()
        time.tzset()
    assert 5 < pause <= 55


DATES = st.from_regex(r"[A-Z][a-z]{2}, \d{1,2} [A-Z][a-z]{2} \d{1,6} \d\d:\d\d:\d\d [+-]\d{1,30}", fullmatch=True)


@given(st.one_of(st.none(), st.text(max_size=40), st.floats().map(str), st.integers().map(str), DATES))
def test_whatever_a_server_says_of_when_to_come_back_the_pause_is_one(header: str | None) -> None:
    assert 0.0 <= openai_client._retry_after_s(header, 1.0) <= 60.0


def test_what_changes_a_server_is_told_once_and_its_answer_given_as_it_is() -> None:
    with serving(lambda asked: Reply("busy", 503, {"Retry-After": "1"})) as server:
        client = HttpClient(server.url)
        assert client.tell("/v1/load_lora_adapter", {"a": 1}) == (503, "busy")
        client.close()
        assert len(server.asked) == 1
        assert client.counts == HttpCounts(num_requests=1, num_refused=1)


def test_a_change_of_the_server_may_take_longer_than_an_answer() -> None:
    with serving(lambda asked: Reply("loaded", delay_s=0.6)) as server:
        client = HttpClient(server.url, timeout_s=0.2)
        try:
            assert client.tell("/update_weights_from_disk", {}, timeout_s=20.0) == (200, "loaded")
            with pytest.raises(BackendError, match="/unload gave no answer"):
                client.tell("/unload", {})
        finally:
            client.close()


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_refused_request_is_that_requests_fault_and_not_asked_again(status: int) -> None:
    answer, asked, _ = ask(Reply({"error": "too long"}, status))
    assert isinstance(answer, RefusedRequest)
    assert (answer.status, len(asked)) == (status, 1)


@pytest.mark.parametrize("body", ["no json", "[1, NaN]", "[" * 100_000])
def test_an_answer_that_is_no_json_is_an_error(body: str) -> None:
    answer, _, _ = ask(Reply(body))
    assert isinstance(answer, BackendError)
    assert "not JSON" in str(answer)
    assert len(str(answer)) < 1000


def test_the_key_is_sent_and_stands_in_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVALHARNESS_API_KEY", "sk-very-secret-1234567890")
    answer, asked, _ = ask(Reply("wrong key sk-very-secret-1234567890", 401), api_key="sk-very-secret-1234567890")
    assert asked[0].headers["authorization"] == "Bearer sk-very-secret-1234567890"
    assert "is its key in EVALHARNESS_API_KEY?" in str(answer)
    assert "very-secret" not in str(answer)


@pytest.mark.parametrize("key", ["correct-horse-battery\n", "correct horse battery", "correct-hörse-battery"])
def test_a_key_that_cannot_be_sent_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(ConfigError, match="the server's key holds a space, a line break or a character that is not ASCII") as caught:
        HttpClient("http://127.0.0.1:1", api_key=key)
    assert "battery" not in str(caught.value)


def test_a_key_that_the_environment_does_not_have_stands_in_no_message_either() -> None:
    key = "correct-horse-battery"
    for status in (400, 401):
        answer, _, _ = ask(Reply(f"who is {key}?", status), api_key=key)
        assert "who is [key hidden]?" in str(answer)
    with serving(lambda asked: Reply(f"who is {key}?")) as server:
        client = HttpClient(server.url, api_key=key)
        assert client.tell("/v1/load_lora_adapter", {}) == (200, "who is [key hidden]?")
        client.close()


def test_a_proxy_is_asked_for_other_machines_and_never_for_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with serving(lambda asked: Reply({"by": "proxy"})) as proxy, serving(lambda asked: Reply({"by": "server"})) as server:
        monkeypatch.setenv("http_proxy", proxy.url)
        port = server.url.rpartition(":")[2]
        said = {}
        for host in ("127.0.0.1", "localhost", "elsewhere.invalid"):
            client = HttpClient(f"http://{host}:{port}", max_attempts=1)
            said[host] = client.ask("/v1/x", {})["by"]
            client.close()
    assert said == {"127.0.0.1": "server", "localhost": "server", "elsewhere.invalid": "proxy"}


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:1", "odd://127.0.0.1:1"])
def test_a_proxy_that_cannot_be_used_is_a_matter_of_settings(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("all_proxy", proxy)
    with pytest.raises(ConfigError, match="proxies or certificates named in the environment cannot be used: .*mend HTTP_PROXY"):
        HttpClient("http://h")


def test_an_address_that_only_the_library_refuses_is_a_matter_of_settings() -> None:
    with pytest.raises(ConfigError, match="base_url 'http://☃..x' is not an address"):
        HttpClient("http://☃..x")


def test_what_is_asked_after_the_end_is_refused_at_once() -> None:
    client = HttpClient("http://127.0.0.1:1")
    client.close()
    for ask_late in (lambda: client.submit("/v1/x", {}), lambda: client.tell("/v1/x", {})):
        with pytest.raises(BackendError, match="the connection to http://127.0.0.1:1 is closed; make a new engine"):
            ask_late()


def test_closing_leaves_no_thread_and_no_future_that_waits() -> None:
    """Requests come from another thread while this one closes: each has an answer, an error or its cancellation."""
    with serving(lambda asked: Reply({}, delay_s=0.01)) as server:
        client, futures, began = HttpClient(server.url, concurrency=4), [], threading.Event()
        room = threading.Semaphore(32)  # httpx goes through all that wait at each step: ten thousand take half a minute

        def submit() -> None:
            for _ in range(10_000):
                room.acquire()
                try:
                    futures.append(client.submit("/v1/x", {}))
                except BackendError:
                    return
                futures[-1].add_done_callback(lambda _: room.release())
                began.set()

        thread = threading.Thread(target=submit)
        thread.start()
        assert began.wait(PATIENCE_S)
        client.close()
        thread.join()
        for future in futures:
            with contextlib.suppress(CancelledError):
                future.exception(timeout=PATIENCE_S)
    assert not client._thread.is_alive()


def test_closing_while_a_connection_is_being_made_leaves_no_coroutine_behind() -> None:
    """At whichever step of the loop the end comes: a library's own task, cancelled before its first step, would never be awaited."""
    with serving(lambda asked: Reply({})) as server:
        for steps in range(12):  # a request is sent after eight or so
            client = HttpClient(server.url)

            async def end(client: HttpClient = client, steps: int = steps) -> None:
                client.submit("/v1/x", {})
                for _ in range(steps):
                    await asyncio.sleep(0)
                await client._end()

            asyncio.run_coroutine_threadsafe(end(), client._loop).result(PATIENCE_S)
            client.close()
    gc.collect()  # what was never awaited is reported when it is collected, by pytest as this test's failure


def test_closing_gives_up_what_still_waits() -> None:
    answered = threading.Event()

    def answer(asked: Asked) -> Reply:
        answered.wait()
        return Reply({})

    with serving(answer) as server:
        client = HttpClient(server.url, timeout_s=10_000)
        future = client.submit("/v1/x", {})
        wait_for(server.asked, 1)
        client.close()
        client.close()
        with pytest.raises(CancelledError):
            future.result(timeout=PATIENCE_S)
        answered.set()
