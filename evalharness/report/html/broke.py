"""What broke first in a run, as plain data: gates that failed, reasons, the worst cases, and slices that lie behind."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from evalharness.report.findings import gate_state
from evalharness.report.html.cases import case_anchor
from evalharness.report.html.overview import Data, cases_link, in_groups, interval_text
from evalharness.report.score_tables import tables_by_title
from evalharness.report.tables import ProblemGroup, RunTables
from evalharness.report.text import figure_text, number_text, one_line, plural, when_finite
from evalharness.report.worst import Goal, deciding
from evalharness.runs.schema import GateVerdict, entries_of, text_of

NUM_WORST = 3
NUM_SLICES = 6
NUM_LINES = 5
NUM_PROBLEMS, NUM_TOP = 40, 4
_LINE_DROP = 0.1
"""How far below the median of its table a line must lie to be named."""
_FEW = 5
"""A slice of fewer cases is not called weak: by chance some are."""
_LEAST_DROP = 0.05
_ORDER = ("error", "invalid", "fail", "other", "miss", "skip")
_REST = {">=": "<", ">": "<=", "<=": ">", "<": ">="}
"""What a case's score must be to lack what a gate asks of the mean."""
_RATES: Mapping[str, dict[str, str]] = {
    "pass_rate": {"outcome": "fail,miss"},
    "invalid_rate": {"outcome": "invalid"},
    "error_rate": {"outcome": "error"},
    "length_rate": {"flag": "length_cap"},
    "empty_rate": {"flag": "empty"},
}
"""Filters for the cases that make each built-in rate what it is."""


def failed_gates(tables: RunTables, goals: Mapping[tuple[str, str, str], Goal]) -> list[Data]:
    """Return the gates that failed, by test and engine, the farthest from its limit first; each links to the cases that made it fail.

    Gates without a number, such as those of a run that was interrupted, come last, once per reason.
    """
    numbers: dict[tuple[str, str, str], list[Data]] = {}
    others: dict[str, list[GateVerdict]] = {}
    for gate in entries_of(tables.run.get("gates")):
        if gate_state(gate) != "failed":
            continue
        if ", needs " in text_of(gate.get("reason")) and when_finite(gate.get("value")) is not None:
            numbers.setdefault(_place(gate), []).append(_failed(tables, gate, goals))
        else:
            others.setdefault(text_of(gate.get("reason")), []).append(gate)
    groups: list[Data] = [
        {"where": _where(tables, place), "size": _size(gates), "gates": sorted(gates, key=lambda gate: -gate["gap"])}
        for place, gates in numbers.items()
    ]
    groups.sort(key=lambda group: -max(gate["gap"] for gate in group["gates"]))
    return groups + [_of_one_reason(tables, reason, gates) for reason, gates in others.items()]


def _place(gate: GateVerdict) -> tuple[str, str, str]:
    return text_of(gate.get("eval")), text_of(gate.get("test")), text_of(gate.get("engine"))


def _where(tables: RunTables, place: tuple[str, str, str]) -> str:
    """Return "stage_a on hf:final"; the test too where the eval has several."""
    tests = {key[1] for key in tables.counts if key[0] == place[0]} | {place[1]}
    return f"{place[0]}{f' · {place[1]}' if len(tests) > 1 else ''} on {place[2]}"


def _size(gates: Sequence[Data]) -> str:
    return max((gate["size"] for gate in gates), key=len, default="")


