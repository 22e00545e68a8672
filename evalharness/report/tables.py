"""The numbers of a report, computed from a run directory alone. One pass, texts let go: memory does not grow with their length.
Knows nothing of how tables are shown.
"""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from evalharness.analysis.reasons import normalised, shared_reason
from evalharness.analysis.statistics.intervals import cluster_sums, cluster_variance, group_codes, mean_intervals
from evalharness.report.text import one_line, plural, printable, terminal_text
from evalharness.runs.run_file import read_run, read_samples
from evalharness.runs.samples import NOT_RUN
from evalharness.runs.schema import Generation, Row, RunFile, entries_of, generations_of, items_of, mapping, text_of

OUTCOMES = ("pass", "miss", "fail", "invalid", "error", "skip")
"""Every outcome a row may have; anything else is counted as "other"."""

# A failure of machine, network or code is never a score, whatever the test had scored before it.
_SCORED = ("pass", "miss", "fail")
NUM_NODEIDS = 3
NUM_CASES_IN_REMARK = 3
_PROBLEM_CHARS = 400
_EXCERPT_CHARS = 120
READ_AS_TOKENS = "data: special tokens"
_DATA_TOKEN = re.compile(r"data: special token (.*) read as a token", re.DOTALL)
_PLACE_OF_TURN = re.compile(r" \([0-9]+ of [0-9]+\)")  # in what a chat template left out: chats of many lengths are one finding


class Codes:
    """Names numbered in the order of their first use; equal names share a number. Names are made UTF-8-safe."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._codes: dict[str, int] = {}

    def of(self, name: Any) -> int:
        """Return the number of a name."""
        text = text_of(name)
        code = self._codes.get(text)
        if code is None:
            safe = printable(text)
            code = self._codes[text] = self._codes.setdefault(safe, len(self.names))
            if code == len(self.names):
                self.names.append(safe)
        return code


@dataclass
class ProblemGroup:
    """Rows of one eval and outcome whose problems are one reason (`analysis/reasons.py`); `problem` and `excerpt` are of the first row."""

    outcome: str
    eval: str
    engines: list[str]
    problem: str
    excerpt: str
    pattern: str
    """What the problems have in common."""
    first: str
    """The start of the first row's problem as it was recorded, to compare with."""
    number: int = 0
    """Its place among the groups of the run; `RunTables.row_problems` has it for each row."""
    count: int = 0
    differ: bool = False
    """Whether some row's problem is another text than the first one's."""
    nodeids: list[str] = field(default_factory=list)
    case_ids: list[str] = field(default_factory=list)

    @property
    def engine(self) -> str:
        """Its engines, with commas between them."""
        return ", ".join(self.engines)

    def reason(self, most: int = _PROBLEM_CHARS) -> str:
        """Return what is true of all its rows, on one line and safe to show; a text of the first row alone follows "such as"."""
        return shared_reason(self.problem, self.pattern, self.differ, most) or "no reason was recorded"


COUNTS = {"cases": "cases", "pass": "pass", "miss": "miss", "fail": "fail", "invalid": "invalid", "error": "errors", "skip": "skipped"} | {
    "other": "unknown outcome",
    "answered": "answered",
    "form_judged": "form judged",
    "malformed": "malformed",
    "length_cap": "hit length cap",
    "empty": "empty",
    "fallback": "by the fallback backend",
    "unclosed": "unclosed thoughts",
}
"""Countable facts of rows and their titles: outcomes, and the validity of what was answered.

`form_judged` rows have a score `valid`, `malformed` have it at 0; `length_cap` and `empty` rows have at least one
generation that hit the cap, or whose text is empty or white space, `unclosed` ones thinking that never ends.
"""

FLAGS = ("length_cap", "empty", "unclosed", "fallback")
"""Those of `COUNTS` that are about a row's generations."""


