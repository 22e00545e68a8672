"""A sample of cases from every task, for evals that look at any generation: parity of engines, degeneration."""

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

TASKS: Mapping[str, tuple[Callable[[Path | str | None], Sequence[Case]], Callable[[Any], Any]]] = {
    "stage_a": (stage_a.load_cases, stage_a.request),
    "dense": (dense.load_cases, dense.request),
    "stage_b": (stage_b.load_cases, stage_b.request),
}
"""Task → its `load_cases` and `request`."""
_PREFIXES = {"stage_a": "stage-a", "dense": "detection", "stage_b": "stage-b"}
"""What stands before the ids of a task's cases: the name of no eval or test, or `-k stage_a` would take these cases, too."""


@dataclass(frozen=True, kw_only=True)
class SampledCase(Case):
    """A case of one task, whose id has the task before it."""

    task: str
    case: Any


def load_cases(data_dir: Path | str | None, *, num_per_task: int = 16, seed: int = 0) -> list[SampledCase]:
    """Return up to `num_per_task` cases of every task that the folder has data for, sampled by `seed`, in the task's order.

    Ids read `detection/rru-install/fail/QC-DEMO-20300101-0000001/image_2`. A task without data is named in a `DataWarning`; a
    folder without data for any task is an error.
    """
    sampled: list[SampledCase] = []
    problems = []
    for task, (load, _) in TASKS.items():
        try:
            cases = load(data_dir)
        except ConfigError as error:
            problems.append(f"{task}: {error}")
            continue
        for place in sorted(random.Random(f"{seed} {task}").sample(range(len(cases)), min(num_per_task, len(cases)))):
            case = cases[place]
            shared: dict[str, Any] = {"group": case.group, "tags": {"task": task, **case.tags}, "invalid": case.invalid}
            sampled.append(SampledCase(id=f"{_PREFIXES[task]}/{case.id}", task=task, case=case, **shared))
    if not sampled:
        raise ConfigError(f"no cases of any task: {'; '.join(problems)}")
    for problem in problems:
        warnings.warn(DataWarning(f"no cases of {problem}"), stacklevel=2)
    return sampled


def request(case: SampledCase) -> Any:
    """Return the request of the case's own task."""
    return TASKS[case.task][1](case.case)
