"""Metrics by training step: each checkpoint's means with intervals, over all cases and by slice; the best one; when cases flipped."""

from __future__ import annotations

import glob
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from evalharness.analysis.comparison.compare import CATEGORY, CATEGORY_METRIC, LOWER_IS_BETTER, MOST_VALUES
from evalharness.analysis.comparison.pairing import differences
from evalharness.analysis.comparison.sheets import CaseLine, Score, Side, domains_apart, mark_of, score_of
from evalharness.analysis.comparison.sides import engine_entry, read_sides
from evalharness.analysis.statistics.intervals import DEFAULT_SEED
from evalharness.analysis.statistics.noise import floor_of
from evalharness.analysis.statistics.paired import LEVEL, Mean, holm, means_by_place, paired_p
from evalharness.api.errors import ComparisonError, RecordError
from evalharness.checkpoints.info import natural_key
from evalharness.runs.schema import RunFile, entries_of, mapping

_NUMBERED = re.compile(r".*\bcheckpoint-([0-9]+)")
_Shape = tuple[str, str, str]


@dataclass
class Point:
    """One checkpoint of a track. `step` is None if neither trainer_state.json nor the name gives it."""

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
    """Checkpoints by step; if any has no step (`is_by_step` is False), by names and times."""

    label: str
    points: list[Point] = field(default_factory=list)

    @property
    def is_by_step(self) -> bool:
        """Whether every checkpoint has a step of its own."""
        steps = [point.step for point in self.points]
        return None not in steps and len(set(steps)) == len(steps)


def run_folders(patterns: Sequence[str]) -> list[Path]:
    """Return the run directories that paths and patterns name, each once; other matches of a pattern are skipped.

    Raises `ComparisonError` for a path that is not a run directory, and if nothing is left.
    """
    folders: dict[Path, Path] = {}
    for pattern in patterns:
        named = Path(pattern).exists() or not glob.has_magic(pattern)
        for path in [Path(pattern)] if named else sorted(map(Path, glob.glob(pattern))):
            if (path / "run.json").is_file() or (path / "samples.jsonl").is_file():
                folders.setdefault(path.resolve(), path)
            elif named:
                raise ComparisonError(f"{path} is not a run directory; give reports/RUN_ID, or a pattern in quotes: 'reports/*'")
    if not folders:
        raise ComparisonError(f"{', '.join(patterns)} names no run directory; give reports/RUN_ID, or a pattern in quotes: 'reports/*'")
    return list(folders.values())


def read_tracks(folders: Sequence[Path], notes: list[str]) -> list[Track]:
    """Return the tracks of runs, those with the most checkpoints first; `notes` gets a line for each run that cannot be used.

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
            notes.append(f"{folder.name} is left out: it has no rows; if it was killed, recover them with: evalharness report {folder}")
        stopped = [side for side in sides if side.stopped]
        if stopped:
            notes.append(f"{folder.name} is left out: it stopped when it was certain, after {'; '.join(stopped[0].parts.values())}")
        for side in () if stopped else sides:
            notes += [line for note in side.caveats if (line := f"{folder.name}: {note}") not in notes]  # a run may have many checkpoints
            measured.append(_measured(run, side))
    if not measured:
        raise ComparisonError(f"no run is left to draw: {'; '.join(notes)}")
    tracks: dict[_Shape, dict[str, Point]] = {}
    for path, shape, point, fingerprint in sorted(measured, key=lambda entry: entry[2].started_at):
        _add(tracks.setdefault(shape, {}), path, point, fingerprint, notes)
    return sorted(_labelled(tracks), key=lambda track: -len(track.points))


def _measured(run: RunFile, side: Side) -> tuple[str, _Shape, Point, str]:
    entry = engine_entry(run, side.engine)
    path = str(entry.get("checkpoint_path") or side.checkpoint)
    training = mapping(entry.get("training"))
    named = _NUMBERED.fullmatch(side.checkpoint)
    step = _number(training.get("step"))
    throughput = next((total for total in entries_of(run.get("throughput")) if total.get("engine") == side.engine), None)
    point = Point(
        name=side.checkpoint,
        step=float(named[1]) if step is None and named else step,
        epoch=_number(training.get("epoch")),
        side=side,
        run_ids=[side.run_id],
        started_at=str(run.get("started_at") or run.get("finished_at") or ""),
        throughput=throughput or {},
        gates=frozenset((str(gate.get("eval")), str(gate.get("test")), str(gate.get("metric"))) for gate in entries_of(run.get("gates"))),
    )
    shape = str(Path(path).parent), str(entry.get("backend") or side.engine.partition(":")[0]), str(entry.get("dtype") or "")
    return path, shape, point, side.fingerprint or ""


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e15 else None


def _add(points: dict[str, Point], path: str, point: Point, fingerprint: str, notes: list[str]) -> None:
    """Add a point; an existing point of the same checkpoint adds the tests that this run has not measured again, or only in part."""
    before = points.get(path)
    if before is not None and (before.side.fingerprint or "") == fingerprint:
        kept = {key for key in before.side.sheets if key[0] in point.side.parts and key[0] not in before.side.parts}
        again = {key: sheet for key, sheet in point.side.sheets.items() if key not in kept}
        point.side.sheets = {**before.side.sheets, **again}
        point.side.parts = {name: part for name, part in point.side.parts.items() if name not in {key[0] for key in kept}}
        point.side.directions = {**before.side.directions, **point.side.directions}
        point.side.noise = {**before.side.noise, **point.side.noise}
        point.run_ids = [*before.run_ids, *point.run_ids]
    elif before is not None:
        notes.append(f"{point.name} had other weights in {', '.join(before.run_ids)}: that run is left out for it")
    points[path] = point


def _labelled(tracks: Mapping[_Shape, Mapping[str, Point]]) -> list[Track]:
    """Return tracks under distinct names: the folder, with backend and dtype if there are several."""
    several = [len({shape[part] for shape in tracks}) > 1 for part in (1, 2)]
    labelled = []
    for shape, points in tracks.items():
        parts = [Path(shape[0]).name or shape[0], *(shape[part] for part, differs in zip((1, 2), several, strict=True) if differs)]
        track = Track(" · ".join(filter(None, parts)))
        track.points = sorted(points.values(), key=lambda point: (point.step is None, point.step or 0.0))
        if not track.is_by_step and all(point.step is None for point in track.points):
            track.points = _by_run_and_name(track.points)
        last = track.points[-1]
        for point in track.points[:-1]:
            grave = [difference.text for difference in differences(last.side, point.side) if difference.is_grave]
            point.asked_otherwise = "; ".join(grave)
        labelled.append(track)
    return labelled


def _by_run_and_name(points: list[Point]) -> list[Point]:
    """Return the points of one run in its own order; those of several runs by time, with names in natural order."""
    if len({tuple(point.run_ids) for point in points}) == 1:
        return points
    return sorted(points, key=lambda point: (point.started_at, natural_key(Path(point.name))))


TOKENS = "tokens per case"
"""A metric of every test: tokens of a case's answers. Neither more nor fewer are better."""

