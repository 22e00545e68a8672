"""One pass over samples.jsonl that keeps what tables need and lets the texts go: memory does not grow with their length.

Wrongly typed fields of a row do not stop a report; they are counted in `notes` and left out.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from evalharness.report.text import one_line, printable, terminal_text
from evalharness.report.wording import plural
from evalharness.runs.reading import read_run, read_samples

__all__ = ["OUTCOMES", "Codes", "Collected", "ProblemGroup", "collect", "generations_of", "mapping", "text_of"]

OUTCOMES = ("pass", "miss", "fail", "invalid", "error", "skip")
"""Every outcome a row may have; anything else is counted as "other"."""

# A failure of machine, network or code is never a score, whatever the test had scored before it.
_SCORED = ("pass", "miss", "fail")
NUM_NODEIDS = 3
_PROBLEM_CHARS = 400
_EXCERPT_CHARS = 120
# What differs from case to case within one reason: quoted values, paths, numbers.
_VARYING = re.compile(r"'[^']*'|\"[^\"]*\"|(?<![\w.\-/])(?:[\w.\-]*/)+[\w.\-]+|\d+")


class Codes:
    """Names numbered in the order of their first use; equal names share a number. Names are made UTF-8-safe."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._safe: dict[str, int] = {}
        self._seen: dict[Any, int] = {}

    def of(self, name: object) -> int:
        """Return the number of a name."""
        code = self._seen.get(name) if isinstance(name, str) else None
        return self._add(name) if code is None else code

    def _add(self, name: object) -> int:
        text = printable(text_of(name))
        code = self._safe.get(text)
        if code is None:
            code = self._safe[text] = len(self.names)
            self.names.append(text)
        if isinstance(name, str):
            self._seen[name] = code
        return code


@dataclass
class ProblemGroup:
    """Rows of one outcome whose problems differ in quoted values, paths and numbers only; texts are of the first row."""

    outcome: str
    eval: str
    engine: str
    problem: str
    excerpt: str
    number: int = 0
    """Its place among the groups of the run; `Collected.row_problems` has it for each row."""
    count: int = 0
    nodeids: list[str] = field(default_factory=list)


class Facts(NamedTuple):
    """What one row says about its generations; counts of 0 or 1 so that they can be summed."""

    answered: int = 0
    length_cap: int = 0
    empty: int = 0
    fallback: int = 0
    unclosed: int = 0
    text_hash: int = 0


_NO_FACTS = Facts()


@dataclass
class Collected:
    """Columns of equal length: one entry per row, per row × score, per row × tag. Codes point into the `Codes` of that name."""

    run_dir: Path
    run: dict[str, Any]
    notes: list[str]
    evals: Codes = field(default_factory=Codes)
    tests: Codes = field(default_factory=Codes)
    engines: Codes = field(default_factory=Codes)
    checkpoints: dict[str, str] = field(default_factory=dict)
    """Checkpoint by engine."""
    score_names: Codes = field(default_factory=Codes)
    tag_keys: Codes = field(default_factory=Codes)
    tag_values: Codes = field(default_factory=Codes)
    row_keys: list[tuple[int, int, int]] = field(default_factory=list)
    """eval, test and engine of each row."""
    outcomes: list[str] = field(default_factory=list)
    case_ids: list[str] = field(default_factory=list)
    groups: list[str | None] = field(default_factory=list)
    """What joins cases that belong together."""
    facts: list[Facts] = field(default_factory=list)
    scores: list[tuple[int, int, float]] = field(default_factory=list)
    """row, score name, value."""
    tags: list[tuple[int, int, int]] = field(default_factory=list)
    """row, tag key, tag value."""
    problems: dict[tuple[str, int, int, str], ProblemGroup] = field(default_factory=dict)
    row_problems: list[int] = field(default_factory=list)
    """The group of each row's problem, -1 for a row that passed."""
    unknown_outcomes: Counter[str] = field(default_factory=Counter)
    ignored_options: Counter[tuple[int, str]] = field(default_factory=Counter)
    fallbacks: Counter[tuple[int, str]] = field(default_factory=Counter)
    cached: Counter[int] = field(default_factory=Counter)
    """Answers by engine that were not generated in this run."""
    unusable: Counter[str] = field(default_factory=Counter)
    num_duplicates: int = 0


def text_of(value: object) -> str:
    """Return a name as text: None is the empty name, anything else that is no string is shown as Python shows it."""
    return value if isinstance(value, str) else "" if value is None else str(value)


def mapping(value: object) -> Mapping[str, Any]:
    """Return the value if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def generations_of(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the generations of a row: all samples where there are several, else the one, else none."""
    several = row.get("generations")
    if isinstance(several, list):
        found = [entry for entry in several if isinstance(entry, Mapping)]
        if found:
            return found
    single = row.get("generation")
    return [single] if isinstance(single, Mapping) else []


