"""The first screens of a run's page as plain data: verdict, scores with intervals, gates and validity, breakdowns, tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import pandas as pd

from evalharness.report.collecting import OUTCOMES, text_of
from evalharness.report.eval_tables import tables_by_title
from evalharness.report.findings import verdict
from evalharness.report.html.filters import when_finite
from evalharness.report.score_tables import NUM_TAG_KEYS, NUM_TAG_LINES
from evalharness.report.tables import RunTables, records
from evalharness.report.text import printable
from evalharness.report.wording import number_text

__all__ = ["breakdowns", "cases_link", "gate_state", "given_tables", "outcome_counts", "score_cards", "verdict_of"]

NUM_SCORES = 8
"""Scores of a test that are shown at once; gates are always, all others behind a disclosure."""
NUM_TABLE_LINES = 200
_STATES = {"PASSED": "passed", "FAILED": "failed", "BROKEN": "failed", "INTERRUPTED": "interrupted"}
_VALIDITY = (
    ("malformed", "malformed", "miss"),
    ("length_cap", "hit length cap", "miss"),
    ("empty", "empty", "miss"),
    ("unclosed", "unclosed thoughts", "miss"),
    ("invalid", "invalid", "invalid"),
    ("error", "errors", "error"),
    ("skip", "skipped", "skip"),
    ("fallback", "by the fallback backend", "miss"),
    ("other", "unknown outcome", "other"),
)
_ALWAYS = ("malformed", "length_cap", "empty", "invalid", "error")

Data = dict[str, Any]


def verdict_of(tables: RunTables) -> Data:
    """Return the run's verdict: word, sentence, and the name of its colour."""
    word, sentence = verdict(tables)
    return {"word": word, "sentence": sentence, "state": _STATES.get(word, "plain")}


def outcome_counts(tables: RunTables) -> list[tuple[str, int]]:
    """Return how many rows ended how, those of which there are any."""
    sums = tables.rows[[*OUTCOMES, "other"]].sum()
    return [(name, int(sums[name])) for name in (*OUTCOMES, "other") if sums[name]]


def cases_link(**filters: str) -> str:
    """Return the link to the cases of this page that the filters leave; names as in the page's address, `tag.mission` for a tag."""
    return "#cases?" + "&".join(f"{quote(printable(name))}={quote(printable(value))}" for name, value in filters.items() if value)


def gate_state(gate: Mapping[str, Any]) -> str:
    """Return passed, failed or "not asked"."""
    return "not asked" if gate.get("asked") is False else "passed" if gate.get("passed") is True else "failed"


def score_cards(tables: RunTables) -> list[Data]:
    """Return one card per eval and test: its scores by engine, each with interval and gates, and its validity by engine."""
    return [_card(tables, *test) for test in _tests(tables.counts)]


def _tests(table: pd.DataFrame) -> list[tuple[str, str]]:
    return list(dict.fromkeys(zip(table.index.get_level_values("eval"), table.index.get_level_values("test"), strict=True)))


def _card(tables: RunTables, eval_name: str, test: str) -> Data:
    counts = {key[2]: row for key, row in _records(tables.counts) if key[:2] == (eval_name, test)}
    gates = [gate for gate in records(tables.run, "gates") if gate.get("eval") == eval_name and gate.get("test") == test]
    means = {(key[2], key[3]): row for key, row in _records(tables.scores) if key[:2] == (eval_name, test)}
    # A gate that was not asked has no value, so it comes last.
    gated = list(dict.fromkeys(text_of(gate.get("metric")) for gate in sorted(gates, key=lambda gate: gate.get("asked") is False)))
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
            {"engine": engine, "chips": _chips(row), "link": cases_link(eval=eval_name, engine=engine)} for engine, row in counts.items()
        ],
    }


def _records(table: pd.DataFrame) -> Iterator[tuple[Any, Any]]:
    return zip(table.index, table.to_dict("records"), strict=True)


def _score(name: str, engines: Sequence[str], means: Mapping[Any, Any], gates: Sequence[Mapping[str, Any]]) -> Data:
    lines: list[Data] = []
    for engine in engines:
        found = means.get((engine, name))
        own = [gate for gate in gates if gate.get("metric") == name and gate.get("engine") == engine]
        value = when_finite(found["mean"]) if found is not None else next((when_finite(gate.get("value")) for gate in own), None)
        lines.append(
            {
                "engine": engine,
                "value": value,
                "low": when_finite(found["low"]) if found is not None else None,
                "high": when_finite(found["high"]) if found is not None else None,
                "n": found["n"] if found is not None else next((gate.get("n") for gate in own if isinstance(gate.get("n"), int)), None),
                "threshold": next((when_finite(gate.get("threshold")) for gate in own), None),
                "gates": [{"expression": text_of(gate.get("expression")), "state": gate_state(gate)} for gate in own],
                "bad": any(gate_state(gate) == "failed" for gate in own),
            }
        )
    values = [line["value"] for line in lines if line["value"] is not None]
    return {
        "name": name,
        "lines": lines,
        "has_bar": bool(values) and all(0 <= value <= 1 for value in values) and not name.startswith("num_"),
    }


