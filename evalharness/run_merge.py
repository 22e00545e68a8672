"""A run's journals put together: rows in the order of collection, and samples.jsonl. Knows no pytest.

Of a generation only what gates and aggregates need is kept in memory; the rest is read from the journal where somebody asks
for it, and samples.jsonl gets the journal's own bytes, one row at a time. Over 300 lines because reading, merging and
writing share what is known of where each generation lies.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from evalharness.errors import RecordError
from evalharness.journal import Line, encode, read_lines, session_of
from evalharness.nodeids import parse_nodeid
from evalharness.run_totals import Throughput
from evalharness.run_workers import WorkerTimes

__all__ = [
    "CaseKey",
    "CaseRecords",
    "Failed",
    "Recorded",
    "RunRecords",
    "eval_entries",
    "generation_facts",
    "known_nodeids",
    "merge_rows",
    "missing_row",
    "note_crashes",
    "read_records",
    "write_samples",
]

Row: TypeAlias = "dict[str, Any]"
CaseKey: TypeAlias = "tuple[str, str, str, str]"
"""worker, engine, eval, case."""

# What gates, aggregates and tables ask of every generation.
_KEPT = (
    "text",
    "finish_reason",
    "stop_reason",
    "num_prompt_tokens",
    "num_completion_tokens",
    "fallback",
    "ignored_options",
    "prompt_sha256",
)
_GENERATION = b',"generation":'  # in JSON such bytes are a key: a quote inside a text has a backslash before it


class Recorded(dict[str, Any]):
    """A generation in a journal: its short parts in memory, any other key read from there when somebody asks for it."""

    __slots__ = ("num_bytes", "offset", "path")

    def __init__(self, parts: Mapping[str, Any], path: Path, offset: int, num_bytes: int) -> None:
        super().__init__(parts)
        self.path, self.offset, self.num_bytes = path, offset, num_bytes

    def __missing__(self, key: str) -> Any:
        return self.whole()[key]

    def whole(self) -> dict[str, Any]:
        """Return all of it, as the journal has it."""
        with self.path.open("rb") as file:
            file.seek(self.offset)
            return json.loads(file.read(self.num_bytes))

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, in memory or not."""
        try:
            return self[key]
        except KeyError:
            return default


class Failed(NamedTuple):
    """Why there is no generation: "invalid" or "error", what was the matter, and the name of the request error, if it was one."""

    kind: str
    problem: str
    cause: str | None = None


@dataclass
class CaseRecords:
    """What one worker's journal says of a case: the latest of each sample, and of each request of each step."""

    samples: dict[int, Recorded | Failed] = field(default_factory=dict)
    in_steps: dict[tuple[int, int], Recorded | Failed] = field(default_factory=dict)
    shape: list[int] | None = None
    """How many requests each step had; None for a case that was not asked in steps, or that has not come to its end."""

    def has_all(self, num_samples: int) -> bool:
        """Return whether every sample came to its end, by a generation or a failure."""
        return all(sample in self.samples for sample in range(num_samples))

    def generation(self, sample: int) -> Recorded | None:
        """Return a sample's generation, None where it failed or is not there."""
        found = self.samples.get(sample)
        return found if isinstance(found, Recorded) else None

    def steps(self) -> list[list[Recorded | None]] | None:
        """Return the generations of each step, None for those that failed; None for a case without steps."""
        if self.shape is None:
            return None
        every = [[self.in_steps.get((step, request)) for request in range(size)] for step, size in enumerate(self.shape)]
        return [[found if isinstance(found, Recorded) else None for found in step] for step in every]


@dataclass
class RunRecords:
    """What the journals of a run say. `evals` is by path, `rows` by node id; a test run twice has its last row."""

    collected: Row = field(default_factory=dict)
    evals: dict[str, Row] = field(default_factory=dict)
    engine_lines: list[Row] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """Those of the session that was the last to work on the run."""
    earlier_problems: list[str] = field(default_factory=list)
    """Those of the sessions that it resumed."""
    session: int = 0
    throughput: Throughput = field(default_factory=Throughput)
    workers: WorkerTimes = field(default_factory=WorkerTimes)
    rows: dict[str, Row] = field(default_factory=dict)
    generations: dict[str, list[Recorded | None]] = field(default_factory=dict)
    """By node id: those that the row judged, None for a sample that failed."""
    steps: dict[str, list[list[Recorded | None]]] = field(default_factory=dict)
    """By node id, where the row's case was asked in steps: those of each step."""
    cases: dict[CaseKey, CaseRecords] = field(default_factory=dict)