def _failed(tables: RunTables, gate: GateVerdict, goals: Mapping[tuple[str, str, str], Goal]) -> Data:
    eval_name, test, engine = place = _place(gate)
    metric, value, threshold = text_of(gate.get("metric")), float(gate.get("value") or 0.0), float(gate.get("threshold") or 0.0)
    summary, n = None if gate.get("tag") else tables.scores.get((*place, metric)), gate.get("n")
    lost = "" if summary or gate.get("tag") else _line_with(tables, place, value)
    filters: dict[str, str] = {"eval": eval_name, "test": test, "engine": engine}
    if metric in _RATES:
        filters |= _RATES[metric]
    elif summary:
        comparison = goals[eval_name, test, metric].comparison
        filters |= {"score": f"{metric}{_REST[comparison]}{threshold:g}"} if comparison in _REST else {"sort": f"<{metric}"}
    elif lost:
        filters["q"] = lost
    for worst in entries_of(gate.get("failed_slices"))[:1]:
        filters |= {f"tag.{text_of(gate.get('tag'))}": text_of(worst.get("value")), "sort": "outcome"}
        metric += f"[{text_of(gate.get('tag'))}={text_of(worst.get('value'))}]"
    return {
        "metric": metric,
        "interval": interval_text(summary, metric) if summary else "",
        "reason": one_line(text_of(gate.get("reason")), 300),
        "size": in_groups(plural(summary.n, "case"), summary) if summary else plural(n, "case") if isinstance(n, int) else "",
        "gap": abs(value - threshold) / (abs(threshold) or 1.0),
        "lost": lost,
        "link": cases_link(**filters),
    }


def _line_with(tables: RunTables, place: tuple[str, str, str], value: float) -> str:
    """Return the name of the only line of the test's tables that has an aggregate's value, such as the category that has the lowest F1."""
    found = {
        text_of(line.get(_name_column(lines)))
        for (eval_name, test, _), engines in tables_by_title(tables).items()
        if (eval_name, test) == place[:2]
        for lines in [engines.get(place[2], [])]
        for line in lines
        if any(isinstance(cell, float) and math.isclose(cell, value, abs_tol=1e-9) for cell in line.values())
    }
    return found.pop() if len(found) == 1 else ""


