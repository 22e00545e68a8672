"""JSON within model output: brackets, strings, values.

All readers are linear in the text's length and never raise; `loads` alone raises `ValueError`.
`evalharness/generation_plugins/dense.py` follows a text that still grows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from evalharness.api.json_schema import AnswerDecoder

# An escaped character, a whole string, or a bracket outside of strings. A string that never ends takes the rest of the text, so
# nothing is scanned twice.
_TOKENS = {quote: re.compile(rf"\\.|{quote}(?:[^{quote}\\]|\\.)*(?:{quote}|\\?\Z)|[{{}}\[\]]", re.DOTALL) for quote in ('"', "'")}
_CLOSING = {"{": "}", "[": "]"}


def tokens(text: str, position: int = 0, quote: str = '"') -> Iterator[tuple[int, int]]:
    """Yield the spans of brackets outside of strings and of strings with their quotes; an unclosed string reaches to the end."""
    for match in _TOKENS[quote].finditer(text, position):
        if match[0][0] != "\\":
            yield match.span()


def balanced_spans(text: str, opening: str = "{", position: int = 0) -> Iterator[tuple[int, int]]:
    """Yield the spans of the outermost balanced brackets of one kind, in order; brackets in strings do not count.

    A bracket that never closes does not hide what follows it.
    """
    closing = _CLOSING[opening]
    spans: list[tuple[int, int]] = []
    opened: list[int] = []
    for start, end in tokens(text, max(position, text.find(opening, position))):
        if text[start] == opening:
            opened.append(start)
        elif text[start] == closing and opened:
            begin = opened.pop()
            while spans and spans[-1][0] > begin:
                spans.pop()
            spans.append((begin, end))
            if not opened:  # no open bracket could still enclose these
                yield from spans
                spans = []
    yield from spans


def balanced_end(text: str, start: int) -> int | None:
    """Return the end of the balanced brackets that open at `start`, None if they never close; only their kind counts."""
    opening, depth = text[start], 0
    for begin, end in tokens(text, start):
        if text[begin] == opening:
            depth += 1
        elif text[begin] == _CLOSING[opening]:
            depth -= 1
            if depth == 0:
                return end
    return None


def loads(text: str) -> Any:
    """Return the value of a JSON text; `ValueError` for anything else, also for JSON that is nested too deeply."""
    return _STRICT.decode(text)


_STRICT = AnswerDecoder()
