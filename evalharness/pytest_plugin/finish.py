"""The end of a run, in the process that reports: journals → samples.jsonl → aggregates → gates → run.json → reports."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from evalharness.errors import RecordError
from evalharness.gates import evaluate_gate, parse_gate
from evalharness.journal import merge_rows, read_journals
from evalharness.pytest_plugin.session import EvalSession, utc_now
from evalharness.pytest_plugin.units import parse_nodeid
from evalharness.run_file import environment_facts, write_run_file

__all__ = ["finish_run", "start_run"]

Row = dict[str, Any]


def start_run(state: EvalSession) -> None:
    """Write run.json with what is asked; raises `RecordError` where the run's folder is taken or cannot be written."""
    if (state.run_dir / "run.json").exists():
        raise RecordError(f"run {state.run.run_id!r} exists already in {state.run.report_dir}; choose another --run-id")
    state.started_run = True
    write_run_file(state.run_dir, _asked(state))


def _asked(state: EvalSession) -> dict[str, Any]:
    return {
        "run_id": state.run.run_id,
        "command": sys.argv,
        "started_at": state.started_at,
        "config": state.run.to_json(),
        "num_workers": state.num_workers,
        **environment_facts(state.root),
    }


def finish_run(state: EvalSession, *, exit_code: int, interrupted: str | None, crashes: Mapping[str, str]) -> dict[str, Any]:
    """Write samples.jsonl and run.json of a run that ended, however it ended; returns run.json's content.

    `exit_code` is pytest's; a failed gate turns 0 into 1. `crashes` names tests whose worker died. What could not be
    done is in `problems`.
    """
    lines = list(read_journals(state.run_dir))
    rows = merge_rows(lines, state.eval_nodeids, _missing_row(state, interrupted, crashes))
    _write_samples(state.run_dir, rows)
    problems: list[str] = []
    evals = _evals(lines)
    aggregates = _aggregates(state, evals, rows, problems)
    gates = _gates(evals, rows, aggregates, interrupted)
    failed = bool(problems) or not all(gate["passed"] for gate in gates)
    run = {
        **_asked(state),
        "finished_at": utc_now(),
        "duration_s": round(time.monotonic() - state.started, 3),
        "interrupted": interrupted,
        "exit_code": int(pytest.ExitCode.TESTS_FAILED) if failed and exit_code == pytest.ExitCode.OK else exit_code,
        "engines": _engines(state, lines),
        "evals": evals,
        "gates": gates,
        "aggregates": aggregates,
        "counts": dict(Counter(row["outcome"] for row in rows)),
        "throughput": _throughput(lines),
        "problems": problems,
    }
    write_run_file(state.run_dir, run)
    return run


def _missing_row(state: EvalSession, interrupted: str | None, crashes: Mapping[str, str]) -> Callable[[str], Row]:
    engines = {spec.id: spec for spec in state.engines}

    def row(nodeid: str) -> Row:
        path, engine_id, case_id = parse_nodeid(nodeid, engines) or ("", "", "")
        crash = crashes.get(nodeid)
        return {
            "nodeid": nodeid,
            "eval": Path(path).stem.removeprefix("test_"),
            "test": nodeid.partition("::")[2].partition("[")[0].rpartition("::")[2],
            "case_id": case_id,
            "group": None,
            "tags": {},
            "engine": engine_id,
            "checkpoint": engines[engine_id].checkpoint,
            "backend": engines[engine_id].backend,
            "outcome": "error" if crash is not None else "skip",
            "problem": crash if crash is not None else f"not run: {interrupted or 'the session ended before it'}",
            "scores": {},
            "generation": None,
            "prompt_sha256": None,
            "options": {},
            "run_id": state.run.run_id,
            "worker": None,
            "started_at": None,
            "duration_s": None,
        }

    return row


def _write_samples(run_dir: Path, rows: Sequence[Row]) -> None:
    path = run_dir / "samples.jsonl"
    partial = path.with_suffix(".jsonl.partial")
    encode = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":"), check_circular=False).encode
    try:
        with partial.open("w", encoding="ascii") as file:
            file.writelines(encode(row) + "\n" for row in rows)
        partial.replace(path)
    except OSError as error:
        raise RecordError(f"{path} cannot be written: {error.strerror}; the journal beside it is complete") from error


def _evals(lines: Sequence[Row]) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for line in lines:
        if line["kind"] == "eval":
            known = found.setdefault(line["path"], {"name": line["name"], "path": line["path"], "num_cases": line["num_cases"], "tests": {}})
            known["tests"].update(line["tests"])
    return list(found.values())


