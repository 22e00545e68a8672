"""timeline.png and timeline.svg: small charts of every test's metrics by training step, each with the band of its intervals.

Matplotlib draws them, without a display and without its global state. Names are hostile and may hold characters that no
installed font has: those are shown by their codes, with a line that says so, never as empty boxes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalharness.analysis.comparison.timeline import Curve, Timeline
from evalharness.report.html.pictures import find_font
from evalharness.report.text import one_line
from evalharness.report.timeline.page import category_curves, gate_metrics, main_curves
from evalharness.runs.atomic import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Labels", "draw_timeline", "write_plots"]

NUM_METRICS, NUM_CATEGORIES, NUM_COLUMNS = 8, 12, 4
CHART_INCHES, HEADING_INCHES = (3.3, 2.15), 0.5
MAX_NAME_CHARS = 34
_BLUE, _ORANGE, _GREY = "#1f5fa8", "#b0501d", "#62666b"
_NO_FONT = (
    "No installed font has some of these characters; they are shown by their codes here, and as they are in timeline.html and timeline.csv."
)


class Labels:
    """Texts that the fonts at hand can show; `families` is what matplotlib is told."""

    def __init__(self, font_path: str | None) -> None:
        from matplotlib import font_manager, ft2font

        own = font_manager.findfont("DejaVu Sans")  # ships with matplotlib
        paths = [own] if font_path is None else [own, font_path]
        self._known = frozenset(code for path in paths for code in ft2font.FT2Font(path).get_charmap())
        self.families = ["DejaVu Sans"]
        self.has_escaped = False
        if font_path is not None:
            font_manager.fontManager.addfont(font_path)
            self.families.append(font_manager.FontProperties(fname=font_path).get_name())

    def text(self, text: str, most: int = MAX_NAME_CHARS) -> str:
        """Return one line with control characters, and characters without a glyph, shown by their codes."""
        return "".join(char if ord(char) in self._known else self._code(char) for char in one_line(text, most))

    def _code(self, char: str) -> str:
        self.has_escaped = True
        return f"\\u{ord(char):04x}"


@lru_cache(maxsize=1)
def _style(families: tuple[str, ...]) -> dict[str, Any]:
    return {
        "font.family": list(families),
        "font.size": 8.5,
        "text.parse_math": False,  # a dollar sign in a name is no formula
        "svg.hashsalt": "evalharness",  # the same numbers give the same bytes
        "svg.fonttype": "path",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": _GREY,
        "axes.titlesize": 9,
        "xtick.color": _GREY,
        "ytick.color": _GREY,
    }


def write_plots(timeline: Timeline, stem: Path) -> list[Path]:
    """Write STEM.png and STEM.svg and return their paths; raises `RecordError` where they cannot be written."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    labels = Labels(find_font())
    paths = []
    style: Any = _style(tuple(labels.families))
    with matplotlib.rc_context(style):
        figure = draw_timeline(timeline, labels)
        for canvas, suffix in ((FigureCanvasAgg(figure), ".png"), (FigureCanvasSVG(figure), ".svg")):
            path = stem.with_name(stem.name + suffix)
            metadata: dict[str, Any] = {"Software": None} if suffix == ".png" else {"Date": None, "Creator": None}
            with write_atomically(path, "choose another folder with --out") as file:
                canvas.print_figure(file, format=suffix[1:], dpi=110, metadata=metadata)
            paths.append(path)
    return paths


def draw_timeline(timeline: Timeline, labels: Labels) -> Figure:
    """Return the figure: per test a heading, its metrics, then its categories."""
    from matplotlib.figure import Figure

    rows: list[tuple[str, Sequence[Curve]]] = []
    for title, found in _blocks(timeline):
        rows.append((title, ()))
        rows += [("", found[start : start + NUM_COLUMNS]) for start in range(0, len(found), NUM_COLUMNS)]
    width = CHART_INCHES[0] * NUM_COLUMNS
    height = sum(HEADING_INCHES if title else CHART_INCHES[1] for title, _ in rows) + 2 * HEADING_INCHES
    # Placed by hand: with sixty charts matplotlib's layout engines take twenty seconds.
    figure = Figure(figsize=(width, height))
    top = height - HEADING_INCHES
    heading = f"{timeline.track.label}: metrics by {'training step' if timeline.track.is_by_step else 'checkpoint'}"
    figure.text(0.2 / width, (top + 0.1) / height, labels.text(heading, 120), fontsize=13)
    for title, curves in rows:
        top -= HEADING_INCHES if title else CHART_INCHES[1]
        if title:
            figure.text(0.2 / width, (top + 0.1) / height, labels.text(title, 120), fontsize=11)
        for column, curve in enumerate(curves):
            left = column * CHART_INCHES[0] + 0.5
            box = (left / width, (top + 0.55) / height, (CHART_INCHES[0] - 0.75) / width, (CHART_INCHES[1] - 0.9) / height)
            _draw(figure.add_axes(box), timeline, curve, labels)
    note = "Band: 95 % interval. Ring: best checkpoint; hollow dots: not significantly worse."
    figure.text(0.2 / width, 0.1 / height, note + (f" {_NO_FONT}" if labels.has_escaped else ""), fontsize=8, color=_GREY)
    return figure


def _blocks(timeline: Timeline) -> Iterator[tuple[str, list[Curve]]]:
    held = gate_metrics(timeline)
    for test in timeline.tests():
        yield f"{test[0]} · {test[1]}", main_curves(timeline, test, NUM_METRICS, held)
        categories = category_curves(timeline.curves, test, NUM_CATEGORIES)
        if categories:
            yield f"{test[0]} · by category, largest loss first", categories


def _draw(axes: Axes, timeline: Timeline, curve: Curve, labels: Labels) -> None:
    points = timeline.track.points
    by_step = timeline.track.is_by_step
    places = [points[value.place].step if by_step else value.place for value in curve.values]
    means = [value.mean for value in curve.values]
    lows, highs = ([end if end == end else value.mean for value, end in zip(curve.values, ends, strict=True)] for ends in _ends(curve))
    axes.fill_between(places, lows, highs, color=_BLUE, alpha=0.18, linewidth=0)
    axes.plot(places, means, color=_BLUE, linewidth=1.6)
    alike = () if curve.best is None else curve.best.alike
    marks: list[list[tuple[float, float]]] = [[], [], []]
    for place, value in zip(places, curve.values, strict=True):
        assert place is not None
        marks[bool(value.place in alike or points[value.place].asked_otherwise)].append((place, value.mean))
        if curve.best is not None and value.place == curve.best.point:
            marks[2].append((place, value.mean))
    looks = ((4.5, _BLUE, _BLUE), (4.5, _BLUE, "white"), (10, _ORANGE, "none"))
    for spots, (size, edge, face) in zip(marks, looks, strict=True):
        if spots:
            axes.plot(*zip(*spots, strict=True), "o", markersize=size, color=edge, markerfacecolor=face, clip_on=False)
    if all(0 <= end <= 1 for end in (*lows, *highs)):
        axes.set_ylim(-0.04, 1.04)
    axes.set_title(labels.text(curve.slice_value or curve.metric), loc="left")
    axes.grid(axis="y", alpha=0.25)
    if not by_step:
        axes.set_xticks(range(len(points)), [labels.text(point.name, 14) for point in points], rotation=30, ha="right")


def _ends(curve: Curve) -> tuple[list[float], list[float]]:
    return [value.low for value in curve.values], [value.high for value in curve.values]
