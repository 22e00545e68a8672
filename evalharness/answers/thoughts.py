"""Blocks of thoughts that stand in a text, such as `<think>…</think>`; those in a string of JSON are text."""

from __future__ import annotations

import re

from evalharness.answers.json_text import balanced_spans, loads

_MARK = re.compile(r"<(/?)(?:think|thinking|thought|reasoning)>", re.IGNORECASE)


def _marks(text: str) -> list[re.Match[str]]:
    """Return the marks of blocks of thoughts; in a string of JSON they are text."""
    marks = list(_MARK.finditer(text))
    if not marks or '"' not in text:
        return marks
    spans = iter(sorted(span for opening in "{[" for span in balanced_spans(text, opening) if _is_json(text[slice(*span)])))
    kept = []
    span = next(spans, None)
    for mark in marks:
        while span is not None and span[1] <= mark.start():
            span = next(spans, None)
        if span is None or mark.start() < span[0]:
            kept.append(mark)
    return kept


def _is_json(text: str) -> bool:
    try:
        loads(text)
    except ValueError:
        return False
    return True


def leftover_thinking(text: str) -> str | None:
    """Return whether a block of thoughts in a text is "open", "closed" or "end only", None without any block."""
    marks = [mark[1] for mark in _marks(text)]
    if not marks:
        return None
    if "" not in marks:
        return "end only"
    return "open" if marks[-1] == "" else "closed"


def without_thoughts(text: str) -> str:
    """Return the text after its last closed block of thoughts and before a block that never ends."""
    start, end = 0, None
    for mark in _marks(text):
        if mark[1]:
            start, end = mark.end(), None
        elif end is None:
            end = mark.start()
    return text[start:end]
