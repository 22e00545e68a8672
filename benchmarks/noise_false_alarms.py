"""Counts false alarms and missed drops of gates and comparisons on simulated runs of one checkpoint with planted flips.

    python -m benchmarks.noise_false_alarms                    200 runs of each kind of noise, 1,000 cases a test
    python -m benchmarks.noise_false_alarms --runs 20 --cases 300 --kinds groups

The engine is simulated: of each test's cases a share is near a tie, and a run gives such a case its right answer with a chance of its own.
Everything after that is the harness's: rows and repeats, `measured_noise`, a baseline file, gates, and a comparison of all tests.

Kinds of noise: *cases* flip by themselves; *groups* flip together; *runs* differ as a whole, too, as on another card: a draw per run, and
per repeat, moves the chances of all near-ties one way.

Each run is held to the run before it, with three tests: gates `no_regression`, gates on a threshold that is exactly the checkpoint's own
mean, and `compare`. A *false alarm* is a run in which any gate `no_regression` fails or the comparison has a regression. Then drops are
planted in one test: of a point over the floor, and of what the gate says it could have shown (with a chance of 80 %). *Stated* is the
chance by the formula: the drop less what must be exceeded, over the standard error.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import NormalDist, fmean
from typing import Any, cast

from evalharness.analysis.comparison.compare import Comparison, compare
from evalharness.analysis.comparison.sides import side_of_rows, write_baseline
from evalharness.analysis.judge import RegressionJudge, judge_gates, num_regression_gates
from evalharness.analysis.noise import measured_noise
from evalharness.analysis.statistics.paired import LEVEL
from evalharness.api.cases import Case
from evalharness.pytest_plugin.execution.repeats import sample_of
from evalharness.runs.measured import NoiseFacts
from evalharness.runs.repeats import repeat_id
from evalharness.runs.schema import EvalLine, GateVerdict, Row, RunFile

KINDS = ("cases", "groups", "runs")
TESTS = ("test_a", "test_b", "test_c")
ENGINE = "fake:simulated"
GROUP_SIZE = 4


@dataclass
class Checkpoint:
    """A simulated checkpoint: the chance of each case to be right in a run, 0 or 1 but for near-ties. `kind`: see the module."""

    kind: str
    num_cases: int
    near_ties: float
    seed: int
    chances: list[list[float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        draw = Random(self.seed)
        for _ in TESTS:
            chances = []
            for number in range(self.num_cases):
                if self.kind == "groups" and number % GROUP_SIZE:
                    chances.append(chances[-1] if 0 < chances[-1] < 1 else float(draw.random() < 0.7))
                else:
                    chances.append(draw.random() if draw.random() < self.near_ties else float(draw.random() < 0.7))
            self.chances.append(chances)

    def means(self) -> list[float]:
        """Return the share of right answers of each test that its runs have on average."""
        return [fmean(chances) for chances in self.chances]

    def answers(self, draw: Random, lost: Sequence[int] = ()) -> list[list[bool]]:
        """Return which cases of each test a run, or a repeat, gets right; of the first test, cases in `lost` are always wrong."""
        shift = draw.choice((-0.12, 0.12)) if self.kind == "runs" else 0.0
        answers = []
        for place, chances in enumerate(self.chances):
            right: list[bool] = []
            uniform = 0.0
            for number, chance in enumerate(chances):
                if self.kind != "groups" or not number % GROUP_SIZE:
                    uniform = draw.random()  # cases of a group that are near a tie share one draw
                right.append(uniform < (chance if chance in (0.0, 1.0) else chance + shift))
            for number in lost if place == 0 else ():
                right[number] = False
            answers.append(right)
        return answers


@dataclass(frozen=True)
class SimulatedRun:
    """The rows of a run, and what its repeats say."""

    rows: list[Row]
    noise: NoiseFacts | None

    def facts(self, name: str) -> RunFile:
        """Return the part of run.json that comparisons need."""
        return {"run_id": name, "engines": [{"id": ENGINE, "checkpoint": name}], **({"noise": self.noise} if self.noise else {})}  # type: ignore[typeddict-item]


def rows_of(answers: Sequence[Sequence[bool]], cases: Sequence[int], repeat: int = 0) -> list[Row]:
    """Return rows as the journal has them."""
    rows = []
    for test, right in zip(TESTS, answers, strict=True):
        for number in cases:
            case_id = f"c{number}"
            row: dict[str, Any] = {
                "nodeid": f"test_eval.py::{test}[{ENGINE}-{repeat_id(case_id, repeat) if repeat else case_id}]",
                "eval": "eval",
                "test": test,
                "engine": ENGINE,
                "case_id": case_id,
                "outcome": "pass" if right[number] else "miss",
                "scores": {"correct": float(right[number])},
                "group": f"g{number // GROUP_SIZE}",
                "tags": {"kind": "abc"[number // GROUP_SIZE % 3]},
                "started_at": "2026-01-01",
                "worker": f"gw{repeat % 2}",
            }
            rows.append(cast("Row", row))
    return rows


def run_of(checkpoint: Checkpoint, draw: Random, num_repeats: int, num_sampled: int, lost: Sequence[int] = ()) -> SimulatedRun:
    """Return a run, with repeats of a sample as the harness draws it."""
    rows = rows_of(checkpoint.answers(draw, lost), range(checkpoint.num_cases))
    cases = [Case(id=str(number), group=str(number // GROUP_SIZE)) for number in range(checkpoint.num_cases)]
    sample = [int(case.id) for case in sample_of(cases, num_sampled, str(draw.random()))]
    repeats = [row for number in range(num_repeats) for row in rows_of(checkpoint.answers(draw, lost), sample, number + 1)]
    return SimulatedRun(rows, measured_noise(rows, repeats))


def judged(before: SimulatedRun, after: SimulatedRun, folder: Path, thresholds: Sequence[float]) -> tuple[list[GateVerdict], Comparison]:
    """Return the verdicts of the gates of a run, held to the run before it, and the comparison of both."""
    tests = {test: ["no_regression", f"correct >= {threshold!r}"] for test, threshold in zip(TESTS, thresholds, strict=True)}
    evals: dict[str, EvalLine] = {"test_eval.py": {"name": "eval", "path": "test_eval.py", "tests": tests}}
    base = side_of_rows(before.facts("before"), ENGINE, before.rows)
    write_baseline(base, folder / "baseline.json")
    facts = after.facts("after")
    judge = RegressionJudge(folder / "baseline.json", facts, num_gates=num_regression_gates(evals, after.rows))
    gates = judge_gates(evals, after.rows, [], interrupted=None, no_regression=judge, noise=after.noise)
    return gates, compare(base, side_of_rows(facts, ENGINE, after.rows))


@dataclass
class Counts:
    """How many runs had what."""

    runs: int = 0
    by_gates: int = 0
    by_compare: int = 0
    by_any: int = 0
    thresholds: int = 0
    """Gates on a threshold that failed, of three a run."""
    could_show: list[float] = field(default_factory=list)
    floors: list[float] = field(default_factory=list)

    def add(self, gates: Sequence[GateVerdict], comparison: Comparison) -> None:
        """Count a run."""
        regressed = any(gate["passed"] is False for gate in gates if gate["metric"] == "no_regression")
        self.runs += 1
        self.by_gates += regressed
        self.by_compare += comparison.has_regressed
        self.by_any += regressed or comparison.has_regressed
        self.thresholds += sum(not gate["passed"] for gate in gates if gate["metric"] != "no_regression")
        first = next(gate for gate in gates if gate["metric"] == "no_regression")
        self.could_show.append(first["could_have_shown"] or 0.0)
        self.floors.append(first.get("floor", 0.0))


def false_alarms(checkpoint: Checkpoint, num_runs: int, num_repeats: int, num_sampled: int, folder: Path) -> tuple[Counts, Counts]:
    """Return what consecutive runs of one checkpoint gave, with their noise known, and without."""
    known, unknown = Counts(), Counts()
    draw = Random(checkpoint.seed + 1)
    before = run_of(checkpoint, draw, num_repeats, num_sampled)
    for _ in range(num_runs):
        after = run_of(checkpoint, draw, num_repeats, num_sampled)
        known.add(*judged(before, after, folder, checkpoint.means()))
        unknown.add(*judged(SimulatedRun(before.rows, None), SimulatedRun(after.rows, None), folder, checkpoint.means()))
        before = after
    return known, unknown


def found(checkpoint: Checkpoint, drop: float, num_runs: int, num_repeats: int, num_sampled: int, folder: Path) -> tuple[float, float]:
    """Return the share of runs in which a planted drop of the first test is found by its gate, and the chance that the formula states."""
    draw = Random(checkpoint.seed + 2)
    num_found, stated = 0, []
    for _ in range(num_runs):
        right = [number for number, chance in enumerate(checkpoint.chances[0]) if chance == 1.0]
        lost = draw.sample(right, round(drop * checkpoint.num_cases))
        before = run_of(checkpoint, draw, num_repeats, num_sampled)
        after = run_of(checkpoint, draw, num_repeats, num_sampled, lost)
        gates, _ = judged(before, after, folder, checkpoint.means())
        num_found += gates[0]["passed"] is False
        stated.append(_chance(drop, before, after))
    return num_found / num_runs, fmean(stated)


def _chance(drop: float, before: SimulatedRun, after: SimulatedRun) -> float:
    """Return the chance of the gate of the first test to find a drop."""
    sides = [side_of_rows(run.facts(name), ENGINE, run.rows) for name, run in (("before", before), ("after", after))]
    for side in sides:
        side.sheets = {key: sheet for key, sheet in side.sheets.items() if key[1] == TESTS[0]}
    comparison = compare(*sides, num_families=len(TESTS))
    change = next(change for change in comparison.metrics if change.metric == "correct")
    normal, error = NormalDist(), change.change.standard_error
    needed = max(normal.inv_cdf(1 - LEVEL / comparison.num_tests / 2) * error, change.floor)
    return normal.cdf((drop - needed) / error)


def main(argv: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="Kinds of noise (default: all)")
    parser.add_argument("--runs", type=int, default=200, help="Runs of each kind (default: 200)")
    parser.add_argument("--cases", type=int, default=1000, help="Cases of each of the three tests (default: 1000)")
    parser.add_argument("--near-ties", type=float, default=0.05, help="Share of cases near a tie (default: 0.05)")
    parser.add_argument("--noise", type=int, default=3, help="Repeats of each sampled case (default: 3)")
    parser.add_argument("--noise-cases", type=int, default=64, help="Sampled cases (default: 64)")
    parser.add_argument("--seed", type=int, default=0, help="Of everything that is drawn (default: 0)")
    arguments = parser.parse_args(argv)
    sizes = arguments.noise, arguments.noise_cases
    print(f"{arguments.runs} runs, {arguments.cases} cases, {arguments.near_ties:.0%} near a tie, {sizes[0]} repeats of {sizes[1]} cases")
    print(
        "\n| noise | known | alarms: any | gates | compare | thresholds failed | floor | could show | s |\n" + "|---" * 9 + "|", flush=True
    )
    drops = []
    with tempfile.TemporaryDirectory() as name:
        for kind in arguments.kinds:
            started = time.perf_counter()
            checkpoint = Checkpoint(kind, arguments.cases, arguments.near_ties, arguments.seed)
            known, unknown = false_alarms(checkpoint, arguments.runs, *sizes, Path(name))
            for label, counts in (("yes", known), ("no", unknown)):
                shares = [share / counts.runs for share in (counts.by_any, counts.by_gates, counts.by_compare)]
                shares.append(counts.thresholds / counts.runs / len(TESTS))
                numbers = f"{fmean(counts.floors):.4f} | {fmean(counts.could_show):.4f} | {time.perf_counter() - started:.0f}"
                print(f"| {kind} | {label} | {' | '.join(f'{share:.1%}' for share in shares)} | {numbers} |", flush=True)
            drops += [(kind, "floor + 1 point", fmean(known.floors) + 0.01), (kind, "could show", fmean(known.could_show))]
        print("\n| noise | planted drop | points | found | stated |\n" + "|---" * 5 + "|", flush=True)
        for kind, what, drop in drops:
            checkpoint = Checkpoint(kind, arguments.cases, arguments.near_ties, arguments.seed)
            share, stated = found(checkpoint, drop, arguments.runs, *sizes, Path(name))
            print(f"| {kind} | {what} | {100 * drop:.1f} | {share:.1%} | {stated:.1%} |", flush=True)


if __name__ == "__main__":
    main()
