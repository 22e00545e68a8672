"""What the journals of a run say, read once, line by line. Knows no pytest.

Of a generation only what gates and aggregates need is kept in memory; the rest is read from the journal where somebody asks
for it. Thousands of rows say the same words: what is equal is kept once. A little over 300 lines: the kinds of lines and what is
made of them are one reading.
"""

from __future__ import annotations

import gc
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from evalharness.api.errors import RecordError
from evalharness.runs.journal import Line, encode, read_lines, session_of
from evalharness.runs.workers import WorkerTimes

__all__ = [
    "CaseKey",
    "CaseRecords",
    "Failed",
    "Recorded",
    "RunRecords",
    "Throughput",
    "generation_facts",
    "read_records",
    "set_generations",
]


# Tokens and seconds of each engine of a run, as its journals tell of them

Row: TypeAlias = "dict[str, Any]"
_COUNTS = ("num_generations", "num_prompt_tokens", "num_completion_tokens")


class Throughput:
    """Seconds and tokens by engine. Tokens of a unit that broke, so that its seconds are not known, count for no rate.

    `generation_s` is the sum over workers, which generate side by side: tokens by it are a rate per worker.
    """

    def __init__(self) -> None:
        self._totals: dict[str, Row] = {}
        self._workers: defaultdict[str, set[str]] = defaultdict(set)
        self._open: defaultdict[str, dict[str, Counter[str]]] = defaultdict(dict)

    def start_unit(self, worker: str) -> None:
        """Note that a worker begins a unit; one that it had not ended has no seconds."""
        for engine, counts in self._open.pop(worker, {}).items():
            self._total(engine)["num_untimed_generations"] += counts["num_generations"]

    def add_generation(self, worker: str, engine: str, made: Mapping[str, Any]) -> None:
        """Note a generation of the worker's unit."""
        counts = self._open[worker].setdefault(engine, Counter())
        counts["num_generations"] += 1
        counts["num_prompt_tokens"] += made.get("num_prompt_tokens") or 0
        if made.get("finish_reason") != "scored":  # a given response is nobody's throughput
            counts["num_completion_tokens"] += made.get("num_completion_tokens") or 0

    def end_unit(self, worker: str, engine: str, generation_s: float) -> None:
        """Note the seconds of the worker's unit."""
        total = self._total(engine)
        total["generation_s"] += generation_s
        self._workers[engine].add(worker)
        for counts in self._open.pop(worker, {}).values():
            for name in _COUNTS:
                total[name] += counts[name]

    def entries(self) -> list[Row]:
        """Return one entry per engine, in order of first use; what is still open has no seconds."""
        for worker in list(self._open):
            self.start_unit(worker)
        return [{**total, "num_workers": len(self._workers[engine])} for engine, total in self._totals.items()]

    def _total(self, engine: str) -> Row:
        return self._totals.setdefault(
            engine, {"engine": engine, "generation_s": 0.0, **dict.fromkeys(_COUNTS, 0), "num_untimed_generations": 0}
        )


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
    "seed",
    "weight_version",
)
# Texts that rows have in common.
_REPEATED = ("eval", "test", "case_id", "engine", "checkpoint", "backend", "outcome", "run_id", "worker")
_AROUND_CHARS = 64
_GENERATION = b',"generation":'  # in JSON such bytes are a key: a quote inside a text has a backslash before it


class Recorded(dict[str, Any]):
    """A generation in a journal: its short parts in memory, any other key read from there when somebody asks for it."""

    __slots__ = ("around", "num_bytes", "offset", "path")

    def __init__(self, parts: Mapping[str, Any], path: Path, offset: int, num_bytes: int, around: tuple[str, str] | None = None) -> None:
        super().__init__(parts)
        self.path, self.offset, self.num_bytes = path, offset, num_bytes
        self.around = around
        """What the raw text has before and after the text, where that is all that it has more: end tokens, white space."""

    def __missing__(self, key: str) -> Any:
        if key == "raw_text" and self.around is not None:
            return f"{self.around[0]}{self['text']}{self.around[1]}"
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


