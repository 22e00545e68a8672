"""Verdicts of a run that stops when it is certain: of gates `no_regression` by the proof, of gates on a number by limits of the mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from evalharness.analysis.certainty import Limits, PairedTest, Place, Proof, coverage_sheet
from evalharness.analysis.comparison.sheets import Sheet, Side, sheets_by_engine
from evalharness.analysis.gate_grammar import Gate, RegressionGate
from evalharness.analysis.gates import BUILT_IN_METRICS
from evalharness.api.checks import first_names
from evalharness.api.wording import number_text, part_of
from evalharness.runs.partial import was_left_out
from evalharness.runs.schema import GateVerdict, MetricLimits, Row, RunFile, TableEntry, entries_of, mapping

_MOST_SHOWN = 3
_LIMITS = ("metric", "base", "difference", "low", "high")


def directions_of(base: Side, run: RunFile, test: tuple[str, str]) -> dict[str, str]:
    """Return which way scores of a test are better where it is not "higher"; the run's eval comes before the baseline."""
    directions = {metric: way for (*where, metric), way in base.directions.items() if tuple(where) == test}
    for entry in entries_of(run.get("evals")):
        if entry.get("name") == test[0]:
            directions |= mapping(entry.get("directions"))
    return directions


def paired_test(
    base: Side,
    run: RunFile,
    rows: Sequence[Row],
    metrics: Sequence[str],
    margin: float = 0.0,
    *,
    sheet: Sheet | None = None,
    holds: Callable[[Row], bool] | None = None,
) -> PairedTest | None:
    """Return what the rows of one test tell in their order, which is that of drawing; None where the baseline has not this test.

    `sheet` stands for the baseline's, and `holds` for the score of a row: bad where it holds.
    """
    (sheets,) = sheets_by_engine(rows).values()
    ((key, own),) = sheets.items()
    sheet = sheet or base.sheets.get(key)
    if sheet is None:
        return None
    places = [Place(row["case_id"], row.get("group"), int(row.get("stratum") == 1)) for row in rows]
    ways = directions_of(base, run, key) if holds is None else dict.fromkeys(metrics, "lower")
    test = PairedTest(places, sheet, ways, metrics, margin)
    for row in rows:
        if was_left_out(row):
            continue
        line = own.cases[row["case_id"]]
        scores = (line.scores if line.was_judged else None) if holds is None else {metrics[0]: float(holds(row))}
        test.note(row["case_id"], scores)
    return test


def judged_by_proof(
    gate: RegressionGate, whole: GateVerdict, refusal: str, label: str, rows: Sequence[Row], test: PairedTest
) -> GateVerdict:
    """Return the verdict that the proof gives; without one `whole`, that of all cases, if all were asked, and else none.

    `refusal`: why the two sides cannot be compared. `label`: the baseline's.
    """
    proof, limits = test.proof(), test.limits()
    num_left_out = sum(map(was_left_out, rows))
    verdict: GateVerdict = {
        **whole,
        "certain": {
            "claim": proof.claim,
            "margin": test.margin,
            "num_cases": proof.num_cases,
            "num_groups": proof.num_groups,
            "of_cases": test.num_cases,
            "proved": _harmless(label, proof, test, limits) if proof.claim == "harmless" else "",
            "metrics": [cast("MetricLimits", {name: getattr(each, name) for name in _LIMITS}) for each in limits],
        },
    }
    if refusal:
        return {**verdict, "passed": False, "reason": refusal}
    if not proof.claim and num_left_out:
        return {**verdict, "passed": False, "judged": False, "reason": f"not judged: {part_of(num_left_out, len(rows), 'case')} not asked"}
    if not proof.claim:
        return verdict
    reason = ""
    if proof.claim == "regressed":
        reason = f"{_regressions(label, limits)}; certain after {part_of(proof.num_cases, test.num_cases, 'case')}"
    value = limits[0].difference if len(gate.metrics) == 1 and limits else None
    return {**verdict, "n": proof.num_cases, "value": value, "passed": proof.claim == "harmless", "reason": reason}


