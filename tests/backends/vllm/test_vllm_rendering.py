"""Prompts that are rendered ahead in threads: order, errors, how far ahead, and the end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from evalharness.backends.base import Prompt
from evalharness.backends.vllm.images import PromptsAhead, pixel_bytes
from evalharness.engine.stream import PromptSource
from tests.backends.vllm_models import plan


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(3) as pool:
        yield pool


def prompt(index: int, *, has_images: bool = True) -> Prompt:
    return Prompt(index, "", (1,), 1, plan(), list if has_images else None)


def taken(ahead: PromptsAhead[int]) -> list[tuple[int, Any]]:
    found: list[tuple[int, Any]] = []
    while (following := ahead.next) is not None:
        asked, render = ahead.take()
        assert asked is following
        try:
            found.append((asked.index, render()))
        except ValueError as error:
            found.append((asked.index, str(error)))
    return found


def render(asked: Prompt) -> int:
    if asked.index == 3:
        raise ValueError("a bad picture")
    return 10 * asked.index


@pytest.mark.parametrize("in_threads", [False, True], ids=["as asked for", "ahead"])
def test_renderings_come_in_order_and_an_error_is_its_own_prompts(threads: ThreadPoolExecutor, in_threads: bool) -> None:
    ahead = PromptsAhead(iter(map(prompt, range(9))), render, threads if in_threads else None, 4)
    assert taken(ahead) == [(index, "a bad picture" if index == 3 else 10 * index) for index in range(9)]


def test_no_more_than_asked_for_are_pulled_ahead(threads: ThreadPoolExecutor) -> None:
    pulled: list[int] = []

    def source() -> Iterator[Prompt]:
        for index in range(20):
            pulled.append(index)
            yield prompt(index)

    ahead = PromptsAhead(source(), render, threads, 5)
    assert len(pulled) == 5
    ahead.take()
    assert len(pulled) == 6


def test_without_threads_nothing_is_rendered_before_it_is_asked_for() -> None:
    rendered: list[int] = []
    ahead = PromptsAhead(iter(map(prompt, range(3))), lambda asked: rendered.append(asked.index), None, 5)
    _, first = ahead.take()
    assert rendered == []
    first()
    assert rendered == [0]


def test_text_alone_is_rendered_by_who_asks(threads: ThreadPoolExecutor) -> None:
    ahead = PromptsAhead(iter([prompt(0, has_images=False)]), lambda asked: threading.get_ident(), threads, 5)
    assert ahead.take()[1]() == threading.get_ident()


def test_what_waits_for_a_thread_is_not_rendered_after_the_end() -> None:
    going, rendered = threading.Event(), []

    def slow(asked: Prompt) -> None:
        going.wait(120)
        rendered.append(asked.index)

    with ThreadPoolExecutor(1) as pool:
        ahead = PromptsAhead(iter(map(prompt, range(6))), slow, pool, 6)
        ahead.close()
        going.set()
    assert rendered in ([], [0])


def test_pixels_are_counted_where_they_go_to_the_engine_core() -> None:
    item = {"pixel_values": SimpleNamespace(data=SimpleNamespace(nbytes=600)), "grid": SimpleNamespace(data=3)}
    assert pixel_bytes({"mm_kwargs": {"image": [item, None, item]}}) == 1200
    assert pixel_bytes({"prompt_token_ids": [1]}) == 0


def test_a_source_that_has_none_at_present_is_asked_again() -> None:
    waiting = [prompt(0)]
    ahead = PromptsAhead(PromptSource(lambda: waiting.pop() if waiting else None), lambda asked: asked.index, None, 5)
    assert taken(ahead) == [(0, 0)]
    assert ahead.next is None
    waiting.append(prompt(1))
    assert taken(ahead) == [(1, 1)]
