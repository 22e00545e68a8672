"""The samples of a run as other tools' files take them: one task for each engine, eval and test."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evalharness.runs.run_file import read_run, read_samples
from evalharness.runs.schema import JUDGED, EngineEntry, Generation, Row, RunFile, entries_of, mapping, text_of


@dataclass
class ScoreSum:
    """The mean of a score, and its standard error, of values added one by one."""

    num: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, value: float) -> None:
        """Add one value."""
        self.num += 1
        before = value - self.mean
        self.mean += before / self.num
        self.squares += before * (value - self.mean)

    @property
    def stderr(self) -> float | None:
        """The standard error of the mean, cases taken as independent, as both tools take them; None for a single one."""
        return math.sqrt(self.squares / (self.num - 1) / self.num) if self.num > 1 else None


@dataclass
class TaskSums:
    """What is known of a task once all its rows were seen."""

    name: str
    engine: str
    num_rows: int = 0
    scores: dict[str, ScoreSum] = field(default_factory=dict)

    def add(self, row: Row) -> None:
        """Add a row."""
        self.num_rows += 1
        for name, value in mapping(row.get("scores")).items() if row.get("outcome") in JUDGED else ():
            if isinstance(value, (int, float)):
                self.scores.setdefault(name, ScoreSum()).add(float(value))


def task_name(eval_name: str, test: str, alone: Collection[str]) -> str:
    """Return the name of a task: the eval's, with the test where it has several."""
    return eval_name if eval_name in alone else f"{eval_name}.{test}"


class Exported:
    """A run's rows, one at a time, each with the task that it belongs to."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.run: RunFile = read_run(run_dir)
        self.engines: dict[str, EngineEntry] = {text_of(entry.get("id")): entry for entry in entries_of(self.run.get("engines"))}
        tests = {text_of(entry.get("name")): list(mapping(entry.get("tests"))) for entry in entries_of(self.run.get("evals"))}
        self._alone = {name for name, of_eval in tests.items() if len(of_eval) == 1}
        self.tasks: dict[tuple[str, str], TaskSums] = {}

    def rows(self) -> Iterator[tuple[TaskSums, Row]]:
        """Yield every row that ran, with its task."""
        for row in read_samples(self.run_dir):
            if row.get("outcome") == "skip":
                continue
            eval_name, test, engine = text_of(row.get("eval")), text_of(row.get("test")), text_of(row.get("engine"))
            name = task_name(eval_name, test, self._alone)
            task = self.tasks.setdefault((engine, name), TaskSums(name, engine))
            task.add(row)
            yield task, row

    def aggregates(self, task: TaskSums) -> dict[str, float]:
        """Return the values that the eval's functions gave for a task."""
        return {
            text_of(entry.get("metric")): float(entry["value"])
            for entry in entries_of(self.run.get("aggregates"))
            if task_name(text_of(entry.get("eval")), text_of(entry.get("test")), self._alone) == task.name
            and entry.get("engine") == task.engine
            and isinstance(entry.get("value"), (int, float))
        }

    def model_of(self, engine: str) -> str:
        """Return the name of an engine's checkpoint."""
        return text_of(self.engines.get(engine, {}).get("checkpoint")) or engine


def file_name(text: str) -> str:
    """Return a text as part of a file's name: letters of any script, digits, "_", "-" and "."."""
    return re.sub(r"[^\w.-]+", "_", text).strip("._")[:120] or "unnamed"


def prompt_of(answer: Generation | None) -> str:
    """Return the text of an answer's prompt, "" where it is not known."""
    return text_of(mapping(answer).get("prompt_text"))


def reference_text(row: Row) -> str:
    """Return a row's reference as text."""
    value: Any = row.get("reference")
    return value if isinstance(value, str) else "" if value is None else str(value)


def logprob_sum(answer: Mapping[str, Any]) -> float | None:
    """Return the log-probability of a whole scored response, None where it was not recorded."""
    values = answer.get("logprobs")
    if not isinstance(values, list) or not values:
        return None
    try:
        return math.fsum(float(value) for value in values if value is not None)
    except (TypeError, ValueError, OverflowError):
        return None
