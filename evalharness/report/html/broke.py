"""What broke first in a run, as plain data: gates that failed, reasons, the worst cases, and slices that lie behind."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from evalharness.report.findings import gate_state
from evalharness.report.html.cases import case_anchor
from evalharness.report.html.overview import Data, cases_link, in_groups, interval_text
from evalharness.report.score_tables import tables_by_title
from evalharness.report.tables import ProblemGroup, RunTables
from evalharness.report.text import figure_text, number_text, one_line, plural, when_finite
from evalharness.report.weak_slices import WeakSlice, weak_slices as find_weak_slices
from evalharness.report.what_broke import NUM_WORST, not_judged, reason_groups, worst_rows
from evalharness.report.worst import Goal, deciding, goals, parts_of
from evalharness.runs.schema import GateVerdict, SliceVerdict, entries_of, text_of

NUM_SLICES = 6
NUM_LINES = 5
NUM_PROBLEMS = 40
NUM_PART_LINKS = 4
_LINE_DROP = 0.1
"""How far below the median of its table a line must lie to be named."""
_FEW = 5
"""The lines of a table with fewer are not told apart."""
_EXTREMES = frozenset({"min", "max", "lowest", "highest", "worst"})
_REST = {">=": "<", ">": "<=", "<=": ">", "<": ">="}
"""What a case's score must be to lack what a gate asks of the mean."""
_SIGNS = {">=": "≥", "<=": "≤", "==": "="}
_OF_VALUES = re.compile(r"(\d+) of \d+ values of(?= )")
"""How the reason of a gate on every slice of a tag begins."""
_NO_CASES: Data = {"parts": [], "rest": "", "num_more": 0, "weakest": None}
_RATES: Mapping[str, dict[str, str]] = {
    "pass_rate": {"outcome": "fail,miss"},
    "invalid_rate": {"outcome": "invalid"},
    "error_rate": {"outcome": "error"},
    "length_rate": {"flag": "length_cap"},
    "empty_rate": {"flag": "empty"},
}
"""Filters for the cases that make each built-in rate what it is."""


def failed_gates(tables: RunTables) -> list[Data]:
    """Return the gates that failed, by test and engine, the farthest from its limit first; each links to the cases that made it fail.

    One on all cases names the slice that lies farthest behind.
    Then those that failed without a number, and those that could not be judged, once per reason.
    """
    numbers: dict[tuple[str, str, str], list[Data]] = {}
    others: dict[str, list[GateVerdict]] = {}
    idle: list[GateVerdict] = []
    weakest = _weakest_slices(tables)
    for gate in entries_of(tables.run.get("gates")):
        state = gate_state(gate)
        if state == "not judged":
            idle.append(gate)
        elif state == "failed" and ", needs " in text_of(gate.get("reason")) and when_finite(gate.get("value")) is not None:
            numbers.setdefault(_place(gate), []).append(_failed(tables, gate, weakest))
        elif state == "failed":
            others.setdefault(text_of(gate.get("reason")), []).append(gate)
    groups: list[Data] = [
        {
            "state": "failed",
            "where": _where(tables, place),
            "size": _size(tables, place, gates),
            "num": len(gates),
            "gates": sorted(gates, key=lambda gate: -gate["gap"]),
        }
        for place, gates in numbers.items()
    ]
    groups.sort(key=lambda group: -max(gate["gap"] for gate in group["gates"]))
    groups += [_of_one_reason(tables, "failed", reason, gates) for reason, gates in others.items()]
    return groups + [_of_one_reason(tables, "not judged", f"not judged: {reason}", gates) for reason, gates in not_judged(idle).items()]


def _place(gate: GateVerdict) -> tuple[str, str, str]:
    return text_of(gate.get("eval")), text_of(gate.get("test")), text_of(gate.get("engine"))


def _where(tables: RunTables, place: tuple[str, str, str]) -> str:
    """Return "stage_a on hf:final"; the test too where the eval has several."""
    tests = {key[1] for key in tables.counts if key[0] == place[0]} | {place[1]}
    return f"{place[0]}{f' · {place[1]}' if len(tests) > 1 else ''} on {place[2]}"


