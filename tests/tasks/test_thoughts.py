"""Blocks of thoughts in answers. Run: pytest tests/tasks/test_thoughts.py"""

from __future__ import annotations

import pytest

from evalharness.tasks.shared import leftover_thinking, without_thoughts


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("<think>a", "open"),
        ("<think>a</think>b", "closed"),
        ("a</think>b", "end only"),
        ("<think>a</think>b<thinking>c", "open"),
        ("<THINK></THINK>", "closed"),
        ("I think", None),
        ("<thinker>", None),
    ],
    ids=str,
)
def test_thoughts_are_open_or_closed(text: str, state: str | None) -> None:
    assert leftover_thinking(text) == state


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a", "a"),
        ("<think>a</think>b", "b"),
        ("a</think>b", "b"),
        ("<think>a</think>b<think>c</think>d", "d"),
        ("<think>a", ""),
        ("b<thinking>a", "b"),
        ("<think>a</think>b<think>c", "b"),
        ("b<think>a<think>c", "b"),
    ],
)
def test_what_is_said_stands_outside_of_thoughts(text: str, said: str) -> None:
    assert without_thoughts(text) == said
