"""JSON out of a model's answer, and the record of answers that hold none. Never raises on any text, linear in its length."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalharness.api.errors import RecordError
from evalharness.tasks.shared import balanced_spans, loads
from evalharness.tasks.thoughts import leftover_thinking

__all__ = ["Extracted", "extract_object", "failure_row", "record_failure"]

FAILURES = Path("reflection_cache") / "rule_search_proposer_failures.jsonl"
_FENCE = "```"


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
            value = loads(text[start:end])
        except ValueError as error:
            problem = f"no JSON in the {source} part: {error}"
            continue
        if isinstance(value, dict):
            return Extracted(value, source, leftover_thinking(text[:start]) == "open", "")
        problem = f"the {source} part is no object, but {type(value).__name__}"
    return Extracted(None, None, False, problem)


def _spans(text: str) -> Iterator[tuple[str, int, int]]:
    fence = text.find(_FENCE)
    if fence >= 0:
        start = text.find("\n", fence)
        end = text.find(_FENCE, start) if start >= 0 else -1
        if end >= 0:
            yield "fence", start + 1, end
    balanced = next(balanced_spans(text), None)
    if balanced is not None:
        yield "balanced", *balanced


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
