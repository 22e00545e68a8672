"""timeline.svg: small charts of every test's metrics by training step, each with the band of its intervals, for slides and issues."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from evalharness.analysis.comparison.timeline import Curve, Timeline
from evalharness.report.html.page import render
from evalharness.report.text import one_line
from evalharness.report.timeline.page import category_curves, gate_metrics, main_curves
from evalharness.report.writing import replacing

__all__ = ["write_picture"]

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
    with replacing(path) as file:
        width, height = NUM_COLUMNS * _WIDTH, bottom + _HEADING
        file.writelines(render("timeline.svg.j2", width=width, height=height, headings=headings, charts=charts))
    return path


def _blocks(timeline: Timeline) -> Iterator[tuple[str, list[Curve]]]:
    gated = gate_metrics(timeline)
    for test in timeline.tests():
        yield f"{test[0]} · {test[1]}", main_curves(timeline, test, NUM_METRICS, gated)
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
