"""Slices in which a checkpoint lies behind its own mean: what an average hides, for terminal and page alike."""

from __future__ import annotations

from typing import NamedTuple

from evalharness.report.tables import RunTables, Summary
from evalharness.report.text import when_finite
from evalharness.report.worst import Goal, deciding

_FEW = 5
"""A slice of fewer cases is not called weak: by chance some are."""
_LEAST_DROP = 0.05


class WeakSlice(NamedTuple):
    """The cases with one value of a tag; `score` is theirs, `mean` that of all cases, `behind` how much worse they are."""

    eval: str
    test: str
    engine: str
    tag: str
    value: str
    metric: str
    score: Summary
    mean: float
    behind: float


def weak_slices(tables: RunTables, goals: dict[tuple[str, str, str], Goal]) -> list[WeakSlice]:
    """Return the slices whose whole interval lies below the mean of all cases, the farthest behind first.

    Looked at are the scores that decide; those that are better when lower are turned round.
    """
    if not tables.row_tags:
        return []
    ways = deciding(tables, goals)
    slices = []
    for (eval_name, test, engine, tag, value, metric), score in tables.tag_scores.items():
        way = ways.get((eval_name, test, metric), 0)
        worst = when_finite(score.high if way > 0 else score.low)
        if not way or worst is None or score.n < _FEW:
            continue
        mean = tables.scores[eval_name, test, engine, metric].mean
        behind = (mean - score.mean) * way
        if behind >= _LEAST_DROP and (mean - worst) * way > 0:
            slices.append(WeakSlice(eval_name, test, engine, tag, value, metric, score, mean, behind))
    return sorted(slices, key=lambda found: -found.behind)
