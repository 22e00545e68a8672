"""What experiment trackers are told of a run: metrics and pictures of each training run, by the step of its checkpoints."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evalharness.report.collecting import mapping, text_of
from evalharness.report.tables import load_tables, records
from evalharness.report.text import printable, terminal_text
from evalharness.runs.reading import read_run

__all__ = ["Point", "Track", "tracks_of"]

NUM_PICTURES = 20
_UNSAFE = re.compile(r"[^\w.\- ]+")


@dataclass
class Point:
    """One checkpoint: `metrics` by "eval/test/metric", `pictures` (files of the run) by "eval/name". `step` 0 where it tells none."""

    engine: str
    checkpoint: str
    step: int
    metrics: dict[str, float] = field(default_factory=dict)
    pictures: dict[str, Path] = field(default_factory=dict)


@dataclass
class Track:
    """The checkpoints of one training run on one backend, by step: one line in a tracker. `config` is plain data for its page."""

    name: str
    run_id: str
    points: list[Point]
    config: dict[str, Any]


def tracks_of(run_dir: Path) -> list[Track]:
    """Return the tracks of a run; checkpoints without a step are tracks of their own. Raises `RecordError`."""
    run = read_run(run_dir)
    metrics = _metrics(run_dir)
    tracks: dict[str, Track] = {}
    for engine in records(run, "engines"):
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
    """Return a name that every tracker and file system takes: letters of any script, digits, '_', '-', '.' and blanks."""
    return _UNSAFE.sub("_", terminal_text(printable(text), 100)).strip(" .") or "unnamed"


def _key(*parts: object) -> str:
    return "/".join(safe_name(text_of(part)) for part in parts)


def _in_letters(expression: str) -> str:
    """Return a gate's expression with its signs as letters, which names of metrics may have."""
    for sign, letters in ((">=", "ge"), ("<=", "le"), (">", "gt"), ("<", "lt"), ("==", "eq")):
        expression = expression.replace(sign, letters)
    return expression


def _metrics(run_dir: Path) -> dict[str, dict[str, float]]:
    """Return every number of the report by engine and name."""
    tables = load_tables(run_dir)
    found: dict[str, dict[str, float]] = {}
    for (name, test, engine, metric), mean in tables.scores[["mean"]].itertuples(name=None):
        found.setdefault(str(engine), {})[_key(name, test, metric)] = float(mean)
    for (name, test, engine), counts in zip(tables.counts.index, tables.counts.to_dict("records"), strict=True):
        shown = {f"num_{what}": float(counts[what]) for what in ("cases", "miss", "invalid", "error") if what in counts}
        found.setdefault(str(engine), {}).update({_key(name, test, what): value for what, value in shown.items()})
    for entry in records(tables.run, "aggregates"):
        if isinstance(entry.get("value"), (int, float)):
            names = [part for part in (entry.get("eval"), entry.get("test"), entry.get("metric")) if part]
            found.setdefault(text_of(entry.get("engine")), {})[_key(*names)] = float(entry["value"])
    for gate in records(tables.run, "gates"):
        if isinstance(gate.get("passed"), bool):
            key = _key(gate.get("eval"), gate.get("test"), "gates", _in_letters(text_of(gate.get("expression"))))
            found.setdefault(text_of(gate.get("engine")), {})[key] = float(gate["passed"])
    for entry in records(tables.run, "throughput"):
        for what, value in entry.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                found.setdefault(text_of(entry.get("engine")), {})[_key("throughput", what)] = float(value)
    return found


def _pictures(run_dir: Path, run: dict[str, Any], engine: str) -> Iterator[tuple[str, Path]]:
    """Yield the pictures of spot checks; a path that leads out of the run's folder is none."""
    root, count = run_dir.resolve(), 0
    for entry in records(run, "outputs"):
        path = (root / text_of(entry.get("path"))).resolve()
        is_picture = path.suffix.lower() in (".png", ".jpg", ".jpeg")
        if text_of(entry.get("engine")) == engine and is_picture and path.is_relative_to(root) and path.is_file() and count < NUM_PICTURES:
            count += 1
            yield _key(entry.get("eval"), path.stem), path


def _config(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was asked, without what was left to its default."""
    options = {name: mapping(setting) for name, setting in mapping(run.get("config")).items()}
    asked = {name: setting.get("value") for name, setting in options.items() if setting.get("origin") != "default"}
    return {"run_id": text_of(run.get("run_id")), "git_commit": mapping(run.get("git")).get("commit"), **asked}