def _harmless(label: str, proof: Proof, test: PairedTest, limits: Sequence[Limits]) -> str:
    """Return within which margin, after how many cases, and the metric that came nearest to it."""
    after = part_of(proof.num_cases, test.num_cases, "case")
    worst = limits[0]
    ends = f"{number_text(worst.low)} … {number_text(worst.high)}"
    which = f"nearest to it is {worst.metric}, changed by {number_text(worst.difference)} [{ends}]"
    others = f"; not compared: {first_names(test.not_compared, 5)}" if test.not_compared else ""
    return f"no metric is worse than in {label} by {number_text(test.margin)}, certain after {after}; {which}{others}"


def _regressions(label: str, limits: Sequence[Limits]) -> str:
    shown = [each for each in limits if each.is_regressed] or limits[:1]
    texts = [f"{each.metric} {number_text(each.base)} → about {number_text(each.base + each.difference)}" for each in shown[:_MOST_SHOWN]]
    more = f" and {len(shown) - _MOST_SHOWN} more" if len(shown) > _MOST_SHOWN else ""
    return f"regressed against {label}: {', '.join(texts)}{more}"


def judged_by_limits(gate: Gate, base: Side | str, run: RunFile, rows: Sequence[Row]) -> GateVerdict:
    """Return the verdict of a gate on a number by the limits that the asked cases set to the mean of all; none if they do not tell."""
    limits = None if gate.end or gate.tag or gate.change or gate.statistic or isinstance(base, str) else _mean_limits(gate, base, run, rows)
    num_left_out = sum(map(was_left_out, rows))
    which = f"{part_of(num_left_out, len(rows), 'case')} not asked (--until-certain)"
    verdict: GateVerdict = {
        "expression": gate.expression,
        "metric": gate.name,
        "value": None,
        "threshold": gate.threshold,
        "n": len(rows) - num_left_out,
        "passed": None,
        "judged": False,
        "reason": f"not judged: {which}, and this gate needs all",
        **({"measure": measure} if (measure := gate.change or gate.statistic) else {}),
    }
    if limits is None:
        return verdict
    about, *ends = limits
    between = f"{gate.metric} of all cases is within {number_text(ends[0])} … {number_text(ends[1])}"
    within = (gate.threshold,) if ends[0] < gate.threshold < ends[1] else ()  # == may hold there alone
    is_held = {gate.holds(value) for value in (*ends, *within)}
    if len(is_held) > 1:
        return {**verdict, "reason": f"not judged: {which}; {between}"}
    passed = is_held == {True}
    del verdict["judged"]
    return {**verdict, "passed": passed, "reason": "" if passed else f"{between}; {which}", "value": about, "notes": [between]}


def _mean_limits(gate: Gate, base: Side, run: RunFile, rows: Sequence[Row]) -> tuple[float, float, float] | None:
    rate = BUILT_IN_METRICS.get(gate.metric)
    if rate is not None and rate.is_about_coverage:
        clean = coverage_sheet(gate.metric, (row["case_id"] for row in rows))
        test = paired_test(base, run, rows, (gate.metric,), sheet=clean, holds=rate.holds)
    else:
        test = paired_test(base, run, rows, (gate.metric,))
    return None if test is None else test.mean_limits(gate.metric)


def tables_of_limits(gates: Sequence[GateVerdict]) -> list[TableEntry]:
    """Return a table of each metric's limits for every gate that was judged until certain."""
    tables: list[TableEntry] = []
    for gate in gates:
        facts = gate.get("certain")
        if facts and facts["metrics"]:
            after = part_of(facts["num_cases"], facts["of_cases"], "case")
            title = f"{gate['expression']}: differences to {gate['baseline']} after {after}, with limits that hold whenever the run stopped"
            rows = [dict(metric) for metric in facts["metrics"]]
            tables.append({"eval": gate["eval"], "test": gate["test"], "engine": gate["engine"], "title": title, "rows": rows})
    return tables
