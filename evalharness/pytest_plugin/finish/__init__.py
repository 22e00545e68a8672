"""The end of a run, in the process that reports: journals → samples.jsonl → aggregates, tables, outputs → gates → run.json → reports."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from evalharness.analysis.eval_functions import EvalFunctions, across_engines, aggregate_rows, noting_failure, table_entries, write_outputs
from evalharness.analysis.gate_grammar import needs_baseline
from evalharness.analysis.judge import RegressionJudge, find_baseline, judged_run, num_regression_gates
from evalharness.analysis.noise import measured_noise
from evalharness.analysis.speed.engine_speed import engine_speeds
from evalharness.analysis.suites import suite_aggregates
from evalharness.api.errors import BROKEN, BaselineError, RecordError
from evalharness.config.options import DECODING
from evalharness.pytest_plugin._pytest_internals import import_module
from evalharness.pytest_plugin.eval_module import data_folder, marks_of
from evalharness.pytest_plugin.execution.takeover import forget_in_flight
from evalharness.pytest_plugin.run_context import RunContext
from evalharness.pytest_plugin.session import STATE, EvalSession
from evalharness.runs.command_line import shown_command
from evalharness.runs.files import RunLock
from evalharness.runs.records import generation_facts, read_records
from evalharness.runs.run_file import environment_facts, utc_now, write_run_file
from evalharness.runs.samples import ENDED, eval_entries, write_rows
from evalharness.runs.schema import BaselineFacts, EvalLine, GateVerdict, Row, RunFile
from evalharness.runs.workers import engine_entries


def start_run(state: EvalSession, *, is_late: bool = False) -> None:
    """Write run.json with options and environment; `RecordError` if the run's folder is taken or cannot be written.

    The run has begun, so that it can be resumed and has reports, once the journal says what was collected. `is_late`: workers have written
    into the folder already.
    """
    environment = environment_facts(state.context.root)
    if state.context.resumed is None:
        _make_folder(state, is_late=is_late)
    state.run_file_at_start = {
        "run_id": state.context.run.run_id,
        "command": shown_command(sys.argv, state.context.root),
        "started_at": state.context.started_at,
        "config": state.context.run.to_json(),
        "num_workers": state.context.num_workers,
        "baseline": _baseline(state),
        "notices": list(state.registry.notices),
        **state.execution.origin.facts,
        **environment,
    }
    if state.drafts is not None:
        state.run_file_at_start["drafts"] = state.drafts
    if state.context.resumed is not None:
        state.run_file_at_start = state.context.resumed.asked(state.run_file_at_start)
    write_run_file(state.context.run_dir, state.run_file_at_start)
    # Were the run killed, its report would be made from this.
    engines = [spec.to_json() for spec in state.registry.known_engines]
    state.context.journal.write("collected", {"engines": engines, "nodeids": list(state.execution.plan.units)})
    state.has_started_run = True


def _make_folder(state: EvalSession, *, is_late: bool) -> None:
    journal_dir = state.context.run_dir / "journal"
    try:
        state.context.run_dir.mkdir(parents=True, exist_ok=True)
        journal_dir.mkdir(
            exist_ok=is_late and not (state.context.run_dir / "run.json").exists()
        )  # fails if it is there: of two runs started with one id, one gets it
    except FileExistsError:
        name = state.context.run.run_id
        raise RecordError(
            f"run {name!r} already exists in {state.context.run.report_dir}; choose another --run-id, or continue it: --resume {name}"
        ) from None
    except OSError as error:
        raise RecordError(f"{journal_dir} cannot be made: {error.strerror}; choose another folder with --report-dir") from error
    state.lock = RunLock(state.context.run_dir)


def finish_run(config: pytest.Config, *, exit_code: int, interrupted: str | None, crashes: Mapping[str, str]) -> tuple[RunFile, list[Row]]:
    """Write samples.jsonl and run.json of a run, however it ended; return run.json's content and the rows.

    `exit_code` is pytest's; see `_exit_code`. `crashes` names tests whose worker died. Anything that failed on the way is listed in
    `problems`.
    """
    state = config.stash[STATE]
    context, origin, run_dir = state.context, state.execution.origin, state.context.run_dir
    forget_in_flight(run_dir)
    records = read_records(run_dir)
    engines = {spec.id: spec.to_json() for spec in state.registry.known_engines}
    reason = interrupted or ENDED
    plan = state.execution.plan
    rows = write_rows(run_dir, records, engines, plan.units, context.run.run_id, plain=plan.plain, reason=reason, crashes=crashes)
    records.forget_cases()
    problems = list(records.problems)
    functions = _load_functions(config, records.evals, problems)
    entries = engine_entries(engines.values(), records.engine_lines)
    across = across_engines(functions, rows, entries, problems)
    aggregates = [*aggregate_rows(functions, rows, problems), *across.aggregates, *suite_aggregates(functions, rows)]
    tables = [*table_entries(functions, rows, problems), *across.tables]
    outputs, has_spot_checks = write_outputs(functions, rows, run_dir, context.run, problems)
    at_start = state.run_file_at_start
    baseline, no_regression = at_start.get("baseline"), None
    noise = measured_noise(rows, list(records.repeats.values()))
    if baseline is not None:
        path = Path(baseline["path"]) if baseline["path"] else None
        facts: RunFile = {**at_start, "engines": entries, "evals": eval_entries(records, rows), "aggregates": aggregates}
        if noise:
            facts["noise"] = noise
        num_gates = num_regression_gates(records.evals, rows)
        anyway, margin = context.run.accept_changes, context.run.until_certain or None
        no_regression = RegressionJudge(path, facts, baseline["problem"], anyway=anyway, num_gates=num_gates, margin=margin)
    why_not_run = interrupted or origin.why_not_run
    made: Any = origin.generation_facts or generation_facts(records)
    known: Any = {"aggregates": aggregates, "no_regression": no_regression, "noise": noise, "speeds": (speeds := engine_speeds(made))}
    judged = judged_run(records, rows, entries, interrupted=why_not_run, **known)
    across.remark(judged["gates"])
    if context.run.until_certain and no_regression is not None:
        from evalharness.analysis.judge_certain import tables_of_limits  # loads numpy

        tables += tables_of_limits(judged["gates"])
    has = {"has_spot_checks": has_spot_checks, "has_noise": noise is not None}
    run: RunFile = {
        **at_start,
        **origin.facts,  # what was found out meanwhile
        "idle_options": list(_idle_options(context, records.evals.values(), rows, **has)),
        "finished_at": utc_now(),
        "duration_s": round(time.monotonic() - context.started_s, 3),
        "interrupted": interrupted,
        "exit_code": _exit_code(exit_code, judged["gates"], is_broken=bool(problems or judged["counts"].get("error"))),
        **judged,
        "aggregates": aggregates,
        "tables": tables,
        "outputs": outputs,
        **made,
        "speed": speeds,
        "problems": problems,
    }
    if records.earlier_problems:
        run["earlier_problems"] = records.earlier_problems  # what broke then is mended, or has broken again
    write_run_file(run_dir, run)
    return run, rows


_OF_WORKERS = ("share_devices", "hang_timeout", "executor")
_OF_QUESTIONS = (*DECODING, "seed", "plugin")
"""Options of evals' questions: those that score given responses have no use for them."""
_OF_EVALS = (*_OF_QUESTIONS, "num_samples", "limit", "limit_first", "shard", "data")
"""Options of evals; tests without cases say themselves what they ask, and how."""


