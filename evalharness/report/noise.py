"""What reports say of a run's noise (--noise): sentences, and the lines of a table. Nothing where it was not measured."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from evalharness.analysis.noise import ANSWER
from evalharness.report.text import number_text, one_line, plural, when_finite
from evalharness.runs.measured import NoiseEntry
from evalharness.runs.schema import GateVerdict, RunFile, entries_of, items_of, mapping, text_of

if TYPE_CHECKING:  # loads scipy, which most runs do without
    from evalharness.analysis.comparison.compare import Comparison, MetricChange

HEADERS = ["eval", "test", "engine", "score", "flips", "95 % interval", "noise floor", "cases", "first cases that flip"]
NUM_TEXT_COLUMNS = 4
NUM_LINES, NUM_CASES = 60, 3
LEAST_CHANCE = 0.001
NOTE = (
    "A flip: two runs give a case different values. The noise floor: how far noise alone moves the mean of all cases between two runs, "
    "with a chance of 95 %; gates and comparisons take no smaller difference for one."
)


def noise_summary(run: RunFile) -> str:
    """Return one sentence: how often answers and scores flip, and of how many repeats that is known; "" for a run without noise."""
    if run.get("noise") is None:
        return ""
    facts = mapping(run.get("noise"))
    entries = entries_of(facts.get("measured"))
    rates = {is_answer: [_rate(entry) for entry in entries if (entry.get("metric") == ANSWER) is is_answer] for is_answer in (True, False)}
    parts = [f"up to {max(of):.1%} of {what}" for what, of in (("answers", rates[True]), ("scores", rates[False])) if any(of)]
    what = f"{' and '.join(parts)} flip from run to run" if parts else "no answer and no score flipped"
    if not entries:
        what = "no repeat could be judged"
    elsewhere = when_finite(facts.get("elsewhere"))
    by_others = f", {elsewhere:.0%} by another worker" if elsewhere else ""
    lost = facts.get("num_lost")
    without = f"; {lost:,} without a verdict" if isinstance(lost, int) and lost else ""
    return f"{what} ({plural(_count(facts, 'num_judged'), 'judged repeat')}{by_others}{without})"


def noise_lines(run: RunFile) -> list[list[Any]]:
    """Return the cells of the table, as texts: each test's answers first, then what flips most."""
    entries = entries_of(mapping(run.get("noise")).get("measured"))
    places = {place: number for number, place in enumerate(dict.fromkeys(map(_place, entries)))}
    entries = [entry for entry in entries if entry.get("metric") == ANSWER or entry.get("flips")]  # of the others all there is to say is 0
    entries.sort(key=lambda entry: (places[_place(entry)], entry.get("metric") != ANSWER, -_rate(entry)))
    return [_cells(entry) for entry in entries[:NUM_LINES]]


def gate_sentences(run: RunFile) -> Iterator[str]:
    """Yield how likely another run of the same checkpoint would turn a gate's verdict, of gates for which that is not next to nothing."""
    for gate in entries_of(run.get("gates")):
        rate = when_finite(gate.get("flip_rate"))
        if rate is not None and rate >= LEAST_CHANCE:
            limits = [when_finite(limit) for limit in items_of(gate.get("flip_interval"))]
            interval = f" ({limits[0]:.1%} … {limits[1]:.1%})" if len(limits) == 2 and None not in limits else ""
            where = f"{text_of(gate.get('eval'))}::{text_of(gate.get('test'))} on {text_of(gate.get('engine'))}"
            yield one_line(f"{text_of(gate.get('expression'))} ({where}) would be judged otherwise in {rate:.1%}{interval} of runs", 400)


def _place(entry: NoiseEntry) -> tuple[str, str, str]:
    return text_of(entry.get("eval")), text_of(entry.get("test")), text_of(entry.get("engine"))


def _rate(entry: NoiseEntry) -> float:
    return when_finite(entry.get("flip_rate")) or 0.0


def _count(facts: Mapping[str, Any], name: str) -> int:
    value = facts.get(name)
    return value if isinstance(value, int) else 0


def _cells(entry: NoiseEntry) -> list[str]:
    low, high = when_finite(entry.get("low")), when_finite(entry.get("high"))
    interval = "-" if low is None or high is None else f"{low:.1%} … {high:.1%}"
    floor = "-" if entry.get("metric") == ANSWER else f"±{number_text(entry.get('floor'))}"
    flips = list(map(text_of, mapping(entry.get("flips"))))
    named = ", ".join(flips[:NUM_CASES]) + (f" and {len(flips) - NUM_CASES} more" if len(flips) > NUM_CASES else "")
    cases = f"{_count(entry, 'num_cases'):,} × {_count(entry, 'num_runs')}"
    return [*_place(entry), text_of(entry.get("metric")), f"{_rate(entry):.1%}", interval, floor, cases, one_line(named, 200) or "-"]


def within_noise(gate: GateVerdict) -> str:
    """Return what a gate took for no difference as it lies within the noise; "" for nothing."""
    return one_line("; ".join(map(text_of, items_of(gate.get("within_noise")))), 400)


def noise_remarks(comparison: Comparison) -> Iterator[str]:
    """Yield what a comparison's noise floor is, largest first; nothing where no side has measured it."""
    known = sorted((change for change in comparison.metrics if change.floor > 0), key=lambda change: -change.floor)
    if known:
        named = ", ".join(f"{change.metric} {floor_text(change)}{_flips(comparison, change)}" for change in known[:NUM_CASES])
        more = f" and {plural(len(known) - NUM_CASES, 'more metric')}" if len(known) > NUM_CASES else ""
        yield f"two runs of one checkpoint differ by up to {named}{more}: no smaller difference counts (--noise)"
    elif comparison.has_noise:
        yield "repeats of cases (--noise) gave the same scores each time: no noise was found"


def _flips(comparison: Comparison, change: MetricChange) -> str:
    """Return " (1.3% of cases flip, 0.0% … 7.1%)" of a metric whose noise a side has measured."""
    key = change.eval, change.test, change.metric
    noise = comparison.candidate.noise.get(key) or comparison.base.noise.get(key)
    if noise is None:
        return ""
    interval = f", {noise.low:.1%} … {noise.high:.1%}" if noise.low == noise.low and noise.high == noise.high else ""
    return f" ({noise.flip_rate:.1%} of cases flip{interval})"


def floor_text(change: MetricChange) -> str:
    """Return "±0.012"; "" where no side has measured the noise."""
    return "" if math.isnan(change.floor) else f"±{number_text(change.floor)}"