_NO_STEPS: Mapping[Any, Any] = MappingProxyType({})


class Failed(NamedTuple):
    """Why there is no generation: "invalid" or "error", what was the matter, and the name of the request error, if it was one."""

    kind: str
    problem: str
    cause: str | None = None


@dataclass(slots=True)
class CaseRecords:
    """What one worker's journal says of a case: the latest of each sample, and of each request of each step."""

    samples: dict[int, Recorded | Failed] = field(default_factory=dict)
    in_steps: Mapping[tuple[int, int], Recorded | Failed] = field(default_factory=lambda: _NO_STEPS)
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
    """What the journals of a run say. `evals` is by path, `rows` by node id; a test run twice has its last row.

    Rows share what is equal: the options of their eval, group and tags of their case.
    """

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
    cases: dict[CaseKey, CaseRecords] = field(default_factory=dict)

    def forget_cases(self) -> None:
        """Let rows and generations go that nobody holds elsewhere: there are many, and reports need memory too."""
        self.rows.clear()
        self.cases.clear()


def read_records(run_dir: Path) -> RunRecords:
    """Return what all journals say, read once, line by line. Raises `RecordError` for a broken line."""
    reader = _Reader()
    with _no_collector():
        for line in read_lines(run_dir):
            reader.add(line)
    return reader.records


@contextmanager
def _no_collector() -> Iterator[None]:
    """Keep the garbage collector from looking at what grows, again and again: parsed JSON holds no cycles."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _EvalFacts(NamedTuple):
    """What a journal says of an eval, and its rows do not repeat. `options`: those of a row, None where rows have their own."""

    options: Any = None
    num_samples: int = 1
    cases: Mapping[str, Mapping[str, Any]] = MappingProxyType({})

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> _EvalFacts:
        """Return the facts of an eval's line."""
        variants = entry.get("options") or [None]
        return cls(variants[0] if len(variants) == 1 else variants, len(variants), entry.get("cases") or {})


_NOTHING_TOLD = _EvalFacts()


