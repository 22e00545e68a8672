"""What a reader of another tool's files gives, and how it becomes a run: a journal, rows and reports, as if the samples had been made here.

The journal makes `evalharness rescore RUN --tests checks.py` work on them, too.
"""

from __future__ import annotations

import hashlib
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from evalharness.analysis.comparison.pairing import IMPORTED_TEST
from evalharness.analysis.gate_grammar import EVERYWHERE, Gate, RegressionGate, parse_gate
from evalharness.analysis.judge import RegressionJudge, check_baseline, find_baseline, judged_run, num_regression_gates
from evalharness.analysis.slice_gates import refuse_unknown_slices, slice_of
from evalharness.api.checks import first_names, is_deeper
from evalharness.api.errors import BROKEN, ConfigError, RecordError, did_you_mean
from evalharness.config import RunConfig
from evalharness.config.sources import project_root
from evalharness.report.text import printable
from evalharness.runs.command_line import shown_command
from evalharness.runs.journal import Journal, encode
from evalharness.runs.records import RunRecords, read_records
from evalharness.runs.run_file import environment_facts, utc_now, write_run_file
from evalharness.runs.samples import write_rows
from evalharness.runs.schema import MAX_DATA_DEPTH, Aggregate, CaseFacts, EngineEntry, GateVerdict, RunFile, text_of
from evalharness.runs.workers import engine_entries

_MAX_ID_CHARS = 200


@dataclass(frozen=True)
class Answer:
    """One answer of a sample, or the response that was scored. `finish_reason` is None where the tool does not tell it."""

    text: str
    prompt: str = ""
    prompt_sha256: str | None = None
    finish_reason: str | None = None
    num_prompt_tokens: int | None = None
    num_completion_tokens: int | None = None


@dataclass(frozen=True)
class KnownCase:
    """A case of a run of ours; `prompt` is the hash that a comparison knows its prompt by."""

    eval: str
    test: str
    case_id: str
    group: str | None
    tags: Mapping[str, str]
    prompt: str
    reference: Any


@dataclass
class Sample:
    """One case: its answers, scores and what else is known. `failure` says why it has no scores."""

    id: str
    answers: list[Answer]
    scores: dict[str, float]
    columns: Mapping[str, Any] = field(default_factory=dict)
    """Of the data set's row: what --id and --tag may name."""
    details: dict[str, Any] = field(default_factory=dict)
    reference: Any = None
    options: dict[str, Any] = field(default_factory=dict)
    failure: str = ""
    started_at: str | None = None
    duration_s: float | None = None
    case: KnownCase | None = None
    """The case of a run of ours that it is known to be."""

    def all_tags(self, columns: Sequence[str]) -> dict[str, str]:
        """Return the tags: those of these columns, and of the case that it is."""
        values = ((name, column_of(self, name)) for name in columns)
        own = {name: value if isinstance(value, str) else encode(plain(value)) for name, value in values if value is not None}
        return own if self.case is None else {**own, **self.case.tags}


@dataclass
class Task:
    """One task's samples; `aggregates` are numbers that no score's mean is, `directions` as in `pytest.mark.eval`."""

    name: str
    samples: list[Sample]
    directions: dict[str, str] = field(default_factory=dict)
    aggregates: dict[str, float] = field(default_factory=dict)
    test: str = IMPORTED_TEST


@dataclass
class Imported:
    """All that was read: `tool` and `version`, the model's name and settings, the tasks, and what could not be taken over."""

    tool: str
    model: str
    tasks: list[Task]
    files: list[Path]
    version: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    template_sha256: str | None = None
    notices: list[str] = field(default_factory=list)


def plain(value: Any) -> Any:
    """Return JSON data without numbers that JSON lacks, which become texts."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {text_of(name): plain(inner) for name, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def sha256_of(text: str) -> str:
    """Return the SHA-256 of a text, of any text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def column_of(sample: Sample, path: str) -> Any:
    """Return a value of a sample's row, None where there is none; "meta.kind" is of an object in it."""
    value: Any = sample.columns
    for name in [path] if path in sample.columns else path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def check_columns(tasks: Iterable[Task], wanted: Iterable[str]) -> None:
    """Raise `ConfigError` for a column that no sample has."""
    samples = [sample for task in tasks for sample in task.samples]
    known = dict.fromkeys(name for sample in samples for name in sample.columns)
    for path in wanted:
        if all(column_of(sample, path) is None for sample in samples):
            hint = did_you_mean(path, known) or ";"
            raise ConfigError(f"no sample has the column {path!r}{hint} they have: {first_names(list(known), 20) or 'none'}")


