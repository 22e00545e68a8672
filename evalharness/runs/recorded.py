"""What a run has generated already, as its journals have it: read once, given out case by case. Knows no pytest and no torch.

`evalharness rescore` gives it to tests in place of an engine's answers. Whatever is to go on with a run that broke off
finds here what need not be generated again: samples one by one, and the requests of steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from evalharness.api.errors import EvalHarnessError, RecordError
from evalharness.api.requests import GenerationFailure, GenerationResult
from evalharness.config import RunConfig
from evalharness.runs.records import CaseRecords, Failed, Recorded, RunRecords, generation_facts, read_records
from evalharness.runs.run_file import read_run

__all__ = ["Outcome", "RecordedRun", "outcome_of"]

Outcome: TypeAlias = "GenerationResult | GenerationFailure"


def outcome_of(found: Recorded | Failed) -> Outcome:
    """Return a recorded outcome as the engine gave it."""
    if isinstance(found, Recorded):
        return GenerationResult.from_json(found.whole())
    return GenerationFailure.recorded(*found)


class RecordedRun:
    """One run's records. `run` is its run.json, `records` what its journals say."""

    def __init__(self, run_dir: Path, run: dict[str, Any], records: RunRecords) -> None:
        self.run_dir = run_dir
        self.run = run
        self.records = records
        self._by_case: dict[tuple[str, str, str], dict[str, CaseRecords]] = {}
        for (worker, *case), found in records.cases.items():
            self._by_case.setdefault((case[0], case[1], case[2]), {})[worker] = found

    @classmethod
    def read(cls, run_dir: Path, *, may_be_empty: bool = False) -> RecordedRun:
        """Return the records of a run that ended or was killed. Raises `RecordError` where there is nothing to go by.

        `may_be_empty`: that it was collected is enough, though no case has a record.
        """
        if not run_dir.is_dir():
            raise RecordError(f"{run_dir} is no folder; give that of a run, such as reports/RUN_ID")
        run = read_run(run_dir)
        if not run:
            raise RecordError(f"{run_dir} has no run.json, so nobody knows how its cases were asked; put the run's own back in place")
        if not any((run_dir / "journal").glob("*.jsonl")):
            raise RecordError(f"{run_dir} has no journal, where the generations are in full; put the run's own back in place")
        try:
            records = read_records(run_dir)
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            problem = f"{type(error).__name__}: {error}"
            raise RecordError(
                f"{run_dir / 'journal'} cannot be understood ({problem}); it is no journal that this evalharness reads"
            ) from error
        if not records.collected or not (may_be_empty or records.rows or records.cases):
            raise RecordError(
                f"{run_dir} holds no record of any case: its run ended before the first one, so nothing is lost; "
                "remove that folder and run again"
            )
        return cls(run_dir, run, records)

    @property
    def run_id(self) -> str:
        """The run's name."""
        return str(self.run.get("run_id") or self.run_dir.name)

    @property
    def config(self) -> RunConfig:
        """The options of the run; `RecordError` where run.json has none that can be read."""
        try:
            return RunConfig.from_json(self.run["config"])
        except (EvalHarnessError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise RecordError(f"{self.run_dir / 'run.json'} has no options that can be read: {type(error).__name__}: {error}") from error

    @property
    def generation_facts(self) -> dict[str, list[dict[str, Any]]]:
        """How the generations were made, as run.json has it, else as the journals do."""
        return {name: self.run.get(name) or entries for name, entries in generation_facts(self.records).items()}

    def facts(self) -> dict[str, Any]:
        """Return what run.json says of the run that another one took its generations from."""
        kept = ("started_at", "finished_at", "command", "versions", "git", "hardware")
        return {"run_id": self.run_id, "run_dir": self.run_dir.name, **{name: self.run.get(name) for name in kept}}

    @property
    def why_incomplete(self) -> str:
        """Why a test that was collected has no record, if one has none."""
        if not self.run.get("finished_at"):
            return f"run {self.run_id} was killed before it, or still goes on"
        return f"run {self.run_id} ended before it ({self.run.get('interrupted') or 'its session was over'})"

    def find(self, engine: str, eval_name: str, case_id: str, nodeid: str | None = None) -> CaseRecords | None:
        """Return what is recorded of a case, None if nothing is.

        Where several workers asked it, that which the test `nodeid` judged, else the one with the most samples, then with the
        most of its steps, the last of equals.
        """
        found = self._by_case.get((engine, eval_name, case_id))
        if found is None:
            return None
        row = self.records.rows.get(nodeid or "")
        if row is not None and row["worker"] in found:
            return found[row["worker"]]
        return max(reversed(found.values()), key=lambda case: (_num_made(case.samples), _num_made(case.in_steps)))

    def find_made(self, engine: str, eval_name: str, case_id: str) -> CaseRecords | None:
        """Return what was generated for a case, failures left out; None if nothing was."""
        found = self.find(engine, eval_name, case_id)
        if found is None:
            return None
        samples: dict[int, Recorded | Failed] = {sample: one for sample, one in found.samples.items() if isinstance(one, Recorded)}
        in_steps: dict[tuple[int, int], Recorded | Failed] = {
            place: one for place, one in found.in_steps.items() if isinstance(one, Recorded)
        }
        return CaseRecords(samples, in_steps, found.shape) if samples or in_steps else None

    @property
    def num_generations(self) -> int:
        """How many different samples were generated."""
        made = (self.find(*case) for case in self._by_case)
        return sum(_num_made(case.samples) for case in made if case is not None)


def _num_made(outcomes: Mapping[Any, Recorded | Failed]) -> int:
    return sum(isinstance(outcome, Recorded) for outcome in outcomes.values())
