"""timeline.html, timeline.csv, timeline_flips.csv and timeline.svg in a folder; the same runs give the same bytes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from evalharness.analysis.comparison.timeline import Curve, Timeline, read_tracks, timeline_of
from evalharness.api.wording import plural
from evalharness.report.columns import fit
from evalharness.report.csv import write_csv
from evalharness.report.html.page import render
from evalharness.report.html.site import renew_links
from evalharness.report.terminal import table_lines, wrapped
from evalharness.report.text import figure_text, one_line, terminal_text
from evalharness.report.timeline.page import best_note, category_curves, falls, main_curves, point_name, write_timeline_page
from evalharness.report.writing import make_folder, report_file

COLUMNS = [
    "track", "step", "epoch", "checkpoint", "runs", "kind", "eval", "test", "slice_key", "slice_value", "metric", "value", "low", "high",
    "interval", "n", "direction", "is_best", "alike_best", "asked_otherwise", "noise_floor",
]  # fmt: skip
"""`kind`: metric (all cases), slice, throughput (of the run that measured the checkpoint last). `alike_best`: the cases do not tell
this checkpoint from the best one."""

FLIP_COLUMNS = [
    "track", "eval", "test", "case_id", "metric", "from_step", "from_checkpoint", "to_step", "to_checkpoint", "before", "after",
]  # fmt: skip

_THROUGHPUT = ("generation_s", "num_generations", "num_prompt_tokens", "num_completion_tokens")


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
            asked = timeline.track.points[value.place].asked_otherwise
            yield [*_point_cells(timeline, value.place), *head, *numbers, asked, curve.floor]


def _throughput(timeline: Timeline) -> Iterator[list[Any]]:
    for place, point in enumerate(timeline.track.points):
        for name in _THROUGHPUT:
            if isinstance(point.throughput.get(name), (int, float)):
                yield [*_point_cells(timeline, place), "throughput", "", "", "", "", name, point.throughput[name], *[""] * 9]


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
    make_folder(folder)
    paths = [write_timeline_page(timelines, notes, folder / "timeline.html"), folder / "timeline.csv", folder / "timeline_flips.csv"]
    with report_file(paths[1]) as file:
        write_csv(file, COLUMNS, (line for timeline in timelines for line in (*_values(timeline), *_throughput(timeline))))
    with report_file(paths[2]) as file:
        write_csv(file, FLIP_COLUMNS, (line for timeline in timelines for line in _flips(timeline)))
    several = [timeline for timeline in timelines if len(timeline.track.points) > 1]
    for number, timeline in enumerate(several[:MAX_PICTURES], start=1):
        paths.append(write_picture(timeline, folder / ("timeline.svg" if number == 1 else f"timeline-{number}.svg")))
    renew_links(folder)
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
        yield from wrapped(
            f"{terminal_text(timeline.track.label, 80)}: {plural(len(points), 'checkpoint')}, {terminal_text(ends, 120)}", columns
        )
        for point in points:
            if point.asked_otherwise:
                yield from wrapped(f"! {terminal_text(f'{point.name} was asked differently: {point.asked_otherwise}', 300)}", columns)
        for test in timeline.tests():
            lines = [[terminal_text(f"{test[0]}::{test[1]}", 60), "best", "mean", "95 % interval", "last", "significance"]]
            for curve in main_curves(timeline, test):
                best = curve.best_mean
                if best is not None and len(lines) <= NUM_LINES:
                    interval = (
                        f"{figure_text(best.low, curve.metric)} … {figure_text(best.high, curve.metric)}" if best.low == best.low else "-"
                    )
                    cells = [curve.metric, point_name(timeline, best.place), figure_text(best.mean, curve.metric), interval]
                    cells += [figure_text(curve.values[-1].mean, curve.metric), best_note(timeline, curve)]
                    lines.append([terminal_text(cell, 60) for cell in cells])
            if len(lines) > 1:
                yield ""
                yield from (fit(line, columns) for line in table_lines(lines, 6))
        fallen = falls(timeline)
        if fallen:
            yield ""
            yield "fell after their best checkpoint:"
            for curve, *both in fallen[:NUM_FALLS]:
                where = f"{curve.slice_key} {curve.slice_value}, {curve.metric}" if curve.slice_key else curve.metric
                means = ", ".join(f"{figure_text(end.mean, curve.metric)} at {point_name(timeline, end.place)}" for end in both)
                yield from wrapped(f"  {terminal_text(f'{where} of {curve.eval}: {means}', 300)}", columns)
            if len(fallen) > NUM_FALLS:
                yield f"  {len(fallen) - NUM_FALLS} more in timeline.html"
        yield ""


NUM_METRICS, NUM_CATEGORIES, NUM_COLUMNS = 8, 12, 4
MAX_NAME_CHARS = 34
_WIDTH, _HEIGHT, _HEADING = 264, 168, 40  # of one chart, and of a line above charts
_LEFT, _RIGHT, _TOP, _BOTTOM = 38, 252, 30, 140  # of the plot within its chart
_NOT_XML = re.compile("[\ufffe\uffff]")


def write_picture(timeline: Timeline, path: Path) -> Path:
    """Write the picture and return its path; raises `RecordError` where it cannot be written."""
    title = f"{timeline.track.label}: metrics by {'training step' if timeline.track.is_by_step else 'checkpoint'}"
    headings, charts, bottom = [(26, _name(title, 120))], [], _HEADING
    for heading, curves in _blocks(timeline):
        headings.append((bottom + 26, _name(heading, 120)))
        bottom += _HEADING
        for start in range(0, len(curves), NUM_COLUMNS):
            row = enumerate(curves[start : start + NUM_COLUMNS])
            charts += [{"x": column * _WIDTH, "y": bottom, **_chart(timeline, curve)} for column, curve in row]
            bottom += _HEIGHT
    with report_file(path) as file:
        width, height = NUM_COLUMNS * _WIDTH, bottom + _HEADING
        file.writelines(render("timeline.svg.j2", width=width, height=height, headings=headings, charts=charts))
    return path


def _blocks(timeline: Timeline) -> Iterator[tuple[str, list[Curve]]]:
    for test in timeline.tests():
        yield f"{test[0]} · {test[1]}", main_curves(timeline, test, NUM_METRICS)
        categories = category_curves(timeline.curves, test, NUM_CATEGORIES)
        if categories:
            yield f"{test[0]} · by category, largest loss first", categories


def _chart(timeline: Timeline, curve: Curve) -> dict[str, Any]:
    points, by_step = timeline.track.points, timeline.track.is_by_step
    steps = [float(point.step if by_step and point.step is not None else place) for place, point in enumerate(points)]
    lows, highs = (
        [end if end == end else value.mean for value, end in zip(curve.values, ends, strict=True)]
        for ends in ([value.low for value in curve.values], [value.high for value in curve.values])
    )
    bottom, top = min(lows), max(highs)
    bottom, top = (0.0, 1.0) if bottom >= 0 and top <= 1 else (bottom, top if top > bottom else bottom + 1)

    def x(place: int) -> str:
        return f"{_LEFT + (steps[place] - steps[0]) / (steps[-1] - steps[0]) * (_RIGHT - _LEFT):.1f}"

    def y(value: float) -> str:
        return f"{_BOTTOM - (value - bottom) / (top - bottom) * (_BOTTOM - _TOP):.1f}"

    spots = [(x(value.place), y(value.mean)) for value in curve.values]
    edges = [(x(value.place), y(high)) for value, high in zip(curve.values, highs, strict=True)]
    edges += [(x(value.place), y(low)) for value, low in zip(curve.values, lows, strict=True)][::-1]
    best = None if curve.best is None else curve.best.point
    alike = () if curve.best is None else curve.best.alike
    return {
        "title": _name(curve.slice_value or curve.metric, MAX_NAME_CHARS),
        "ticks": [(y(value), f"{value:.3g}") for value in (bottom, (bottom + top) / 2, top)],
        "band": " ".join(map(",".join, edges)),
        "line": " ".join(map(",".join, spots)),
        "dots": [
            (*spot, value.place in alike or bool(points[value.place].asked_otherwise), value.place == best)
            for spot, value in zip(spots, curve.values, strict=True)
        ],
        "first": f"{points[0].step:,.0f}" if by_step else _name(points[0].name, 14),
        "last": f"{points[-1].step:,.0f}" if by_step else _name(points[-1].name, 14),
    }


def _name(text: str, most: int) -> str:
    """Return a name as one line that XML can hold; the template's environment escapes the rest."""
    return _NOT_XML.sub("\ufffd", one_line(text, most))
