"""Suites: evals that belong together, such as the subjects of a benchmark, and the averages of their scores.

The macro average counts every test of the suite's evals alike, the micro average every case. Both have intervals by groups of cases.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from evalharness.analysis.gates import mean_scores, was_judged
from evalharness.runs.schema import Aggregate, Row

if TYPE_CHECKING:
    from evalharness.analysis.eval_functions import EvalFunctions

NUM_DRAWS = 400


def suite_aggregates(evals: Iterable[EvalFunctions], rows: Sequence[Row]) -> list[Aggregate]:
    """Return `METRIC_macro` and `METRIC_micro` of each score that tests of a suite's evals have, by engine."""
    suites: dict[str, set[str]] = {}
    for functions in evals:
        if functions.suite is not None:
            suites.setdefault(functions.suite, set()).add(functions.name)
    entries: list[Aggregate] = []
    for suite, members in suites.items():
        tests: dict[str, dict[tuple[str, str], list[Row]]] = {}
        for row in rows:
            if row["eval"] in members and was_judged(row):
                tests.setdefault(row["engine"], {}).setdefault((row["eval"], row["test"]), []).append(row)
        for engine, by_test in tests.items():
            entries += _of_engine(suite, engine, by_test)
    return entries


def _of_engine(suite: str, engine: str, by_test: dict[tuple[str, str], list[Row]]) -> Iterable[Aggregate]:
    import numpy as np

    from evalharness.analysis.statistics.aggregates import interval_of, mean_draws, num_groups

    names = list(dict.fromkeys(name for rows in by_test.values() for name in mean_scores(rows)))
    drawn = {test: mean_draws(rows, names, NUM_DRAWS) for test, rows in by_test.items()}
    for column, name in enumerate(names):
        having = {test: scored for test, rows in by_test.items() if (scored := [row for row in rows if name in row["scores"]])}
        sums = np.array([drawn[test][0][:, column] for test in having])  # (tests, draws)
        counts = np.array([drawn[test][1][:, column] for test in having])
        values = [row["scores"][name] for rows in having.values() for row in rows]
        means = [mean_scores(rows)[name] for rows in having.values()]
        with np.errstate(invalid="ignore", divide="ignore"):
            draws = {"macro": (sums / counts).mean(axis=0), "micro": sums.sum(axis=0) / counts.sum(axis=0)}
        groups = num_groups([row for rows in having.values() for row in rows])
        for kind, value in (("macro", sum(means) / len(means)), ("micro", sum(values) / len(values))):
            known = [float(f"{draw:.6g}") if np.isfinite(draw) else None for draw in draws[kind]]
            entry: Aggregate = {"eval": suite, "test": "", "engine": engine, "metric": f"{name}_{kind}", "value": value}
            entry |= {"members": sorted({test[0] for test in having}), "draws": known, "num_groups": groups}
            interval = interval_of(value, known, groups)
            if interval is not None:
                entry["low"], entry["high"] = interval
            yield entry