def _size(tables: RunTables, place: tuple[str, str, str], gates: Sequence[Data]) -> str:
    """Return how many cases the gates are about; where all are on slices, how many the slices are of."""
    known = tables.counts.get(place)
    return max((gate["size"] for gate in gates), key=len, default="") or (plural(known["cases"], "case") if known else "")


def _weakest_slices(tables: RunTables) -> dict[tuple[str, ...], WeakSlice]:
    """Return, by eval, test, engine and metric, the slice that lies farthest behind, but for one that a failed gate on slices names."""
    failed = [gate for gate in entries_of(tables.run.get("gates")) if gate_state(gate) == "failed"]
    named = {(*_place(gate), gate.get("metric"), gate.get("tag")) for gate in failed}
    found = find_weak_slices(tables, goals(tables)) if failed else []
    return {(*one[:3], one.metric): one for one in reversed(found) if (*one[:3], one.metric, one.tag) not in named}


def _failed(tables: RunTables, gate: GateVerdict, weakest: Mapping[tuple[str, ...], WeakSlice]) -> Data:
    place = _place(gate)
    metric, value, threshold = text_of(gate.get("metric")), float(gate.get("value") or 0.0), float(gate.get("threshold") or 0.0)
    name, comparison, _ = parts_of(gate)
    tag, n = text_of(gate.get("tag") or ""), gate.get("n")
    summary = None if tag else tables.scores.get((*place, metric))
    filters = dict(zip(("eval", "test", "engine"), place, strict=True))
    if metric in _RATES:
        filters |= _RATES[metric]
    elif comparison in _REST and any(key[3] == metric for key in tables.scores):
        filters["score"] = f"{metric}{_REST[comparison]}{threshold:g}"
    reason, rest = one_line(text_of(gate.get("reason")), 300), ""
    if tag:
        slices = entries_of(gate.get("failed_slices"))
        links = ((part, cases_link(**filters, **{f"tag.{tag}": text_of(part.get("value"))})) for part in slices[:NUM_PART_LINKS])
        parts = [(*_slice_texts(part, metric), link) for part, link in links]
        rest = ", ".join("".join(_slice_texts(part, metric)) for part in slices[NUM_PART_LINKS:])
        if of_values := _OF_VALUES.match(reason):
            reason = f"{of_values[0]} {one_line(tag, 60)}, needs {_SIGNS.get(comparison, comparison)} {threshold:g}:"
    else:
        lost = [] if summary else _lines_with(tables, place, metric, value)
        parts = [(line or "(none)", "", cases_link(**filters, q=line)) for line in lost[:NUM_PART_LINKS]]
    return {
        "metric": name,
        "interval": interval_text(summary, metric) if summary else "",
        "reason": reason,
        "weakest": _weak_slice(weak) if (weak := weakest.get((*place, metric))) and not tag else None,
        "size": in_groups(plural(summary.n, "case"), summary) if summary else plural(n, "case") if isinstance(n, int) and not tag else "",
        "gap": abs(value - threshold) / (abs(threshold) or 1.0),
        "parts": parts,
        "rest": rest,
        "num_more": max(0, int(of_values[1]) - len(parts)) if tag and of_values else 0,
        "link": parts[0][2] if parts else cases_link(**filters),
    }


def _slice_texts(part: SliceVerdict, metric: str) -> tuple[str, str]:
    """Return a slice's name, and "0.067 (15 cases)"."""
    measured, n = part.get("measured"), part.get("n")
    number = figure_text(measured, metric) if isinstance(measured, (int, float)) else "no value"
    cases = f" ({plural(n, 'case')})" if isinstance(n, int) else ""
    return one_line(text_of(part.get("value")), 60) or "(none)", f" {number}{cases}"