def read_records(run_dir: Path) -> RunRecords:
    """Return what all journals say, read once, line by line. Raises `RecordError` for a broken line."""
    records = RunRecords()
    for line in read_lines(run_dir):
        worker, values = line.path.stem, line.values
        if (session := session_of(worker)) != records.session:
            records.session = session
            records.earlier_problems += records.problems
            records.problems = []
        kind = values.pop("kind")
        if kind in ("generation", "step"):
            _add_outcome(records, worker, values, _recorded(records, worker, line))
        elif kind in ("failure", "step_failure"):
            _add_outcome(records, worker, values, Failed(values["failure"], values["problem"], values.get("cause")))
        elif kind == "row":
            _add_row(records, worker, values)
        elif kind == "engine":
            records.workers.add_engine(worker, values)
            records.engine_lines.append({"worker": worker, **values})
        elif kind == "eval":
            records.evals[values["path"]] = values
        elif kind == "collected":
            records.collected = values
        elif kind == "problem":
            records.problems.append(values["problem"])
        elif kind == "unit_start":
            records.throughput.start_unit(worker)
            records.workers.start_unit(worker)
        elif kind == "unit":
            records.throughput.end_unit(worker, values["engine"], values["generation_s"])
            records.workers.end_unit(worker, values)
    return records


def _recorded(records: RunRecords, worker: str, line: Line) -> Recorded:
    values = line.values
    if next(reversed(values)) != "generation":
        raise RecordError(f"{line.path} has a generation with other keys behind it; it was written by another version of evalharness")
    made = values["generation"]
    start = line.raw.index(_GENERATION) + len(_GENERATION)
    short = {name: made[name] for name in _KEPT if name in made}
    recorded = Recorded(short, line.path, line.offset + start, len(line.raw) - start - len(b"}\n"))
    if not values.get("copied"):  # else a worker that died has it too, and took the time for it
        records.throughput.add_generation(worker, values["engine"], recorded)
    return recorded


def _add_outcome(records: RunRecords, worker: str, values: Row, outcome: Recorded | Failed) -> None:
    # A crashed worker's cases are asked again by another one, maybe with another answer: each row keeps what it judged.
    case = records.cases.setdefault((worker, values["engine"], values["eval"], values["case_id"]), CaseRecords())
    if "sample" in values:
        case.samples[values["sample"]] = outcome
        if not values.get("copied"):
            records.workers.add_outcome(worker)
        case.shape = values.get("steps")
    else:
        case.in_steps[values["step"], values["request"]] = outcome


def _add_row(records: RunRecords, worker: str, values: Row) -> None:
    num_samples = values.pop("num_samples", 1)
    case = records.cases.get((worker, values["engine"], values["eval"], values["case_id"]), CaseRecords())
    # Keys are made anew for every parsed line; there are many rows.
    row = {sys.intern(name): value for name, value in values.items()}
    row.setdefault("worker", worker)
    records.rows[row["nodeid"]] = row
    _set_generations(records, row, [case.generation(sample) for sample in range(num_samples)], case.steps())


def _set_generations(records: RunRecords, row: Row, found: list[Recorded | None], steps: list[list[Recorded | None]] | None = None) -> None:
    records.generations[row["nodeid"]] = found
    row["generation"] = found[0]
    if len(found) > 1:
        row["generations"] = found
    if steps is not None:
        row["steps"] = records.steps[row["nodeid"]] = steps
    row["prompt_sha256"] = found[0].get("prompt_sha256") if found[0] is not None else None


def generation_facts(records: RunRecords) -> dict[str, list[Row]]:
    """Return what run.json says of how the generations were made: throughput, workers, durations."""
    workers = records.workers
    return {"throughput": records.throughput.entries(), "workers": workers.entries(), "durations": workers.durations()}


