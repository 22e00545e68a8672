"""Which problems are one reason: their texts without what differs from case to case. Every report groups by this; pure.

Taken out are the case's own ids, quoted values, paths and addresses, and numbers. Words never are, so that different problems stay apart;
nor are the names in errors of code (`KeyError: 'label'`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from evalharness.api.checks import excerpt

VARYING = "…"
_MAX_CHARS = 400
_MOST_READ = 600
_CUT = r"… \([\d,]+ more characters\)"  # how a text that was too long ends, perhaps within quotes
_OF_CODE = re.compile(r"(?:\w+: )?(?:Key|Attribute|Name|Import|ModuleNotFound|Type)Error\b")
_NAME = r"(?!['\"][A-Za-z_]+['\"])"


def _values(*, paths: bool, names: bool) -> re.Pattern[str]:
    # An apostrophe within a word opens nothing.
    but = "" if names else _NAME
    quoted = [rf"(?<!\w){but}[bru]?{quote}(?:[^{quote}\\\n]|\\.)*?(?:{quote}(?!\w)|{_CUT})" for quote in "'\""]
    with_slashes = (
        r"\b[A-Za-z][A-Za-z0-9+.-]*://[^\s\"'<>]+",  # addresses
        r"(?<![\w.…/-])(?:~|\.{1,2})?(?:/[^\s/:;,()\"'<>]+)+/?",  # absolute paths, and those from . and ~
        r"(?<![\w.…/-])(?:[\w.-]+/)+[\w-]*\.[A-Za-z]\w{0,7}\b",  # others, known by the ending of the file's name
        r"\b[A-Za-z]:\\[^\s:;,()\"'<>]+",
    )
    others = (
        rf"“[^”]*?(?:”|{_CUT})",
        r"\b0[xX][0-9a-fA-F]+\b",
        r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b",
        r"\b(?=[a-f]*\d)[0-9a-f]{8,}\b",  # hashes
        r"(?<!\w)[+-]?\d[\d,]*(?:\.\d+)?(?:[eE][+-]?\d+)?%?",
        r"\d+",  # within a name, whose letters stay
    )
    return re.compile("|".join((*quoted, *(with_slashes if paths else ()), *others)))


_VALUES = {(paths, names): _values(paths=paths, names=names) for paths in (True, False) for names in (True, False)}
_SEVERAL = re.compile(rf"{VARYING}(?:(?:, ?|: ?| +){VARYING})+")  # lists of any length are alike


def normalised(problem: str, own: Iterable[object] = ()) -> str:
    """Return what the problems of one reason have in common, at most 400 characters, on one line. Idempotent.

    `own` are the case's ids: its id, its group.
    """
    text = excerpt(" ".join(problem.split()), _MOST_READ, count_rest=True)
    for name in sorted({str(name) for name in own if len(str(name or "")) > 1}, key=len, reverse=True):
        text = _without(text, name)
    names = not _OF_CODE.match(text)
    before = None
    while before != text:  # what is taken out may have kept something beside it from being seen
        values = _VALUES["/" in text or "\\" in text, names]  # to look for paths takes half of the time
        before, text = text, _SEVERAL.sub(VARYING, values.sub(VARYING, text))[:_MAX_CHARS].strip()
    return text


def shared_reason(first: str, pattern: str, differ: bool, most: int = 400) -> str:
    """Return what is said of all cases of one reason: the first one's text where theirs are equal, else what they have in common.

    `pattern` is the first one's `normalised` text; where it is shown, the first one's own follows as an example.
    """
    if not differ or VARYING not in pattern or pattern == first:
        return excerpt(first, most)
    return f"{excerpt(pattern, most // 2)}; such as: {excerpt(first, most // 2)}"


def _without(text: str, name: str) -> str:
    """Return the text with its whole words `name` taken out; a pattern for each case would have to be compiled."""
    start = text.find(name)
    while start >= 0:
        end = start + len(name)
        is_word = not any(char == "_" or char.isalnum() for char in text[max(start - 1, 0) : start] + text[end : end + 1])
        text = text[:start] + VARYING + text[end:] if is_word else text
        start = text.find(name, start + 1 if is_word else end)
    return text
