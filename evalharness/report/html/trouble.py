"""What broke first: failed gates, remarks, slices that stay behind, reasons of what did not pass. Worst first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from evalharness.report.collecting import text_of
from evalharness.report.eval_tables import tables_by_title
from evalharness.report.findings import findings
from evalharness.report.html.filters import when_finite
from evalharness.report.html.overview import Data, cases_link, gate_state
from evalharness.report.tables import RunTables, records
from evalharness.report.text import one_line
from evalharness.report.wording import number_text, plural

__all__ = ["failed_gates", "problem_lines", "remarks", "weak_lines", "weak_slices"]

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
            "link": cases_link(eval=text_of(gate.get("eval")), engine=text_of(gate.get("engine")), sort="outcome"),
        }
        for gate in records(tables.run, "gates")
        if gate_state(gate) == "failed"
    ]


def remarks(tables: RunTables) -> list[str]:
    """Return what to know before believing a number, as sentences."""
    return [remark[:1].upper() + remark[1:] if remark.startswith(("all ", "the ")) else remark for remark in findings(tables)]


def weak_slices(tables: RunTables) -> list[Data]:
    """Return the slices (cases of one tag) whose whole interval lies below the mean of all cases, the farthest behind first.

    Looked at are the scores with a gate, for a test without any the first one; those that are better when lower are turned round.
    """
    if tables.row_tags.empty:
        return []
    overall = {key: row["mean"] for key, row in zip(tables.scores.index, tables.scores.to_dict("records"), strict=True)}
    ways = _ways(tables)
    found: list[tuple[float, Data]] = []
    for key, row in zip(tables.tag_scores.index, tables.tag_scores.to_dict("records"), strict=True):
        eval_name, test, engine, tag, value, metric = key
        way = ways.get((eval_name, test, metric), 0)
        mean = overall.get((eval_name, test, engine, metric))
        worst = when_finite(row["high"] if way > 0 else row["low"])
        if not way or mean is None or worst is None or row["n"] < _FEW:
            continue
        behind = (mean - row["mean"]) * way
        if behind >= _LEAST_DROP and (mean - worst) * way > 0:
            text = f"{number_text(row['mean'])} on {plural(row['n'], 'case')}, {number_text(mean)} over all"
            link = cases_link(eval=eval_name, engine=engine, **{f"tag.{tag}": value})
            found.append(
                (behind, {"tag": tag, "value": value, "metric": metric, "where": f"{eval_name} on {engine}", "text": text, "link": link})
            )
    found.sort(key=lambda entry: -entry[0])
    return [entry for _, entry in found[:NUM_SLICES]]


def _ways(tables: RunTables) -> dict[tuple[str, str, str], int]:
    """Return, by eval, test and metric, whether more is better (1) or less (-1), for the metrics that count."""
    ways: dict[tuple[str, str, str], int] = {}
    for gate in records(tables.run, "gates"):
        expression = text_of(gate.get("expression"))
        key = (text_of(gate.get("eval")), text_of(gate.get("test")), text_of(gate.get("metric")))
        if ">" in expression or "<" in expression:
            ways.setdefault(key, 1 if ">" in expression else -1)
    gated = {key[:2] for key in ways}
    for eval_name, test in dict.fromkeys((key[0], key[1]) for key in tables.counts.index):
        first = next((name for name in tables.metrics(eval_name, test) if not name.startswith("num_")), None)
        if (eval_name, test) not in gated and first is not None:
            ways[eval_name, test, first] = 1
    return ways


def weak_lines(tables: RunTables) -> list[Data]:
    """Return the lines of tables that evals gave, such as a category's, whose F1 or accuracy lies far below that table's median."""
    found: list[tuple[float, Data]] = []
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
                    found.append(
                        (middle - value, {"name": name, "column": column, "text": text, "title": title, "where": where, "link": link})
                    )
    found.sort(key=lambda entry: -entry[0])
    return [entry for _, entry in found[:NUM_LINES]]


def problem_lines(tables: RunTables) -> Iterator[Mapping[str, Any]]:
    """Yield the reasons of what did not pass, the worst outcomes and the most frequent first."""
    groups = sorted(tables.collected.problems.values(), key=lambda group: (_ORDER.index(group.outcome), -group.count))
    for group in groups[:NUM_PROBLEMS]:
        yield {
            "outcome": group.outcome,
            "count": group.count,
            "reason": group.problem or "no reason was recorded",
            "where": f"{group.eval} on {group.engine}",
            "excerpt": group.excerpt,
            "link": cases_link(problem=str(group.number)),
        }