def _chips(counts: Mapping[Any, Any]) -> list[Data]:
    chips: list[Data] = []
    for name, text, kind in _VALIDITY:
        count = int(counts[name])
        if name == "malformed" and not counts["form_judged"]:
            continue
        if count or name in _ALWAYS:
            of = int(counts["form_judged"] if name == "malformed" else counts["cases"])
            chips.append({"text": text, "count": f"{count:,} of {of:,}" if count else "0", "kind": kind if count else ""})
    return chips


def breakdowns(tables: RunTables) -> list[Data]:
    """Return one table per test and tag with several values: cases, misses and the first scores, by value and engine."""
    found: list[Data] = []
    if tables.row_tags.empty:
        return found
    lines = list(_records(tables.tag_counts))
    means = dict(_records(tables.tag_scores))
    for eval_name, test in _tests(tables.tag_counts):
        metrics = [name for name in tables.metrics(eval_name, test) if not name.startswith("num_")][:6]
        own = [(key, row) for key, row in lines if key[:2] == (eval_name, test)]
        for tag in list(dict.fromkeys(key[3] for key, _ in own))[:NUM_TAG_KEYS]:
            of_tag = [(key, row) for key, row in own if key[3] == tag]
            if len({key[4] for key, _ in of_tag}) < 2:
                continue
            found.append(_breakdown(eval_name, test, tag, metrics, of_tag, means))
    return found


def _breakdown(eval_name: str, test: str, tag: str, metrics: list[str], lines: list[Any], means: Mapping[Any, Any]) -> Data:
    lines.sort(key=lambda line: line[0][4])
    has_engines = len({key[2] for key, _ in lines}) > 1
    headers = [
        (tag, False),
        *([("engine", False)] if has_engines else []),
        ("cases", True),
        ("not passed", True),
        *((name, True) for name in metrics),
    ]
    cells = []
    for key, row in lines[:NUM_TAG_LINES]:
        value = {"text": key[4], "href": cases_link(eval=eval_name, engine=key[2], **{f"tag.{tag}": key[4]})}
        counts = [f"{row['cases']:,}", f"{row['cases'] - row['pass']:,}"]
        cells.append([value, *([key[2]] if has_engines else []), *counts, *(_mean(means.get((*key, name))) for name in metrics)])
    return {"eval": eval_name, "test": test, "tag": tag, "headers": headers, "lines": cells, "left_out": len(lines) - len(cells)}


def _mean(found: Mapping[str, Any] | None) -> Any:
    if found is None:
        return "–"
    low, high = when_finite(found["low"]), when_finite(found["high"])
    interval = "" if low is None or high is None else f"{number_text(low)}–{number_text(high)}"
    return {"text": number_text(found["mean"]), "sort": found["mean"], "small": interval}


def given_tables(tables: RunTables) -> list[Data]:
    """Return the tables that evals gave, engines below each other."""
    found = []
    for (eval_name, test, title), engines in tables_by_title(tables).items():
        lines = [(engine, line) for engine, own in engines.items() for line in own]
        columns = list(dict.fromkeys(name for _, line in lines[:NUM_TABLE_LINES] for name in line))
        numeric = [all(isinstance(line.get(name), (int, float, type(None))) for _, line in lines) for name in columns]
        headers = list(zip(columns, numeric, strict=True))
        cells = [[_cell(line.get(name)) for name in columns] for _, line in lines[:NUM_TABLE_LINES]]
        if len(engines) > 1:
            headers.insert(0, ("engine", False))
            for (engine, _), line in zip(lines, cells, strict=False):
                line.insert(0, engine)
        left_out = len(lines) - len(cells)
        found.append({"eval": eval_name, "test": test, "title": title, "headers": headers, "lines": cells, "left_out": left_out})
    return found


def _cell(value: object) -> Any:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return {"text": f"{value:,}" if abs(value) < 10**15 else number_text(value), "sort": value}
    return {"text": number_text(value), "sort": value} if isinstance(value, float) else number_text(value)