class Summary(NamedTuple):
    """A score's mean, its standard error (groups as units; NaN for one), the number of cases, and the 95 % interval of the mean.

    `interval` is its kind (wilson, bootstrap, none). `is_rate`: the score is 0 or 1 in every case of the test, on whatever engine,
    and not a count (`num_…`). `num_groups`: into how many groups the cases fall; a case without a group is one of its own.
    """

    mean: float
    stderr: float
    n: int
    low: float
    high: float
    interval: str
    is_rate: bool
    num_groups: int


@dataclass(eq=False)
class RunTables:
    """A run in columns and in tables.

    Columns are of equal length: one entry per row, per row × score, per row × tag; codes point into the `Codes` of that name. Tables
    are mappings from the names that a line stands for, in the order of the first use of the names.
    """

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
    text_hashes: list[int | None] = field(default_factory=list)
    """What each row was answered, as a hash; None where there is no generation."""
    counted: Counter[tuple[tuple[int, ...], tuple[str, ...]]] = field(default_factory=Counter)
    """Number of rows by eval, test and engine, and by those of `COUNTS` in which they count."""
    tag_counted: Counter[tuple[tuple[int, ...], tuple[str, ...]]] = field(default_factory=Counter)
    """The same by eval, test, engine, tag key and tag value."""
    row_scores: list[tuple[int, int, float]] = field(default_factory=list)
    """row, score name, value."""
    row_tags: list[tuple[int, int, int]] = field(default_factory=list)
    """row, tag key, tag value."""
    problems: dict[tuple[str, int, str], ProblemGroup] = field(default_factory=dict)
    row_problems: list[int] = field(default_factory=list)
    """The group of each row's problem, -1 for a row that passed."""
    unknown_outcomes: Counter[str] = field(default_factory=Counter)
    ignored_options: Counter[tuple[int, str]] = field(default_factory=Counter)
    first_ignored: dict[tuple[int, str], list[str]] = field(default_factory=dict)
    """The ids of the first cases in which they were."""
    data_tokens: dict[int, dict[str, None]] = field(default_factory=dict)
    """By engine the special tokens that data had and that were read as such, in order."""
    fallbacks: Counter[tuple[int, str]] = field(default_factory=Counter)
    cached: Counter[int] = field(default_factory=Counter)
    """Answers by engine that were not generated in this run."""
    unusable: Counter[str] = field(default_factory=Counter)
    flagged: dict[str, list[int]] = field(default_factory=lambda: {name: [] for name in FLAGS})
    """Rows, counted from 0, by what of `FLAGS` their generations are."""
    num_duplicates: int = 0
    not_run: Counter[tuple[str, ...]] = field(default_factory=Counter)
    """Rows of tests that never ran, by eval, test and engine."""
    derived: dict[str, list[str]] = field(default_factory=dict, repr=False)
    """Results computed from the rows, kept by name."""

    @property
    def num_rows(self) -> int:
        """Number of samples."""
        return len(self.row_keys)

    @cached_property
    def counts(self) -> dict[tuple[str, ...], dict[str, int]]:
        """Number of rows in each of `COUNTS`, by eval, test, engine."""
        return self._counted(self.counted)

    @cached_property
    def tag_counts(self) -> dict[tuple[str, ...], dict[str, int]]:
        """The same by eval, test, engine, tag key, tag value."""
        return self._counted(self.tag_counted)

    def extent(self) -> str:
        """Return "12 cases in 2 evals on 1 engine"."""
        num_evals, num_engines = len(self.evals.names), len(self.engines.names)
        return f"{plural(sum(self.num_cases.values()), 'case')} in {plural(num_evals, 'eval')} on {plural(num_engines, 'engine')}"

    def total(self, name: str) -> int:
        """Return the number of rows in one of `COUNTS`."""
        return sum(counts[name] for counts in self.counts.values())

    @cached_property
    def num_cases(self) -> dict[str, int]:
        """Number of different cases by eval."""
        cases = {(key[0], case_id) for key, case_id in zip(self.row_keys, self.case_ids, strict=True)}
        by_eval = Counter(code for code, _ in cases)
        return {self.evals.names[code]: by_eval[code] for code in sorted(by_eval)}

    @cached_property
    def answers(self) -> dict[tuple[str, str], list[tuple[str, int]]]:
        """Case and hash of the answer of every row that has one, by eval and engine."""
        answers: dict[tuple[int, int], list[tuple[str, int]]] = defaultdict(list)
        for key, case_id, text_hash in zip(self.row_keys, self.case_ids, self.text_hashes, strict=True):
            if text_hash is not None:
                answers[key[0], key[2]].append((case_id, text_hash))
        return {(self.evals.names[key[0]], self.engines.names[key[1]]): answers[key] for key in sorted(answers)}

    @cached_property
    def scores(self) -> dict[tuple[str, ...], Summary]:
        """Each score by eval, test, engine, metric."""
        return self._summarised((self.row_keys[row], row, metric, value) for row, metric, value in self.row_scores)

    @cached_property
    def tag_scores(self) -> dict[tuple[str, ...], Summary]:
        """Each score by eval, test, engine, tag key, tag value, metric."""
        tags: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for row, key, value in self.row_tags:
            tags[row].append((key, value))
        return self._summarised(
            ((*self.row_keys[row], *tag), row, metric, score) for row, metric, score in self.row_scores for tag in tags.get(row, ())
        )

    def metrics(self, eval_name: str, test: str) -> list[str]:
        """Return the scores of a test: those that its gates ask for, then the others in the order of their first use."""
        known = sorted({key[3] for key in self.scores if key[:2] == (eval_name, test)}, key=self.score_names.of)
        return [name for name in dict.fromkeys([*self.gated(eval_name, test), *known]) if name in known]

    def gated(self, eval_name: str, test: str) -> list[str]:
        """Return the metrics that a test's gates ask for."""
        gates = (gate for gate in entries_of(self.run.get("gates")) if gate.get("eval") == eval_name and gate.get("test") == test)
        return [text_of(gate.get("metric")) for gate in gates]

    def _names(self, key: tuple[int, ...]) -> tuple[str, ...]:
        levels = self.evals, self.tests, self.engines, self.tag_keys, self.tag_values
        return tuple(codes.names[code] for codes, code in zip(levels, key, strict=False))

    def _counted(self, counts: Counter[tuple[tuple[int, ...], tuple[str, ...]]]) -> dict[tuple[str, ...], dict[str, int]]:
        lines: dict[tuple[int, ...], dict[str, int]] = {key: dict.fromkeys(COUNTS, 0) for key in sorted({key for key, _ in counts})}
        for (key, counted), number in counts.items():
            for name in counted:
                lines[key][name] += number
        return {self._names(key): line for key, line in lines.items()}

    @cached_property
    def _kinds(self) -> dict[tuple[int, int, int], tuple[bool, bool]]:
        """Whether a score (eval, test, metric) is a rate, and whether it lies within 0…1; a count is neither."""
        names, keys = self.score_names.names, self.row_keys
        kinds: dict[tuple[int, int, int], tuple[bool, bool]] = {}
        for row, metric, value in self.row_scores:
            key = (*keys[row][:2], metric)
            is_rate, is_bounded = kinds.get(key) or (not names[metric].startswith("num_"),) * 2
            kinds[key] = (is_rate and value in (0.0, 1.0), is_bounded and 0.0 <= value <= 1.0)
        return kinds

    def _summarised(self, scores: Iterable[tuple[tuple[int, ...], int, int, float]]) -> dict[tuple[str, ...], Summary]:
        """Return the summaries of scores: (key of the line, row, metric, value)."""
        lines: dict[tuple[int, ...], list[tuple[int, int, float]]] = defaultdict(list)
        for key, row, metric, value in scores:
            lines[key].append((row, metric, value))
        names = self.score_names.names
        return {(*self._names(key), names[metric]): summary for key in sorted(lines) for metric, summary in self._line(key[:2], lines[key])}

    def _line(self, test: tuple[int, ...], scores: list[tuple[int, int, float]]) -> Iterator[tuple[int, Summary]]:
        """Yield each metric of one line and its summary."""
        of_rows, of_metrics, of_scores = zip(*scores, strict=True)
        rows, positions = np.unique(of_rows, return_inverse=True)
        metrics, columns = np.unique(of_metrics, return_inverse=True)
        values = np.full((len(rows), len(metrics)), np.nan)
        values[positions, columns] = of_scores
        groups = [self.groups[row] for row in rows]
        rates, bounded = zip(*(self._kinds[test[0], test[1], metric] for metric in metrics), strict=True)
        intervals = mean_intervals(values, groups, is_rate=rates, is_bounded=bounded)
        clusters = cluster_sums(values, group_codes(groups, len(rows)))
        errors = np.sqrt(cluster_variance(clusters))
        num_groups = (clusters.counts > 0).sum(axis=0)
        for column, metric in enumerate(metrics):
            low, high, kind = intervals[column]
            n = int(clusters.counts[:, column].sum())
            mean, error = float(clusters.means[column]), float(errors[column])
            yield int(metric), Summary(mean, error, n, float(low), float(high), kind, rates[column], int(num_groups[column]))