def _aggregates(state: EvalSession, evals: Sequence[Mapping[str, Any]], rows: Sequence[Row], problems: list[str]) -> list[dict[str, Any]]:
    values: list[dict[str, Any]] = []
    for entry in evals:
        try:
            aggregate = _aggregate_function(state, entry["path"])
        except Exception as error:  # user code, imported or run here: its failure must not cost the report
            problems.append(f"{entry['path']}: its aggregate cannot be loaded: {type(error).__name__}: {error}")
            continue
        if aggregate is None:
            continue
        for engine, own in _by_engine(rows, entry["name"]).items():
            try:
                metrics = {str(name): float(value) for name, value in aggregate(own).items()}
            except Exception as error:
                problems.append(f"{entry['path']}: aggregate failed for {engine}: {type(error).__name__}: {error}")
                continue
            for name, value in metrics.items():
                if math.isfinite(value):
                    values.append({"eval": entry["name"], "engine": engine, "metric": name, "value": value})
                else:
                    problems.append(f"{entry['path']}: aggregate gave {name}={value} for {engine}; left out")
    return values


def _by_engine(rows: Sequence[Row], name: str) -> dict[str, list[Row]]:
    grouped: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row["eval"] == name:
            grouped[row["engine"]].append(row)
    return dict(grouped)


def _aggregate_function(state: EvalSession, path: str) -> Callable[[Sequence[Row]], Mapping[str, float]] | None:
    if path in state.modules:
        return state.modules[path].aggregate
    # Under xdist only the workers have imported the module.
    spec = importlib.util.spec_from_file_location(f"evalharness_loaded_{Path(path).stem}", state.root / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    marks = getattr(module, "pytestmark", [])
    for mark in marks if isinstance(marks, (list, tuple)) else [marks]:
        found: pytest.Mark = getattr(mark, "mark", mark)
        if found.name == "eval":
            return found.kwargs.get("aggregate")
    return None


def _gates(
    evals: Sequence[Mapping[str, Any]], rows: Sequence[Row], aggregates: Sequence[Mapping[str, Any]], interrupted: str | None
) -> list[dict[str, Any]]:
    verdicts = []
    for entry in evals:
        for engine, own in _by_engine(rows, entry["name"]).items():
            extra = {a["metric"]: a["value"] for a in aggregates if a["eval"] == entry["name"] and a["engine"] == engine}
            for test, expressions in entry["tests"].items():
                mine = [row for row in own if row["test"] == test]
                not_run = sum(row["outcome"] == "skip" and str(row["problem"]).startswith("not run") for row in mine)
                incomplete = f"{not_run} of {len(mine)} cases were not run ({interrupted or 'interrupted'})" if not_run else None
                for expression in expressions if mine else ():
                    verdict = evaluate_gate(parse_gate(expression), mine, extra, incomplete=incomplete)
                    verdicts.append({"eval": entry["name"], "test": test, "engine": engine, **verdict})
    return verdicts


def _engines(state: EvalSession, lines: Sequence[Row]) -> list[dict[str, Any]]:
    opened: dict[str, list[Row]] = defaultdict(list)
    for line in lines:
        if line["kind"] == "engine":
            opened[line["id"]].append(line)
    engines = []
    for spec in state.known_engines:
        loads = opened.get(spec.id, [])
        settings = dict(loads[0]["settings"]) if loads else {}
        engines.append(
            {
                **spec.to_json(),
                "template_sha256": settings.pop("template_sha256", None),
                "settings": settings,
                "num_loads": len(loads),
                "load_s": round(sum(line["load_s"] for line in loads) / len(loads), 3) if loads else None,
            }
        )
    return engines


def _throughput(lines: Sequence[Row]) -> list[dict[str, Any]]:
    totals: dict[str, dict[str, Any]] = {}
    for line in lines:
        if line["kind"] not in ("unit", "generation"):
            continue
        total = totals.setdefault(
            line["engine"],
            {"engine": line["engine"], "generation_s": 0.0, "num_generations": 0, "num_prompt_tokens": 0, "num_completion_tokens": 0},
        )
        if line["kind"] == "unit":
            total["generation_s"] += line["generation_s"]
        else:
            total["num_generations"] += 1
            for name in ("num_prompt_tokens", "num_completion_tokens"):
                total[name] += line["generation"][name] or 0
    return list(totals.values())
