"""The first screens of a run's page as plain data: verdict, scores with intervals, gates and validity, breakdowns, tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any
from urllib.parse import quote

from evalharness.report.findings import gate_state, is_on_mean, verdict
from evalharness.report.score_tables import NUM_TAG_KEYS, NUM_TAG_LINES, tables_by_title, tests_of
from evalharness.report.tables import COUNTS, OUTCOMES, RunTables, Summary
from evalharness.report.text import cell_text, number_text, one_line, plural, printable, when_finite
from evalharness.runs.schema import GateVerdict, entries_of, text_of

NUM_SCORES = 8
"""Scores of a test that are shown at once; gates are always, all others behind a disclosure."""
NUM_TABLE_LINES = 200
_STATES = {"PASSED": "passed", "FAILED": "failed", "BROKEN": "failed", "INTERRUPTED": "interrupted"}
_VALIDITY = ("malformed", "length_cap", "empty", "unclosed", "invalid", "error", "skip", "fallback", "other")
_ALWAYS = ("malformed", "length_cap", "empty", "invalid", "error")

Data = dict[str, Any]


def verdict_of(tables: RunTables) -> Data:
    """Return the run's verdict: word, sentence, and the name of its colour."""
    word, sentence = verdict(tables)
    return {"word": word, "sentence": sentence[:1].upper() + sentence[1:], "state": _STATES.get(word, "plain")}


def outcome_counts(tables: RunTables) -> list[tuple[str, int]]:
    """Return how many rows ended how, those of which there are any."""
    return [(name, count) for name in (*OUTCOMES, "other") if (count := tables.total(name))]


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
            {"engine": engine, "chips": _chips(row), "link": cases_link(eval=eval_name, engine=engine)} for engine, row in counts.items()
        ],
    }


def _score(name: str, engines: Sequence[str], means: Mapping[tuple[str, str], Summary], gates: Sequence[GateVerdict]) -> Data:
    lines: list[Data] = []
    for engine in engines:
        mean = means.get((engine, name))
        gates_of_engine = [gate for gate in gates if gate.get("metric") == name and gate.get("engine") == engine]
        no_gate: GateVerdict = {}
        first = next(filter(is_on_mean, gates_of_engine), no_gate)
        n = next((gate.get("n") for gate in gates_of_engine if isinstance(gate.get("n"), int)), None)
        numbers = (first.get("value"), None, None, n) if mean is None else (mean.mean, mean.low, mean.high, mean.n)
        lines.append(
            {
                "engine": engine,
                **dict(zip(("value", "low", "high"), map(when_finite, numbers), strict=False)),
                "n": numbers[3],
                "threshold": when_finite(first.get("threshold")),
                "gates": [{"expression": text_of(gate.get("expression")), "state": gate_state(gate)} for gate in gates_of_engine],
                "bad": any(gate_state(gate) == "failed" for gate in gates_of_engine),
            }
        )
    values = [line["value"] for line in lines if line["value"] is not None]
    return {
        "name": name,
        "lines": lines,
        "has_bar": bool(values) and all(0 <= value <= 1 for value in values) and not name.startswith("num_"),
    }


def _chips(counts: Mapping[str, int]) -> list[Data]:
    chips: list[Data] = []
    for name in _VALIDITY:
        count = counts[name]
        if name == "malformed" and not counts["form_judged"]:
            continue
        if count or name in _ALWAYS:
            of = counts["form_judged"] if name == "malformed" else counts["cases"]
            kind = name if name in (*OUTCOMES, "other") else "miss"
            chips.append({"text": COUNTS[name], "count": f"{count:,} of {of:,}" if count else "0", "kind": kind if count else ""})
    return chips


def breakdowns(tables: RunTables) -> list[Data]:
    """Return one table per test and tag with several values: cases, misses and the first scores, by value and engine."""
    tables_by_tag: list[Data] = []
    for eval_name, test in tests_of(tables.tag_counts if tables.row_tags else {}):
        metrics = [name for name in tables.metrics(eval_name, test) if not name.startswith("num_")][:6]
        lines_of_test = [(key, row) for key, row in tables.tag_counts.items() if key[:2] == (eval_name, test)]
        for tag in list(dict.fromkeys(key[3] for key, _ in lines_of_test))[:NUM_TAG_KEYS]:
            of_tag = [(key, row) for key, row in lines_of_test if key[3] == tag]
            if len({key[4] for key, _ in of_tag}) > 1:
                tables_by_tag.append(_breakdown(eval_name, test, tag, metrics, of_tag, tables.tag_scores))
    return tables_by_tag


def _breakdown(eval_name: str, test: str, tag: str, metrics: list[str], lines: list[Any], means: Mapping[tuple[str, ...], Summary]) -> Data:
    lines.sort(key=lambda line: line[0][4])
    has_engines = len({key[2] for key, _ in lines}) > 1
    names = [tag, "engine"] if has_engines else [tag]
    headers = [*((name, False) for name in names), *((name, True) for name in ("cases", "not passed", *metrics))]
    cells = []
    for key, row in lines[:NUM_TAG_LINES]:
        value = {"text": key[4], "href": cases_link(eval=eval_name, engine=key[2], **{f"tag.{tag}": key[4]})}
        counts = [f"{row['cases']:,}", f"{row['cases'] - row['pass']:,}"]
        cells.append([value, *([key[2]] if has_engines else []), *counts, *(_mean(means.get((*key, name))) for name in metrics)])
    return {"eval": eval_name, "test": test, "tag": tag, "headers": headers, "lines": cells, "left_out": len(lines) - len(cells)}


