"""A few cases of every task, for evals that look at any generation: how engines agree, whether a model degenerates."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalharness.api.cases import Case
from evalharness.api.errors import ConfigError
from evalharness.tasks import DataWarning, dense, stage_a, stage_b

__all__ = ["TASKS", "DrawnCase", "load_cases", "request"]

TASKS: Mapping[str, tuple[Callable[[Path | str | None], Sequence[Case]], Callable[[Any], Any]]] = {
    "stage_a": (stage_a.load_cases, stage_a.request),
    "dense": (dense.load_cases, dense.request),
    "stage_b": (stage_b.load_cases, stage_b.request),
}
"""What loads a task's cases, and what makes a request of one."""


@dataclass(frozen=True, kw_only=True)
class DrawnCase(Case):
    """A case of one of the tasks."""

    task: str
    case: Any


def load_cases(data_dir: Path | str | None, *, num_per_task: int = 16, seed: int = 0) -> list[DrawnCase]:
    """Return at most that many cases of every task that the folder has data for, drawn by `seed`, in the task's order.

    Ids read `dense/rru-install/fail/QC-DEMO-20300101-0000001/image_2`. A task without data is told in a `DataWarning`; a
    folder without data for any is an error.
    """
    drawn: list[DrawnCase] = []
    problems = []
    for task, (load, _) in TASKS.items():
        try:
            cases = load(data_dir)
        except ConfigError as error:
            problems.append(f"{task}: {error}")
            continue
        places = sorted(random.Random(f"{seed} {task}").sample(range(len(cases)), min(num_per_task, len(cases))))
        drawn += [_drawn(task, cases[place]) for place in places]
    if not drawn:
        raise ConfigError(f"no cases of any task: {'; '.join(problems)}")
    for problem in problems:
        warnings.warn(DataWarning(f"no cases of {problem}"), stacklevel=2)
    return drawn


def _drawn(task: str, case: Case) -> DrawnCase:
    return DrawnCase(id=f"{task}/{case.id}", group=case.group, tags={"task": task, **case.tags}, invalid=case.invalid, task=task, case=case)


def request(case: DrawnCase) -> Any:
    """Return the question of the case's own task."""
    return TASKS[case.task][1](case.case)
