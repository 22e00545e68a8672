"""The numbers of a report as pandas tables, computed from a run directory alone. One pass, texts let go: memory does not grow with
their length. Knows nothing of how tables are shown.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from evalharness.analysis.statistics.intervals import cluster_sums, cluster_variance, group_codes, mean_intervals
from evalharness.report.text import one_line, plural, printable, terminal_text
from evalharness.runs.run_file import read_run, read_samples
from evalharness.runs.schema import Generation, Row, RunFile, entries_of, generations_of, mapping, text_of

__all__ = ["COUNTS", "OUTCOMES", "Codes", "Collected", "ProblemGroup", "RunTables", "load_tables"]


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

    def _add(self, name: Any) -> int:
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
    run: RunFile
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


def collect(run_dir: Path, rows: Iterable[Row] | None = None) -> Collected:
    """Return the columns of a run, from samples.jsonl or its `rows`. Raises `RecordError` where `read_run` and `read_samples` do."""
    notes: list[str] = []
    collected = Collected(run_dir, read_run(run_dir, notes), notes)
    seen: set[tuple[int, int, int, str]] = set()
    for row in read_samples(run_dir, notes) if rows is None else rows:
        _add_row(collected, row, seen)
    for what, count in collected.unusable.items():
        notes.append(f"{what}: left out of every mean ({plural(count, 'time')})")
    return collected


def _add_row(collected: Collected, row: Row, seen: set[tuple[int, int, int, str]]) -> None:
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


def _outcome(collected: Collected, outcome: str | None) -> str:
    if isinstance(outcome, str) and outcome in OUTCOMES:
        return outcome
    collected.unknown_outcomes[terminal_text(text_of(outcome), 40)] += 1
    return "other"


def _facts(collected: Collected, engine: int, generations: list[Generation]) -> Facts:
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


def _add_scores(collected: Collected, number: int, outcome: str, scores: Mapping[str, float] | None) -> None:
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
            collected.unusable[f"score '{one_line(name, 60)}' is not a finite number"] += 1


def _add_problem(collected: Collected, key: tuple[int, int, int], outcome: str, row: Row, generations: list[Generation]) -> int:
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


SUMMARY = ["mean", "stderr", "n", "low", "high", "interval", "is_rate"]
"""Mean; its standard error (groups as units); number of cases; 95 % interval and its kind (wilson, bootstrap, none); whether
the score is a rate: 0 or 1 in every case of the test, on whatever engine, and no count (`num_…`).
"""


def with_kinds(scored: pd.DataFrame) -> pd.DataFrame:
    """Return the scores (row, metric, score, eval, test, engine) with `is_rate` and `is_bounded` (within 0…1, no count)."""
    by = [scored[name] for name in ("eval", "test", "metric")]
    is_score = ~scored["metric"].astype(str).str.startswith("num_")
    kinds = {"is_rate": scored["score"].isin((0.0, 1.0)), "is_bounded": scored["score"].between(0.0, 1.0)}
    return scored.assign(**{name: fits.groupby(by, observed=True).transform("all") & is_score for name, fits in kinds.items()})


def summarise(scored: pd.DataFrame, groups: Sequence[str | None], by: list[str]) -> pd.DataFrame:
    """Return the columns `SUMMARY` by the keys `by` and metric; `groups` has one entry per row of samples.jsonl."""
    keys: list[tuple[Any, ...]] = []
    lines: list[list[Any]] = []
    for key, part in scored.groupby(by, observed=True):
        for metric, line in _lines(part, groups):
            keys.append((*key, metric))
            lines.append(line)
    levels = [scored[name].cat.categories if hasattr(scored[name], "cat") else None for name in (*by, "metric")]
    columns = list(zip(*keys, strict=True)) if keys else [()] * len(levels)
    index = pd.MultiIndex.from_arrays(
        [pd.Categorical(column, categories=level, ordered=True) for column, level in zip(columns, levels, strict=True)],
        names=[*by, "metric"],
    )
    table = pd.DataFrame(lines, columns=SUMMARY, index=index)
    return table.astype({"mean": float, "stderr": float, "n": "int64", "low": float, "high": float, "interval": object, "is_rate": bool})


def _lines(part: pd.DataFrame, groups: Sequence[str | None]) -> Iterator[tuple[Any, list[Any]]]:
    """Yield metric and summary of each metric of one line of a score table."""
    rows, positions = np.unique(part["row"].to_numpy(), return_inverse=True)
    codes = part["metric"].cat.codes.to_numpy()
    used, columns = np.unique(codes, return_inverse=True)
    values = np.full((len(rows), len(used)), np.nan)
    values[positions, columns] = part["score"].to_numpy()
    rates, bounded = (
        [bool(count == 0) for count in np.bincount(columns, weights=~part[name].to_numpy(), minlength=len(used))]
        for name in ("is_rate", "is_bounded")
    )
    groups_of_rows = [groups[row] for row in rows]
    intervals = mean_intervals(values, groups_of_rows, is_rate=rates, is_bounded=bounded)
    clusters = cluster_sums(values, group_codes(groups_of_rows, len(rows)))
    errors = np.sqrt(cluster_variance(clusters))
    for column, code in enumerate(used):
        n = int(clusters.counts[:, column].sum())
        line = [float(clusters.means[column]), float(errors[column]), n, *intervals[column], rates[column]]
        yield part["metric"].cat.categories[code], line


GROUP = ["eval", "test", "engine"]
"""What a line of the score table stands for."""

COUNTS = ["cases", *OUTCOMES, "other", "answered", "form_judged", "malformed", "length_cap", "empty", "fallback", "unclosed"]
"""Countable facts of rows: outcomes, and the validity of what was answered.