def _idle_options(
    context: RunContext, evals: Iterable[EvalLine], rows: Sequence[Row], *, has_spot_checks: bool, has_noise: bool
) -> Iterator[str]:
    """Yield the options of the command line that have turned out to concern nothing in the run."""
    evals, run = list(evals), context.run
    gates = [gate for entry in evals for gates in entry["tests"].values() for gate in gates]
    has_such_gate = any(gate.startswith("no_regression") for gate in gates)
    compares = any(map(needs_baseline, gates))
    reasons = {
        "spot": None if has_spot_checks else "no eval in this run has spot checks",
        "noise": None if has_noise else "no case was asked again",
        "noise_cases": None if run.noise else "it concerns --noise, which is not on",
        "coordinates": None if any(entry.get("takes_coordinates") for entry in evals) else "no test in this run takes `coordinates`",
        "baseline": None if compares else "no test in this run has a gate that compares with it",
        "until_certain": None if has_such_gate else "no test in this run has the gate no_regression",
        "accept_changes": None if run.resume or run.baseline else "it concerns resumed runs and baselines, and this run has neither",
        **dict.fromkeys(_OF_WORKERS, None if context.num_workers else "it concerns workers (-n), and there are none"),
        "ray_address": None if run.executor == "ray" else "it concerns --executor ray",
    }
    for name, reason in reasons.items():
        if reason is not None and run.origin(name) == "command line" and getattr(run, name):
            yield f"--{name.replace('_', '-')} changed nothing: {reason}"
    names: Sequence[str] = ()
    if not evals:
        names, why = _OF_EVALS, "it concerns evals, and this run has none"
    elif rows and all((row.get("generation") or {}).get("finish_reason") == "scored" for row in rows):
        names, why = [name for name in _OF_QUESTIONS if name != "seed" or run.limit is None], "this run only scored given responses"
    for name in names:
        if run.origin(name) == "command line" and getattr(run, name) != ():
            yield f"--{name.replace('_', '-')} changed nothing: {why}"


