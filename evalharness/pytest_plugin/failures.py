"""What a failed test says of itself: the assertion's own message alone, and a traceback without this package's frames."""

from __future__ import annotations

import ast
import linecache
import traceback
from collections.abc import Iterator
from types import TracebackType

import pytest

from evalharness.api.checks import any_text, excerpt
from evalharness.api.redaction import redactor

_MAX_CHARS = 2000  # only the assertion's message: the generation itself is in the row
_REWRITTEN = "@pytest_ar"  # what pytest's rewriting of asserts leaves among a module's names
_MAX_COMPARISON_CHARS = 300


def shorten(text: str) -> str:
    """Return the text, capped, with lone surrogates escaped, because xdist cannot carry them."""
    return excerpt(text.encode("utf-8", "backslashreplace").decode("utf-8"), _MAX_CHARS, count_rest=True)


def message_of(error: BaseException) -> str:
    """Return an error as a reason: of an assertion its message alone, else its comparison; of an error of code its type, too."""
    text = redactor().text(any_text(error)) or type(error).__name__  # before it is cut: half a secret is not found any more
    if isinstance(error, AssertionError):
        return shorten(_of_assertion(text, error))
    known = isinstance(error, (pytest.fail.Exception, pytest.skip.Exception))
    return shorten(text if known else f"{type(error).__name__}: {text}")


def _of_assertion(text: str, error: AssertionError) -> str:
    """Return the message without what pytest adds below it: the values of all parts of the assertion, and their reprs."""
    frames = list(traceback.walk_tb(error.__traceback__))
    if not frames or _REWRITTEN not in frames[-1][0].f_globals:
        return text
    frame, number = frames[-1]
    source = linecache.getline(frame.f_code.co_filename, number).strip()
    if source.startswith("raise"):  # no assert, so pytest has added nothing
        return text
    lines = text.split("\n")
    start = max((number for number, line in enumerate(lines) if line.startswith("assert ")), default=0)
    message = "\n".join(line.removeprefix("  ") for line in lines[:start]).strip()
    if message or not lines[start].startswith("assert "):
        return message or text
    return excerpt(_with_source(lines[start], source), _MAX_COMPARISON_CHARS)


def _with_source(comparison: str, source: str) -> str:
    """Return a comparison; of a bare value, which says nothing by itself, with its line of source."""
    value = comparison.removeprefix("assert ").removeprefix("not ")
    try:
        ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return comparison
    return f"{source}, which is {value}" if source.startswith("assert ") and source != comparison else comparison


def hide_own_frames(raised: pytest.ExceptionInfo[BaseException]) -> None:
    """Leave this package's frames out of what pytest shows, but for those of tasks: the error is in what called it.

    The error itself keeps them. Does nothing where no other frame is left.
    """
    kept = None
    for frame, last, line in reversed([(entry.tb_frame, entry.tb_lasti, entry.tb_lineno) for entry in _entries(raised.tb)]):
        if not _is_own(frame.f_globals.get("__name__")):
            kept = TracebackType(kept, frame, last, line)  # pytest follows these from one to the next
    if kept is not None:
        raised.traceback = type(raised.traceback)(kept)


def _entries(entry: TracebackType | None) -> Iterator[TracebackType]:
    while entry is not None:
        yield entry
        entry = entry.tb_next


def _is_own(module: object) -> bool:
    name = module if isinstance(module, str) else ""
    return name.startswith("evalharness.") and not name.startswith("evalharness.tasks.")
