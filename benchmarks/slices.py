"""How long gates and comparisons of thousands of slices take, and how often they cry wolf, or miss a slice that is lost.

    python -m benchmarks.slices [--slices 2000] [--cases 30] [--rounds 20]

Two runs of one checkpoint are drawn, each case right with a chance of its own, and judged against each other: whatever fails is a false
alarm. Then one slice loses 60 % of its right answers.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter, defaultdict
from typing import Any

from evalharness.analysis.comparison.compare import REGRESSED, compare
from evalharness.analysis.comparison.sheets import Side
from evalharness.analysis.comparison.sides import side_of_rows
from evalharness.analysis.drop_gates import judge_change
from evalharness.analysis.gate_grammar import Gate, parse_gate
from evalharness.analysis.slice_gates import judge_gate

GATES = ("correct[site=*] >= 0.5", "low(correct[site=*]) >= 0.5", "high(correct[site=*]) >= 0.5", "high(f1[site=*]) >= 0.3")
DROPS = ("drop(correct[site=*]) <= 0.5", "low(drop(correct[site=*])) <= 0", "low(drop(f1[site=*])) <= 0")


def rows(num_slices: int, num_cases: int, seed: int, lost: float = 0.0) -> list[Any]:
    """Return one run's rows; slice 7 loses a share of its right answers."""
    chances, made = random.Random(1), random.Random(seed)
    found = []
    for number in range(num_slices * num_cases):
        chance, site = 0.6 + 0.4 * chances.random(), number % num_slices
        right = made.random() < chance and not (site == 7 and made.random() < lost)
        place = {"nodeid": f"t::x[{number}]", "eval": "e", "test": "t", "case_id": f"c{number}", "engine": "hf:a", "group": None}
        scores = {"correct": float(right), "f1": round(made.random() * right, 3)}
        found.append({**place, "outcome": "pass", "scores": scores, "tags": {"site": f"s{site}"}, "generation": None, "options": {}})
    return found


def side(name: str, made: list[Any]) -> Side:
    """Return one side of a comparison."""
    run: Any = {
        "run_id": name,
        "engines": [{"id": "hf:a", "checkpoint": "a", "backend": "hf"}],
        "evals": [{"name": "e", "tests": {"t": []}}],
    }
    return side_of_rows(run, "hf:a", made)


def judged(expression: str, base: Side, now: Side, made: list[Any]) -> tuple[bool, float]:
    """Return whether a gate, or "compare", failed, and the seconds of CPU that it took."""
    began = time.process_time()
    if expression == "compare":
        failed = any(change.verdict == REGRESSED for change in compare(base, now).slices)
        return failed, time.process_time() - began
    gate = parse_gate(expression)
    assert isinstance(gate, Gate)
    if gate.change:
        verdict = judge_change(gate, base, now, {}, anyway=False)
    else:
        verdict = judge_gate(gate, made, {}, incomplete=None, test_rows=made)
    return verdict["passed"] is False, time.process_time() - began


def main() -> None:
    """Print seconds of CPU, false alarms and finds."""
    parser = argparse.ArgumentParser()
    for option, default in (("--slices", 2000), ("--cases", 30), ("--rounds", 20)):
        parser.add_argument(option, type=int, default=default)
    asked = parser.parse_args()
    times: defaultdict[str, list[float]] = defaultdict(list)
    failed: Counter[tuple[str, float]] = Counter()
    for number in range(asked.rounds):
        base = side("base", rows(asked.slices, asked.cases, 2 * number))
        for lost in (0.0, 0.6):
            made = rows(asked.slices, asked.cases, 2 * number + 1, lost)
            now = side("now", made)
            for expression in (*GATES, *DROPS, "compare"):
                has_failed, seconds = judged(expression, base, now, made)
                times[expression].append(seconds)
                failed[expression, lost] += has_failed
    for name, seconds_of in times.items():
        shown = f"false alarms {failed[name, 0.0]:2} of {asked.rounds}, with a lost slice {failed[name, 0.6]:2}"
        print(f"{name:34} {sorted(seconds_of)[len(seconds_of) // 2]:6.2f} s   {shown}", flush=True)


if __name__ == "__main__":
    main()
