"""The first screens of a run's page as plain data: verdict, scores with intervals, gates and validity, breakdowns, tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from evalharness.report.findings import gate_state, is_on_mean, verdict
from evalharness.report.markdown import go_on_command
from evalharness.report.score_tables import NUM_TAG_KEYS, NUM_TAG_LINES, tables_by_title, tests_of
from evalharness.report.tables import COUNTS, FLAGS, OUTCOMES, RunTables, Summary
from evalharness.report.text import cell_text, figure_text, plural, printable, when_finite
from evalharness.report.what_broke import LEGEND
from evalharness.report.worst import Goal
from evalharness.runs.schema import GateVerdict, entries_of, text_of

NUM_SCORES = 8
"""Scores of a test that are shown at once; gates are always, all others behind a disclosure."""
NUM_TABLE_LINES = 200
NUM_SLICE_SCORES = 4
NUM_OPEN = 3
"""Breakdowns that are open at once: those in which a slice would not pass a gate."""
BEHIND = "✗ "
_LONGEST_SCALE = 1e12
_STATES = {"PASSED": "passed", "FAILED": "failed", "BROKEN": "failed", "INTERRUPTED": "interrupted"}
_VALIDITY = ("malformed", "length_cap", "empty", "unclosed", "invalid", "error", "skip", "fallback", "other")
_ALWAYS = ("malformed", "length_cap", "empty", "invalid", "error")

Data = dict[str, Any]


def verdict_of(tables: RunTables) -> Data:
    """Return the run's verdict: word, sentence, and the name of its colour."""
    word, sentence = verdict(tables)
    if command := go_on_command(tables.run):
        sentence = f"{sentence}. Go on with: {command}"
    return {"word": word, "sentence": sentence[:1].upper() + sentence[1:], "state": _STATES.get(word, "plain")}


def outcome_counts(tables: RunTables) -> list[tuple[str, int]]:
    """Return how many rows ended how, those of which there are any."""
    return [(name, count) for name in (*OUTCOMES, "other") if (count := tables.total(name))]


def words(tables: RunTables) -> list[tuple[str, str]]:
    """Return what those outcomes of the run mean that do not speak for themselves."""
    return [(name, meaning) for name, meaning in LEGEND.items() if name in OUTCOMES and tables.total(name)]


def cases_link(**filters: str) -> str:
    """Return the link to the cases of this page that the filters leave; names as in the page's address, `tag.mission` for a tag."""
    return "#cases?" + "&".join(f"{quote(printable(name))}={quote(printable(value))}" for name, value in filters.items() if value)


def score_cards(tables: RunTables) -> list[Data]:
    """Return one card per eval and test: its scores by engine, each with interval and gates, and its validity by engine."""
    return [_card(tables, *test) for test in tests_of(tables.counts)]


def _card(tables: RunTables, eval_name: str, test: str) -> Data:
    counts = {key[2]: row for key, row in tables.counts.items() if key[:2] == (eval_name, test)}
    gates = [gate for gate in entries_of(tables.run.get("gates")) if gate.get("eval") == eval_name and gate.get("test") == test]
    means = {(key[2], key[3]): score for key, score in tables.scores.items() if key[:2] == (eval_name, test)}
    # A skipped gate has no value, so it comes last.
    gated = list(dict.fromkeys(text_of(gate.get("metric")) for gate in sorted(gates, key=lambda gate: gate_state(gate) == "skipped")))
    known = tables.metrics(eval_name, test)
    others = sorted((name for name in known if name not in gated), key=lambda name: name.startswith("num_"))
    scores = [_score(name, list(counts), means, gates) for name in (*gated, *others)]
    num_shown = max(len(gated), min(NUM_SCORES, len(gated) + sum(not name.startswith("num_") for name in others)))
    return {
        "eval": eval_name,
        "test": test,
        "num_cases": max((row["cases"] for row in counts.values()), default=0),
        "engines": list(counts),
        "scores": scores[:num_shown],
        "more": scores[num_shown:],
        "validity": [
            {"engine": engine, "chips": _chips(row, place), "link": cases_link(**place)}
            for engine, row in counts.items()
            for place in [{"eval": eval_name, "test": test, "engine": engine}]
        ],
    }


