"""From run directories to the checkpoints of training runs in the order of their steps, each with what was measured of it.

A *track* is what belongs on one line: the checkpoints of one folder on one backend with one dtype. A checkpoint that several
runs measured has, of each test, what the run that started last found.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evalharness.analysis.comparison.asked import differences
from evalharness.analysis.comparison.sheets import Side
from evalharness.analysis.comparison.sides import engine_entry, entries_of, read_sides
from evalharness.api.errors import ComparisonError, RecordError
from evalharness.checkpoints.info import natural_key

__all__ = ["Point", "Track", "read_tracks", "run_folders"]

_NUMBERED = re.compile(r".*\bcheckpoint-([0-9]+)")
_Shape = tuple[str, str, str]


@dataclass
class Point:
    """One checkpoint of a track. `step` is None where neither trainer_state.json nor the name tells."""

    name: str
    step: float | None
    epoch: float | None
    side: Side
    run_ids: list[str]
    started_at: str
    throughput: Mapping[str, Any]
    """run.json's entry of the run that started last; empty where it has none."""
    gates: frozenset[tuple[str, str, str]] = frozenset()
    """Eval, test and metric of its gates."""
    asked_otherwise: str = ""
    """What it was asked differently from the track's last checkpoint, "" for nothing: then its numbers cannot be set beside the others."""


@dataclass
class Track:
    """Checkpoints by step; where one has none (`is_by_step` is False), as their names and times order them."""

    label: str
    points: list[Point] = field(default_factory=list)

    @property
    def is_by_step(self) -> bool:
        """Whether every checkpoint has a step of its own."""
        steps = [point.step for point in self.points]
        return None not in steps and len(set(steps)) == len(steps)


def run_folders(patterns: Sequence[str]) -> list[Path]:
    """Return the run directories that paths and patterns name, each once; what a pattern matches and is none is passed over.

    Raises `ComparisonError` for a path that is no run directory, and where nothing is left.
    """
    found: dict[Path, Path] = {}
    for pattern in patterns:
        named = Path(pattern).exists() or not glob.has_magic(pattern)
        for path in [Path(pattern)] if named else sorted(map(Path, glob.glob(pattern))):
            if (path / "run.json").is_file() or (path / "samples.jsonl").is_file():
                found.setdefault(path.resolve(), path)
            elif named:
                raise ComparisonError(f"{path} is no run directory; give reports/RUN_ID, or a pattern in quotes: 'reports/*'")
    if not found:
        raise ComparisonError(f"{', '.join(patterns)} names no run directory; give reports/RUN_ID, or a pattern in quotes: 'reports/*'")
    return list(found.values())


def read_tracks(folders: Sequence[Path], notes: list[str]) -> list[Track]:
    """Return the tracks of runs, those with the most checkpoints first; runs that cannot be used are told in `notes`.

    Raises `ComparisonError` where no run holds a judged row.
    """
    measured: list[tuple[str, _Shape, Point, str]] = []
    for folder in folders:
        try:
            run, sides = read_sides(folder)
        except RecordError as error:
            notes.append(f"{folder.name} is left out: {error}")
            continue
        if not sides:
            notes.append(f"{folder.name} is left out: it holds no rows; a run that was killed gets them with: evalharness report {folder}")
        for side in sides:
            notes += [f"{folder.name}: {note}" for note in side.notes]
            measured.append(_measured(run, side))
    if not measured:
        raise ComparisonError("none of these runs holds a row; look into them with: evalharness report RUN_DIR")
    tracks: dict[_Shape, dict[str, Point]] = {}
    for path, shape, point, fingerprint in sorted(measured, key=lambda one: one[2].started_at):
        _add(tracks.setdefault(shape, {}), path, point, fingerprint, notes)
    return sorted(_labelled(tracks), key=lambda track: -len(track.points))


def _measured(run: Mapping[str, Any], side: Side) -> tuple[str, _Shape, Point, str]:
    entry = engine_entry(run, side.engine)
    path = str(entry.get("checkpoint_path") or side.checkpoint)
    training = entry.get("training") if isinstance(entry.get("training"), Mapping) else {}
    assert training is not None
    named = _NUMBERED.fullmatch(side.checkpoint)
    step = _number(training.get("step"))
    throughput = next((one for one in entries_of(run, "throughput") if one.get("engine") == side.engine), {})
    point = Point(
        name=side.checkpoint,
        step=float(named[1]) if step is None and named else step,
        epoch=_number(training.get("epoch")),
        side=side,
        run_ids=[side.run_id],
        started_at=str(run.get("started_at") or run.get("finished_at") or ""),
        throughput=throughput,
        gates=frozenset((str(gate.get("eval")), str(gate.get("test")), str(gate.get("metric"))) for gate in entries_of(run, "gates")),
    )
    shape = str(Path(path).parent), str(entry.get("backend") or side.engine.partition(":")[0]), str(entry.get("dtype") or "")
    return path, shape, point, side.fingerprint or ""


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e15 else None


def _add(points: dict[str, Point], path: str, point: Point, fingerprint: str, notes: list[str]) -> None:
    """Add a point; one that is there already gives its tests where this run has not measured them again."""
    before = points.get(path)
    if before is not None and (before.side.fingerprint or "") == fingerprint:
        point.side.sheets = {**before.side.sheets, **point.side.sheets}
        point.side.directions = {**before.side.directions, **point.side.directions}
        point.run_ids = [*before.run_ids, *point.run_ids]
    elif before is not None:
        notes.append(f"{point.name} had other weights in {', '.join(before.run_ids)}: that run is left out for it")
    points[path] = point


def _labelled(tracks: Mapping[_Shape, Mapping[str, Point]]) -> list[Track]:
    """Return tracks under names that differ: the folder, and backend and dtype where there are several."""
    several = [len({shape[part] for shape in tracks}) > 1 for part in (1, 2)]
    found = []
    for shape, points in tracks.items():
        parts = [Path(shape[0]).name or shape[0], *(shape[part] for part, differs in zip((1, 2), several, strict=True) if differs)]
        track = Track(" · ".join(filter(None, parts)))
        track.points = sorted(points.values(), key=lambda point: (point.step is None, point.step or 0.0))
        if not track.is_by_step and all(point.step is None for point in track.points):
            track.points = _by_run_and_name(track.points)
        _note_differences(track)
        found.append(track)
    return found


def _by_run_and_name(points: list[Point]) -> list[Point]:
    """Return points of one run in its own order; those of several runs by time, names with numbers naturally."""
    if len({tuple(point.run_ids) for point in points}) == 1:
        return points
    return sorted(points, key=lambda point: (point.started_at, natural_key(Path(point.name))))


def _note_differences(track: Track) -> None:
    last = track.points[-1]
    for point in track.points[:-1]:
        grave = [difference.text for difference in differences(last.side, point.side) if difference.is_grave]
        point.asked_otherwise = "; ".join(grave)
