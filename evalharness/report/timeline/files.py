"""timeline.html, timeline.csv, timeline_flips.csv and timeline.svg in a folder; the same runs give the same bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from evalharness.analysis.comparison.timeline import Timeline, read_tracks, timeline_of
from evalharness.api.errors import RecordError
from evalharness.report.csv import write_csv
from evalharness.report.terminal import fit, table_lines, wrapped
from evalharness.report.text import number_text, terminal_text
from evalharness.report.timeline.page import best_note, falls, gate_metrics, main_curves, point_name, write_timeline_page
from evalharness.report.timeline.picture import write_picture
from evalharness.report.writing import replacing

__all__ = ["COLUMNS", "FLIP_COLUMNS", "timeline_lines", "write_flips_csv", "write_run_timeline", "write_timeline_csv", "write_timelines"]


# timeline.csv (every number of the timelines, long and tidy) and timeline_flips.csv (one line per case and change)

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


MAX_PICTURES = 8
NUM_LINES, NUM_FALLS = 8, 8


def write_timelines(timelines: Sequence[Timeline], notes: list[str], folder: Path) -> list[Path]:
    """Write the files and return their paths; a further track's picture is timeline-2.svg and so on. Raises `RecordError`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RecordError(f"{folder} cannot be made: {error.strerror}; choose another folder with --out") from error
    paths = [write_timeline_page(timelines, notes, folder / "timeline.html"), folder / "timeline.csv", folder / "timeline_flips.csv"]
    with replacing(paths[1]) as file:
        write_timeline_csv(timelines, file)
    with replacing(paths[2]) as file:
        write_flips_csv(timelines, file)
    several = [timeline for timeline in timelines if len(timeline.track.points) > 1]
    for number, timeline in enumerate(several[:MAX_PICTURES], start=1):
        paths.append(write_picture(timeline, folder / ("timeline.svg" if number == 1 else f"timeline-{number}.svg")))
    return paths


def write_run_timeline(run_dir: Path) -> list[Path]:
    """Write the timeline of a run with several checkpoints into its folder; nothing where no track has two.

    Raises `EvalHarnessError` where it cannot be made.
    """
    notes: list[str] = []
    tracks = [track for track in read_tracks([run_dir], notes) if len(track.points) > 1]
    return write_timelines([timeline_of(track) for track in tracks], notes, run_dir) if tracks else []


def timeline_lines(timelines: Sequence[Timeline], notes: Sequence[str], columns: int) -> Iterator[str]:
    """Yield lines for a terminal: of each track and test the best checkpoint of its main metrics, then what fell."""
    for note in notes:
        yield from wrapped(f"! {terminal_text(note, 300)}", columns)
    for timeline in timelines:
        points = timeline.track.points
        ends = f"{point_name(timeline, 0)} to {point_name(timeline, len(points) - 1)}" if len(points) > 1 else point_name(timeline, 0)
        yield from wrapped(f"{terminal_text(timeline.track.label, 80)}: {len(points)} checkpoints, {terminal_text(ends, 120)}", columns)
        for point in points:
            if point.asked_otherwise:
                yield from wrapped(f"! {terminal_text(f'{point.name} was asked differently: {point.asked_otherwise}', 300)}", columns)
        for test in timeline.tests():
            lines = [[terminal_text(f"{test[0]}::{test[1]}", 60), "best", "mean", "95 % interval", "last", "significance"]]
            for curve in main_curves(timeline, test, held=gate_metrics(timeline)):
                if curve.best is not None and len(lines) <= NUM_LINES:
                    best = next(value for value in curve.values if value.place == curve.best.point)
                    interval = f"{number_text(best.low)} … {number_text(best.high)}" if best.low == best.low else "-"
                    cells = [curve.metric, point_name(timeline, best.place), number_text(best.mean), interval]
                    cells += [number_text(curve.values[-1].mean), best_note(timeline, curve)]
                    lines.append([terminal_text(cell, 60) for cell in cells])
            if len(lines) > 1:
                yield ""
                yield from (fit(line, columns) for line in table_lines(lines, 6))
        found = falls(timeline)
        if found:
            yield ""
            yield "fell after their best checkpoint:"
            for curve, value in found[:NUM_FALLS]:
                where = f"{curve.slice_key} {curve.slice_value}, {curve.metric}" if curve.slice_key else curve.metric
                best = next(one for one in curve.values if curve.best is not None and one.place == curve.best.point)
                text = f"{where} of {curve.eval}: {number_text(best.mean)} at {point_name(timeline, best.place)}"
                yield from wrapped(
                    f"  {terminal_text(f'{text}, {number_text(value.mean)} at {point_name(timeline, value.place)}', 300)}", columns
                )
            if len(found) > NUM_FALLS:
                yield f"  {len(found) - NUM_FALLS} more in timeline.html"
        yield ""
