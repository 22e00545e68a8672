"""The noise of a run, as its repeats (--noise) show it: how often and how much scores of one checkpoint differ from run to run.

Knows nothing about pytest; loads numpy when it measures. `statistics/noise.py` has the formulas, docs/comparing.md their reasons.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from evalharness.analysis.comparison.sheets import CaseLine, line_of
from evalharness.runs.measured import NoiseEntry, NoiseFacts
from evalharness.runs.repeats import repeat_number
from evalharness.runs.schema import JUDGED, Row, entries_of, text_of

if TYPE_CHECKING:
    from evalharness.analysis.statistics.noise import Noise

ANSWER = "answer"
"""The name under which the answers themselves are measured: whether their texts are the same."""

Test: TypeAlias = "tuple[str, str, str]"
"""Eval, test and engine."""
Runs: TypeAlias = "dict[str, dict[int, CaseLine]]"
"""By case, then by repeat: 0 is the case's own row."""


def measured_noise(rows: Sequence[Row], repeats: Sequence[Row]) -> NoiseFacts | None:
    """Return what the repeats of a run say, None where it has none; `rows` are the run's own, `repeats` those of `RunRecords`."""
    if not repeats:
        return None
    again = {(_test(row), row["case_id"]) for row in repeats}
    first = {(_test(row), row["case_id"]): row for row in rows if (_test(row), row["case_id"]) in again}
    tests: defaultdict[Test, Runs] = defaultdict(dict)
    for (test, case_id), row in first.items():
        tests[test][case_id] = {0: line_of(row)}
    num_judged = num_elsewhere = 0
    for row in repeats:
        own = first.get((_test(row), row["case_id"]))
        if own is not None and own["outcome"] in JUDGED and row["outcome"] in JUDGED:
            tests[_test(row)][row["case_id"]][repeat_number(row["nodeid"])] = line_of(row)
            num_judged += 1
            num_elsewhere += row.get("worker") != own.get("worker")
    num_repeats = max(repeat_number(row["nodeid"]) for row in repeats)
    sizes: defaultdict[Test, set[str]] = defaultdict(set)
    num_cases = Counter[Test]()
    for row in rows:
        if row["outcome"] in JUDGED:
            sizes[_test(row)].add(row.get("group") or f"\0{row['case_id']}")
            num_cases[_test(row)] += 1
    counts = {test: (num_cases[test], len(groups)) for test, groups in sizes.items()}
    return {
        "repeats": num_repeats,
        "num_judged": num_judged,
        "num_lost": len(repeats) - num_judged,
        "elsewhere": num_elsewhere / num_judged if num_judged else 0.0,
        "measured": [entry for test, runs in tests.items() for entry in _entries(test, runs, num_repeats + 1, counts)],
    }


def _test(row: Row) -> Test:
    return row["eval"], row["test"], row["engine"]


def _entries(test: Test, cases: Runs, num_runs: int, counts: Mapping[Test, tuple[int, int]]) -> Iterator[NoiseEntry]:
    """Yield the noise of a test's answers, then that of each of its scores; counts (`num_…`) are neither better nor worse.

    `counts`: judged cases of each test, and their groups.
    """
    from evalharness.analysis.statistics.noise import flip_shares, floor_of, noise_of

    names = dict.fromkeys(name for runs in cases.values() for line in runs.values() for name in line.scores if not name.startswith("num_"))
    groups = [runs[0].group for runs in cases.values()]
    answers: dict[str, float] = {}
    for name in (ANSWER, *names):
        values = [[_value(runs.get(number), name, answers) for number in range(num_runs)] for runs in cases.values()]
        noise = noise_of(values, groups)
        if noise is None:
            continue
        if name == ANSWER:
            noise = noise._replace(variance=0.0, covariance=0.0, between=0.0, freedom=math.inf)
        shares = zip(cases, flip_shares(values), strict=True)
        yield {
            **_names(test, name),
            "flip_rate": noise.flip_rate,
            "low": _finite(noise.low),
            "high": _finite(noise.high),
            "variance": noise.variance,
            "covariance": noise.covariance,
            "between": noise.between,
            "freedom": _finite(noise.freedom),
            "floor": floor_of([noise, noise], *counts[test]),
            "num_cases": noise.num_cases,
            "num_runs": noise.num_runs,
            "flips": {case_id: round(float(share), 6) for case_id, share in shares if share > 0},
        }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _names(test: Test, metric: str) -> NoiseEntry:
    return {"eval": test[0], "test": test[1], "engine": test[2], "metric": metric}  # type: ignore[typeddict-item]


def _value(line: CaseLine | None, name: str, answers: dict[str, float]) -> float:
    """Return a case's value in one run, NaN where it has none; of an answer, a number that stands for its text."""
    if line is None:
        return math.nan
    if name != ANSWER:
        return line.scores.get(name, math.nan)
    return math.nan if line.answer is None else answers.setdefault(line.answer, float(len(answers)))


def noises_of(entries: Sequence[NoiseEntry] | None, engine: str | None = None) -> dict[tuple[str, str, str], Noise]:
    """Return the noise of scores by eval, test and metric, of one engine if it is given; damaged entries are left out."""
    from evalharness.analysis.statistics.noise import Noise

    noises = {}
    for entry in entries_of(entries):
        values: Mapping[str, object] = entry
        numbers = {name: _number(values.get(name)) for name in Noise._fields}
        needed = [number for name, number in numbers.items() if name not in ("low", "high", "freedom")]
        if (engine is None or values.get("engine") == engine) and values.get("metric") != ANSWER and not any(map(math.isnan, needed)):
            num_cases, num_runs = (int(numbers.pop(name)) for name in ("num_cases", "num_runs"))
            if not numbers["freedom"] >= 1:
                numbers["freedom"] = math.inf
            key = text_of(entry.get("eval")), text_of(entry.get("test")), text_of(entry.get("metric"))
            noises[key] = Noise(**numbers, num_cases=num_cases, num_runs=num_runs)
    return noises


def _number(value: object) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value < 1e300 else math.nan  # type: ignore[arg-type,operator]
