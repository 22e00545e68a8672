"""The samples of a run as one flat table: a line per row of samples.jsonl, a column per fact, score and tag."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalharness.report.text import printable
from evalharness.runs.run_file import read_run, read_samples
from evalharness.runs.schema import entries_of, generations_of, mapping, text_of

if TYPE_CHECKING:
    import pandas

_ROW = ("run_id", "nodeid", "eval", "test", "case_id", "group", "engine", "checkpoint", "backend", "outcome", "problem", "prompt_sha256",
        "worker", "started_at")  # fmt: skip
_GENERATION_TEXTS = ("text", "raw_text", "prompt_text", "finish_reason", "stop_reason", "weight_version", "fallback")
_GENERATION_COUNTS = ("num_prompt_tokens", "num_completion_tokens", "seed")
_AS_JSON = ("details", "options", "reference")
COLUMNS: Mapping[str, str] = {
    **dict.fromkeys(_ROW, "text"),
    "duration_s": "float",
    "step": "int",
    "epoch": "float",
    **dict.fromkeys(_GENERATION_TEXTS, "text"),
    **dict.fromkeys(_GENERATION_COUNTS, "int"),
    "num_generations": "int",
    "token_ids": "ints",
    **dict.fromkeys(("generations", *_AS_JSON), "text"),
}
"""Name → type (text, int, float, ints) of the columns that every export has; `step` and `epoch` are the checkpoint's, null if unknown."""
_PANDAS_TYPES = {"text": "string", "int": "Int64", "float": "Float64", "ints": "object"}


def columns_of(run_dir: Path) -> dict[str, str]:
    """Return name → type of all columns of a run's table in their order: `COLUMNS`, then scores, then tags."""
    scores: dict[str, None] = {}
    tags: dict[str, None] = {}
    for row in read_samples(run_dir):
        scores.update(dict.fromkeys(f"score.{printable(name)}" for name in mapping(row.get("scores"))))
        tags.update(dict.fromkeys(f"tag.{printable(name)}" for name in mapping(row.get("tags"))))
    return {**COLUMNS, **dict.fromkeys(scores, "float"), **dict.fromkeys(tags, "text")}


def flat_rows(run_dir: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of the table, one at a time, without the columns that a row lacks."""
    training = {text_of(entry.get("id")): mapping(entry.get("training")) for entry in entries_of(read_run(run_dir).get("engines"))}
    for row in read_samples(run_dir):
        generations = generations_of(row)
        first = generations[0] if generations else {}
        trained = training.get(text_of(row.get("engine")), {})
        flat: dict[str, Any] = {name: row.get(name) for name in _ROW}
        flat |= {name: first.get(name) for name in (*_GENERATION_TEXTS, *_GENERATION_COUNTS)}
        flat |= {"duration_s": row.get("duration_s"), "step": trained.get("step"), "epoch": trained.get("epoch")}
        flat |= {"num_generations": len(generations), "token_ids": first.get("token_ids")}
        flat |= {"generations": json.dumps(generations) if len(generations) > 1 else None}
        flat |= {name: json.dumps(value) for name in _AS_JSON if (value := row.get(name)) is not None}
        typed = {name: _typed(value, COLUMNS[name]) for name, value in flat.items()}
        typed |= {f"score.{printable(name)}": _typed(value, "float") for name, value in mapping(row.get("scores")).items()}
        typed |= {f"tag.{printable(name)}": _typed(value, "text") for name, value in mapping(row.get("tags")).items()}
        yield typed


def _typed(value: Any, kind: str) -> Any:
    """Return a value as its column's type, None for a value of another type."""
    if value is None:
        return None
    if kind == "text":
        return printable(value if isinstance(value, str) else str(value))
    is_number = isinstance(value, (int, float))
    if kind == "float":
        number = float(value) if is_number and abs(value) < 1e308 else math.nan
        return number if math.isfinite(number) else None
    if kind == "int":
        return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63 else None
    return value if isinstance(value, list) and all(isinstance(part, int) and abs(part) < 2**63 for part in value) else None


def samples_frame(run_dir: str | PathLike[str]) -> pandas.DataFrame:
    """Return the samples of a run, such as `reports/latest`, as a data frame: a line per test, case and engine.

    Columns are those of `evalharness export` (docs/command_line.md), in pandas' nullable types. Raises `RecordError` where the folder
    is not a readable run.
    """
    import pandas

    columns = columns_of(Path(run_dir))
    frame = pandas.DataFrame(flat_rows(Path(run_dir)), columns=list(columns), dtype=object)
    return frame.astype({name: _PANDAS_TYPES[kind] for name, kind in columns.items()})