def _score(name: str, engines: Sequence[str], means: Mapping[tuple[str, str], Summary], gates: Sequence[GateVerdict]) -> Data:
    lines: list[Data] = []
    for engine in engines:
        mean = means.get((engine, name))
        gates_of_engine = [gate for gate in gates if gate.get("metric") == name and gate.get("engine") == engine]
        no_gate: GateVerdict = {}
        first = next(filter(is_on_mean, gates_of_engine), no_gate)
        alone = next((gate for gate in gates_of_engine if gate.get("measure") and not gate.get("tag") and not gate.get("end")), no_gate)
        n = next((gate.get("n") for gate in gates_of_engine if isinstance(gate.get("n"), int)), None)
        numbers = (first.get("value"), None, None) if mean is None else (mean.mean, mean.low, mean.high)
        value, low, high = map(when_finite, numbers)
        lines.append(
            {
                "engine": engine,
                "value": value,
                "low": low,
                "high": high,
                "text": figure_text(when_finite(alone["value"]) if alone else value, name),
                "interval": interval_text(mean, name) if mean else "",
                "n": ("" if n is None else f"{n:,}") if mean is None else in_groups(f"{mean.n:,}", mean),
                "threshold": when_finite(first.get("threshold")),
                "gates": [{"expression": text_of(gate.get("expression")), "state": gate_state(gate)} for gate in gates_of_engine],
                "bad": any(gate_state(gate) == "failed" for gate in gates_of_engine),
            }
        )
    return {
        "name": name,
        "lines": lines,
        "scale": scale_of([line[part] for line in lines for part in ("value", "low", "high", "threshold")]),
    }


def in_groups(count: str, summary: Summary) -> str:
    """Return a count of a score's cases, with the number of their groups where cases belong together: "60 in 23 groups"."""
    return count + (f" in {plural(summary.num_groups, 'group')}" if summary.num_groups < summary.n else "")


def interval_text(summary: Summary, name: str = "") -> str:
    """Return "0.350–0.460"; empty where there is no interval."""
    low, high = when_finite(summary.low), when_finite(summary.high)
    return "" if low is None or high is None else f"{figure_text(low, name)}–{figure_text(high, name)}"