def load_tables(run_dir: Path, rows: Iterable[Row] | None = None) -> RunTables:
    """Return the tables of a run directory. Raises `RecordError` where `read_run` and `read_samples` do.

    `rows` are those of samples.jsonl, where they are in memory already.
    """
    notes: list[str] = []
    tables = RunTables(run_dir, read_run(run_dir, notes), notes)
    seen: set[tuple[int, int, int, str]] = set()
    for row in read_samples(run_dir, notes) if rows is None else rows:
        _add_row(tables, row, seen)
    for what, count in tables.unusable.items():
        notes.append(f"{what}: left out of every mean ({plural(count, 'time')})")
    return tables


def _add_row(tables: RunTables, row: Row, seen: set[tuple[int, int, int, str]]) -> None:
    number = len(tables.row_keys)
    key = (tables.evals.of(row.get("eval")), tables.tests.of(row.get("test")), tables.engines.of(row.get("engine")))
    case_id = text_of(row.get("case_id"))
    tables.row_keys.append(key)
    tables.case_ids.append(printable(case_id))
    if (*key, case_id) in seen:
        tables.num_duplicates += 1
    seen.add((*key, case_id))
    tables.groups.append(None if row.get("group") is None else text_of(row["group"]))
    if len(tables.checkpoints) < len(tables.engines.names):
        tables.checkpoints.setdefault(tables.engines.names[key[2]], printable(text_of(row.get("checkpoint"))))
    generations = generations_of(row)
    outcome = _outcome(tables, row.get("outcome"))
    tables.outcomes.append(outcome)
    if outcome == "skip" and text_of(row.get("problem")).startswith(NOT_RUN):
        tables.not_run[tables.evals.names[key[0]], tables.tests.names[key[1]], tables.engines.names[key[2]]] += 1
    tables.row_problems.append(-1 if outcome == "pass" else _add_problem(tables, key, outcome, row, generations))
    validity = _add_generations(tables, key[2], generations)
    for name in FLAGS if len(validity) > 1 else ():  # more than that it was answered
        if name in validity:
            tables.flagged[name].append(number)
    counted = ("cases", outcome, *validity, *_add_scores(tables, number, outcome, row.get("scores")))
    tables.counted[key, counted] += 1
    for name, value in mapping(row.get("tags")).items():
        tag = tables.tag_keys.of(name), tables.tag_values.of(value)
        tables.row_tags.append((number, *tag))
        tables.tag_counted[(*key, *tag), counted] += 1


