"""The generations of an earlier run, read from its journals once and looked up by case.

`evalharness rescore` gives them to tests in place of an engine's answers; a resumed run takes samples and step requests from here that need
not be generated again.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from evalharness.api.errors import EvalHarnessError, RecordError
from evalharness.api.requests import GenerationFailure, GenerationResult, Outcome
from evalharness.config import RunConfig
from evalharness.runs.records import CaseRecords, Failed, GenerationFacts, Recorded, RunRecords, generation_facts, read_records
from evalharness.runs.run_file import check_types, read_run
from evalharness.runs.schema import JUDGED, Row, RunFile


def outcome_of(recorded: Recorded | Failed) -> Outcome:
    """Return a recorded outcome as the engine gave it; `invalid` where a secret in the answer was hidden, for that is another answer."""
    if isinstance(recorded, Recorded) and recorded["hidden"]:
        names = ", ".join(recorded["hidden"])
        problem = f"the answer held a secret, which its record hides ({names}), so it cannot be judged again; generate it again"
        return GenerationFailure("invalid", problem)
    if isinstance(recorded, Recorded):
        return GenerationResult.from_json(recorded.whole())
    return GenerationFailure.recorded(*recorded)


class RecordedRun:
    """One run's records: `run` is its run.json, `records` the content of its journals."""

    def __init__(self, run_dir: Path, run: RunFile, records: RunRecords) -> None:
        self.run_dir = run_dir
        self.run = run
        self.records = records
        self._by_case: dict[tuple[str, str, str], dict[str, CaseRecords]] = {}
        for (worker, engine, eval_name), cases in records.cases.items():
            for case_id, case in cases.items():
                self._by_case.setdefault((engine, eval_name, case_id), {})[worker] = case

    @classmethod
    def read(cls, run_dir: Path, *, may_be_empty: bool = False) -> RecordedRun:
        """Return the records of a run that ended or was killed. Raises `RecordError` if nothing was recorded.

        `may_be_empty`: a run that was collected is enough, even without a record of any case.
        """
        if not run_dir.is_dir():
            raise RecordError(f"{run_dir} is not a folder; give a run directory, such as reports/RUN_ID")
        run = read_run(run_dir)
        if not run:
            raise RecordError(f"{run_dir} has no run.json, so the options of its cases are unknown; put the run's own run.json back")
        check_types(run, run_dir)
        if not (run_dir / "journal").is_dir():
            raise RecordError(f"{run_dir} has no journal, which holds the full generations; put the run's own journal/ back")
        try:
            records = read_records(run_dir)
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            problem = f"{type(error).__name__}: {error}"
            raise RecordError(
                f"{run_dir / 'journal'} cannot be understood ({problem}); this version of evalharness does not read such a journal"
            ) from error
        if not records.collected or not (may_be_empty or records.rows or records.cases):
            raise RecordError(
                f"{run_dir} holds no record of any case: its run ended before the first, so nothing is lost; "
                "remove the folder and run again"
            )
        return cls(run_dir, run, records)

    @property
    def run_id(self) -> str:
        """The run's name."""
        return str(self.run.get("run_id") or self.run_dir.name)

    @property
    def config(self) -> RunConfig:
        """The options of the run; `RecordError` if run.json has no readable options."""
        try:
            return RunConfig.from_json(self.run["config"])
        except (EvalHarnessError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise RecordError(f"{self.run_dir / 'run.json'} has no readable options: {type(error).__name__}: {error}") from error

    @property
    def generation_facts(self) -> GenerationFacts:
        """How the generations were made, from run.json, else from the journals."""
        facts, run = generation_facts(self.records), self.run
        return {
            "throughput": run.get("throughput") or facts["throughput"],
            "workers": run.get("workers") or facts["workers"],
            "durations": run.get("durations") or facts["durations"],
        }

    def facts(self) -> dict[str, Any]:
        """Return what a rescored run's run.json says of the run that generated."""
        run = self.run
        when = {"started_at": run.get("started_at"), "finished_at": run.get("finished_at"), "command": run.get("command")}
        where = {"versions": run.get("versions"), "git": run.get("git"), "hardware": run.get("hardware")}
        return {"run_id": self.run_id, "run_dir": self.run_dir.name, **when, **where}

    @property
    def why_incomplete(self) -> str:
        """Why a collected test may have no record."""
        if not self.run.get("finished_at"):
            return f"run {self.run_id} was killed before it, or is still running"
        return f"run {self.run_id} ended before it ({self.run.get('interrupted') or 'its session was over'})"

    def find(self, engine: str, eval_name: str, case_id: str, nodeid: str | None = None) -> CaseRecords | None:
        """Return the records of a case, None if there are none.

        Of several workers' records, those that the test `nodeid` judged win, else those with the most samples, then with the most step
        requests; among equals, the last.
        """
        by_worker = self._by_case.get((engine, eval_name, case_id))
        if by_worker is None:
            return None
        row = self.records.rows.get(nodeid or "")
        worker = None if row is None else row["worker"]
        if worker in by_worker:
            return by_worker[worker]
        return max(reversed(by_worker.values()), key=lambda case: (_num_made(case.samples), _num_made(case.in_steps)))

    def find_made(self, engine: str, eval_name: str, case_id: str) -> CaseRecords | None:
        """Return the generations of a case, without failures and without altered answers; None if there are none."""
        case = self.find(engine, eval_name, case_id)
        if case is None:
            return None
        made = CaseRecords([outcome if _is_whole(outcome) else None for outcome in case.outcomes], {}, case.shape)
        made.in_steps = {place: outcome for place, outcome in case.in_steps.items() if _is_whole(outcome)}
        return made if made.samples or made.in_steps else None

    @cached_property
    def judged_rows(self) -> dict[tuple[str, str], Row]:
        """A row of each case that was judged, by eval and case id: all of a case have one reference."""
        return {(row["eval"], row["case_id"]): row for row in self.records.rows.values() if row["outcome"] in JUDGED}

    @property
    def num_generations(self) -> int:
        """Number of distinct samples that were generated."""
        made = (self.find(*case) for case in self._by_case)
        return sum(_num_made(case.samples) for case in made if case is not None)


def _is_whole(outcome: Recorded | Failed | None) -> bool:
    return isinstance(outcome, Recorded) and not outcome["hidden"]


def _num_made(outcomes: Mapping[Any, Recorded | Failed]) -> int:
    return sum(isinstance(outcome, Recorded) for outcome in outcomes.values())
