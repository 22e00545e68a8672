r"""Searches with patterns that begin with a repeat of one kind of character, such as `(?s).*#### ` or `\s+$`: each run is tried once.

Python's `re` begins anew at every character of a run, which takes the square of its length. But what fits nowhere behind the run's first
character fits nowhere behind the others either. The matches are those of `re`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

_in_re = sys.version_info >= (3, 11)
_parser: Any = import_module("re._parser" if _in_re else "sre_parse")
_compiler: Any = import_module("re._compiler" if _in_re else "sre_compile")
_ONE_CHARACTER = ("LITERAL", "NOT_LITERAL", "ANY", "IN")


class LeadingRuns:
    """The run that a pattern begins with. `rest`: the parsed items behind it."""

    def __init__(self, parsed: Any, items: list[Any]) -> None:
        self.rest = items[1:]
        _, _, body = items[0][1]
        self._run = _compiler.compile(_parser.SubPattern(parsed.state, [(_parser.MAX_REPEAT, (0, _parser.MAXREPEAT, body))]))

    def find_all(self, compiled: re.Pattern[str], text: str) -> list[Any]:
        """Return what `findall` does."""
        groups = range(1, compiled.groups + 1) if compiled.groups else (0,)
        found = [tuple(match[group] or "" for group in groups) for match in self._matches(compiled, text)]
        return [each[0] for each in found] if len(groups) == 1 else found

    def replace_all(self, compiled: re.Pattern[str], text: str, replacement: str, count: int, most: int | None) -> str | None:
        """Return what `sub` does, None where more than `most` characters replace the matches."""
        parts, end, num_made = [], 0, 0
        for number, match in enumerate(self._matches(compiled, text), start=1):
            new = match.expand(replacement) if "\\" in replacement else replacement
            num_made += len(new)
            if most is not None and num_made > most:
                return None
            parts += [text[end : match.start()], new]
            end = match.end()
            if number == count:
                break
        return "".join([*parts, text[end:]])

    def _matches(self, compiled: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
        start = 0
        while start <= len(text):
            match = compiled.match(text, start)
            if match is not None:
                yield match
                start = match.end()
            else:
                run = self._run.match(text, start)
                start = run.end() + 1


def leading_runs(parsed: Any) -> LeadingRuns | None:
    """Return the run that a parsed pattern begins with; None if it begins otherwise, may match nothing, or refers to a group."""
    items = list(parsed)
    while items and items[0][0] is _parser.SUBPATTERN and not any(items[0][1][1:3]):  # a group without flags of its own
        items = [*items[0][1][-1], *items[1:]]
    if not items or items[0][0] not in (_parser.MAX_REPEAT, _parser.MIN_REPEAT) or parsed.getwidth()[0] == 0:
        return None
    _, most, body = items[0][1]
    is_run = most is _parser.MAXREPEAT and len(body) == 1 and str(body[0][0]) in _ONE_CHARACTER
    return LeadingRuns(parsed, items) if is_run and "GROUPREF" not in repr(items) else None
