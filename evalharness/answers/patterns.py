"""Regular expressions of users on hostile text: at once where their work is bounded, else in a process that can be stopped.

Python's `re` tries one way after the other, and a pattern such as `(a+)+b` has more of them than there are atoms. How many ways there can
be in a text of n characters follows from the pattern; nearly all patterns of evals need a few steps per character.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib import import_module
from typing import Any

from evalharness.answers.bounded import BoundedFunction, OutOfBounds
from evalharness.answers.leading_runs import leading_runs
from evalharness.api.errors import ContractValueError, EvalHarnessError

_parser: Any = import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")

MAX_STEPS = 50_000_000
"""Up to so many ways to try, half a second of work at most, a text is searched at once."""
LIMIT_S = 5.0
"""Processor time for any other search."""
_CHARACTERS = ("LITERAL", "NOT_LITERAL", "ANY", "IN", "CATEGORY", "RANGE", "AT")


class BoundedPattern:
    """A compiled pattern. `ContractValueError` if it is none; searches raise `EvalHarnessError` after `LIMIT_S` of processor time."""

    def __init__(self, pattern: str, flags: int = 0) -> None:
        try:
            self._compiled = re.compile(pattern, flags)
            parsed = _parser.parse(pattern, flags)
        except (re.error, RecursionError, OverflowError) as error:
            raise ContractValueError(f"{pattern!r} is not a regular expression: {error}") from None
        self._items, self.runs = list(parsed), leading_runs(parsed)
        self._is_anchored = _is_anchored(self._items, self._compiled.flags)

    @property
    def num_groups(self) -> int:
        """The number of its groups."""
        return self._compiled.groups

    def steps(self, text: str) -> float:
        """Return an upper bound of the ways to try in a text, infinity where there is none."""
        return min(self._steps_of_re(text), self._steps_by_runs(text))

    def _steps_of_re(self, text: str) -> float:
        starts = 1 if self._is_anchored else self._num_places(self._items, text)
        return len(text) + (starts and starts * _ways(self._items, len(text), is_last=True))

    def _steps_by_runs(self, text: str) -> float:
        if self.runs is None:
            return math.inf
        places = self._num_places(self.runs.rest, text)
        return 2 * (len(text) + (places and places * _ways(self.runs.rest, len(text), is_last=True)))  # a match may end within its run

    def _num_places(self, items: Sequence[Any], text: str) -> int:
        """Return in how many places of a text these items can begin."""
        needed = _needed_text(items)
        if needed and not self._compiled.flags & re.IGNORECASE:
            return text.count(needed)
        if needed and text.isascii():  # beyond ASCII two characters may be one letter
            return text.lower().count(needed.lower())
        return len(text) + 1

    def matches(self, text: str) -> list[str | tuple[str, ...]]:
        """Return what `findall` does: the matches, or their groups."""
        found: list[Any] = self._run(find_all, text)
        return [tuple(match) if isinstance(match, list) else match for match in found]

    def replace(self, text: str, replacement: str = "", count: int = 0, most: int | None = None) -> str:
        """Return the text with its matches, or the first `count`, replaced as `re.sub` does.

        `EvalHarnessError` where what replaces them has more than `most` characters.
        """
        replaced: str | None = self._run(replace_all, text, replacement, count, most)
        if replaced is None:
            raise EvalHarnessError(f"the pattern {self._compiled.pattern!r} is replaced by more than {most} characters")
        return replaced

    def _run(self, search: Callable[..., Any], text: str, *arguments: Any) -> Any:
        if self._steps_of_re(text) <= MAX_STEPS:
            return search(self._compiled, text, *arguments)
        if self.runs is not None and self._steps_by_runs(text) <= MAX_STEPS:
            by_runs: Callable[..., Any] = getattr(self.runs, search.__name__)
            return by_runs(self._compiled, text, *arguments)
        try:
            return _elsewhere(search.__name__, self._compiled.pattern, self._compiled.flags, text, *arguments)
        except OutOfBounds as bounds:
            raise EvalHarnessError(
                f"the pattern {self._compiled.pattern!r} was given up on a text of {len(text)} characters: it took {bounds}; "
                "write it without repeats within or beside repeats that match the same characters"
            ) from None


@cache
def pattern(text: str, flags: int = 0) -> BoundedPattern:
    """Return the pattern of a text, compiled once."""
    return BoundedPattern(text, flags)


def find_all(compiled: re.Pattern[str], text: str) -> list[Any]:
    """Return all matches, or their groups."""
    return compiled.findall(text)


def replace_all(compiled: re.Pattern[str], text: str, replacement: str, count: int, most: int | None) -> str | None:
    """Return the text with its matches replaced, None where that takes more than `most` characters."""
    if most is None:
        return compiled.sub(replacement, text, count)
    num_made = 0

    def made(match: re.Match[str]) -> str:
        nonlocal num_made
        new = match.expand(replacement) if "\\" in replacement else replacement
        num_made += len(new)
        return new if num_made <= most else ""

    replaced = compiled.sub(made, text, count)
    return replaced if num_made <= most else None


_SEARCHES = {search.__name__: search for search in (find_all, replace_all)}


def run_pattern(search: str, pattern: str, flags: int, text: str, *arguments: Any) -> Any:
    """Return what a search gives: runs in the other process."""
    return _SEARCHES[search](re.compile(pattern, flags), text, *arguments)


_elsewhere = BoundedFunction(f"{__name__}:{run_pattern.__name__}", limit_s=LIMIT_S)


def _needed_text(items: Iterable[Any]) -> str:
    """Return the text that stands where these items begin, or right before it."""
    found = ""
    for kind, value in items:
        if str(kind) == "LITERAL":
            found += chr(value)
        elif found or str(kind) not in ("AT", "ASSERT"):
            break
        elif str(kind) == "ASSERT" and (behind := _needed_text(value[1])):
            return behind
    return found


def _is_anchored(items: Sequence[Any], flags: int) -> bool:
    """Return whether a pattern fits at the text's beginning only."""
    kind, value = map(str, items[0]) if items else ("", "")
    return kind == "AT" and (value == "AT_BEGINNING_STRING" or (value == "AT_BEGINNING" and not flags & re.MULTILINE))


