"""timeline.csv (every number of the timelines, long and tidy) and timeline_flips.csv (one line per case and change)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TextIO

from evalharness.analysis.comparison.timeline import Timeline
from evalharness.report.csv_lines import write_csv

__all__ = ["COLUMNS", "FLIP_COLUMNS", "write_flips_csv", "write_timeline_csv"]

COLUMNS = [
    "track", "step", "epoch", "checkpoint", "runs", "kind", "eval", "test", "slice_key", "slice_value", "metric", "value", "low", "high",
    "interval", "n", "direction", "is_best", "alike_best", "asked_otherwise",
]  # fmt: skip
"""`kind`: metric (all cases), slice, throughput (of the run that measured the checkpoint last). `alike_best`: the cases do not tell
this checkpoint from the best one."""

FLIP_COLUMNS = [
    "track", "eval", "test", "case_id", "metric", "from_step", "from_checkpoint", "to_step", "to_checkpoint", "before", "after",
]  # fmt: skip

_THROUGHPUT = ("generation_s", "num_generations", "num_prompt_tokens", "num_completion_tokens")


def write_timeline_csv(timelines: Sequence[Timeline], file: TextIO) -> None:
    """Write one line per track, checkpoint, test, slice and metric."""
    write_csv(file, COLUMNS, (line for timeline in timelines for line in (*_values(timeline), *_throughput(timeline))))


def write_flips_csv(timelines: Sequence[Timeline], file: TextIO) -> None:
    """Write one line per change of a case's score from one checkpoint to the next that judged it."""
    write_csv(file, FLIP_COLUMNS, (line for timeline in timelines for line in _flips(timeline)))


def _point_cells(timeline: Timeline, place: int) -> list[Any]:
    point = timeline.track.points[place]
    return [timeline.track.label, point.step, point.epoch, point.name, " ".join(point.run_ids)]


def _values(timeline: Timeline) -> Iterator[list[Any]]:
    for curve in timeline.curves:
        head = ["slice" if curve.slice_key else "metric", curve.eval, curve.test, curve.slice_key, curve.slice_value, curve.metric]
        for value in curve.values:
            best = None if curve.best is None else int(value.place == curve.best.point)
            alike = None if curve.best is None else int(value.place in curve.best.alike)
            numbers = [value.mean, value.low, value.high, value.interval, value.n, curve.direction, best, alike]
            yield [*_point_cells(timeline, value.place), *head, *numbers, timeline.track.points[value.place].asked_otherwise]


def _throughput(timeline: Timeline) -> Iterator[list[Any]]:
    for place, point in enumerate(timeline.track.points):
        for name in _THROUGHPUT:
            if isinstance(point.throughput.get(name), (int, float)):
                yield [*_point_cells(timeline, place), "throughput", "", "", "", "", name, point.throughput[name], *[""] * 8]


def _flips(timeline: Timeline) -> Iterator[list[Any]]:
    points = timeline.track.points
    for test, flips in timeline.flips.items():
        for flip in flips:
            ends = [cell for place in (flip.before, flip.after) for cell in (points[place].step, points[place].name)]
            yield [timeline.track.label, *test, flip.case_id, flip.metric, *ends, flip.was, flip.now]
