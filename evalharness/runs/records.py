"""The content of a run's journals, read once, line by line.

Only the parts of a generation that gates and aggregates need stay in memory; the rest is read from the journal on access. Thousands of rows
repeat the same words, so equal values are stored once.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeAlias, TypedDict, cast

from evalharness.api.errors import RecordError
from evalharness.api.garbage import collector
from evalharness.runs.journal import Line, encode, read_journal, read_lines, session_of
from evalharness.runs.line_types import check_line
from evalharness.runs.measured import Durations, Throughput, WorkerEntry
from evalharness.runs.repeats import split_repeat
from evalharness.runs.schema import CaseFacts, Collected, EngineLine, EvalLine, Generation, OutcomeLine, Row, UnitLine
from evalharness.runs.workers import EngineTotals, WorkerTimes, engine_costs

EvalKey: TypeAlias = "tuple[str, str, str]"
"""worker, engine, eval."""

# What gates, aggregates and tables ask of every generation, with what most generations say: only what differs is kept.
_KEPT: Mapping[str, Any] = {
    "text": "",
    "finish_reason": "stop",
    "stop_reason": None,
    "num_prompt_tokens": None,
    "num_completion_tokens": None,
    "fallback": None,
    "ignored_options": [],
    "prompt_sha256": None,
    "seed": None,
    "weight_version": "0",
    "cached": False,
    "hidden": None,
}
# What those are where a generation does not have them, if not None.
_ABSENT: Mapping[str, Any] = {"text": "", "ignored_options": [], "cached": False}
# Texts that rows have in common.
_REPEATED = frozenset({"nodeid", "eval", "test", "case_id", "engine", "checkpoint", "backend", "outcome", "run_id", "worker"})
_AROUND_CHARS = 64
_GENERATION = b',"generation":'  # in JSON such bytes are a key: a quote inside a text has a backslash before it


class Recorded(dict[str, Any]):
    """A generation in a journal, read like a mapping: its short parts are in memory, any other key is read from the journal."""

    __slots__ = ("around", "num_bytes", "offset", "path", "thinks")

    def __init__(self, made: Mapping[str, Any], path: Path, offset: int, num_bytes: int, around: tuple[str, str] | None = None) -> None:
        super().__init__({name: value for name, usual in _KEPT.items() if (value := made.get(name, _ABSENT.get(name))) != usual})
        self.path, self.offset, self.num_bytes = path, offset, num_bytes
        self.around = around
        """What the raw text has before and after the text, where that is all that it has more: end tokens, white space."""
        self.thinks = made.get("thinking") is not None

    def __missing__(self, key: str) -> Any:
        if key in _KEPT:
            return _KEPT[key]
        if key == "thinking" and not self.thinks:
            return None
        if key == "raw_text" and self.around is not None:
            return f"{self.around[0]}{self['text']}{self.around[1]}"
        return self.whole()[key]

    def whole(self) -> dict[str, Any]:
        """Return the whole generation, read from the journal."""
        with self.path.open("rb") as file:
            file.seek(self.offset)
            return cast("dict[str, Any]", json.loads(file.read(self.num_bytes)))

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, in memory or not."""
        if key in _KEPT:
            return super().get(key, _KEPT[key])
        try:
            return self[key]
        except KeyError:
            return default


_NO_STEPS: Mapping[Any, Any] = MappingProxyType({})


class Failed(NamedTuple):
    """Why there is no generation: "invalid" or "error", the problem, and the name of the request error, if it was one."""

    kind: Literal["invalid", "error"]
    problem: str
    cause: str | None = None