def _lines_with(tables: RunTables, place: tuple[str, str, str], metric: str, value: float) -> list[str]:
    """Return the lines of the test's tables whose value an extreme is: of `category_min_f1` the categories with the lowest F1."""
    words = set(metric.casefold().split("_"))
    named = [
        (lines, _name_column(lines))
        for (eval_name, test, _), engines in tables_by_title(tables).items()
        if (eval_name, test) == place[:2] and words & _EXTREMES
        for lines in [engines.get(place[2], [])]
    ]
    found = (
        text_of(line.get(name))
        for lines, name in named
        if name.casefold() in words
        for line in lines
        for column, cell in line.items()
        if words & set(column.casefold().split()) and isinstance(cell, (int, float)) and math.isclose(cell, value, abs_tol=1e-9)
    )
    return list(dict.fromkeys(found))


def _name_column(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return the column that tells lines apart best: of those with texts in every line the one with the most different ones."""
    columns = [name for name in (lines[0] if lines else ()) if all(isinstance(line.get(name), str) for line in lines)]
    return max(columns, key=lambda name: len({line[name] for line in lines}), default=next(iter(lines[0]), "") if lines else "")


def _of_one_reason(tables: RunTables, state: str, reason: str, gates: Sequence[GateVerdict]) -> Data:
    places = list(dict.fromkeys(map(_place, gates)))
    link = cases_link(eval=places[0][0], test=places[0][1], engine=places[0][2]) if len(places) == 1 else ""
    expressions = _names(text_of(gate.get("expression")) for gate in gates)
    return {
        "state": state,
        "where": _names(_where(tables, place) for place in places),
        "size": plural(len(gates), "gate") if len(gates) > 1 else "",
        "num": len(gates),
        "gates": [{"metric": expressions, "interval": "", "reason": one_line(reason, 600), **_NO_CASES, "link": link}],
    }


def _names(names: Iterable[str]) -> str:
    found = list(dict.fromkeys(names))
    return ", ".join(found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "")


def worst_cases(tables: RunTables, order: Sequence[int], aims: dict[tuple[str, str, str], Goal], pages: Mapping[str, range]) -> list[Data]:
    """Return the worst cases of a run, as the terminal names them; of a run in which none was judged, those that could not be.

    `order` are the numbers of the rows, the worst first; `pages` says which rows each page has.
    """
    chosen = worst_rows(tables) or [row for row in order if tables.outcomes[row] not in ("pass", "skip")][:NUM_WORST]
    scores: dict[int, list[str]] = {row: [] for row in chosen}
    decide = deciding(tables, aims)
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
        "problem": _group_of(tables, tables.row_problems[row]).reason(),
        "scores": " · ".join(scores[:3]),
        "link": anchor if number == 0 else page + anchor,
        "row": row - rows.start if number == 0 else None,
    }


def _group_of(tables: RunTables, number: int) -> ProblemGroup:
    return next(group for group in tables.problems.values() if group.number == number)


def problem_lines(tables: RunTables) -> list[Data]:
    """Return the reasons of what did not pass, errors first, then the most frequent; last, why cases were skipped."""
    skipped = [group for group in tables.problems.values() if group.outcome == "skip"]
    return [{"of": group, "link": cases_link(problem=str(group.number))} for group in [*reason_groups(tables), *skipped][:NUM_PROBLEMS]]


def weak_slices(tables: RunTables, aims: dict[tuple[str, str, str], Goal]) -> list[Data]:
    """Return the weakest slices, each with a link to its cases."""
    return [
        {
            **_weak_slice(found),
            "column": found.metric,
            "where": f"{found.eval} on {found.engine}",
            "text": f"{number_text(found.score.mean)} on {in_groups(plural(found.score.n, 'case'), found.score)}, "
            f"{number_text(found.mean)} over all",
        }
        for found in find_weak_slices(tables, aims)[:NUM_SLICES]
    ]


def _weak_slice(found: WeakSlice) -> Data:
    return {
        "name": f"{found.tag} = {found.value or '(none)'}",
        "numbers": f"{number_text(found.score.mean)} ({in_groups(plural(found.score.n, 'case'), found.score)})",
        "link": cases_link(eval=found.eval, engine=found.engine, **{f"tag.{found.tag}": found.value}),
    }


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
