"""The header line of the original's answers: `<DOMAIN=BBU>, <TASK=SUMMARY>`."""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["Header", "find_header", "header_line", "header_matches", "header_problems", "is_header"]

_HEADER = re.compile(r"<DOMAIN=([^<>{},\s]{1,32})>,\s{0,8}<TASK=([^<>{},\s]{1,32})>")


class Header(NamedTuple):
    """Domain and task as written."""

    domain: str
    task: str


def header_line(domain: str, task: str) -> str:
    """Return the line as it must be."""
    return f"<DOMAIN={domain.upper()}>, <TASK={task}>"


def find_header(text: str) -> tuple[Header | None, int]:
    """Return the first header in a text, None if there is none, and the place behind it."""
    match = _HEADER.search(text)
    return (Header(match[1], match[2]), match.end()) if match else (None, 0)


def is_header(line: str) -> bool:
    """Return whether a line holds a header and nothing else."""
    return _HEADER.fullmatch(line.strip()) is not None


def header_matches(header: Header | None, domain: str, task: str) -> bool:
    """Return whether a header names this domain, in any case, and this task."""
    return header is not None and header.domain.lower() == domain and header.task == task


def header_problems(header: Header | None, domain: str, task: str, text: str) -> tuple[str, ...]:
    """Return the reason why a text's header is not as it must be, () if it is."""
    if header is None:
        return ("the header line is missing",)
    if not header_matches(header, domain, task):
        return (f"header says {header.domain}, {header.task}",)
    return () if text.split("\n", 1)[0] == header_line(domain, task) else ("the header must be the whole first line",)
