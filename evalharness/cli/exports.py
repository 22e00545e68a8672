"""A finished run for other tools: a flat table of its samples (JSONL, Parquet), and its metrics by training step.

Reads the run directory only, which holds no secrets (`api/redaction.py`). Optional libraries are imported when an export needs them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from evalharness.api.errors import MissingDependency
from evalharness.api.installing import missing_package
from evalharness.report.tables import load_tables
from evalharness.report.text import printable, terminal_text
from evalharness.runs.run_file import read_run, read_samples
from evalharness.runs.schema import RunFile, entries_of, generations_of, mapping, text_of

__all__ = ["COLUMNS", "Point", "Track", "columns_of", "flat_rows", "load", "tracks_of", "write_jsonl", "write_parquet"]

NUM_PICTURES = 20
"""Images of spot checks that trackers get per engine, at most."""
_UNSAFE = re.compile(r"[^\w.\- ]+")


def load(module: str, extra: str) -> Any:
    """Return the imported module. Raises `MissingDependency` with the command that installs `extra`."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingDependency(missing_package("this export", error, extra)) from error


@dataclass
class Point:
    """One checkpoint: `metrics` by "eval/test/metric", `pictures` (files of the run) by "eval/name"; `step` is 0 if unknown."""

    engine: str
    checkpoint: str
    step: int
    metrics: dict[str, float] = field(default_factory=dict)
    pictures: dict[str, Path] = field(default_factory=dict)


@dataclass
class Track:
    """The checkpoints of one training run on one backend, by step: one line in a tracker. `config` is plain data."""

    name: str
    run_id: str
    points: list[Point]
    config: dict[str, Any]


def tracks_of(run_dir: Path) -> list[Track]:
    """Return the tracks of a run; each checkpoint without a step is a track of its own. Raises `RecordError` for an unreadable run."""
    run = read_run(run_dir)
    metrics = _metrics(run_dir)
    tracks: dict[str, Track] = {}
    for engine in entries_of(run.get("engines")):
        name = text_of(engine.get("id"))
        step = mapping(engine.get("training")).get("step")
        step = step if isinstance(step, int) and not isinstance(step, bool) else None
        path = text_of(engine.get("checkpoint_path"))
        title = f"{text_of(engine.get('backend'))}-{Path(path).parent.name}" if step is not None else name
        dtype = engine.get("dtype")
        title = safe_name(f"{title}-{dtype}" if step is not None and dtype else title)
        track = tracks.setdefault(title, Track(title, text_of(run.get("run_id")) or run_dir.name, [], _config(run)))
        pictures = dict(_pictures(run_dir, run, name))
        track.points.append(Point(name, text_of(engine.get("checkpoint")), step or 0, metrics.get(name, {}), pictures))
    for track in tracks.values():
        track.points.sort(key=lambda point: point.step)
    return list(tracks.values())


def safe_name(text: str) -> str:
    """Return a name that every tracker and file system accepts: letters of any script, digits, '_', '-', '.' and blanks."""
    return _UNSAFE.sub("_", terminal_text(printable(text), 100)).strip(" .") or "unnamed"


def _key(*parts: str | float | None) -> str:
    return "/".join(safe_name(text_of(part)) for part in parts)


def _in_letters(expression: str) -> str:
    """Return a gate's expression with letters for its signs, which names of metrics may not have."""
    for sign, letters in ((">=", "ge"), ("<=", "le"), (">", "gt"), ("<", "lt"), ("==", "eq")):
        expression = expression.replace(sign, letters)
    return expression


def _metrics(run_dir: Path) -> dict[str, dict[str, float]]:
    """Return {engine: {name: value}} of every number of the report."""
    tables = load_tables(run_dir)
    metrics: dict[str, dict[str, float]] = {}
    for (name, test, engine, metric), score in tables.scores.items():
        metrics.setdefault(engine, {})[_key(name, test, metric)] = score.mean
    for (name, test, engine), counts in tables.counts.items():
        for what in ("cases", "miss", "invalid", "error"):
            metrics.setdefault(engine, {})[_key(name, test, f"num_{what}")] = float(counts[what])
    for entry in entries_of(tables.run.get("aggregates")):
        if isinstance(entry.get("value"), (int, float)):
            names = [part for part in (entry.get("eval"), entry.get("test"), entry.get("metric")) if part]
            metrics.setdefault(text_of(entry.get("engine")), {})[_key(*names)] = float(entry["value"])
    for gate in entries_of(tables.run.get("gates")):
        passed = gate.get("passed")
        if isinstance(passed, bool):
            key = _key(gate.get("eval"), gate.get("test"), "gates", _in_letters(text_of(gate.get("expression"))))
            metrics.setdefault(text_of(gate.get("engine")), {})[key] = float(passed)
    for total in entries_of(tables.run.get("throughput")):
        for what, value in total.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                metrics.setdefault(text_of(total.get("engine")), {})[_key("throughput", what)] = float(value)
    return metrics


def _pictures(run_dir: Path, run: RunFile, engine: str) -> Iterator[tuple[str, Path]]:
    """Yield name and path of an engine's images of spot checks; paths that lead out of the run directory are left out."""
    root, count = run_dir.resolve(), 0
    for entry in entries_of(run.get("outputs")):
        path = (root / text_of(entry.get("path"))).resolve()
        is_picture = path.suffix.lower() in (".png", ".jpg", ".jpeg")
        if text_of(entry.get("engine")) == engine and is_picture and path.is_relative_to(root) and path.is_file() and count < NUM_PICTURES:
            count += 1
            yield _key(entry.get("eval"), path.stem), path


def _config(run: RunFile) -> dict[str, Any]:
    """Return the options that someone set, with the run's id and commit."""
    settings = {name: mapping(setting) for name, setting in mapping(run.get("config")).items()}
    options = {name: setting.get("value") for name, setting in settings.items() if setting.get("origin") != "default"}
    return {"run_id": text_of(run.get("run_id")), "git_commit": mapping(run.get("git")).get("commit"), **options}


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

_ROWS_PER_GROUP = 1000


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


def write_jsonl(run_dir: Path, path: Path) -> int:
    """Write the table as ASCII JSON, one object per line with every column, and return the number of lines."""
    columns = columns_of(run_dir)
    count = 0
    with path.open("w", encoding="ascii", newline="\n") as file:
        for row in flat_rows(run_dir):
            file.write(json.dumps({name: row.get(name) for name in columns}, allow_nan=False) + "\n")
            count += 1
    return count


def write_parquet(run_dir: Path, path: Path) -> int:
    """Write the table as Parquet and return the number of lines. Raises `MissingDependency` without pyarrow."""
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
