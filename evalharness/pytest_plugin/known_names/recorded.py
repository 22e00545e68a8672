"""The names of the scores that a test records, and of the metrics that an eval's functions return, read from their code.

They are all that can come, and maybe more; "*" stands for a part that only running code knows. None wherever the code leaves a doubt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from evalharness.pytest_plugin.known_names.frames import Frame, source_of
from evalharness.pytest_plugin.known_names.reader import Reader, Unclear
from evalharness.pytest_plugin.known_names.values import Arguments, Known, Made, Values

_KEEPS_COPIES = frozenset({"details", "score"})
"""Fixtures that change nothing that they get."""
_MOST_CALLS = 10


def names_recorded(test: Any, fixture: str = "score") -> frozenset[str] | None:
    """Return the names that a test function gives to its fixture, by itself or in functions that it hands it to."""

    def read(reader: Reader) -> frozenset[str]:
        uses = source_of(test)
        if uses is None or hasattr(test, "__wrapped__") or hasattr(test, "__signature__"):
            raise Unclear  # its fixtures may be those of another function
        frame = Frame(test, uses, {})
        frame.trusted = _KEEPS_COPIES & {*uses.parameters} - uses.unclear - uses.bindings.keys()
        return _recorded(fixture, frame, reader, _MOST_CALLS) if fixture in uses.parameters else frozenset()

    return _told(read)


def _recorded(name: str, frame: Frame, reader: Reader, num_calls: int) -> frozenset[str]:
    """Return the names that calls of one parameter of a function give; `Unclear` for another use of it, or more calls within calls."""
    if num_calls == 0 or not frame.uses.is_only_called(name):
        raise Unclear
    names: set[str] = set()
    for call in frame.uses.calls.get(name, ()):
        names |= {keyword.arg for keyword in call.keywords if keyword.arg is not None}
        for mapping in (keyword.value for keyword in call.keywords if keyword.arg is None):
            if frame.uses.is_within(call):
                raise Unclear
            names |= reader.keys(reader.values(mapping, frame))
    for call, argument in frame.uses.handed_to.get(name, ()):
        for called in reader.values(call.func, frame):
            parameter, inner = reader.taken(called, call, argument, frame)
            inner.trusted = frozenset({parameter})
            names |= _recorded(parameter, inner, reader, num_calls - 1)
    return frozenset(names)


def names_returned(function: Any, *, nested: bool = False) -> frozenset[str] | None:
    """Return the keys of the mappings that a function returns; `nested`: of those in it, or in its field `metrics`."""

    def read(reader: Reader) -> frozenset[str]:
        found: Values = reader.called((Known(function),), Arguments(are_all=False))
        if nested:
            whole = (one for each in found for one in (reader.attribute(each, "metrics") if isinstance(each, Made) else (each,)))
            found = tuple(value for each in whole for value in reader.elements_of_dict(each))
        return reader.keys(found)

    return _told(read)


def _told(read: Callable[[Reader], frozenset[str]]) -> frozenset[str] | None:
    try:
        names = read(Reader())
    except Exception:  # `Unclear`, and whatever objects of other packages raise when they are looked at
        return None
    return names if all(name.strip("*") for name in names) else None
