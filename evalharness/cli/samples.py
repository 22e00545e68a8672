"""The rows of a run as one flat, typed table: JSONL, or Parquet through pyarrow.

One line per row of samples.jsonl, with the columns of `COLUMNS`, one `score.NAME` (float) per score and one `tag.NAME` (text) per
tag of the run; what a row has not is null. Generation columns are those of the first sample; `generations`, `details`, `options` and
`reference` are JSON text with all there is. Texts are never cut. Lone surrogates, which no UTF-8 file can hold, are written as `\\ud800`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from evalharness.cli.libraries import load
from evalharness.report.collecting import generations_of, mapping, text_of
from evalharness.report.text import printable
from evalharness.runs.reading import read_run, read_samples

__all__ = ["COLUMNS", "columns_of", "flat_rows", "write_jsonl", "write_parquet"]

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
"""Name → type (text, int, float, ints) of the columns that every export has. `step` and `epoch` are the checkpoint's, where it tells."""

_ROWS_PER_GROUP = 1000


def columns_of(run_dir: Path) -> dict[str, str]:
    """Return name → type of all columns of a run's table, scores and tags included, in their order."""
    scores: dict[str, None] = {}
    tags: dict[str, None] = {}
    for row in read_samples(run_dir):
        scores.update(dict.fromkeys(f"score.{printable(name)}" for name in mapping(row.get("scores"))))
        tags.update(dict.fromkeys(f"tag.{printable(name)}" for name in mapping(row.get("tags"))))
    return {**COLUMNS, **dict.fromkeys(scores, "float"), **dict.fromkeys(tags, "text")}


def flat_rows(run_dir: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of the table, one at a time; columns that a row has not are left out."""
    engines = read_run(run_dir).get("engines")
    known = [entry for entry in engines if isinstance(entry, Mapping)] if isinstance(engines, list) else []
    training = {text_of(entry.get("id")): mapping(entry.get("training")) for entry in known}
    for row in read_samples(run_dir):
        generations = generations_of(row)
        first = generations[0] if generations else {}
        trained = training.get(text_of(row.get("engine")), {})
        flat: dict[str, Any] = {name: row.get(name) for name in _ROW}
        flat |= {name: first.get(name) for name in (*_GENERATION_TEXTS, *_GENERATION_COUNTS)}
        flat |= {"duration_s": row.get("duration_s"), "step": trained.get("step"), "epoch": trained.get("epoch")}
        flat |= {"num_generations": len(generations), "token_ids": first.get("token_ids")}
        flat |= {"generations": json.dumps(generations) if len(generations) > 1 else None}
        flat |= {name: json.dumps(row[name]) for name in _AS_JSON if row.get(name) is not None}
        typed = {name: _typed(value, COLUMNS[name]) for name, value in flat.items()}
        typed |= {f"score.{printable(name)}": _typed(value, "float") for name, value in mapping(row.get("scores")).items()}
        typed |= {f"tag.{printable(name)}": _typed(value, "text") for name, value in mapping(row.get("tags")).items()}
        yield typed


def _typed(value: Any, kind: str) -> Any:
    """Return a value as its column has it, None for what is none of that type."""
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


def write_jsonl(run_dir: Path, path: Path) -> int:
    """Write the table as ASCII JSON, one object a line with every column, and return the number of lines."""
    columns = columns_of(run_dir)
    count = 0
    with path.open("w", encoding="ascii", newline="\n") as file:
        for row in flat_rows(run_dir):
            file.write(json.dumps({name: row.get(name) for name in columns}, allow_nan=False) + "\n")
            count += 1
    return count


def write_parquet(run_dir: Path, path: Path) -> int:
    """Write the table as Parquet and return the number of lines; `MissingDependency` without pyarrow."""
    pyarrow, parquet = load("pyarrow", "parquet"), load("pyarrow.parquet", "parquet")
    types = {"text": pyarrow.string(), "int": pyarrow.int64(), "float": pyarrow.float64(), "ints": pyarrow.list_(pyarrow.int64())}
    schema = pyarrow.schema([(name, types[kind]) for name, kind in columns_of(run_dir).items()])
    count = 0
    with parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        rows: list[dict[str, Any]] = []
        for row in flat_rows(run_dir):
            rows.append(row)
            if len(rows) == _ROWS_PER_GROUP:
                writer.write_table(pyarrow.Table.from_pylist(rows, schema=schema))
                count, rows = count + len(rows), []
        writer.write_table(pyarrow.Table.from_pylist(rows, schema=schema))
    return count + len(rows)