def scale_of(numbers: Sequence[float | None]) -> tuple[float, float] | None:
    """Return a scale that has all the numbers: 0 to 1 where that does, else up to a round number; None where there is nothing to show."""
    known = [number for number in numbers if number is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    if not known or high - min(low, 0.0) > _LONGEST_SCALE:
        return None
    return (0.0, 1.0) if low >= 0 and high <= 1 else (-_round_up(-low) if low < 0 else 0.0, _round_up(high) if high > 0 else 0.0)


def _round_up(number: float) -> float:
    """Return the next of 1, 2, 5, 10, 20… above a number above 0."""
    step = 10.0 ** math.floor(math.log10(number))
    return next((step * factor for factor in (1, 2, 5) if step * factor >= number), 10 * step)


def _chips(counts: Mapping[str, int], place: Mapping[str, str]) -> list[Data]:
    chips: list[Data] = []
    for name in _VALIDITY:
        count = counts[name]
        if name == "malformed" and not counts["form_judged"]:
            continue
        if count or name in _ALWAYS:
            of = counts["form_judged"] if name == "malformed" else counts["cases"]
            kind = name if name in (*OUTCOMES, "other") else "miss"
            which = {"score": "valid<=0"} if name == "malformed" else {"flag": name} if name in FLAGS else {"outcome": name}
            link = cases_link(**place, **which) if count else ""
            chips.append(
                {"text": COUNTS[name], "count": f"{count:,} of {of:,}" if count else "0", "kind": kind if count else "", "link": link}
            )
    return chips


def breakdowns(tables: RunTables, goals: Mapping[tuple[str, str, str], Goal]) -> list[Data]:
    """Return one table per test and tag with several values: cases, misses and the first scores, by value and engine.

    Where a score has a gate, its heading says so, and a slice that would not pass it has a mark.
    """
    tables_by_tag: list[Data] = []
    for eval_name, test in tests_of(tables.tag_counts if tables.row_tags else {}):
        metrics = [name for name in tables.metrics(eval_name, test) if not name.startswith("num_")][:NUM_SLICE_SCORES]
        lines_of_test = [(key, row) for key, row in tables.tag_counts.items() if key[:2] == (eval_name, test)]
        for tag in list(dict.fromkeys(key[3] for key, _ in lines_of_test))[:NUM_TAG_KEYS]:
            of_tag = [(key, row) for key, row in lines_of_test if key[3] == tag]
            if len({key[4] for key, _ in of_tag}) > 1:
                tables_by_tag.append(_breakdown(tables, tag, {name: goals[eval_name, test, name] for name in metrics}, of_tag))
    shown = [table for table in tables_by_tag if table["is_behind"]][:NUM_OPEN] or tables_by_tag[:1]
    return [{**table, "is_open": table in shown} for table in tables_by_tag]


def _breakdown(tables: RunTables, tag: str, metrics: Mapping[str, Goal], lines: list[Any]) -> Data:
    lines.sort(key=lambda line: line[0][4])
    eval_name, test = lines[0][0][:2]
    has_engines = len({key[2] for key, _ in lines}) > 1
    names = [tag, "engine"] if has_engines else [tag]
    titles = [f"{name} {goal.comparison} {goal.threshold:g}" if goal.comparison else name for name, goal in metrics.items()]
    headers = [*((name, False) for name in names), *((name, True) for name in ("cases", "not passed", *titles))]
    cells = []
    for key, row in lines[:NUM_TAG_LINES]:
        value = {"text": key[4], "href": cases_link(eval=eval_name, engine=key[2], **{f"tag.{tag}": key[4]})}
        counts = [f"{row['cases']:,}", f"{row['cases'] - row['pass']:,}"]
        means = (_mean(tables.tag_scores.get((*key, name)), goal) for name, goal in metrics.items())
        cells.append([value, *([key[2]] if has_engines else []), *counts, *means])
    is_behind = any(cell["text"].startswith(BEHIND) for line in cells for cell in line[1:] if isinstance(cell, dict))
    named = {"eval": eval_name, "test": test, "tag": tag, "is_behind": is_behind}
    return {**named, "headers": headers, "lines": cells, "left_out": len(lines) - len(cells)}


def _mean(summary: Summary | None, goal: Goal) -> Any:
    if summary is None:
        return "–"
    interval = interval_text(summary)
    small = in_groups(interval, summary) if interval else ""
    return {"text": ("" if goal.holds(summary.mean) else BEHIND) + figure_text(summary.mean), "sort": summary.mean, "small": small}


def given_tables(tables: RunTables) -> list[Data]:
    """Return the tables that evals gave, engines below each other."""
    shown = []
    for (eval_name, test, title), engines in tables_by_title(tables).items():
        lines = [(engine, line) for engine, engine_lines in engines.items() for line in engine_lines]
        columns = list(dict.fromkeys(name for _, line in lines[:NUM_TABLE_LINES] for name in line))
        numeric = [all(isinstance(line.get(name), (int, float, type(None))) for _, line in lines) for name in columns]
        headers = list(zip(columns, numeric, strict=True))
        cells = [[_cell(line.get(name)) for name in columns] for _, line in lines[:NUM_TABLE_LINES]]
        if len(engines) > 1:
            headers.insert(0, ("engine", False))
            for (engine, _), line in zip(lines, cells, strict=False):
                line.insert(0, engine)
        left_out = len(lines) - len(cells)
        shown.append({"eval": eval_name, "test": test, "title": title, "headers": headers, "lines": cells, "left_out": left_out})
    return shown


def _cell(value: object) -> Any:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return {"text": cell_text(value), "sort": value}
    return "–" if value is None else cell_text(value)