@dataclass(slots=True)
class CaseRecords:
    """One worker's records of a case: the latest outcome of each sample, and of each request of each step."""

    outcomes: tuple[Recorded | Failed | None, ...] | list[Recorded | Failed | None] = ()
    """By sample; None where a sample has none. There are many cases, most with one sample, and a tuple of one takes half of a list."""
    in_steps: Mapping[tuple[int, int], Recorded | Failed] = field(default_factory=lambda: _NO_STEPS)
    shape: list[int] | None = None
    """Number of requests of each step; None for a case without steps, or one that has not ended."""

    @property
    def samples(self) -> dict[int, Recorded | Failed]:
        """The outcomes that are there, by sample."""
        return {sample: outcome for sample, outcome in enumerate(self.outcomes) if outcome is not None}

    def add(self, sample: int, outcome: Recorded | Failed) -> None:
        """Set the outcome of a sample."""
        if sample == 0 and len(self.outcomes) <= 1:
            self.outcomes = (outcome,)
            return
        if isinstance(self.outcomes, tuple):
            self.outcomes = list(self.outcomes)
        self.outcomes += [None] * (sample + 1 - len(self.outcomes))
        self.outcomes[sample] = outcome

    def has_all(self, num_samples: int) -> bool:
        """Return whether every sample has an outcome."""
        return len(self.outcomes) >= num_samples and None not in self.outcomes[:num_samples]

    def generation(self, sample: int) -> Recorded | None:
        """Return a sample's generation, None if it failed or is absent."""
        outcome = self.outcomes[sample] if sample < len(self.outcomes) else None
        return outcome if isinstance(outcome, Recorded) else None

    def steps(self) -> list[list[Recorded | None]] | None:
        """Return the generations of each step, None for those that failed; None for a case without steps."""
        if self.shape is None:
            return None
        outcomes = [[self.in_steps.get((step, request)) for request in range(size)] for step, size in enumerate(self.shape)]
        return [[outcome if isinstance(outcome, Recorded) else None for outcome in step] for step in outcomes]


@dataclass
class RunRecords:
    """The content of a run's journals. `evals` is by path, `rows` by node id; a test that ran twice has its last row.

    Rows share equal parts: the options of their eval, group and tags of their case, scores that are all 0 or 1.
    """

    collected: Collected = field(default_factory=Collected)
    evals: dict[str, EvalLine] = field(default_factory=dict)
    engine_lines: list[EngineLine] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """Of the last session of the run."""
    earlier_problems: list[str] = field(default_factory=list)
    """Of the sessions before it."""
    session: int = 0
    throughput: EngineTotals = field(default_factory=EngineTotals)
    workers: WorkerTimes = field(default_factory=WorkerTimes)
    rows: dict[str, Row] = field(default_factory=dict)
    repeats: dict[str, Row] = field(default_factory=dict)
    """Rows of repeats (--noise) by node id; `case_id` is the case's own."""
    cases: dict[EvalKey, dict[str, CaseRecords]] = field(default_factory=dict)
    """By case id."""

    def forget_cases(self) -> None:
        """Release rows and generations that nothing else references: there are many, and reports need memory too."""
        self.rows.clear()
        self.cases.clear()


def read_records(run_dir: Path) -> RunRecords:
    """Return the content of all journals, read once, line by line. Raises `RecordError` for a broken line."""
    reader = _Reader()
    with collector(on=False):
        for line in read_lines(run_dir):
            reader.add(line)
    return reader.records


def read_case(journal: Path, engine: str, eval_name: str, case_id: str) -> CaseRecords:
    """Return what a journal, to which another thread may be appending, has of one case."""
    reader = _Reader()
    for line in read_journal(journal):
        if line.values.get("case_id") == case_id and line.values["kind"] not in ("row", "repeat"):
            reader.add(line)
    return reader.records.cases.get((journal.stem, engine, eval_name), {}).get(case_id, CaseRecords())


class _SharedKeys:
    """Its objects' dictionaries share one table of keys (PEP 412): a row of twenty keys takes 272 bytes, not 472."""


class _EvalFacts(NamedTuple):
    """The facts that a journal's line of an eval gives for all its rows. `options` is None if rows have their own."""

    options: Any = None
    num_samples: int = 1
    cases: Mapping[str, CaseFacts] = MappingProxyType({})

    @classmethod
    def of(cls, entry: EvalLine) -> _EvalFacts:
        """Return the facts of an eval's line."""
        options = entry.get("options")
        variants: list[Any] = list(options) if options else [None]
        return cls(variants[0] if len(variants) == 1 else variants, len(variants), entry.get("cases") or {})