def collect(run_dir: Path, rows: Iterable[dict[str, Any]] | None = None) -> Collected:
    """Return the columns of a run, from samples.jsonl or its `rows`. Raises `RecordError` where `read_run` and `read_samples` do."""
    notes: list[str] = []
    collected = Collected(run_dir, read_run(run_dir, notes), notes)
    seen: set[tuple[int, int, int, str]] = set()
    for row in read_samples(run_dir, notes) if rows is None else rows:
        _add_row(collected, row, seen)
    for what, count in collected.unusable.items():
        notes.append(f"{what}: left out of every mean ({plural(count, 'time')})")
    return collected


def _add_row(collected: Collected, row: dict[str, Any], seen: set[tuple[int, int, int, str]]) -> None:
    number = len(collected.row_keys)
    key = (collected.evals.of(row.get("eval")), collected.tests.of(row.get("test")), collected.engines.of(row.get("engine")))
    case_id = text_of(row.get("case_id"))
    collected.row_keys.append(key)
    collected.case_ids.append(printable(case_id))
    if (*key, case_id) in seen:
        collected.num_duplicates += 1
    seen.add((*key, case_id))
    collected.groups.append(None if row.get("group") is None else text_of(row["group"]))
    if len(collected.checkpoints) < len(collected.engines.names):
        collected.checkpoints.setdefault(collected.engines.names[key[2]], printable(text_of(row.get("checkpoint"))))
    generations = generations_of(row)
    collected.facts.append(_facts(collected, key[2], generations))
    outcome = _outcome(collected, row.get("outcome"))
    collected.outcomes.append(outcome)
    collected.row_problems.append(-1 if outcome == "pass" else _add_problem(collected, key, outcome, row, generations))
    _add_scores(collected, number, outcome, row.get("scores"))
    for name, value in mapping(row.get("tags")).items():
        collected.tags.append((number, collected.tag_keys.of(name), collected.tag_values.of(value)))


def _outcome(collected: Collected, outcome: object) -> str:
    if isinstance(outcome, str) and outcome in OUTCOMES:
        return outcome
    collected.unknown_outcomes[terminal_text(text_of(outcome), 40)] += 1
    return "other"


def _facts(collected: Collected, engine: int, generations: list[Mapping[str, Any]]) -> Facts:
    if not generations:
        return _NO_FACTS
    length_cap = empty = fallback = unclosed = 0
    texts: list[Any] = []  # of a given response, which is the same everywhere, its scores are the answer
    for generation in generations:
        text = text_of(generation.get("text"))
        texts.append((text, str(generation.get("logprobs"))) if generation.get("finish_reason") == "scored" else text)
        length_cap |= generation.get("finish_reason") == "length"
        empty |= not text or text.isspace()
        unclosed |= mapping(generation.get("thinking")).get("is_closed") is False
        if generation.get("fallback"):
            fallback = 1
            collected.fallbacks[engine, printable(text_of(generation["fallback"]))] += 1
        if generation.get("cached") is True:
            collected.cached[engine] += 1
        ignored = generation.get("ignored_options")
        for name in ignored if isinstance(ignored, list) else ():
            collected.ignored_options[engine, printable(text_of(name))] += 1
    return Facts(1, int(length_cap), int(empty), fallback, int(unclosed), hash(tuple(texts)))


def _add_scores(collected: Collected, number: int, outcome: str, scores: object) -> None:
    for name, value in mapping(scores).items():
        code = collected.score_names.of(name)
        try:
            score = float(value) if isinstance(value, (int, float)) else math.nan
        except OverflowError:
            score = math.inf
        if outcome not in _SCORED:
            collected.unusable[f"a score of a case that ended as {outcome}"] += 1
        elif math.isfinite(score):
            collected.scores.append((number, code, score))
        else:
            collected.unusable[f"score '{one_line(name, 60)}' is no finite number"] += 1


def _add_problem(
    collected: Collected, key: tuple[int, int, int], outcome: str, row: Mapping[str, Any], generations: list[Mapping[str, Any]]
) -> int:
    """Count the row with those of its kind; return the number of the group."""
    problem = text_of(row.get("problem"))
    reason = (outcome, key[0], key[2], _VARYING.sub("…", problem[:_PROBLEM_CHARS]))
    group = collected.problems.get(reason)
    if group is None:
        text = text_of(generations[0].get("text")) if generations else ""
        group = collected.problems[reason] = ProblemGroup(
            outcome,
            collected.evals.names[key[0]],
            collected.engines.names[key[2]],
            one_line(problem, _PROBLEM_CHARS),
            terminal_text(text, _EXCERPT_CHARS),
            len(collected.problems),
        )
    group.count += 1
    if len(group.nodeids) < NUM_NODEIDS:
        group.nodeids.append(terminal_text(text_of(row.get("nodeid")), 200))
    return group.number
