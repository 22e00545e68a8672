"""timeline.html: metrics by training step with their bands, the best checkpoint of each, and when each case flipped.

Numbers of the tables are in the markup; curves are JSON that the page's script draws; cases, and what they said, are packed
blocks that are opened when they are looked at.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from evalharness.analysis.comparison.compare import CATEGORY
from evalharness.analysis.comparison.sheets import RATES, CaseLine
from evalharness.analysis.comparison.timeline import TOKENS, Curve, Timeline
from evalharness.analysis.statistics.paired import Mean
from evalharness.report.compare.cases import report_link
from evalharness.report.html.overview import scale_of
from evalharness.report.html.page import json_block, packed_block, write_page
from evalharness.report.html.site import compare_command, compare_side
from evalharness.report.text import number_text
from evalharness.report.writing import report_file

_ALWAYS_LAST = (TOKENS, "pass_rate", "length_rate", "empty_rate")


def gate_metrics(timeline: Timeline) -> set[tuple[str, str, str]]:
    """Return eval, test and metric of what the runs' gates are about."""
    return {key for point in timeline.track.points for key in point.gates}


def moved(curve: Curve) -> float:
    """Return how far the curve's largest mean lies above its smallest."""
    means = [value.mean for value in curve.values]
    return max(means) - min(means)


def lost(curve: Curve) -> float:
    """Return the largest fall from one checkpoint to any later one, 0 or more; for metrics better when lower, the largest rise."""
    means = [-value.mean if curve.direction == "lower" else value.mean for value in curve.values]
    return max(best - mean for best, mean in zip(accumulate(means, max), means, strict=True))


def main_curves(timeline: Timeline, test: tuple[str, str], most: int | None = None) -> list[Curve]:
    """Return the curves of a test over all cases: metrics of gates, others by how far they moved, then rates of every test."""
    of_test = [curve for curve in timeline.curves if (curve.eval, curve.test) == test and not curve.slice_key]
    held = gate_metrics(timeline)

    def rank(curve: Curve) -> tuple[bool, bool, float]:
        return (*test, curve.metric) not in held, curve.metric in _ALWAYS_LAST, -moved(curve)

    return sorted(of_test, key=rank)[:most]


def category_curves(curves: Iterable[Curve], test: tuple[str, str], most: int | None = None) -> list[Curve]:
    """Return the curves by category of a test, the largest loss first."""
    of_test = [curve for curve in curves if (curve.eval, curve.test) == test and curve.slice_key == CATEGORY]
    return sorted(of_test, key=lambda curve: (-lost(curve), -moved(curve)))[:most]


TEXT_CHARS = 600
NUM_TEXTS = 300
"""Cases of a test, changed ones first, whose texts the page shows."""
MAX_CASES = 20_000
NUM_BEST, NUM_FALLS = 8, 12
SMALLEST_FALL = 0.02
_DIGITS = 4


def write_timeline_page(timelines: Sequence[Timeline], notes: Sequence[str], path: Path) -> Path:
    """Write the page and return its path. Raises `RecordError` where it cannot be written."""
    folder = path.parent
    with report_file(path) as file:
        write_page(
            file,
            "timeline.html.j2",
            path=path,
            title=f"Timeline · {timelines[0].track.label}",
            scripts=["timeline.js"],
            styles=["timeline.css"],
            blocks=_blocks(timelines, folder),
            tracks=[_track(timeline, folder) for timeline in timelines],
            notes=notes,
            seed=timelines[0].seed,
        )
    return path


def _track(timeline: Timeline, folder: Path) -> dict[str, Any]:
    points, fallen = timeline.track.points, falls(timeline)
    reports = [_report(timeline, place, folder) for place in range(len(points))]
    return {
        "of": timeline.track,
        "first": point_name(timeline, 0),
        "last": point_name(timeline, len(points) - 1),
        "remarks": [f"{point.name} was asked differently: {point.asked_otherwise}" for point in points if point.asked_otherwise],
        "falls": [_fall_line(timeline, *fall) for fall in fallen[:NUM_FALLS]],
        "num_falls": len(fallen),
        "tests": [_best_table(timeline, test) for test in timeline.tests()],
        # One report of all checkpoints is in the page's header.
        "speed": [{**_speed(timeline, place), "report": report if len({*reports}) > 1 else None} for place, report in enumerate(reports)],
        "command": _compare_command(timeline),
    }


