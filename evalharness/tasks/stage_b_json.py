"""JSON out of a model's answer, and the record of answers that hold none. Never raises on any text, linear in its length."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from evalharness.errors import RecordError

__all__ = ["Extracted", "extract_object", "failure_row", "marks", "record_failure"]

FAILURES = Path("reflection_cache") / "rule_search_proposer_failures.jsonl"
_FENCE = "```"
_MARKS = {quote: re.compile(rf"\\.|[{quote}{{}}]", re.DOTALL) for quote in ('"', "'")}


@dataclass(frozen=True)
class Extracted:
    """The JSON object that an answer holds, None with the `problem` where there is none.

    `source`: "fence" (a fenced block), "balanced" (the first balanced braces).
    `in_thinking`: it stood inside think tags, which a reader should know.
    """

    value: dict[str, Any] | None
    source: str | None
    in_thinking: bool
    problem: str


def extract_object(text: str) -> Extracted:
    """Return the object in a text: of a fenced block, else of the first balanced braces.

    The original then tries from the first brace to the last one. As braces in strings do not count here, whatever is JSON
    from there on is what the first balanced braces hold.
    """
    problem = "the answer holds no JSON object"
    for source, start, end in _spans(text):
        try:
            value = json.loads(text[start:end], parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            problem = f"no JSON in the {source} part: {error}"
            continue
        if isinstance(value, dict):
            return Extracted(value, source, _is_inside_thinking(text, start), "")
        problem = f"the {source} part is no object, but {type(value).__name__}"
    return Extracted(None, None, False, problem)


def _refuse(literal: str) -> NoReturn:
    raise ValueError(f"{literal} is no JSON")


def _spans(text: str) -> Iterator[tuple[str, int, int]]:
    fence = text.find(_FENCE)
    if fence >= 0:
        start = text.find("\n", fence)
        end = text.find(_FENCE, start) if start >= 0 else -1
        if end >= 0:
            yield "fence", start + 1, end
    balanced = _first_balanced(text)
    if balanced is not None:
        yield "balanced", *balanced


def marks(text: str, position: int = 0, quote: str = '"') -> Iterator[tuple[int, int]]:
    """Yield the spans of braces and of strings with their quotes, in order; braces in strings do not count.

    A string that never ends is left out. Linear: one look at each quote, brace and escape.
    """
    opened = -1
    for match in _MARKS[quote].finditer(text, position):
        if opened < 0 and match[0] in "{}":
            yield match.span()
        elif match[0] == quote:
            if opened >= 0:
                yield opened, match.end()
            opened = match.start() if opened < 0 else -1


def _first_balanced(text: str) -> tuple[int, int] | None:
    """Return the matched braces that open first; what stands before the first brace may hold single quotes."""
    first: tuple[int, int] | None = None
    opened: list[int] = []
    for start, end in marks(text, max(0, text.find("{"))):
        if text[start] == "{":
            opened.append(start)
        elif text[start] == "}" and opened:
            begin = opened.pop()
            if first is None or begin < first[0]:
                first = begin, end
            if not opened:
                return first  # nothing that opened earlier is still open
    return first


def _is_inside_thinking(text: str, position: int) -> bool:
    return text.rfind("<think>", 0, position) > text.rfind("</think>", 0, position)


def failure_row(mission: str, step: int, text: str, problem: str) -> dict[str, Any]:
    """Return the row that records an answer without usable JSON; it counts as an answer without candidates."""
    return {"mission": mission, "step": step, "problem": problem, "response": text}


def record_failure(run_dir: Path | str, row: Mapping[str, Any]) -> Path:
    """Return the file of failures under a run's folder, the row added at its end. `RecordError` if it cannot be written."""
    path = Path(run_dir) / FAILURES
    line = f"{json.dumps(dict(row), allow_nan=False)}\n".encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(line)
    except OSError as error:
        raise RecordError(f"{path} cannot be written: {error}") from error
    return path