def eval_entries(records: RunRecords) -> list[Row]:
    """Return what run.json says of the evals: all but their cases and how these are decoded, which are in every row."""
    return [{name: value for name, value in entry.items() if name not in ("cases", "options")} for entry in records.evals.values()]


def known_nodeids(nodeids: Iterable[str], evals: Mapping[str, Any]) -> list[str]:
    """Return the ids of eval tests: the controller of workers knows ids only, and somebody else's may look like an eval's."""
    return [nodeid for nodeid in nodeids if not evals or nodeid.partition("::")[0] in evals]


def merge_rows(records: RunRecords, nodeids: Iterable[str], missing: Callable[[str], Row]) -> list[Row]:
    """Return one row per collected test, in collection order, without the long parts of its generations.

    `missing(nodeid)` gives the row of a test that never finished.
    """
    rows = records.rows
    return [rows[nodeid] if nodeid in rows else missing(nodeid) for nodeid in dict.fromkeys([*nodeids, *rows])]


def missing_row(
    engines: Mapping[str, Mapping[str, Any]], evals: Mapping[str, Mapping[str, Any]], run_id: str, reason: str
) -> Callable[[str], Row]:
    """Return a function from a node id to the row of a test that never ran, for `reason`; `engines` is by id."""

    def row(nodeid: str) -> Row:
        node = parse_nodeid(nodeid, engines)
        if node is None:
            raise RecordError(f"{nodeid} was collected as an eval's test, but names none of the engines {', '.join(engines)}")
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
            "checkpoint": engines[node.engine]["checkpoint"],
            "backend": engines[node.engine]["backend"],
            "outcome": "skip",
            "problem": f"not run: {reason}",
            "scores": {},
            "generation": None,
            "prompt_sha256": None,
            "options": {},
            "run_id": run_id,
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


def note_crashes(records: RunRecords, rows: Iterable[Row], crashes: Mapping[str, str]) -> None:
    """Make an error of each test that its worker died in, also where the test itself had ended; with what was generated for it."""
    for row in rows:
        if row["nodeid"] not in crashes:
            continue
        row["outcome"], row["problem"] = "error", crashes[row["nodeid"]]
        if row["generation"] is None:
            key = (row["engine"], row["eval"], row["case_id"])
            found = [case for where, case in records.cases.items() if where[1:] == key and case.generation(0) is not None]
            if found:
                _set_generations(records, row, [found[0].generation(0)], found[0].steps())


def write_samples(run_dir: Path, records: RunRecords, rows: Sequence[Row]) -> None:
    """Write samples.jsonl whole or not at all, row by row; raises `RecordError`."""
    path = run_dir / "samples.jsonl"
    partial = path.with_suffix(".jsonl.partial")
    try:
        with partial.open("wb") as file:
            file.writelines(_sample_lines(records, rows))
        partial.replace(path)
    except OSError as error:
        raise RecordError(f"{path} cannot be written: {error.strerror}; the journal beside it keeps what was recorded") from error


def _sample_lines(records: RunRecords, rows: Sequence[Row]) -> Iterator[bytes]:
    with ExitStack() as stack:
        files: dict[Path, int] = {}

        def whole(recorded: Recorded | None) -> bytes:
            if recorded is None:
                return b"null"
            if recorded.path not in files:
                files[recorded.path] = os.open(recorded.path, os.O_RDONLY)
                stack.callback(os.close, files[recorded.path])
            return os.pread(files[recorded.path], recorded.num_bytes, recorded.offset)

        for row in rows:
            found = [whole(recorded) for recorded in records.generations.get(row["nodeid"], [None])]
            short = encode({name: value for name, value in row.items() if name not in ("generation", "generations", "steps")})
            more = b',"generations":' + _array(found) if "generations" in row else b""
            if "steps" in row:
                more += b',"steps":' + _array([_array(list(map(whole, step))) for step in records.steps[row["nodeid"]]])
            yield short[:-1].encode("ascii") + _GENERATION + found[0] + more + b"}\n"


def _array(elements: Sequence[bytes]) -> bytes:
    return b"[" + b",".join(elements) + b"]"