def _name_column(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return the column that tells lines apart best: of those with texts in every line the one with the most different ones."""
    columns = [name for name in (lines[0] if lines else ()) if all(isinstance(line.get(name), str) for line in lines)]
    return max(columns, key=lambda name: len({line[name] for line in lines}), default=next(iter(lines[0]), "") if lines else "")


def _of_one_reason(tables: RunTables, reason: str, gates: Sequence[GateVerdict]) -> Data:
    places = list(dict.fromkeys(map(_place, gates)))
    link = cases_link(eval=places[0][0], test=places[0][1], engine=places[0][2]) if len(places) == 1 else ""
    expressions = _names(text_of(gate.get("expression")) for gate in gates)
    return {
        "where": _names(_where(tables, place) for place in places),
        "size": plural(len(gates), "gate") if len(gates) > 1 else "",
        "gates": [{"metric": expressions, "interval": "", "reason": one_line(reason, 600), "lost": "", "link": link}],
    }


def _names(names: Iterable[str]) -> str:
    found = list(dict.fromkeys(names))
    return ", ".join(found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "")


def worst_cases(tables: RunTables, order: Sequence[int], goals: dict[tuple[str, str, str], Goal], pages: Mapping[str, range]) -> list[Data]:
    """Return the three worst cases of a run that did not pass, each with a reason of its own where there are so many reasons.

    `order` are the numbers of the rows, the worst first; `pages` says which rows each page has.
    """
    failed = [row for row in order if tables.outcomes[row] not in ("pass", "skip")]
    first: dict[int, int] = {}
    for row in failed:
        first.setdefault(tables.row_problems[row], row)
    chosen = list(dict.fromkeys([*first.values(), *failed[:NUM_WORST]]))[:NUM_WORST]
    scores: dict[int, list[str]] = {row: [] for row in chosen}
    decide = deciding(tables, goals)
    for row, metric, value in tables.row_scores:
        if row in scores:
            eval_name, test, _ = _names_of(tables, row)
            name = tables.score_names.names[metric]
            if (eval_name, test, name) in decide:
                scores[row].append(f"{name} {figure_text(value, name)}")
    return [_worst(tables, row, scores[row], pages) for row in chosen]


def _names_of(tables: RunTables, row: int) -> tuple[str, str, str]:
    eval_code, test, engine = tables.row_keys[row]
    return tables.evals.names[eval_code], tables.tests.names[test], tables.engines.names[engine]


def _worst(tables: RunTables, row: int, scores: Sequence[str], pages: Mapping[str, range]) -> Data:
    names = _names_of(tables, row)
    number, (page, rows) = next((number, item) for number, item in enumerate(pages.items()) if row in item[1])
    anchor = "#" + case_anchor(*names, tables.case_ids[row])
    return {
        "case": tables.case_ids[row],
        "where": _where(tables, names),
        "outcome": tables.outcomes[row],
        "problem": _group_of(tables, tables.row_problems[row]).problem,
        "scores": " · ".join(scores[:3]),
        "link": anchor if number == 0 else page + anchor,
        "row": row - rows.start if number == 0 else None,
    }


def _group_of(tables: RunTables, number: int) -> ProblemGroup:
    return next(group for group in tables.problems.values() if group.number == number)


def problem_lines(tables: RunTables) -> Iterator[Data]:
    """Yield the reasons of what did not pass, the worst outcomes and the most frequent first."""
    groups = sorted(tables.problems.values(), key=lambda group: (_ORDER.index(group.outcome), -group.count))
    for group in groups[:NUM_PROBLEMS]:
        yield {"of": group, "link": cases_link(problem=str(group.number))}


def most_frequent(problems: Iterable[Data]) -> list[Data]:
    """Return the reasons that the most cases have; why cases were skipped is none of a failure."""
    return sorted((line for line in problems if line["of"].outcome != "skip"), key=lambda line: -line["of"].count)[:NUM_TOP]


def weak_slices(tables: RunTables, goals: dict[tuple[str, str, str], Goal]) -> list[Data]:
    """Return the slices (cases of one tag) whose whole interval lies below the mean of all cases, the farthest behind first.

    Looked at are the scores that decide; those that are better when lower are turned round.
    """
    if not tables.row_tags:
        return []
    ways = deciding(tables, goals)
    slices: list[tuple[float, Data]] = []
    for (eval_name, test, engine, tag, value, metric), score in tables.tag_scores.items():
        way = ways.get((eval_name, test, metric), 0)
        mean = tables.scores[eval_name, test, engine, metric].mean
        worst = when_finite(score.high if way > 0 else score.low)
        if not way or worst is None or score.n < _FEW:
            continue
        behind = (mean - score.mean) * way
        if behind >= _LEAST_DROP and (mean - worst) * way > 0:
            where, name = f"{eval_name} on {engine}", f"{tag} = {value or '(none)'}"
            text = f"{number_text(score.mean)} on {in_groups(plural(score.n, 'case'), score)}, {number_text(mean)} over all"
            link = cases_link(eval=eval_name, engine=engine, **{f"tag.{tag}": value})
            slices.append((behind, {"name": name, "column": metric, "where": where, "text": text, "link": link}))
    slices.sort(key=lambda entry: -entry[0])
    return [entry for _, entry in slices[:NUM_SLICES]]


def weak_lines(tables: RunTables) -> list[Data]:
    """Return the lines of tables that evals gave, such as a category's, whose F1 or accuracy lies far below that table's median."""
    weak: list[tuple[float, Data]] = []
    for (eval_name, _, title), engines in tables_by_title(tables).items():
        for engine, lines in engines.items():
            names, columns = _name_column(lines), list(dict.fromkeys(name for line in lines for name in line))
            column = next((name for name in columns if name.casefold().endswith(("f1", "accuracy")) and "mean" not in name), None)
            values = {text_of(line.get(names)): value for line in lines if column and (value := when_finite(line.get(column))) is not None}
            if len(values) < _FEW:
                continue
            middle = median(values.values())
            for name, value in values.items():
                if value < middle - _LINE_DROP:
                    text = f"{number_text(value)}, the median of {len(values)} is {number_text(middle)}"
                    line = {"name": name or "(none)", "column": column, "text": text, "where": f"{title} of {eval_name} on {engine}"}
                    weak.append((middle - value, {**line, "link": cases_link(eval=eval_name, engine=engine, q=name)}))
    weak.sort(key=lambda entry: -entry[0])
    return [entry for _, entry in weak[:NUM_LINES]]
