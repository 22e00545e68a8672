"""Tokens, seconds and loads by engine, worker and eval, summed over the journal's lines for run.json and for later schedules.

Times are of one machine's clock.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from evalharness.api.errors import RecordError
from evalharness.runs.journal import session_of
from evalharness.runs.measured import Durations, EngineCost, Throughput, WorkerEntry
from evalharness.runs.run_file import read_run
from evalharness.runs.schema import EngineEntry, EngineLine, Generation, RunFile, UnitLine, entries_of

_Count: TypeAlias = Literal["num_generations", "num_prompt_tokens", "num_completion_tokens"]
_Seconds: TypeAlias = Literal["load_s", "tests_s", "idle_s"]
_SESSION = re.compile(r"^resumed-\d+-")
_PART = re.compile(r"^(resumed-\d+-)?(part\d+-)?.*$")  # what of a worker's name tells its session: of a merged run each part has its own
_COUNTS: tuple[_Count, ...] = ("num_generations", "num_prompt_tokens", "num_completion_tokens")


@dataclass
class _Worker:
    starts: Counter[str] = field(default_factory=Counter)
    devices: list[str] | None = None
    load_s: float = 0.0
    generation_s: float = 0.0
    num_units: int = 0
    first_s: float | None = None
    last_s: float = 0.0
    closed_s: float = 0.0
    engine: str = ""
    """The one that was opened last."""
    opened_s: float | None = None
    """When, until it is closed."""
    held_s: float = 0.0
    """In which an engine was open."""

    def note(self, began_s: float, ended_s: float) -> None:
        self.first_s = began_s if self.first_s is None else min(self.first_s, began_s)
        self.last_s = max(self.last_s, ended_s)


class WorkerTimes:
    """Adds up the journal's lines of engines and units, by worker, and by engine and eval."""

    def __init__(self) -> None:
        self._workers: defaultdict[str, _Worker] = defaultdict(_Worker)
        self._evals: dict[tuple[str, str], Durations] = {}
        self._seconds: defaultdict[str, dict[_Seconds, float]] = defaultdict(lambda: {"load_s": 0.0, "tests_s": 0.0, "idle_s": 0.0})

    def _close(self, worker: _Worker, closed_s: float) -> None:
        if worker.opened_s is None:
            return
        closed_s = max(closed_s, worker.opened_s)
        worker.held_s += closed_s - worker.opened_s
        self._seconds[worker.engine]["tests_s"] += closed_s - worker.opened_s
        worker.opened_s, worker.closed_s = None, closed_s

    def add_engine(self, worker: str, values: EngineLine) -> None:
        """Note that a worker opened an engine; `how` says whether by a load, or by a swap of weights into a running engine."""
        if "closed_s" in values:
            self._close(self._workers[worker], values["closed_s"])
        if "load_s" not in values or "ended_s" not in values:
            return  # closed, or of an older journal
        entry = self._workers[worker]
        self._close(entry, entry.last_s)  # if its process died before it could say so, after its last result
        entry.engine, entry.opened_s = values["id"], values["ended_s"]
        self._seconds[entry.engine]["load_s"] += values["load_s"]
        entry.starts[values.get("how", "load")] += 1
        entry.devices = values.get("devices")
        entry.load_s += values["load_s"]
        entry.note(values["ended_s"] - values["load_s"], values["ended_s"])

    def end_unit(self, worker: str, values: UnitLine) -> None:
        """Note that a unit ended."""
        if "ended_s" not in values:
            return  # of an older journal
        entry = self._workers[worker]
        entry.num_units += 1
        entry.generation_s += values["generation_s"]
        self._seconds[values["engine"]]["tests_s"] -= values["generation_s"]  # the rest of the time in which it is open
        entry.note(values["ended_s"] - values["generation_s"], values["ended_s"])
        if "num_outcomes" not in values:
            return  # likewise: seconds without a number of cases foretell nothing
        key = values["engine"], values["eval"]
        total = self._evals.setdefault(key, {"engine": key[0], "eval": key[1], "num_outcomes": 0, "generation_s": 0.0})
        total["num_outcomes"] += values["num_outcomes"]
        total["generation_s"] += values["generation_s"]

    def entries(self) -> list[WorkerEntry]:
        """Return one entry per worker that opened an engine.

        `idle_share` is the share of the session, from the first engine's opening to the last result, in which the worker neither opened an
        engine nor generated. A dead worker is idle from its death on. Sessions of a resumed run count separately.
        """
        sessions: defaultdict[int, list[_Worker]] = defaultdict(list)
        for name, entry in self._workers.items():
            sessions[session_of(name)].append(entry)
        spans = {session: _span_s(entries) for session, entries in sessions.items()}
        return [
            {
                "worker": name,
                "devices": entry.devices,
                "num_loads": entry.starts["load"],
                "num_swaps": entry.starts["swap"],
                "num_units": entry.num_units,
                "load_s": round(entry.load_s, 3),
                "generation_s": round(entry.generation_s, 3),
                "idle_share": _idle_share(entry, spans[session_of(name)]),
            }
            for name, entry in sorted(self._workers.items(), key=lambda item: (len(item[0]), item[0]))
        ]

    def seconds(self) -> dict[str, dict[_Seconds, float]]:
        """Return by engine the seconds, summed over workers, of loading, of waiting for tests while open, and of nothing to do.

        A worker that has closed its last engine has nothing to do until the session's last one has closed its own.
        """
        sessions: defaultdict[str, list[_Worker]] = defaultdict(list)
        for name, entry in self._workers.items():
            self._close(entry, entry.last_s)
            if entry.first_s is not None:
                sessions[_PART.sub(r"\1\2", name)].append(entry)
        for entries in sessions.values():
            first = min(entry.first_s or 0.0 for entry in entries)
            last = max(max(entry.last_s, entry.closed_s) for entry in entries)
            for entry in entries:
                self._seconds[entry.engine]["idle_s"] += max(0.0, last - first - entry.load_s - entry.held_s)
        return {engine: {name: round(max(0.0, value), 3) for name, value in each.items()} for engine, each in self._seconds.items()}

    def durations(self) -> list[Durations]:
        """Return the seconds and outcomes of each engine's evals, units that broke left out."""
        return [{**total, "generation_s": round(total["generation_s"], 3)} for total in self._evals.values()]


