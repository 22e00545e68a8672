"""One engine's scores of one test, by case: the part of a run's rows that a comparison needs, small enough for a baseline."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from evalharness.analysis.gates import BUILT_IN_METRICS
from evalharness.analysis.statistics.overlap import Overlap
from evalharness.runs.journal import readable
from evalharness.runs.judging import row_reference, shown_reference
from evalharness.runs.schema import JUDGED, GateVerdict, Generation, Row, generations_of, mapping, number_of, text_of

if TYPE_CHECKING:
    from evalharness.analysis.statistics.noise import Noise

RATES = ("pass_rate", "length_rate", "empty_rate")
"""Rates that every test has and that a single case has a value of, 0 or 1."""

SHORT_HASH = 8
"""Characters that are kept of a hash."""
TEXT_CHARS = 2000
"""What is kept of a text to be shown; samples.jsonl has all of it."""
_DIGITS = 6  # scores are compared to so many decimals, as baselines keep them
_LARGEST = 1e150  # the squares of larger numbers overflow
_NUM_COUNTS = 3
_DOMAIN = "domain"


class CaseLine(NamedTuple):
    """One case of a sheet. Hashes are hexadecimal and short; `text` is missing in baselines."""

    outcome: str
    scores: Mapping[str, float]
    marks: Mapping[str, float]
    """A score by category, from the row's `details["categories"]`; a missing category was neither predicted nor in the reference."""
    prompt: str | None
    """Hash of what the case was asked before any answer: where it is asked in steps, of the first step's prompts."""
    answer: str | None
    """Hash of all texts of the case."""
    group: str | None = None
    tags: Mapping[str, str] = {}
    text: str | None = None
    problem: str | None = None
    nodeid: str | None = None
    num_tokens: int | None = None
    """Tokens of all answers of the case; missing in baselines."""
    reference: str | None = None
    """Hash of what the case was judged against; None where that is not known."""
    shown_reference: str | None = None
    """The same for people; missing in baselines."""

    @property
    def was_judged(self) -> bool:
        """Whether the case says something about the checkpoint."""
        return self.outcome in JUDGED


@dataclass
class Sheet:
    """All cases of one test on one engine; `options` are those of its first case, seeds left out."""

    eval: str
    test: str
    options: Any = None
    cases: dict[str, CaseLine] = field(default_factory=dict)
    code: Mapping[str, str] | None = None
    """Hashes of the definitions that the test depends on, by name; None where they are not known."""


@dataclass
class Side:
    """One side of a comparison. `asked` (settings of the requests) and `circumstances` are facts by name; see `sides.py`."""

    label: str
    run_id: str
    engine: str
    checkpoint: str
    fingerprint: str | None
    asked: dict[str, Any]
    circumstances: dict[str, Any]
    sheets: dict[tuple[str, str], Sheet]
    """By eval and test."""
    aggregates: dict[tuple[str, str, str], float] = field(default_factory=dict)
    """By eval, test and metric."""
    draws: dict[tuple[str, str, str], tuple[list[float | None], int]] = field(default_factory=dict)
    """Those of the bootstrap of aggregates that have one, and of how many groups; baselines have none."""
    directions: dict[tuple[str, str, str], str] = field(default_factory=dict)
    """By eval, test and metric: "lower" or "none" (no better direction), as the eval or a gate with `<` says."""
    own_limits: frozenset[str] = frozenset()
    """Settings in `asked` that no option set: they are the checkpoint's own. Empty for a baseline, which does not tell."""
    parts: dict[str, str] = field(default_factory=dict)
    """Evals that its run does not hold whole, with what it has of each: "3 of 182 cases of stage_a"."""
    stopped: tuple[str, ...] = ()
    """Those of them that --until-certain ended."""
    gates: tuple[GateVerdict, ...] = ()
    """Those of this engine; baselines have none."""
    notes: tuple[str, ...] = ()
    noise: dict[tuple[str, str, str], Noise] = field(default_factory=dict)
    """By eval, test and metric; empty for a run without --noise."""
    source: str = ""
    checkpoint_path: str = ""
    """"" where it is not known, as in baselines."""

    @property
    def caveats(self) -> list[str]:
        """What is amiss with the run or its files, and that it is partial."""
        return [*self.notes, *(f"the run holds only part of an eval: {part}" for part in self.parts.values())]


def domains_apart(lines: Iterable[CaseLine]) -> Callable[[CaseLine], CaseLine]:
    """Return a function that renames a case's categories so that one name in two domains makes two categories.

    The tag `domain` is the case's domain; "标签" then becomes "标签 (bbu)" or "标签 (rru)".
    """
    domains: dict[str, set[str]] = {}
    for line in lines:
        for category in line.marks:
            domains.setdefault(category, set()).add(line.tags.get(_DOMAIN, ""))
    shared = {category for category, names in domains.items() if len(names) > 1}

    def apart(line: CaseLine) -> CaseLine:
        if not shared.intersection(line.marks):
            return line
        domain = line.tags.get(_DOMAIN) or f"no {_DOMAIN}"
        return line._replace(marks={f"{name} ({domain})" if name in shared else name: mark for name, mark in line.marks.items()})

    return apart