Test = tuple[str, str]


class Best(NamedTuple):
    """The best checkpoint of a metric, the earliest of equals, and the checkpoints that the cases cannot tell from it."""

    point: int
    alike: tuple[int, ...]
    num_compared: int


@dataclass(frozen=True)
class Curve:
    """One metric of one test along a track; both slice names are empty for all cases."""

    eval: str
    test: str
    slice_key: str
    slice_value: str
    metric: str
    direction: str
    values: tuple[Mean, ...]
    best: Best | None
    """None where no direction is better, or fewer than two checkpoints were asked the same."""
    floor: float = math.nan
    """How far noise alone moves the last checkpoint's mean from another's, with a chance of 95 %; NaN where none has measured it."""

    @property
    def best_mean(self) -> Mean | None:
        """The mean at the best checkpoint."""
        return next((value for value in self.values if self.best is not None and value.place == self.best.point), None)


class Flip(NamedTuple):
    """A case that passes at one checkpoint but not at the next that judged it, or the reverse, or whose `metric` changed."""

    case_id: str
    metric: str
    before: int
    after: int
    was: float
    now: float


@dataclass(frozen=True)
class Timeline:
    """Everything that is shown of one track."""

    track: Track
    curves: tuple[Curve, ...]
    flips: Mapping[Test, tuple[Flip, ...]]
    seed: int

    def tests(self) -> list[Test]:
        """Return eval and test of everything measured, in the order of the curves."""
        return list(dict.fromkeys((curve.eval, curve.test) for curve in self.curves))


def timeline_of(track: Track, seed: int = DEFAULT_SEED) -> Timeline:
    """Return the timeline of a track. A checkpoint with different requests has values, but is neither best nor flips."""
    tests = dict.fromkeys(key for point in track.points for key in point.side.sheets)
    curves: list[Curve] = []
    flips = {}
    for test in tests:
        columns = _Columns(track, test, seed)
        curves += columns.curves()
        flips[test] = tuple(columns.flips())
    return Timeline(track, tuple(curves), flips, seed)


Lines = Mapping[str, CaseLine]
Scores = Mapping[str, Score]


