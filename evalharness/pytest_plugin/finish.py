"""The end of a run, in the process that reports: journals → samples.jsonl → aggregates → gates → run.json → reports."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from evalharness.errors import RecordError
from evalharness.gates import evaluate_gate, parse_gate
from evalharness.journal import generation_key, merge_rows, read_journals
from evalharness.pytest_plugin.aggregates import aggregate_rows, rows_by_engine
from evalharness.pytest_plugin.session import STATE, EvalSession, utc_now
from evalharness.run_file import environment_facts, write_run_file

__all__ = ["finish_run", "start_run"]

Row = dict[str, Any]


def start_run(state: EvalSession) -> None:
    """Write run.json with what is asked; raises `RecordError` where the run's folder is taken or cannot be written."""
    journal_dir = state.run_dir / "journal"
    try:
        state.run_dir.mkdir(parents=True, exist_ok=True)
        journal_dir.mkdir()  # fails if it is there: of two runs started with one id, one gets it
    except FileExistsError:
        raise RecordError(f"run {state.run.run_id!r} exists already in {state.run.report_dir}; choose another --run-id") from None
    except OSError as error:
        raise RecordError(f"{journal_dir} cannot be made: {error.strerror}; choose another folder with --report-dir") from error
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


def finish_run(config: pytest.Config, *, exit_code: int, interrupted: str | None, crashes: Mapping[str, str]) -> dict[str, Any]:
    """Write samples.jsonl and run.json of a run that ended, however it ended; returns run.json's content.

    `exit_code` is pytest's; a failed gate turns 0 into 1. `crashes` names tests whose worker died. What could not be
    done is in `problems`.
    """
    state = config.stash[STATE]
    lines = list(read_journals(state.run_dir))
    evals = _evals(lines)
    rows = merge_rows(lines, _known_nodeids(state, evals), _missing_row(state, evals, interrupted))
    _note_crashes(rows, crashes, lines)
    _write_samples(state.run_dir, rows)
    problems: list[str] = []
    aggregates = aggregate_rows(config, evals, rows, problems)
    gates = _gates(evals, rows, aggregates, interrupted)
    failed = bool(problems) or not all(gate["passed"] for gate in gates)
    run = {
        **_asked(state),
        "finished_at": utc_now(),
        "duration_s": round(time.monotonic() - state.started, 3),
        "interrupted": interrupted,
        "exit_code": int(pytest.ExitCode.TESTS_FAILED) if failed and exit_code == pytest.ExitCode.OK else exit_code,
        "engines": _engines(state, lines),
        "evals": [{name: value for name, value in entry.items() if name != "cases"} for entry in evals.values()],
        "gates": gates,
        "aggregates": aggregates,
        "counts": dict(Counter(row["outcome"] for row in rows)),
        "throughput": _throughput(lines),
        "problems": problems,
    }
    write_run_file(state.run_dir, run)
    return run


def _known_nodeids(state: EvalSession, evals: Mapping[str, Mapping[str, Any]]) -> list[str]:
    # The controller of workers knows tests by their ids only, and somebody else's may look like an eval's.
    return [nodeid for nodeid in state.eval_nodeids if not evals or nodeid.partition("::")[0] in evals]


def _missing_row(state: EvalSession, evals: Mapping[str, Mapping[str, Any]], interrupted: str | None) -> Callable[[str], Row]:
    engines = {spec.id: spec for spec in state.engines}

    def row(nodeid: str) -> Row:
        node = state.eval_node(nodeid)
        cases = evals[node.path]["cases"] if node.path in evals else {}
        case_id = node.case_id if node.case_id in cases else _unescaped(node.case_id)
        return {
            "nodeid": nodeid,
            "eval": Path(node.path).stem.removeprefix("test_"),
            "test": node.test,
            "case_id": case_id,
            "group": None,
            "tags": {},
            **cases.get(case_id, {}),
            "engine": node.engine,
            "checkpoint": engines[node.engine].checkpoint,
            "backend": engines[node.engine].backend,
            "outcome": "skip",
            "problem": f"not run: {interrupted or 'the session ended before it'}",
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


def _unescaped(case_id: str) -> str:
    """Return a case id as it was before pytest put it into a test's id."""
    try:
        return case_id.encode("ascii").decode("unicode_escape")
    except UnicodeError:
        return case_id


def _note_crashes(rows: Sequence[Row], crashes: Mapping[str, str], lines: Sequence[Row]) -> None:
    """Make an error of each test that its worker died in, also where the test itself had ended; with what was generated for it."""
    for row in rows:
        if row["nodeid"] not in crashes:
            continue
        row["outcome"], row["problem"] = "error", crashes[row["nodeid"]]
        if row["generation"] is None:
            key = (row["engine"], row["eval"], row["case_id"], 0)
            found = [line for line in lines if line["kind"] == "generation" and generation_key(line) == key]
            row["generation"] = found[0]["generation"] if found else None


def _write_samples(run_dir: Path, rows: Sequence[Row]) -> None:
    path = run_dir / "samples.jsonl"
    partial = path.with_suffix(".jsonl.partial")
    encode = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":"), check_circular=False).encode
    try:
        with partial.open("w", encoding="ascii") as file:
            file.writelines(encode(row) + "\n" for row in rows)
        partial.replace(path)
    except OSError as error:
        raise RecordError(f"{path} cannot be written: {error.strerror}; the journal beside it keeps what was recorded") from error


def _evals(lines: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """Return the evals by path, as every worker noted them."""
    return {
        line["path"]: {name: line[name] for name in ("name", "path", "num_cases", "tests", "cases")}
        for line in lines
        if line["kind"] == "eval"
    }


def _gates(
    evals: Mapping[str, Mapping[str, Any]], rows: Sequence[Row], aggregates: Sequence[Mapping[str, Any]], interrupted: str | None
) -> list[dict[str, Any]]:
    verdicts = []
    for entry in evals.values():
        for engine, own in rows_by_engine(rows, entry["name"]).items():
            for test, expressions in entry["tests"].items():
                key = (entry["name"], test, engine)
                extra = {a["metric"]: a["value"] for a in aggregates if (a["eval"], a["test"], a["engine"]) == key}
                mine = [row for row in own if row["test"] == test]
                not_run = sum(row["outcome"] == "skip" and row["started_at"] is None for row in mine)
                incomplete = (
                    f"{not_run} of {len(mine)} cases were not run ({interrupted or 'the session ended before them'})" if not_run else None
                )
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