Score: TypeAlias = Callable[[CaseLine], float]


def score_of(name: str) -> Score:
    """Return the function that gives a case's score, NaN where it has none."""
    return lambda line: line.scores.get(name, math.nan)


def mark_of(category: str) -> Score:
    """Return the function that gives a case's mark of a category; 1, right, where it was neither predicted nor in the reference."""
    return lambda line: line.marks.get(category, 1.0)


def sheets_by_engine(rows: Iterable[Row]) -> dict[str, dict[tuple[str, str], Sheet]]:
    """Return the sheets of each engine by eval and test, in the order of their first rows; the last row of a case counts."""
    engines: dict[str, dict[tuple[str, str], Sheet]] = {}
    for row in rows:
        key = text_of(row.get("eval")), readable(text_of(row.get("test")))  # older versions wrote pytest's escapes
        sheet = engines.setdefault(text_of(row.get("engine")), {}).setdefault(key, Sheet(*key))
        if sheet.options is None and row.get("options"):
            sheet.options = without_seed(row["options"])
        sheet.cases[text_of(row.get("case_id"))] = line_of(row)
    return engines


def line_of(row: Row) -> CaseLine:
    """Return what a comparison needs of a row."""
    generations = generations_of(row)
    texts = [text_of(sample.get("text")) for sample in generations]
    outcome = text_of(row.get("outcome"))
    scores = {name: number for name, value in mapping(row.get("scores")).items() if (number := plain_score(value)) is not None}
    if outcome in JUDGED:
        rates = {name: float(BUILT_IN_METRICS[name].holds(row)) for name in RATES if BUILT_IN_METRICS[name].counts(row)}
        scores = {**rates, **{name: value for name, value in scores.items() if name not in RATES}}
    prompt, reference = prompt_hash(row), row_reference(row)
    return CaseLine(
        outcome=outcome,
        scores=scores,
        marks=_marks(mapping(row.get("details")).get("categories")),
        prompt=prompt[:SHORT_HASH] if prompt is not None else None,
        answer=_hash([_answer(sample) for sample in generations]) if texts else None,
        group=row.get("group") if isinstance(row.get("group"), str) else None,
        tags={text_of(name): text_of(value) for name, value in mapping(row.get("tags")).items()},
        text="\n".join(texts)[:TEXT_CHARS] if texts else None,
        problem=text_of(row.get("problem"))[:TEXT_CHARS] or None,
        nodeid=text_of(row.get("nodeid")) or None,
        num_tokens=_num_tokens(generations),
        reference=reference[:SHORT_HASH] if reference is not None else None,
        shown_reference=shown_reference(row) if reference is not None else None,
    )


def _answer(sample: Generation) -> str:
    """Return the checkpoint's own answer: its text, or its scores of a given response."""
    text = text_of(sample.get("text"))
    return f"{text} {sample.get('logprobs')}" if sample.get("finish_reason") == "scored" else text


def _num_tokens(generations: Sequence[Generation]) -> int | None:
    counts = [count for sample in generations if isinstance(count := sample.get("num_completion_tokens"), int)]
    return sum(counts) if counts and len(counts) == len(generations) else None


def prompt_hash(row: Row) -> str | None:
    """Return the hash of the prompt before any answer: later steps contain the checkpoint's own words."""
    steps = row.get("steps")
    first = steps[0] if isinstance(steps, list) and steps else None
    if isinstance(first, list) and first:
        hashes = [digest for result in first if isinstance(digest := mapping(result).get("prompt_sha256"), str)]
        return _hash(hashes) if len(hashes) == len(first) else None
    prompt = row.get("prompt_sha256")
    return prompt if isinstance(prompt, str) else None


def _marks(categories: Mapping[str, Any] | None) -> dict[str, float]:
    """Return a score by category: a number as it is, counts [hit, predicted, reference] as F1."""
    marks: dict[str, float] = {}
    for name, value in mapping(categories).items():
        if isinstance(value, list) and len(value) == _NUM_COUNTS:
            counts = [number for number in map(plain_score, value) if number is not None]
            mark = Overlap(*counts).f1(None) if len(counts) == _NUM_COUNTS else None
        else:
            mark = plain_score(value)
        if mark is not None:
            marks[text_of(name)] = round(mark, _DIGITS)
    return marks


def plain_score(value: object) -> float | None:
    number = number_of(value)
    return round(number, _DIGITS) if number is not None and abs(number) < _LARGEST else None


def without_seed(options: object) -> Any:
    """Return the options of a case, or of each of its samples, without seeds: they differ from case to case."""
    if isinstance(options, Sequence) and not isinstance(options, str):
        return [without_seed(sample) for sample in options]
    return {name: value for name, value in options.items() if name != "seed"} if isinstance(options, Mapping) else options


def _hash(texts: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(texts).encode("utf-8", "surrogatepass")).hexdigest()[:SHORT_HASH]
