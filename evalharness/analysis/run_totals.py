"""What is computed over a whole run for run.json: gates and engines. Plain data; no pytest, no torch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from evalharness.analysis.gates import Gate, RegressionGate, evaluate_gate, parse_gate
from evalharness.analysis.judge import not_asked, not_judged

__all__ = ["engine_entries", "judge_gates"]

Row: TypeAlias = "dict[str, Any]"
JudgeRegression: TypeAlias = "Callable[[RegressionGate, str, Sequence[Row], str | None], dict[str, Any]]"


def judge_gates(
    evals: Mapping[str, Mapping[str, Any]],
    rows: Iterable[Row],
    aggregates: Iterable[Mapping[str, Any]],
    *,
    interrupted: str | None,
    unfinished: str | None = None,
    no_regression: JudgeRegression | None = None,
) -> list[dict[str, Any]]:
    """Return the verdict of every gate. None passes on a test with cases that were not run, or where the run is `unfinished`.

    `no_regression` judges against a baseline; without it such a gate is not asked.
    """
    by_test: dict[str, dict[str, dict[str, list[Row]]]] = {}
    for row in rows:
        by_test.setdefault(row["eval"], {}).setdefault(row["engine"], {}).setdefault(row["test"], []).append(row)
    extras: defaultdict[tuple[str, str, str], dict[str, float]] = defaultdict(dict)
    for entry in aggregates:
        extras[entry["eval"], entry["engine"], entry["test"]][entry["metric"]] = entry["value"]
    verdicts = []
    for evaluation in evals.values():
        name = evaluation["name"]
        for engine, tests in by_test.get(name, {}).items():
            for test, expressions in evaluation["tests"].items():
                mine = tests.get(test, [])
                incomplete = _not_run(mine, interrupted) or unfinished
                for expression in expressions if mine else ():
                    gate = parse_gate(expression)
                    if isinstance(gate, Gate):
                        verdict = evaluate_gate(gate, mine, extras[name, engine, test], incomplete=incomplete)
                    elif no_regression is not None:
                        verdict = no_regression(gate, engine, mine, incomplete)
                    else:
                        verdict = not_judged(gate, len(mine), unfinished) if unfinished else not_asked(gate, len(mine))
                    verdicts.append({"eval": name, "test": test, "engine": engine, **verdict})
    return verdicts


def _not_run(rows: Sequence[Row], interrupted: str | None) -> str | None:
    num = sum(row["outcome"] == "skip" and row["started_at"] is None for row in rows)
    return f"{num} of {len(rows)} cases were not run ({interrupted or 'the session ended before them'})" if num else None


def engine_entries(specs: Iterable[Mapping[str, Any]], lines: Iterable[Row]) -> list[dict[str, Any]]:
    """Return what run.json says of each engine: its spec, its settings as last described, and how it was loaded.

    Each worker has an engine of its own: what they counted (`num_batches_halved`) is summed.
    """
    described: defaultdict[str, list[Row]] = defaultdict(list)
    openings: defaultdict[str, list[Row]] = defaultdict(list)
    still_open: dict[tuple[str, str], int] = {}
    for line in lines:
        engine, settings = line["id"], line["settings"]
        if "load_s" in line:
            openings[engine].append(line)
            still_open[line["worker"], engine] = len(described[engine])
            described[engine].append(settings)
        else:
            described[engine][still_open[line["worker"], engine]] = settings
    return [{**spec, **_loaded(described[spec["id"]], openings[spec["id"]])} for spec in specs]


def _loaded(described: Sequence[Row], openings: Sequence[Row]) -> dict[str, Any]:
    """Return settings, and how often and in how many seconds (mean) the checkpoint was loaded, or swapped into a running engine."""
    swaps = [line["load_s"] for line in openings if line.get("how") == "swap"]
    loads = [line["load_s"] for line in openings if line.get("how") != "swap"]
    settings = dict(described[-1]) if described else {}
    if "num_batches_halved" in settings:
        settings["num_batches_halved"] = sum(one.get("num_batches_halved", 0) for one in described)
    return {
        "template_sha256": settings.pop("template_sha256", None),
        "settings": settings,
        "num_loads": len(loads),
        "load_s": round(sum(loads) / len(loads), 3) if loads else None,
        "num_swaps": len(swaps),
        "swap_s": round(sum(swaps) / len(swaps), 3) if swaps else None,
        "cold_because": sorted({line["cold_because"] for line in openings if "cold_because" in line}),
    }
