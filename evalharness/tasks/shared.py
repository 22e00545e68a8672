"""JSON in texts that models write: strings and brackets told apart, balanced parts, values read strictly. Linear, never at a loss.

Where a text grows token by token, `evalharness/generation_plugins/json_scanner.py` follows it instead.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any, NoReturn

__all__ = ["balanced_end", "balanced_spans", "decoder", "loads", "tokens"]

# A pair behind a backslash, a whole string, or a bracket outside of strings. A string that never ends takes all the rest, so no
# place is looked at twice.
_TOKENS = {quote: re.compile(rf"\\.|{quote}(?:[^{quote}\\]|\\.)*(?:{quote}|\\?\Z)|[{{}}\[\]]", re.DOTALL) for quote in ('"', "'")}
_CLOSING = {"{": "}", "[": "]"}


def tokens(text: str, position: int = 0, quote: str = '"') -> Iterator[tuple[int, int]]:
    """Yield the spans of brackets and of strings with their quotes, in order; brackets in strings do not count.

    A string that never ends reaches to the end of the text.
    """
    for match in _TOKENS[quote].finditer(text, position):
        if match[0][0] != "\\":
            yield match.span()


def balanced_spans(text: str, opening: str = "{", position: int = 0) -> Iterator[tuple[int, int]]:
    """Yield start and end of each part in balanced brackets that lies in no other such part, in order.

    Only brackets of the kind of `opening` count, none in strings. One that never closes hides nothing that follows it.
    """
    closing = _CLOSING[opening]
    found: list[tuple[int, int]] = []
    opened: list[int] = []
    for start, end in tokens(text, max(position, text.find(opening, position))):
        if text[start] == opening:
            opened.append(start)
        elif text[start] == closing and opened:
            begin = opened.pop()
            while found and found[-1][0] > begin:
                found.pop()
            found.append((begin, end))
            if not opened:  # nothing that is still open could hold these
                yield from found
                found = []
    yield from found


def balanced_end(text: str, start: int) -> int | None:
    """Return the place behind the bracket that closes the one at `start`, None if it never closes; only its kind counts."""
    opening, depth = text[start], 0
    for begin, end in tokens(text, start):
        if text[begin] == opening:
            depth += 1
        elif text[begin] == _CLOSING[opening]:
            depth -= 1
            if depth == 0:
                return end
    return None


def decoder(**hooks: Any) -> json.JSONDecoder:
    """Return a decoder that takes JSON only: `NaN`, `Infinity` and numbers beyond a float are ValueErrors."""
    return json.JSONDecoder(parse_constant=_refuse, parse_float=_finite, **hooks)


def loads(text: str) -> Any:
    """Return the value of a JSON text; `ValueError` for anything else, what is nested too deeply to be read among it."""
    try:
        return _STRICT.decode(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _refuse(literal: str) -> NoReturn:
    raise ValueError(f"{literal} is no JSON")


def _finite(literal: str) -> float:
    number = float(literal)
    if not math.isfinite(number):
        raise ValueError(f"{literal} is no finite number")
    return number


_STRICT = decoder()
