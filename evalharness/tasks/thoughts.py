"""Blocks in which a model thinks aloud: `<think>…</think>` and its kin, open, closed, or with their end only."""

from __future__ import annotations

import re

__all__ = ["leftover_thinking", "without_thoughts"]

_MARK = re.compile(r"<(/?)(?:think|thinking|thought|reasoning)>", re.IGNORECASE)


def leftover_thinking(text: str) -> str | None:
    """Return "open", "closed" or "end only" for a block of thoughts in a text, None where there is none."""
    marks = [mark[1] for mark in _MARK.finditer(text)]
    if not marks:
        return None
    if "" not in marks:
        return "end only"
    return "open" if marks[-1] == "" else "closed"


def without_thoughts(text: str) -> str:
    """Return what a text says behind its last closed block of thoughts, and before one that never ends."""
    start, end = 0, None
    for mark in _MARK.finditer(text):
        if mark[1]:
            start, end = mark.end(), None
        elif end is None:
            end = mark.start()
    return text[start:end]