def _report(timeline: Timeline, place: int, folder: Path) -> str | None:
    """Return the link to a checkpoint's report; None where it has none, or several runs, of which it is unknown which one has a case."""
    point = timeline.track.points[place]
    return report_link(Path(point.side.source), folder) if len(point.run_ids) == 1 else None


def _compare_command(timeline: Timeline) -> str:
    """Return the command that compares the last checkpoint with the first, "" where one of them has several runs."""
    ends = timeline.track.points[0], timeline.track.points[-1]
    if len(timeline.track.points) < 2 or any(len(point.run_ids) > 1 for point in ends):
        return ""
    return compare_command(*(compare_side(Path(point.side.source), point.side.engine) for point in ends))


def point_name(timeline: Timeline, place: int) -> str:
    """Return a checkpoint's name, with its step where the name does not tell."""
    point = timeline.track.points[place]
    known = point.step is None or f"{point.step:g}" in point.name
    return point.name if known else f"{point.name} (step {point.step:,.0f})"


def _best_table(timeline: Timeline, test: tuple[str, str]) -> dict[str, Any]:
    """Return the lines of the table that says which checkpoint is best; metrics that have no better way are left out."""
    lines = []
    for curve in main_curves(timeline, test):
        best, last = curve.best_mean, curve.values[-1]
        if curve.best is None or best is None:
            continue
        is_fine = last.place == best.place or last.place in curve.best.alike
        lines.append(
            {
                "of": curve,
                "best": point_name(timeline, best.place),
                "note": best_note(timeline, curve),
                **_numbers(best),
                "last": _number(last.mean),
                "last_is_alike": is_fine,
            }
        )
    return {"name": f"{test[0]} · {test[1]}", "lines": lines[:NUM_BEST], "more": lines[NUM_BEST:]}


def best_note(timeline: Timeline, curve: Curve) -> str:
    """Return how sure it is that the best checkpoint of a curve is better than the others."""
    if curve.best is None:
        return ""
    alike = [point_name(timeline, place) for place in curve.best.alike]
    noise = "" if math.isnan(curve.floor) else f" (noise ±{number_text(curve.floor)})"
    if len(alike) == curve.best.num_compared:
        return f"no significant difference{noise}"
    return f"{'not' if alike else ''} significantly better than {', '.join(alike) or 'all others'}{noise}".lstrip()


class Fall(NamedTuple):
    """A curve with its best checkpoint and the lowest later one that is significantly worse."""

    curve: Curve
    best: Mean
    worst: Mean


def falls(timeline: Timeline) -> list[Fall]:
    """Return the curves that fell after their best checkpoint, the largest fall first.

    Of slices, categories alone count: the others mostly say the same once more. So do the rates that every test has, where a score
    of the test fell.
    """
    fallen = []
    for curve in timeline.curves:
        best = curve.best_mean
        if curve.best is None or best is None or curve.slice_key not in ("", CATEGORY):
            continue
        sign = -1 if curve.direction == "lower" else 1
        fair = [value for value in curve.values if value.place > best.place and value.place not in curve.best.alike]
        later = [value for value in fair if not timeline.track.points[value.place].asked_otherwise]
        worst = min(later, key=lambda value: sign * value.mean, default=None)
        if worst is not None and sign * (best.mean - worst.mean) >= SMALLEST_FALL:
            fallen.append(Fall(curve, best, worst))
    with_scores = {(curve.eval, curve.test) for curve, *_ in fallen if curve.metric not in RATES}
    shown = [fall for fall in fallen if fall.curve.metric not in RATES or (fall.curve.eval, fall.curve.test) not in with_scores]
    return sorted(shown, key=lambda fall: -abs(fall.best.mean - fall.worst.mean))


def _fall_line(timeline: Timeline, curve: Curve, best: Mean, worst: Mean) -> dict[str, Any]:
    return {
        "where": curve.slice_value or curve.metric,
        "what": f"{curve.metric}, {curve.eval}" if curve.slice_key else curve.eval,
        "best": number_text(best.mean),
        "at_best": point_name(timeline, best.place),
        "n": worst.n,
        **_numbers(worst, best.mean),
        "at": point_name(timeline, worst.place),
        "peak": _number(best.mean),
    }


def _numbers(mean: Mean, *others: float) -> dict[str, Any]:
    numbers = {"value": _number(mean.mean), "low": _number(mean.low), "high": _number(mean.high)}
    return {**numbers, "scale": scale_of([*numbers.values(), *map(_number, others)])}