def _outcome(tables: RunTables, outcome: str | None) -> str:
    if isinstance(outcome, str) and outcome in OUTCOMES:
        return outcome
    tables.unknown_outcomes[terminal_text(text_of(outcome), 40)] += 1
    return "other"


def _add_generations(tables: RunTables, engine: int, generations: list[Generation]) -> Collection[str]:
    """Note the generations of a row; return those of `COUNTS` in which it counts for them."""
    if not generations:
        tables.text_hashes.append(None)
        return ()
    validity = {"answered": True}
    texts: list[Any] = []  # of a given response, which is the same everywhere, its scores are the answer
    for generation in generations:
        text = text_of(generation.get("text"))
        texts.append((text, str(generation.get("logprobs"))) if generation.get("finish_reason") == "scored" else text)
        if generation.get("finish_reason") == "length":
            validity["length_cap"] = True
        if not text or text.isspace():
            validity["empty"] = True
        if mapping(generation.get("thinking")).get("is_closed") is False:
            validity["unclosed"] = True
        if generation.get("fallback"):
            validity["fallback"] = True
            tables.fallbacks[engine, printable(text_of(generation["fallback"]))] += 1
        if generation.get("cached") is True:
            tables.cached[engine] += 1
        ignored = (_remark(tables, engine, printable(text_of(name))) for name in items_of(generation.get("ignored_options")))
        for name in dict.fromkeys(ignored):
            tables.ignored_options[engine, name] += 1
            first = tables.first_ignored.setdefault((engine, name), [])
            if len(first) < NUM_CASES_IN_REMARK and tables.case_ids[-1] not in first:
                first.append(tables.case_ids[-1])
    tables.text_hashes.append(hash(tuple(texts)))
    return validity