def _span_s(workers: Sequence[_Worker]) -> float:
    firsts = [entry.first_s for entry in workers if entry.first_s is not None]
    return max((entry.last_s for entry in workers), default=0.0) - min(firsts, default=0.0)


def _idle_share(worker: _Worker, span_s: float) -> float | None:
    return round(max(0.0, 1 - (worker.load_s + worker.generation_s) / span_s), 4) if span_s > 0 else None


class EngineTotals:
    """Seconds, tokens and work by engine. Those of a unit that broke, whose seconds are unknown, are left out.

    `generation_s` is summed over workers, which generate in parallel: tokens divided by it are a rate per worker.
    """

    def __init__(self) -> None:
        self._totals: dict[str, Throughput] = {}
        self._workers: defaultdict[str, set[str]] = defaultdict(set)
        self._open: defaultdict[str, dict[str, tuple[Counter[_Count], AnswerSums]]] = defaultdict(dict)
        self._answers: defaultdict[str, AnswerSums] = defaultdict(AnswerSums)
        self._work: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def start_unit(self, worker: str) -> None:
        """Note that a worker begins a unit; a previous unit that it had not ended has no seconds."""
        for engine, (counts, _) in self._open.pop(worker, {}).items():
            self._total(engine)["num_untimed_generations"] += counts["num_generations"]

    def add_generation(self, worker: str, engine: str, made: Generation) -> None:
        """Note a generation of the worker's unit."""
        counts, answers = self._open[worker].setdefault(engine, (Counter(), AnswerSums()))
        num_prompt, num_made = made.get("num_prompt_tokens") or 0, made.get("num_completion_tokens") or 0
        is_given = made.get("finish_reason") == "scored"  # a given response was not generated
        counts["num_generations"] += 1
        counts["num_prompt_tokens"] += num_prompt
        counts["num_completion_tokens"] += 0 if is_given else num_made
        if not made.get("cached"):
            answers.add(*((num_prompt + num_made, 0) if is_given else (num_prompt, num_made)), len(made.get("images") or ()))

    def end_unit(self, worker: str, engine: str, generation_s: float, work: Mapping[str, float] = MappingProxyType({})) -> None:
        """Note the seconds of the worker's unit, and the work in them."""
        total = self._total(engine)
        total["generation_s"] += generation_s
        self._workers[engine].add(_SESSION.sub("", worker))
        self._work[engine].update(work)
        for counts, answers in self._open.pop(worker, {}).values():
            for name in _COUNTS:
                total[name] += counts[name]
            self._answers[engine].take(answers)

    def entries(self) -> list[Throughput]:
        """Return one entry per engine, in order of first use; open units have no seconds."""
        for worker in list(self._open):
            self.start_unit(worker)
        return [
            {**total, "num_workers": len(self._workers[engine]), "answers": self._answers[engine].to_json(), **_work(self._work[engine])}
            for engine, total in self._totals.items()
        ]

    def _total(self, engine: str) -> Throughput:
        nothing: Any = {"engine": engine, "generation_s": 0.0, **dict.fromkeys((*_COUNTS, "num_untimed_generations", "num_workers"), 0)}
        return self._totals.setdefault(engine, nothing)


_OF_DRAFTS = "draft_"


def _work(sums: Mapping[str, float]) -> Any:
    """Return an engine's work, and apart what became of its drafts, if it had any."""
    work = {name: round(value, 6) for name, value in sums.items() if not name.startswith(_OF_DRAFTS)}
    drafts = {name.removeprefix(_OF_DRAFTS): round(value, 3) for name, value in sums.items() if name.startswith(_OF_DRAFTS)}
    if not drafts:
        return {"work": work}
    drafts["saved_s"] = round(drafts.get("saved_s", 0.0) - drafts.pop("lost_s", 0.0), 3)
    return {"work": work, "drafts": drafts}