def _speed(timeline: Timeline, place: int) -> dict[str, str]:
    point = timeline.track.points[place]
    facts = {name: value for name, value in point.throughput.items() if isinstance(value, (int, float))}
    seconds, tokens = facts.get("generation_s", 0.0), facts.get("num_completion_tokens")
    tokens_per_case = [
        f"{curve.eval} {_count(value.mean)}"
        for curve in timeline.curves
        if curve.metric == TOKENS and not curve.slice_key
        for value in curve.values
        if value.place == place
    ]
    return {
        "name": point_name(timeline, place),
        "runs": ", ".join(point.run_ids),
        **{name: _count(facts.get(name)) for name in ("num_generations", "num_prompt_tokens", "num_completion_tokens", "num_workers")},
        "rate": _count(tokens / seconds) if tokens and seconds else "–",
        "per_case": ", ".join(tokens_per_case) or "–",
    }


def _count(value: object) -> str:
    return f"{value:,.0f}" if isinstance(value, (int, float)) else "–"


def _number(value: float) -> float | None:
    return round(value, _DIGITS) if math.isfinite(value) else None


def _blocks(timelines: Sequence[Timeline], folder: Path) -> Iterator[str]:
    yield json_block("timeline", [_curves(timeline, folder) for timeline in timelines])
    for number, timeline in enumerate(timelines):
        for place, test in enumerate(timeline.tests()):
            yield packed_block(f"cases-{number}-{place}", json.dumps(_cases(timeline, test), ensure_ascii=True, allow_nan=False).encode())


def _curves(timeline: Timeline, folder: Path) -> dict[str, Any]:
    held = gate_metrics(timeline)
    ordered: list[Curve] = []
    for test in timeline.tests():
        ordered += main_curves(timeline, test)
        categories = category_curves(timeline.curves, test)
        ordered += categories
        ordered += [c for c in timeline.curves if (c.eval, c.test) == test and c.slice_key and c not in categories]
    tests = timeline.tests()
    return {
        "label": timeline.track.label,
        "byStep": timeline.track.is_by_step,
        "points": [
            {
                "name": point.name,
                "step": point.step,
                "engine": point.side.engine,
                "other": bool(point.asked_otherwise),
                "report": _report(timeline, place, folder),
            }
            for place, point in enumerate(timeline.track.points)
        ],
        "tests": [list(test) for test in tests],
        "curves": [
            {
                "test": tests.index((curve.eval, curve.test)),
                "key": curve.slice_key,
                "value": curve.slice_value,
                "metric": curve.metric,
                "way": curve.direction,
                "gate": (curve.eval, curve.test, curve.metric) in held,
                "points": [[value.place, *map(_number, (value.mean, value.low, value.high)), value.n] for value in curve.values],
                "best": None if curve.best is None else curve.best.point,
                "alike": [] if curve.best is None else list(curve.best.alike),
            }
            for curve in ordered
        ],
    }


def _cases(timeline: Timeline, test: tuple[str, str]) -> dict[str, Any]:
    """Return every case of a test: scores by metric and checkpoint, and texts of those that changed."""
    sheets = [point.side.sheets.get(test) for point in timeline.track.points]
    lines: list[dict[str, CaseLine]] = [dict(sheet.cases) if sheet is not None else {} for sheet in sheets]
    case_ids = list(dict.fromkeys(case_id for part in lines for case_id in part))
    flips = timeline.flips.get(test, ())
    changed = list(dict.fromkeys(flip.case_id for flip in flips))
    # Changed cases come first: of very many cases only these are kept.
    kept = list(dict.fromkeys([*changed, *case_ids]))[:MAX_CASES]
    metrics = list(dict.fromkeys(name for part in lines for line in part.values() for name in line.scores if not name.startswith("num_")))
    counts = dict.fromkeys(metrics, 0)
    for flip in flips:
        counts[flip.metric] += 1
    return {
        "ids": kept,
        "num": len(case_ids),
        "metrics": [[name, counts[name]] for name in sorted(metrics, key=lambda name: -counts[name])],
        "scores": {
            name: [[_score(part.get(case_id), name) for part in lines] for case_id in kept] for name in metrics
        },
        "outcomes": [[line.outcome if (line := part.get(case_id)) is not None else "" for part in lines] for case_id in kept],
        "texts": {
            case_id: [(line.text or "")[:TEXT_CHARS] if (line := part.get(case_id)) is not None else None for part in lines]
            for case_id in changed[:NUM_TEXTS]
        },
    }  # fmt: skip


def _score(line: CaseLine | None, name: str) -> float | None:
    value = line.scores.get(name) if line is not None and line.was_judged else None
    return None if value is None else _number(value)