def _load_functions(config: pytest.Config, evals: Mapping[str, EvalLine], problems: list[str]) -> list[EvalFunctions]:
    """Return the functions of every eval by path; a module that cannot be imported is one of the `problems`.

    Under xdist only the workers have imported the modules, so this imports them the same way: those that this session has collected, not
    what else a journal names.
    """
    state = config.stash[STATE]
    collected = {unit.path for unit in state.execution.plan.units.values()}
    loaded = []
    for path, entry in evals.items():
        if path not in collected:
            problems.append(f"{path}: its functions for the end of the run are left out: this session has collected no test of it")
            continue
        with noting_failure(f"{path}: its functions for the end of the run", problems, "cannot be loaded"):
            module = state.registry.modules.get(path)
            given = (module and module.marker) or _imported_marker(config, path)
            asked: dict[str, Any] = {name: given.get(name) for name in ("aggregate", "across", "tables", "outputs", "suite")}
            data_dir = data_folder(given.get("data"), state.context.run, state.context.root)
            loaded.append(EvalFunctions(entry["name"], path, data_dir, **asked, draws=given.get("draws", 0)))
    return loaded


def _imported_marker(config: pytest.Config, path: str) -> Mapping[str, Any]:
    module = import_module(_file_of(config, path), config)  # as the workers did, so its own imports work here too
    # The markers of the module itself, then those of its classes and functions.
    holders = (module, *(value for value in vars(module).values() if isinstance(value, (type, FunctionType))))
    return next((mark.kwargs for holder in holders for mark in marks_of(holder) if mark.name == "eval"), {})


def _file_of(config: pytest.Config, path: str) -> Path:
    """Return the file of a module by what node ids say of it: below rootdir, or below an argument of the command line that is not."""
    inside = config.stash[STATE].context.root / path
    outside = (config.invocation_params.dir / argument.partition("::")[0] / path for argument in config.args)
    return next((file for file in (inside, *outside) if file.is_file()), inside)


def _exit_code(code: int, gates: Sequence[GateVerdict], *, is_broken: bool) -> int:
    """Return the run's exit code: pytest's own, but 1 if a gate failed, and `BROKEN` if anything broke as well.

    So 1 is a verdict on the checkpoint, and an infrastructure failure has another code. An interrupted session keeps its code.
    """
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        return code
    if is_broken:
        return BROKEN
    # A gate that was not asked has neither passed nor failed.
    return int(pytest.ExitCode.TESTS_FAILED) if any(gate["passed"] is False for gate in gates) else code


def _baseline(state: EvalSession) -> BaselineFacts | None:
    """Return the path of the run's baseline; looked up at the start, when this run is not yet the latest."""
    asked = state.context.run.baseline
    if asked is None:
        return None
    base = state.context.root if state.context.run.origin("baseline").endswith(".toml") else Path.cwd()
    try:
        path = find_baseline(asked, root=state.context.root, base=base, report_dir=Path(state.context.run.report_dir))
        return {"asked": asked, "path": str(path.absolute()), "problem": None}
    except BaselineError as error:
        return {"asked": asked, "path": None, "problem": str(error)}