class _Columns:
    """The judged cases of one test, by point."""

    def __init__(self, track: Track, test: Test, seed: int) -> None:
        self.test = test
        self.seed = seed
        self.points = track.points
        judged = [_judged(point, test) for point in track.points]
        apart = domains_apart(line for lines in judged for line in lines.values())
        self.lines: list[Lines] = [{case_id: apart(line) for case_id, line in lines.items()} for lines in judged]
        directions: dict[str, str] = {}
        for point in track.points:
            directions |= {metric: way for (*where, metric), way in point.side.directions.items() if tuple(where) == test}
        self.directions = {**directions, **dict.fromkeys(LOWER_IS_BETTER, "lower"), TOKENS: "none"}
        names = dict.fromkeys(name for lines in self.lines for line in lines.values() for name in line.scores)
        self.metrics = [name for name in names if not name.startswith("num_")]

    def curves(self) -> Iterator[Curve]:
        scores: Scores = {name: score_of(name) for name in self.metrics}
        yield from self._of_parts("", "", {**scores, TOKENS: _tokens}, self.lines)
        tags: dict[str, dict[str, None]] = defaultdict(dict)
        categories: dict[str, None] = {}
        for line in (line for lines in self.lines for line in lines.values()):
            for name, value in line.tags.items():
                tags[name][value] = None
            categories |= dict.fromkeys(line.marks)
        if len(categories) <= MOST_VALUES:
            for category in categories:
                yield from self._of_parts(CATEGORY, category, {CATEGORY_METRIC: mark_of(category)}, self._with_category(category))
        for key, values in tags.items():
            if 1 < len(values) <= MOST_VALUES:
                for value in values:
                    parts = [{case_id: line for case_id, line in lines.items() if line.tags.get(key) == value} for lines in self.lines]
                    yield from self._of_parts(key, value, scores, parts)

    def _with_category(self, category: str) -> list[Lines]:
        """Return the cases with the category in any prediction or reference; none of a checkpoint without any categories."""
        case_ids = {case_id for lines in self.lines for case_id, line in lines.items() if category in line.marks}
        marked = (lines if any(line.marks for line in lines.values()) else {} for lines in self.lines)
        return [{case_id: line for case_id, line in lines.items() if case_id in case_ids} for lines in marked]

    def _of_parts(self, key: str, value: str, scores: Scores, parts: Sequence[Lines]) -> Iterator[Curve]:
        rows = [[[score(line) for score in scores.values()] for line in part.values()] for part in parts]
        groups = [[line.group for line in part.values()] for part in parts]
        for (metric, score), values in zip(scores.items(), means_by_place(rows, groups, len(scores), seed=self.seed), strict=True):
            if values:
                direction = self.directions.get(metric, "higher")
                best = self._best(metric, values, direction, score, parts)
                floor = self._floor(metric, values[-1], values[-1])
                yield Curve(*self.test, key, value, metric, direction, tuple(values), best, floor)

    def _floor(self, metric: str, one: Mean, other: Mean) -> float:
        """Return the noise floor of the difference of two means; of a checkpoint that has not measured it, the other's or any's counts."""
        known = [noise for point in self.points if (noise := point.side.noise.get((*self.test, metric))) is not None]
        if not known:
            return math.nan
        sides = (self.points[mean.place].side.noise.get((*self.test, metric), known[-1]) for mean in (one, other))
        lines = self.lines[one.place].values()
        num_groups = len({line.group or number for number, line in enumerate(lines)})
        num_cases = min(one.n, other.n)
        return floor_of(list(sides), num_cases, max(1, round(num_cases * num_groups / len(lines))))

    def _best(self, metric: str, values: Sequence[Mean], direction: str, score: Score, parts: Sequence[Lines]) -> Best | None:
        fair = [value for value in values if not self.points[value.place].asked_otherwise]
        if direction == "none" or len(fair) < 2:
            return None
        sign = 1 if direction == "higher" else -1
        best = max(fair, key=lambda value: (sign * value.mean, -value.place))
        others = [value for value in fair if value.place != best.place]
        p_values, _ = holm([_paired_p(parts[best.place], parts[other.place], score) for other in others])
        alike = tuple(
            other.place
            for other, p in zip(others, p_values, strict=True)
            if not p <= LEVEL or abs(best.mean - other.mean) <= self._floor(metric, best, other)
        )
        return Best(best.place, alike, len(others))

    def flips(self) -> Iterator[Flip]:
        """Yield every change from one checkpoint to the next that judged the case, by case."""
        fair = [place for place, point in enumerate(self.points) if not point.asked_otherwise]
        for case_id in dict.fromkeys(case_id for place in fair for case_id in self.lines[place]):
            seen: dict[str, tuple[int, float]] = {}
            for place in fair:
                line = self.lines[place].get(case_id)
                scores = {} if line is None else line.scores
                for metric in filter(scores.__contains__, self.metrics):
                    before, was = seen.get(metric, (place, scores[metric]))
                    if was != scores[metric]:
                        yield Flip(case_id, metric, before, place, was, scores[metric])
                    seen[metric] = place, scores[metric]


def _judged(point: Point, test: Test) -> Lines:
    sheet = point.side.sheets.get(test)
    return {} if sheet is None else {case_id: line for case_id, line in sheet.cases.items() if line.was_judged}


def _tokens(line: CaseLine) -> float:
    return math.nan if line.num_tokens is None else float(line.num_tokens)


def _paired_p(best: Lines, other: Lines, score: Score) -> float:
    """Return the p value of the paired test of two checkpoints on the cases that both have."""
    pairs = [(score(line) - score(other[case_id]), line.group) for case_id, line in best.items() if case_id in other]
    known = [pair for pair in pairs if not math.isnan(pair[0])]
    return paired_p([difference for difference, _ in known], [group for _, group in known])