def _ids(samples: Sequence[Sample], column: str | None) -> Iterator[str]:
    """Yield the samples' ids as test ids may be: printable, short, without "::", each once."""
    seen = {sample.case.case_id: 1 for sample in samples if sample.case is not None}
    for sample in samples:
        if sample.case is not None:
            yield sample.case.case_id
            continue
        wanted = sample.id if column is None else text_of(column_of(sample, column))
        name = printable(" ".join(wanted.split())).replace("::", ":").encode("ascii", "backslashreplace").decode("ascii")
        name = name if 0 < len(name) <= _MAX_ID_CHARS else f"{name[:80]}~{sha256_of(wanted)[:12]}"
        number = seen.get(name, 0) + 1
        while number > 1 and f"{name}~{number}" in seen:
            number += 1
        seen[name] = number
        unique = name if number == 1 else f"{name}~{number}"
        seen.setdefault(unique, 1)
        yield unique


def write_run(read: Imported, run: RunConfig, *, column: str | None, tags: Sequence[str], gates: Sequence[str]) -> RunFile:
    """Write the run directory but for its reports, and return run.json's content. Raises `RecordError`, or `ConfigError` for a gate."""
    started_at, started = utc_now(), time.monotonic()
    baseline = _baseline(run)
    check_columns(read.tasks, [*tags, *([column] if column else [])])
    run_dir = Path(run.report_dir) / run.run_id
    if run_dir.exists():
        raise RecordError(f"run {run_dir.name!r} already exists in {run_dir.parent}; choose another --run-id")
    engine = f"{read.tool}:{printable(read.model)}"
    entry = cast("EngineEntry", {"id": engine, "backend": read.tool, "checkpoint": read.model, "checkpoint_path": read.model})
    entry["options_not_taken"] = []
    writer = _Writer(read, engine, run.run_id, column, tags, _gates_of(read.tasks, [*map(parse_gate, gates)], tags))
    journal = Journal(run_dir, "import")
    nodeids = writer.write(journal, entry)
    journal.close()
    records = read_records(run_dir)
    rows = write_rows(run_dir, records, {engine: entry}, nodeids, run.run_id, reason="it was not imported")
    entries = [{**each, "settings": read.settings, "template_sha256": read.template_sha256} for each in engine_entries([entry], [])]
    aggregates: list[Aggregate] = [
        {"eval": task.name, "test": task.test, "engine": engine, "metric": metric, "value": value}
        for task in read.tasks
        for metric, value in task.aggregates.items()
    ]
    facts: RunFile = {
        "run_id": run.run_id,
        "command": shown_command(sys.argv, Path.cwd()),
        "started_at": started_at,
        "config": run.to_json(),
        "num_workers": 0,
        "notices": [_where_from(read), *read.notices],
        **environment_facts(Path.cwd()),
        "finished_at": utc_now(),
        "interrupted": None,
        "engines": cast("list[EngineEntry]", entries),
    }
    judge = _regression_judge(run, baseline, {**facts, "evals": list(records.evals.values())}, records, rows)
    judged = judged_run(records, rows, facts["engines"], interrupted=None, aggregates=aggregates, no_regression=judge)
    more: RunFile = {"aggregates": aggregates, "tables": [], "outputs": [], "throughput": [], "problems": [], "speed": []}
    code = BROKEN if judged["counts"].get("error") else int(any(gate["passed"] is False for gate in judged["gates"]))
    whole: RunFile = {**facts, **judged, **more, "duration_s": round(time.monotonic() - started, 3), "exit_code": code}
    if run.baseline is not None:
        whole["baseline"] = {"asked": run.baseline, "path": None if baseline is None else str(baseline.absolute()), "problem": None}
    write_run_file(run_dir, whole)
    return whole


def _gates_of(tasks: Sequence[Task], gates: Sequence[Gate | RegressionGate], tags: Sequence[str]) -> dict[str, list[str]]:
    """Return the gates of each task: those whose metric, and tag, it has. Raises `ConfigError` for one that no task has."""
    of_task: dict[str, list[str]] = {task.name: [] for task in tasks}
    known = {task.name: {*EVERYWHERE, *task.aggregates, *(name for sample in task.samples for name in sample.scores)} for task in tasks}
    for gate in gates:
        fitting = [task for task in tasks if isinstance(gate, RegressionGate) or gate.metric in known[task.name]]
        if not fitting and isinstance(gate, Gate):
            names = list(dict.fromkeys(name for names in known.values() for name in sorted(names)))
            hint = did_you_mean(gate.metric, names) or ";"
            raise ConfigError(f"gate {gate.expression!r}: no task has the metric {gate.metric!r}{hint} they have: {first_names(names, 20)}")
        slices = [[sample.all_tags(tags) for sample in task.samples] for task in fitting]
        refuse_unknown_slices([gate], (each for part in slices for each in part))
        for task, part in zip(fitting, slices, strict=True):
            if isinstance(gate, RegressionGate) or not gate.tag or any(slice_of(gate, each) is not None for each in part):
                of_task[task.name].append(gate.expression)
    return of_task


def _where_from(read: Imported) -> str:
    names = first_names([path.name for path in read.files], 3)
    return f"imported from {read.tool}{f' {read.version}' if read.version else ''}: {names}"


