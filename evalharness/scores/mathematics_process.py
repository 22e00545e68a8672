"""The other side of mathematics.py: compares with math_verify, in a process that may be ended at any time."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import Any

from math_verify import parse, verify

_MARKS = re.compile(r"(?<!\\)\$|\\(?:\(|\[|boxed\b)")


class _Timeouts(logging.Handler):
    """Counts math_verify's timeouts, which it tells its log only."""

    num_seen = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.num_seen += str(record.msg).startswith("Timeout during")


_timeouts = _Timeouts()
logging.getLogger("math_verify").addHandler(_timeouts)


def compare(text: str, references: Sequence[str], is_answer: bool) -> tuple[bool, str]:
    """Return whether a text equals one of the references, and why that could not be told."""
    if is_answer and any("".join(text.split()) == "".join(reference.split()) for reference in references):
        return True, ""
    seen, given, problems = _timeouts.num_seen, _read(text, is_answer), []
    if not given:
        problems.append("nothing to compare in the answer")
    for reference in references:
        wanted = _read(reference, is_answer)
        if not wanted:
            problems.append("nothing to compare in the reference")
        elif given and verify(gold=wanted, target=given):
            return True, ""
    if _timeouts.num_seen > seen:
        problems.append("math_verify gave up after 5 s")
    return False, "; ".join(problems)


def _read(text: str, is_answer: bool) -> list[Any]:
    """Return the expression that a text ends with, and its text."""
    found: list[Any] = parse(text if not is_answer or _MARKS.search(text) else f"${text}$")
    return found