@dataclass(slots=True)
class AnswerSums:
    """What answers cost depends on these sums over them; see `analysis.speed.bound.Work`, whose names they have."""

    num_prompts: int = 0
    num_prompt_tokens: int = 0
    sum_prompt_squares: int = 0
    num_answers: int = 0
    """Those that were generated, not given."""
    num_made_tokens: int = 0
    sum_context: float = 0.0
    longest: int = 0
    num_pictures: int = 0

    def add(self, num_prompt: int, num_made: int, num_pictures: int) -> None:
        """Add an answer of so many tokens to a prompt of so many."""
        self.num_prompts += 1
        self.num_prompt_tokens += num_prompt
        self.sum_prompt_squares += num_prompt * num_prompt
        self.num_answers += num_made > 0
        self.num_made_tokens += num_made
        self.sum_context += num_made * (num_prompt + num_made / 2)
        self.longest = max(self.longest, num_made)
        self.num_pictures += num_pictures

    def take(self, other: AnswerSums) -> None:
        """Add another one's sums."""
        for name, value in other.to_json().items():
            setattr(self, name, max(self.longest, value) if name == "longest" else getattr(self, name) + value)

    def to_json(self) -> dict[str, float]:
        """Return the sums by name."""
        return asdict(self)


def engine_entries(specs: Iterable[EngineEntry], lines: Iterable[EngineLine]) -> list[EngineEntry]:
    """Return run.json's entry of each engine: its spec, its settings as last described, and how it was loaded.

    Each worker has an engine of its own: their counts (`num_batches_halved`) are summed.
    """
    described: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    openings: defaultdict[str, list[EngineLine]] = defaultdict(list)
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


def engine_costs(lines: Iterable[EngineLine]) -> dict[str, EngineCost]:
    """Return what each engine's limit depends on, as its last worker noted it; where workers had other cards than others, that is said."""
    costs: dict[str, EngineCost] = {}
    for line in lines:
        cost, before = line.get("cost"), costs.get(line["id"])
        if not cost:
            continue
        if before is not None and before.get("card") != cost.get("card"):
            cost = {**{name: value for name, value in cost.items() if name != "card"}, "card_unknown": "its workers had different GPUs"}  # type: ignore[assignment]
        costs[line["id"]] = cost
    return costs


def _loaded(described: Sequence[Mapping[str, Any]], openings: Sequence[EngineLine]) -> EngineEntry:
    """Return settings, and how often and in how many seconds (mean) the checkpoint was loaded, or swapped into a running engine."""
    swaps = [line["load_s"] for line in openings if line.get("how") == "swap"]
    loads = [line["load_s"] for line in openings if line.get("how") != "swap"]
    settings = dict(described[-1]) if described else {}
    if "num_batches_halved" in settings:
        settings["num_batches_halved"] = sum(facts.get("num_batches_halved", 0) for facts in described)
    return {
        "template_sha256": settings.pop("template_sha256", None),
        "settings": settings,
        "num_loads": len(loads),
        "load_s": round(sum(loads) / len(loads), 3) if loads else None,
        "num_swaps": len(swaps),
        "swap_s": round(sum(swaps) / len(swaps), 3) if swaps else None,
        "cold_because": sorted({line["cold_because"] for line in openings if "cold_because" in line}),
    }


_NUM_RUNS = 10


class CaseSeconds:
    """Mean seconds per case of (engine, eval) in a folder's latest runs; a new engine is assumed to be like its backend.

    Unreadable files are skipped.
    """

    def __init__(self, report_dir: Path) -> None:
        self._of_engine: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        self._of_backend: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        for run in _latest(report_dir):
            for entry in entries_of(run.get("durations")):
                with suppress(KeyError, TypeError, ZeroDivisionError):
                    case_s = entry["generation_s"] / entry["num_outcomes"]
                    self._of_engine[entry["engine"], entry["eval"]].append(case_s)
                    self._of_backend[entry["engine"].partition(":")[0], entry["eval"]].append(case_s)

    def expected(self, engine: str, evaluation: str) -> float:
        """Return the expected seconds of a case; for a new eval those of the backend's other evals, then of all evals, then 1."""
        backend = engine.partition(":")[0]
        if known := self._of_engine.get((engine, evaluation)) or self._of_backend.get((backend, evaluation)):
            return fmean(known)
        others = [case_s for (name, _), known in self._of_backend.items() if name == backend for case_s in known]
        every = others or [case_s for known in self._of_backend.values() for case_s in known]
        return fmean(every) if every else 1.0


def _latest(report_dir: Path) -> Iterator[RunFile]:
    """Yield the newest run.json files."""
    written: list[tuple[float, Path]] = []
    for path in report_dir.glob("*/run.json"):
        with suppress(OSError):  # it is being removed
            written.append((path.stat().st_mtime, path.parent))
    for _, run_dir in sorted(written, reverse=True)[:_NUM_RUNS]:
        with suppress(RecordError):
            yield read_run(run_dir)