def _baseline(run: RunConfig) -> Path | None:
    """Return the path of the baseline, if one was given. Raises `BaselineError` for one that is not there."""
    if run.baseline is None:
        return None
    path = find_baseline(run.baseline, root=project_root(Path.cwd()), base=Path.cwd(), report_dir=Path(run.report_dir))
    check_baseline(path)
    return path


def _regression_judge(
    run: RunConfig, path: Path | None, facts: RunFile, records: RunRecords, rows: Sequence[Any]
) -> Callable[..., GateVerdict] | None:
    if path is None:
        return None
    return RegressionJudge(path, facts, None, anyway=run.accept_changes, num_gates=num_regression_gates(records.evals, rows))


@dataclass
class _Writer:
    """Writes the journal of an imported run."""

    read: Imported
    engine: str
    run_id: str
    column: str | None
    tags: Sequence[str]
    gates: Mapping[str, list[str]]

    def write(self, journal: Journal, entry: EngineEntry) -> list[str]:
        """Write all lines and return the node ids."""
        ids = [list(_ids(task.samples, self.column)) for task in self.read.tasks]
        nodeids = [self._nodeid(task, name) for task, names in zip(self.read.tasks, ids, strict=True) for name in names]
        journal.write("collected", {"engines": [entry], "nodeids": nodeids})
        for task, names in zip(self.read.tasks, ids, strict=True):
            cases = {name: self._facts(sample) for name, sample in zip(names, task.samples, strict=True)}
            path, num = self._path(task), len(names)
            told: Any = {"notices": [], "plugins": [], "directions": task.directions, "num_all_cases": num, "num_all_tests": num}
            told["tests"] = {task.test: self.gates[task.name]}
            line: Any = {"name": task.name, "path": path, "num_cases": num, "cases": cases, **told}
            journal.write("eval", line)
            first = _deciding(task)
            for name, sample in zip(names, task.samples, strict=True):
                self._write_sample(journal, task, name, sample, first)
        return nodeids

    def _facts(self, sample: Sample) -> CaseFacts:
        return {"group": None if sample.case is None else sample.case.group, "tags": sample.all_tags(self.tags)}

    def _path(self, task: Task) -> str:
        return f"{self.read.tool}/{printable(task.name).replace('::', ':')}"

    def _nodeid(self, task: Task, name: str) -> str:
        return f"{self._path(task)}::{task.test}[{self.engine}-{name}]"

    def _write_sample(self, journal: Journal, task: Task, name: str, sample: Sample, first: str | None) -> None:
        place: Any = {"engine": self.engine, "eval": task.name, "case_id": name}
        for number, answer in enumerate(sample.answers):
            made: Any = {**place, "sample": number, "generation": _generation(answer, self.read.tool)}
            journal.write("generation", made)
        failure = sample.failure or ("" if sample.answers else "no answer was recorded")
        if not sample.answers:
            lost_line: Any = {**place, "sample": 0, "failure": "error", "problem": failure, "cause": None}
            journal.write("failure", lost_line)
        lost = first is not None and sample.scores.get(first) == 0
        problem = failure or (f"{first} is 0" if lost else None)
        row: Any = {
            "nodeid": self._nodeid(task, name),
            **place,
            "test": task.test,
            "checkpoint": self.read.model,
            "backend": self.read.tool,
            "outcome": "error" if failure else "miss" if lost else "pass",
            "problem": problem,
            **self._facts(sample),
            "scores": {} if failure else sample.scores,
            "details": _fitting(sample.details),
            "reference": _fitting(sample.reference),
            "options": plain(sample.options),
            "num_samples": max(1, len(sample.answers)),
            "run_id": self.run_id,
            "started_at": sample.started_at or utc_now(),
            "duration_s": sample.duration_s,
        }
        journal.write("row", row)


def _fitting(value: Any) -> Any:
    """Return data as a row may hold it; what is nested too deep as text."""
    return plain(value) if not is_deeper(value, MAX_DATA_DEPTH) else "(nested too deep)"


def _deciding(task: Task) -> str | None:
    """Return the first score that all samples have as 0 or 1: it decides what passes; None where there is none."""
    scored = [sample.scores for sample in task.samples if not sample.failure]
    names = dict.fromkeys(name for scores in scored for name in scores)
    return next((name for name in names if all(scores.get(name) in (0, 1) for scores in scored)), None)


def _generation(answer: Answer, tool: str) -> dict[str, Any]:
    return {
        "text": answer.text,
        "raw_text": answer.text,
        "finish_reason": answer.finish_reason,
        "stop_reason": None,
        "num_prompt_tokens": answer.num_prompt_tokens,
        "num_completion_tokens": answer.num_completion_tokens,
        "backend": tool,
        "prompt_sha256": answer.prompt_sha256 or sha256_of(answer.prompt),
        "prompt_text": answer.prompt,
        "exact_ids": False,
    }