_NO_FACTS = _EvalFacts()


class _Reader:
    """Collects lines. `_eval_facts` holds each journal's eval lines so far: rows refer to them."""

    def __init__(self) -> None:
        self.records = RunRecords()
        self._eval_facts: dict[tuple[str, str], _EvalFacts] = {}
        self._arounds: dict[tuple[str, str], tuple[str, str]] = {}
        self._facts: dict[str, CaseFacts] = {}
        self._scores: dict[str, dict[str, float]] = {}
        self._path: Path | None = None
        self._worker = ""

    def add(self, line: Line) -> None:
        """Add a line; unknown kinds are skipped."""
        if line.path is not self._path:
            self._begin(line.path)
        check_line(line)
        records, values, worker = self.records, line.values, self._worker
        kind = values.pop("kind")
        if kind in ("generation", "step"):
            self._add_outcome(worker, cast("OutcomeLine", values), self._recorded(worker, line))
        elif kind in ("failure", "step_failure"):
            failure = cast("OutcomeLine", values)
            self._add_outcome(worker, failure, Failed(failure["failure"], failure["problem"], failure.get("cause")))
        elif kind == "row":
            self._add_row(worker, values, self.records.rows)
        elif kind == "repeat":
            self._add_row(worker, values, self.records.repeats)
        elif kind == "engine":
            engine: EngineLine = {**cast("EngineLine", values), "worker": values.get("worker", worker)}
            records.workers.add_engine(worker, engine)
            records.engine_lines.append(engine)
        elif kind == "eval":
            entry = cast("EvalLine", values)
            entry["cases"] = self._shared(entry.get("cases") or {})
            records.evals[entry["path"]] = entry
            self._eval_facts[worker, entry["name"]] = _EvalFacts.of(entry)
        elif kind == "collected":
            records.collected = cast("Collected", values)
            records.collected["nodeids"] = list(map(sys.intern, values.get("nodeids", ())))
        elif kind == "problem":
            records.problems.append(values["problem"])
        elif kind == "unit_start" and not values.get("ahead"):  # else the unit before still generates
            records.throughput.start_unit(worker)
        elif kind == "unit":
            unit = cast("UnitLine", values)
            records.throughput.end_unit(worker, unit["engine"], unit["generation_s"], unit.get("work") or {})
            records.workers.end_unit(worker, unit)

    def _begin(self, path: Path) -> None:
        self._path, self._worker = path, sys.intern(path.stem)
        session, records = session_of(self._worker), self.records
        if session != records.session:
            records.session = session
            records.earlier_problems += records.problems
            records.problems = []

    def _shared(self, cases: Mapping[str, CaseFacts]) -> dict[str, CaseFacts]:
        """Return the facts of cases by id, with equal facts stored once: most have no group and one of a few sets of tags."""
        return {sys.intern(case_id): self._facts.setdefault(encode(facts), facts) for case_id, facts in cases.items()}

    def _recorded(self, worker: str, line: Line) -> Recorded:
        values = line.values
        if next(reversed(values)) != "generation":
            raise RecordError(f"{line.path} has a generation that is not its line's last key: another version of evalharness wrote it")
        made = values["generation"]
        start, end = line.raw.find(_GENERATION) + len(_GENERATION), len(line.raw.rstrip()) - len(b"}")
        if line.raw.count(_GENERATION) != 1 and not _is_json(line.raw[start:end], made):
            raise line.broken("does not hold its generation as evalharness writes it")
        around = _around(made.get("text"), made.get("raw_text"))
        shared = None if around is None else self._arounds.setdefault(around, around)
        recorded = Recorded(made, line.path, line.offset + start, end - start, shared)
        # Else it is in the journal of a worker that died, which also took the time for it; or in a step of the case.
        if not values.get("copied") and not values.get("in_step"):
            self.records.throughput.add_generation(worker, values["engine"], made)
        return recorded

    def _add_outcome(self, worker: str, values: OutcomeLine, outcome: Recorded | Failed) -> None:
        # Another worker asks a crashed worker's cases again and may get another answer: each row keeps the one that it judged.
        of_eval = self.records.cases.setdefault((worker, values["engine"], values["eval"]), {})
        case = of_eval.get(values["case_id"])
        if case is None:
            case = of_eval[sys.intern(values["case_id"])] = CaseRecords()
        if "sample" in values:
            case.add(values["sample"], outcome)
            case.shape = values.get("steps")
        else:
            steps = case.in_steps if isinstance(case.in_steps, dict) else {}
            steps[values["step"], values["request"]] = outcome
            case.in_steps = steps

    def _add_row(self, worker: str, values: dict[str, Any], rows: dict[str, Row]) -> None:
        facts = self._eval_facts.get((worker, values["eval"]), _NO_FACTS)
        num_samples = values.pop("num_samples", None)
        # The parser makes new objects for keys and texts of every line; there are many rows.
        shared = _SharedKeys().__dict__
        for name, value in values.items():
            shared[sys.intern(name)] = sys.intern(value) if name in _REPEATED and type(value) is str else value
        for name, default in (("test", ""), ("scores", {}), ("problem", None), ("started_at", None)):
            shared.setdefault(name, default)
        row = cast("Row", shared)
        scores = shared.get("scores")
        if type(scores) is dict and all(type(value) is float and value in (0.0, 1.0) for value in scores.values()):
            row["scores"] = self._scores.setdefault(repr(scores), row["scores"])  # yes or no: the same in many rows
        row.setdefault("worker", worker)
        case_id = row["case_id"]
        if rows is self.records.repeats:
            row["case_id"] = sys.intern(split_repeat(case_id)[0])
        for name, value in facts.cases.get(row["case_id"], {}).items():
            shared.setdefault(name, value)
        if num_samples is None:
            num_samples = 1 if "options" in row else facts.num_samples
        if facts.options is not None:
            row.setdefault("options", facts.options)
        rows[row["nodeid"]] = row
        case = self.records.cases.get((worker, row["engine"], row["eval"]), {}).get(case_id)
        set_generations(row, case or CaseRecords(), num_samples)