`form_judged` rows have a score `valid`, `malformed` have it at 0; `length_cap` and `empty` rows have at least one
generation that hit the cap, or whose text is empty or white space, `unclosed` ones thinking that never ends.
"""

_TAGGED = [*GROUP, "key", "value"]


@dataclass(frozen=True)
class RunTables:
    """A run in tables. `rows` has one line per sample; `counts`, `scores` and the tag tables are indexed by group."""

    collected: Collected
    rows: pd.DataFrame
    """eval, test, engine (categories in order of first use), case_id, text_hash and the columns `COUNTS` as 0 or 1."""
    row_scores: pd.DataFrame
    """row, metric, score: one line per row and score."""
    row_tags: pd.DataFrame
    """row, key, value: one line per row and tag."""
    derived: dict[str, list[str]] = field(default_factory=dict, compare=False, repr=False)
    """Results computed from the rows, kept by name."""

    @property
    def run_dir(self) -> Path:
        """The run directory."""
        return self.collected.run_dir

    @property
    def run(self) -> RunFile:
        """run.json; empty if it is missing."""
        return self.collected.run

    @cached_property
    def counts(self) -> pd.DataFrame:
        """Sums of `COUNTS` by eval, test, engine."""
        return self.rows.groupby(GROUP, observed=True)[COUNTS].sum()

    @cached_property
    def scores(self) -> pd.DataFrame:
        """What `SUMMARY` lists, by eval, test, engine, metric."""
        return summarise(self._scored, self.collected.groups, GROUP)

    def metrics(self, eval_name: str, test: str) -> list[str]:
        """Return the scores of a test: those that its gates ask for, then the others in the order of their first use."""
        table = self.scores
        index = table[(table.index.get_level_values("eval") == eval_name) & (table.index.get_level_values("test") == test)].index
        known = list(index.get_level_values("metric").unique().sort_values())
        gates = (gate for gate in entries_of(self.run.get("gates")) if gate.get("eval") == eval_name and gate.get("test") == test)
        return [name for name in dict.fromkeys([*(text_of(gate.get("metric")) for gate in gates), *known]) if name in known]

    @cached_property
    def tag_counts(self) -> pd.DataFrame:
        """Sums of `COUNTS` by eval, test, engine, tag key, tag value."""
        tagged = self.row_tags.join(self.rows[GROUP + COUNTS], on="row")
        return tagged.groupby(_TAGGED, observed=True)[COUNTS].sum()

    @cached_property
    def tag_scores(self) -> pd.DataFrame:
        """Like `scores`, by eval, test, engine, tag key, tag value, metric."""
        return summarise(self.row_tags.merge(self._scored, on="row"), self.collected.groups, _TAGGED)

    @cached_property
    def _scored(self) -> pd.DataFrame:
        return with_kinds(self.row_scores.join(self.rows[GROUP], on="row"))


def load_tables(run_dir: Path, rows: Iterable[Row] | None = None) -> RunTables:
    """Return the tables of a run directory. Raises `RecordError` if it cannot be read.

    `rows` are those of samples.jsonl, where they are in memory already.
    """
    collected = collect(run_dir, rows)
    row_scores = pd.DataFrame(collected.scores, columns=["row", "metric", "score"]).astype({"row": "int64", "score": "float64"})
    table = _rows(collected)
    _add_form_verdicts(table, row_scores, collected.score_names)
    row_scores["metric"] = _categories(row_scores["metric"], collected.score_names)
    row_tags = pd.DataFrame(collected.tags, columns=["row", "key", "value"]).astype({"row": "int64"})
    row_tags["key"] = _categories(row_tags["key"], collected.tag_keys)
    row_tags["value"] = _categories(row_tags["value"], collected.tag_values)
    return RunTables(collected, table, row_scores, row_tags)


def _rows(collected: Collected) -> pd.DataFrame:
    keys = pd.DataFrame(collected.row_keys, columns=GROUP)
    for name, codes in zip(GROUP, (collected.evals, collected.tests, collected.engines), strict=True):
        keys[name] = _categories(keys[name], codes)
    facts = pd.DataFrame(collected.facts, columns=["answered", "length_cap", "empty", "fallback", "unclosed", "text_hash"]).astype("int64")
    outcomes = pd.Series(collected.outcomes, dtype=object)
    shares = {outcome: (outcomes == outcome).astype("int64") for outcome in (*OUTCOMES, "other")}
    return pd.concat([keys, facts], axis=1).assign(case_id=pd.Series(collected.case_ids, dtype=object), cases=1, **shares)


def _add_form_verdicts(rows: pd.DataFrame, row_scores: pd.DataFrame, names: Codes) -> None:
    """Add `form_judged` and `malformed` to `rows`, in place."""
    rows["form_judged"] = rows["malformed"] = 0
    if "valid" in names.names:
        verdicts = row_scores[row_scores["metric"] == names.of("valid")]
        rows.loc[verdicts["row"], "form_judged"] = 1
        rows.loc[verdicts.loc[verdicts["score"] == 0, "row"], "malformed"] = 1


def _categories(codes: pd.Series, names: Codes) -> pd.Categorical:
    # object, not pandas' string type: names come in the order of their first use and stay exactly as they are.
    return pd.Categorical.from_codes(codes.astype("int64").to_numpy(), categories=pd.Index(names.names, dtype=object), ordered=True)