def _remark(tables: RunTables, engine: int, remark: str) -> str:
    """Return a remark without what differs from case to case: the places of turns, and special tokens in data, which are noted."""
    if read := _DATA_TOKEN.fullmatch(remark):
        tables.data_tokens.setdefault(engine, {})[read[1]] = None
        return READ_AS_TOKENS
    return _PLACE_OF_TURN.sub("", remark)


def _add_scores(tables: RunTables, number: int, outcome: str, scores: Mapping[str, float] | None) -> Iterable[str]:
    """Note the scores of a row; return those of `COUNTS` in which it counts for its score `valid`."""
    verdicts: tuple[str, ...] = ()
    for name, value in mapping(scores).items():
        code = tables.score_names.of(name)
        if outcome not in _SCORED:
            tables.unusable[f"a score of a case that ended as {outcome}"] += 1
        elif isinstance(value, (int, float)) and abs(value) <= sys.float_info.max:
            tables.row_scores.append((number, code, float(value)))
            if name == "valid":
                verdicts = ("form_judged",) if value else ("form_judged", "malformed")
        else:
            tables.unusable[f"score '{one_line(name, 60)}' is not a finite number"] += 1
    return verdicts


def _add_problem(tables: RunTables, key: tuple[int, int, int], outcome: str, row: Row, generations: list[Generation]) -> int:
    """Count the row with those of its kind; return the number of the group."""
    problem = text_of(row.get("problem"))
    reason = (outcome, key[0], normalised(problem, (row.get("case_id"), row.get("group"))))
    group, engine = tables.problems.get(reason), tables.engines.names[key[2]]
    if group is None:
        text = text_of(generations[0].get("text")) if generations else ""
        group = tables.problems[reason] = ProblemGroup(
            outcome,
            tables.evals.names[key[0]],
            [],
            one_line(problem, _PROBLEM_CHARS),
            terminal_text(text, _EXCERPT_CHARS),
            one_line(reason[2], _PROBLEM_CHARS),
            problem[:_PROBLEM_CHARS],
            len(tables.problems),
        )
    group.count += 1
    group.differ = group.differ or problem[:_PROBLEM_CHARS] != group.first
    if engine not in group.engines:
        group.engines.append(engine)
    if len(group.nodeids) < NUM_NODEIDS:
        group.nodeids.append(terminal_text(text_of(row.get("nodeid")), 200))
        group.case_ids.append(tables.case_ids[-1])
    return group.number