def _is_json(content: bytes, value: object) -> bool:
    try:
        return bool(json.loads(content) == value)
    except ValueError:
        return False


def _around(text: object, raw_text: object) -> tuple[str, str] | None:
    """Return the parts of a raw text before and after the text; None if they differ in any other way."""
    if not isinstance(text, str) or not isinstance(raw_text, str) or len(raw_text) - len(text) > _AROUND_CHARS:
        return None
    before, match, after = raw_text.partition(text) if text else ("", raw_text, raw_text)
    return (before, after) if match or not raw_text else None


def set_generations(row: Row, case: CaseRecords, num_samples: int = 1) -> None:
    """Put a case's generations into a row that judged it; None stands for a sample that failed."""
    # A `Recorded` is read like a `Generation`: parts that are not in memory come from the journal.
    first = case.generation(0)
    row["generation"] = cast("Generation | None", first)
    if num_samples > 1:
        row["generations"] = cast("list[Generation | None]", [case.generation(sample) for sample in range(num_samples)])
    steps = case.steps()
    if steps is not None:
        row["steps"] = cast("list[list[Generation | None]]", steps)
    row["prompt_sha256"] = None if first is None else first["prompt_sha256"]


class GenerationFacts(TypedDict):
    """Facts for run.json about how the generations were made."""

    throughput: list[Throughput]
    workers: list[WorkerEntry]
    durations: list[Durations]


def generation_facts(records: RunRecords) -> GenerationFacts:
    """Return the facts for run.json about how the generations were made."""
    workers = records.workers
    seconds, costs = workers.seconds(), engine_costs(records.engine_lines)
    throughput = [
        cast("Throughput", {**entry, **seconds.get(entry["engine"], {}), "cost": costs.get(entry["engine"], {})})
        for entry in records.throughput.entries()
    ]
    return {"throughput": throughput, "workers": workers.entries(), "durations": workers.durations()}
