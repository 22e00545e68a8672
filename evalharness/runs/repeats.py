"""Repeats of cases (--noise): the same question again in other company, as a case of its own whose id ends in `~againN`.

Its generations and its row are in the journal like any case's; no row of samples.jsonl and no metric is made of it.
"""

from __future__ import annotations

import re

_MARK = "~again"
_REPEAT = re.compile(r"(.+)~again([1-9]\d{0,3})", re.DOTALL)


def repeat_id(case_id: str, number: int) -> str:
    """Return the id of a case's repeat; repeats count from 1."""
    return f"{case_id}{_MARK}{number}"


def split_repeat(case_id: str) -> tuple[str, int]:
    """Return the id of the case that is repeated and the number of the repeat; 0 for a case that is no repeat."""
    match = _REPEAT.fullmatch(case_id) if _MARK in case_id else None
    return (case_id, 0) if match is None else (match[1], int(match[2]))


def repeat_number(nodeid: str) -> int:
    """Return the number of the repeat of which a node id is a test; 0 for any other test."""
    return split_repeat(nodeid.removesuffix("]"))[1]