def _mean(summary: Summary | None) -> Any:
    if summary is None:
        return "–"
    low, high = when_finite(summary.low), when_finite(summary.high)
    interval = "" if low is None or high is None else f"{number_text(low)}–{number_text(high)}"
    return {"text": number_text(summary.mean), "sort": summary.mean, "small": interval}


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


NUM_SLICES = 6
NUM_LINES = 5
NUM_PROBLEMS = 40
_LINE_DROP = 0.1
"""How far below the median of its table a line must lie to be named."""
_FEW = 5
"""A slice of fewer cases is not called weak: by chance some are."""
_LEAST_DROP = 0.05
_ORDER = ("error", "invalid", "fail", "other", "miss", "skip")


def failed_gates(tables: RunTables) -> list[Data]:
    """Return the gates that failed, with where, why and a link to the cases that did not pass there."""
    return [
        {
            "expression": text_of(gate.get("expression")),
            "where": f"{text_of(gate.get('eval'))}::{text_of(gate.get('test'))} on {text_of(gate.get('engine'))}",
            "value": when_finite(gate.get("value")),
            "reason": one_line(text_of(gate.get("reason")), 600),
            "link": cases_link(eval=text_of(gate.get("eval")), engine=text_of(gate.get("engine")), sort="outcome", **_worst_slice(gate)),
        }
        for gate in entries_of(tables.run.get("gates"))
        if gate_state(gate) == "failed"
    ]


def _worst_slice(gate: GateVerdict) -> dict[str, str]:
    failed = entries_of(gate.get("failed_slices"))
    return {f"tag.{text_of(gate.get('tag'))}": text_of(failed[0].get("value"))} if failed else {}


def weak_slices(tables: RunTables) -> list[Data]:
    """Return the slices (cases of one tag) whose whole interval lies below the mean of all cases, the farthest behind first.

    Looked at are the scores with a gate, for a test without any the first one; those that are better when lower are turned round.
    """
    if not tables.row_tags:
        return []
    ways = _ways(tables)
    slices: list[tuple[float, Data]] = []
    for (eval_name, test, engine, tag, value, metric), score in tables.tag_scores.items():
        way = ways.get((eval_name, test, metric), 0)
        mean = tables.scores[eval_name, test, engine, metric].mean
        worst = when_finite(score.high if way > 0 else score.low)
        if not way or worst is None or score.n < _FEW:
            continue
        behind = (mean - score.mean) * way
        if behind >= _LEAST_DROP and (mean - worst) * way > 0:
            text = f"{number_text(score.mean)} on {plural(score.n, 'case')}, {number_text(mean)} over all"
            link = cases_link(eval=eval_name, engine=engine, **{f"tag.{tag}": value})
            slices.append(
                (behind, {"tag": tag, "value": value, "metric": metric, "where": f"{eval_name} on {engine}", "text": text, "link": link})
            )
    slices.sort(key=lambda entry: -entry[0])
    return [entry for _, entry in slices[:NUM_SLICES]]


def _ways(tables: RunTables) -> dict[tuple[str, str, str], int]:
    """Return, by eval, test and metric, whether more is better (1) or less (-1), for the metrics that count."""
    ways: dict[tuple[str, str, str], int] = {}
    for gate in entries_of(tables.run.get("gates")):
        expression = text_of(gate.get("expression"))
        key = (text_of(gate.get("eval")), text_of(gate.get("test")), text_of(gate.get("metric")))
        if ">" in expression or "<" in expression:
            ways.setdefault(key, 1 if ">" in expression else -1)
    gated = {key[:2] for key in ways}
    for eval_name, test in tests_of(tables.counts):
        first = next((name for name in tables.metrics(eval_name, test) if not name.startswith("num_")), None)
        if (eval_name, test) not in gated and first is not None:
            ways[eval_name, test, first] = 1
    return ways


def weak_lines(tables: RunTables) -> list[Data]:
    """Return the lines of tables that evals gave, such as a category's, whose F1 or accuracy lies far below that table's median."""
    weak: list[tuple[float, Data]] = []
    for (eval_name, _, title), engines in tables_by_title(tables).items():
        for engine, lines in engines.items():
            columns = list(dict.fromkeys(name for line in lines for name in line))
            column = next((name for name in columns[1:] if name.casefold().endswith(("f1", "accuracy")) and "mean" not in name), None)
            values = {
                text_of(line.get(columns[0])): value for line in lines if column and (value := when_finite(line.get(column))) is not None
            }
            if len(values) < _FEW:
                continue
            middle = median(values.values())
            for name, value in values.items():
                if value < middle - _LINE_DROP:
                    text = f"{number_text(value)}, the median of {len(values)} is {number_text(middle)}"
                    where, link = f"{eval_name} on {engine}", cases_link(eval=eval_name, engine=engine, q=name)
                    weak.append(
                        (middle - value, {"name": name, "column": column, "text": text, "title": title, "where": where, "link": link})
                    )
    weak.sort(key=lambda entry: -entry[0])
    return [entry for _, entry in weak[:NUM_LINES]]


def problem_lines(tables: RunTables) -> Iterator[Mapping[str, Any]]:
    """Yield the reasons of what did not pass, the worst outcomes and the most frequent first."""
    groups = sorted(tables.problems.values(), key=lambda group: (_ORDER.index(group.outcome), -group.count))
    for group in groups[:NUM_PROBLEMS]:
        yield {"of": group, "link": cases_link(problem=str(group.number))}
