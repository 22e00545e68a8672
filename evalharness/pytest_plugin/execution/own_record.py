"""What this process has recorded of a case whose tests have all run, and one of which runs once more."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from evalharness.api.requests import GenerationFailure, GenerationResult

__all__ = ["OwnRecord", "read_own_record"]


class OwnRecord(NamedTuple):
    """The outcome of each sample, and the results of the steps before them."""

    samples: dict[int, GenerationResult | GenerationFailure]
    steps: list[list[GenerationResult]]


def read_own_record(journal: Path, engine_id: str, eval_name: str, case_id: str) -> OwnRecord:
    """Return the latest that a journal says of a case; nothing is kept in memory for it, for it is rarely asked."""
    key = {"engine": engine_id, "eval": eval_name, "case_id": case_id}
    samples: dict[int, GenerationResult | GenerationFailure] = {}
    in_steps: dict[tuple[int, int], GenerationResult] = {}
    shape: list[int] = []
    for line in _outcome_lines(journal):
        if any(line[name] != value for name, value in key.items()):
            continue
        if line["kind"] == "step":
            in_steps[line["step"], line["request"]] = GenerationResult.from_json(line["generation"])
            continue
        made = line.get("generation")
        samples[line["sample"]] = _failure(line) if made is None else GenerationResult.from_json(made)
        shape = line.get("steps", [])
    every = [[in_steps.get((step, request)) for request in range(size)] for step, size in enumerate(shape)]
    return OwnRecord(samples, [[result for result in step if result is not None] for step in every])


def _failure(line: dict[str, Any]) -> GenerationFailure:
    return GenerationFailure.recorded(line["failure"], line["problem"], line.get("cause"))


def _outcome_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield what a journal says of generations, which another thread may be adding to."""
    with path.open("rb") as lines:
        for line in lines:
            if line.startswith((b'{"kind":"generation"', b'{"kind":"failure"', b'{"kind":"step"')) and line.endswith(b"\n"):
                yield json.loads(line)