class _Reader:
    """Adds up lines. `_told` is what each journal said of its evals so far: rows refer to that."""

    def __init__(self) -> None:
        self.records = RunRecords()
        self._told: dict[tuple[str, str], _EvalFacts] = {}
        self._nodeids: dict[str, str] = {}
        self._arounds: dict[tuple[str, str], tuple[str, str]] = {}
        self._facts: dict[str, Row] = {}
        self._path: Path | None = None
        self._worker = ""

    def add(self, line: Line) -> None:
        """Note what a line says; unknown kinds are left out."""
        if line.path is not self._path:
            self._begin(line.path)
        records, values, worker = self.records, line.values, self._worker
        kind = values.pop("kind")
        if kind in ("generation", "step"):
            self._add_outcome(worker, values, self._recorded(worker, line))
        elif kind in ("failure", "step_failure"):
            self._add_outcome(worker, values, Failed(values["failure"], values["problem"], values.get("cause")))
        elif kind == "row":
            self._add_row(worker, values)
        elif kind == "engine":
            records.workers.add_engine(worker, values)
            records.engine_lines.append({"worker": worker, **values})
        elif kind == "eval":
            values["cases"] = self._shared(values.get("cases") or {})
            records.evals[values["path"]] = values
            self._told[worker, values["name"]] = _EvalFacts.of(values)
        elif kind == "collected":
            records.collected = values
            self._nodeids = {nodeid: nodeid for nodeid in values.get("nodeids", ())}
        elif kind == "problem":
            records.problems.append(values["problem"])
        elif kind == "unit_start" and not values.get("ahead"):  # else the one before goes on
            records.throughput.start_unit(worker)
            records.workers.start_unit(worker)
        elif kind == "unit":
            records.throughput.end_unit(worker, values["engine"], values["generation_s"])
            records.workers.end_unit(worker, values)

    def _begin(self, path: Path) -> None:
        self._path, self._worker = path, sys.intern(path.stem)
        session, records = session_of(self._worker), self.records
        if session != records.session:
            records.session = session
            records.earlier_problems += records.problems
            records.problems = []

    def _shared(self, cases: Mapping[str, Row]) -> dict[str, Row]:
        """Return the facts of cases by id, equal ones kept once: most have no group and one of a few sets of tags."""
        return {sys.intern(case_id): self._facts.setdefault(encode(facts), facts) for case_id, facts in cases.items()}

    def _recorded(self, worker: str, line: Line) -> Recorded:
        values = line.values
        if next(reversed(values)) != "generation":
            raise RecordError(f"{line.path} has a generation with other keys behind it; it was written by another version of evalharness")
        made = values["generation"]
        start = line.raw.index(_GENERATION) + len(_GENERATION)
        short = {name: made[name] for name in _KEPT if name in made}
        around = _around(made.get("text"), made.get("raw_text"))
        shared = None if around is None else self._arounds.setdefault(around, around)
        recorded = Recorded(short, line.path, line.offset + start, len(line.raw) - start - len(b"}\n"), shared)
        if not values.get("copied"):  # else a worker that died has it too, and took the time for it
            self.records.throughput.add_generation(worker, values["engine"], recorded)
        return recorded

    def _add_outcome(self, worker: str, values: Row, outcome: Recorded | Failed) -> None:
        # A crashed worker's cases are asked again by another one, maybe with another answer: each row keeps what it judged.
        key = (worker, sys.intern(values["engine"]), sys.intern(values["eval"]), sys.intern(values["case_id"]))
        case = self.records.cases.get(key)
        if case is None:
            case = self.records.cases[key] = CaseRecords()
        if "sample" in values:
            case.samples[values["sample"]] = outcome
            if not values.get("copied"):
                self.records.workers.add_outcome(worker)
            case.shape = values.get("steps")
        else:
            steps = case.in_steps if isinstance(case.in_steps, dict) else {}
            steps[values["step"], values["request"]] = outcome
            case.in_steps = steps

    def _add_row(self, worker: str, values: Row) -> None:
        facts = self._told.get((worker, values["eval"]), _NOTHING_TOLD)
        # Keys, and most texts, are made anew for every parsed line; there are many rows.
        row: Row = {sys.intern(name): value for name, value in values.items()}
        for name in _REPEATED:
            value = row.get(name)
            if type(value) is str:
                row[name] = sys.intern(value)
        row["nodeid"] = self._nodeids.get(row["nodeid"], row["nodeid"])
        row.setdefault("worker", worker)
        for name, value in facts.cases.get(row["case_id"], {}).items():
            row.setdefault(name, value)
        num_samples = row.pop("num_samples", 1 if "options" in row else facts.num_samples)
        if facts.options is not None:
            row.setdefault("options", facts.options)
        self.records.rows[row["nodeid"]] = row
        case = self.records.cases.get((worker, row["engine"], row["eval"], row["case_id"]))
        set_generations(row, case or CaseRecords(), num_samples)


def _around(text: object, raw_text: object) -> tuple[str, str] | None:
    """Return the little that a raw text has before and after the text; None where they differ in any other way."""
    if not isinstance(text, str) or not isinstance(raw_text, str) or len(raw_text) - len(text) > _AROUND_CHARS:
        return None
    before, found, after = raw_text.partition(text) if text else ("", raw_text, raw_text)
    return (before, after) if found or not raw_text else None


def set_generations(row: Row, case: CaseRecords, num_samples: int = 1) -> None:
    """Put what was generated for a case into a row that judged it; None stands for a sample that failed."""
    row["generation"] = first = case.generation(0)
    if num_samples > 1:
        row["generations"] = [case.generation(sample) for sample in range(num_samples)]
    steps = case.steps()
    if steps is not None:
        row["steps"] = steps
    row["prompt_sha256"] = first.get("prompt_sha256") if first is not None else None


def generation_facts(records: RunRecords) -> dict[str, list[Row]]:
    """Return what run.json says of how the generations were made: throughput, workers, durations."""
    workers = records.workers
    return {"throughput": records.throughput.entries(), "workers": workers.entries(), "durations": workers.durations()}