def _ways(items: Iterable[Any], length: int, *, is_last: bool) -> float:
    """Return how many ways there are to match a sequence from one start; behind a last repeat nothing fails, so none is tried twice."""
    items, ways = list(items), 1.0
    for place, (kind, value) in enumerate(items):
        ways *= _ways_of(str(kind), value, length, is_last and place == len(items) - 1)
    return ways


def _ways_of(kind: str, value: Any, length: int, is_last: bool) -> float:
    if kind in _CHARACTERS or kind in ("FAILURE", "GROUPREF"):
        return float(length) if kind == "GROUPREF" else 1.0
    if kind == "SUBPATTERN":
        return _ways(value[-1], length, is_last=is_last)
    if kind in ("BRANCH", "GROUPREF_EXISTS"):
        branches = value[1] if kind == "BRANCH" else [branch for branch in value[1:] if branch is not None]
        return sum(_ways(branch, length, is_last=is_last) for branch in branches) + (kind != "BRANCH")
    if kind in ("ASSERT", "ASSERT_NOT"):
        return _ways(value[1], length, is_last=False)
    if kind in ("MAX_REPEAT", "MIN_REPEAT"):
        low, high, body = value
        shortest, longest = body.getwidth()
        times, inner = min(int(high), length) - min(int(low), length), _ways(body, length, is_last=False)
        if inner == 1 and shortest == longest:
            return 1.0 if is_last and kind == "MAX_REPEAT" else 1.0 + times
        return math.inf if int(high) > 8 or shortest == 0 else (1 + inner) ** int(high)
    return math.inf  # a kind of a newer Python
