"""How many cases `--until-certain` asks, and how often it is wrong, by simulation on real pairs of checkpoints.

    python -m benchmarks.until_certain [--rounds 400] [--margin 0.03]

`until_certain_pairs.csv` has scores of the shipped checkpoints and adapters by case and group (work order): what
`pytest evals/test_stage_a.py evals/test_stage_b.py --backend hf --dtype float32` gave for early, middle, final, regressed and both
adapters on `middle`. Each round draws an order as a run does. A claim counts wherever it is made, however late, so an error rate is that
of the worst rule when to stop. Four parts:

- **real pairs**: each pair as it is, in drawn orders;
- **no difference**: the two sides swapped by groups at random: whatever "regressed" is claimed is a false alarm. Sets as they are, and of
  2,000 cases, drawn from the groups with replacement;
- **a lost margin**: right cases made wrong, whole groups at a time, until the margin is lost: "harmless" is false;
- **planted drops** of 0, 1, 2, 5 and 10 points on sets of several sizes: how many cases a verdict takes; and the same where cases that
  changed between the baseline and a checkpoint before it are asked first, at several rates.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from evalharness.analysis.certainty import EDGE_RATE, END_LEVEL, FEWEST_CASES, HARMLESS_LEVEL, MOST_EDGES, REGRESSED_LEVEL
from evalharness.analysis.statistics.betting import Drawn, Scores as Column, draw_order, wealth_against_loss, wealth_against_no_loss
from evalharness.analysis.statistics.paired import sign_flip_p

Array = Any
PAIRS = Path(__file__).with_name("until_certain_pairs.csv")
DROPS = (0.0, 0.01, 0.02, 0.05, 0.10)


class Scores(NamedTuple):
    """A set of cases with two sides' scores of one metric, and which cases changed before the baseline; all `(cases,)`."""

    base: Array
    candidate: Array
    groups: Array
    edge: Array


@dataclass(frozen=True)
class Verdict:
    """What was first claimed, and after which share of cases; whether each claim was ever made."""

    claim: str
    share: float
    regressed: bool
    harmless: bool


def read_scores() -> dict[tuple[str, str], tuple[Array, dict[str, Array]]]:
    """Return groups and scores by checkpoint, for each eval and metric."""
    rows: dict[tuple[str, str], list[dict[str, str]]] = {}
    with PAIRS.open(encoding="ascii", newline="") as file:
        for row in csv.DictReader(file):
            rows.setdefault((row["eval"], row["metric"]), []).append(row)
    names = list(next(iter(rows.values()))[0])[4:]
    return {
        key: (np.array([int(row["group"]) for row in each]), {name: np.array([float(row[name]) for row in each]) for name in names})
        for key, each in rows.items()
    }


def resampled(scores: Scores, num_cases: int, generator: Any) -> Scores:
    """Return a set of about so many cases, of groups drawn with replacement."""
    members = [np.flatnonzero(scores.groups == group) for group in np.unique(scores.groups)]
    mean = len(scores.groups) / len(members)
    drawn = generator.integers(len(members), size=round(num_cases / mean))
    cases = np.concatenate([members[place] for place in drawn])
    groups = np.repeat(np.arange(len(drawn)), [len(members[place]) for place in drawn])
    return Scores(scores.base[cases], scores.candidate[cases], groups, scores.edge[cases])


def swapped(scores: Scores, generator: Any) -> Scores:
    """Return the set with the two sides of random groups swapped: on average, nothing is lost."""
    swap = generator.random(int(scores.groups.max()) + 1)[scores.groups] < 0.5
    base, candidate = np.where(swap, scores.candidate, scores.base), np.where(swap, scores.base, scores.candidate)
    return scores._replace(base=base, candidate=candidate)


def with_drop(scores: Scores, drop: float, generator: Any) -> Scores:
    """Return the set with answers changed, whole groups at a time, so that the candidate's mean is lower than the baseline's by `drop`.

    By a little more where no answer fits. Right ones become wrong; where the mean is too low, worse ones as good as the baseline's.
    """
    candidate = scores.candidate.copy()
    goal = (scores.base.mean() - drop) * len(candidate) + 1e-9
    order = np.argsort(scores.groups, kind="stable")
    members = np.split(order, np.flatnonzero(np.diff(scores.groups[order])) + 1)
    total = float(candidate.sum())
    for place in generator.permutation(len(members)):
        for case in members[place]:
            better = scores.base[case] if total <= goal else 0.0
            if (total <= goal) == (better > candidate[case]) and (total > goal or total + better - candidate[case] <= goal):
                total += better - candidate[case]
                candidate[case] = better
    return scores._replace(candidate=candidate)


def asked(scores: Scores, margin: float, seed: int, edge_rate: float) -> Verdict:
    """Return the verdict on a set that is asked in an order drawn by a seed."""
    num = len(scores.base)
    comes_first = edge_rate != 1 and 0 < scores.edge.sum() <= MOST_EDGES * num and num >= FEWEST_CASES
    strata = scores.edge.astype(np.int64) if comes_first else np.zeros(num, dtype=np.int64)
    rates = np.array([1.0, edge_rate] if comes_first else [1.0])
    order = np.array(draw_order(strata.tolist(), rates.tolist(), seed))
    difference, groups = (scores.candidate - scores.base)[order], scores.groups[order]
    is_first = np.zeros(num, dtype=bool)
    is_first[np.unique(groups, return_index=True)[1]] = True
    drawn, sums = Drawn(strata[order], rates), Column(np.ones(num), scores.base[order], difference, difference, is_first)
    bad = _first(wealth_against_no_loss(drawn, sums) >= 1 / REGRESSED_LEVEL)
    good = _first(wealth_against_loss(drawn, sums, margin) >= 1 / HARMLESS_LEVEL)
    place, claim = min((bad, "regressed"), (good, "harmless"))
    if place >= num:
        is_significant = sign_flip_p(np.bincount(groups, weights=difference)) <= END_LEVEL and difference.sum() < 0
        return Verdict("regressed at the end" if is_significant else "none", 1.0, is_significant, harmless=False)
    return Verdict(claim, (place + 1) / num, bad < num, good < num)


def _first(holds: Array) -> int:
    return int(np.argmax(holds)) if holds.any() else 10**9


class Table:
    """Prints rows of Markdown, the first with a rule beneath."""

    def __init__(self, *head: str) -> None:
        self.row(*head)
        self.row(*["---"] * len(head))

    def row(self, *cells: object) -> None:
        print("|", " | ".join(map(str, cells)), "|", flush=True)


def _share(found: Sequence[bool]) -> str:
    return f"{100 * np.mean(found):.3g} %"


def _median(verdicts: Sequence[Verdict]) -> str:
    return f"{100 * np.median([verdict.share for verdict in verdicts]):.0f} %"


def all_pairs() -> Iterator[tuple[str, Scores]]:
    """Yield every pair of checkpoints of which some case differs, by eval and metric."""
    for (name, metric), (groups, scores) in read_scores().items():
        for before, after in permutations(scores, 2):
            base = scores[before]
            if (base != scores[after]).any():
                yield f"{name} {metric}: {before} → {after}", Scores(base, scores[after], groups, np.zeros(len(base), dtype=bool))


TRIPLES = (("lora-helps", "lora-hurts", "middle"), ("lora-hurts", "lora-helps", "middle"))
"""Checkpoint before the baseline, baseline, candidate."""


def edge_table(margin: float, rounds: int) -> None:
    """Print what it gives to ask first what changed before."""
    print("\nThe same on 3,000 cases where what changed before comes first: median share asked (regressed, harmless)\n")
    table = Table("before → baseline → candidate, stage_a exact", "drop", *(f"rate {rate}" for rate in (1, 2, 4)))
    groups, scores = read_scores()["stage_a", "exact"]
    for before, base, candidate in TRIPLES:
        pair = Scores(scores[base], scores[candidate], groups, scores[before] != scores[base])
        for drop in (0.0, 0.02, 0.05):
            cells = []
            for rate in (1.0, 2.0, 4.0):
                generator = np.random.default_rng(0)
                nulls = (swapped(resampled(pair, 3000, generator), generator) for _ in range(rounds))
                verdicts = [asked(with_drop(null, drop, generator), margin, seed, rate) for seed, null in enumerate(nulls)]
                of_claims = [_share([verdict.claim.startswith(claim) for verdict in verdicts]) for claim in ("regressed", "harmless")]
                cells.append(f"{_median(verdicts)} ({', '.join(of_claims)})")
            table.row(f"{before} → {base} → {candidate}", f"{100 * drop:g} points", *cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--margin", type=float, default=0.03)
    parser.add_argument("--edge-rate", type=float, default=EDGE_RATE)
    given = parser.parse_args()
    rounds, margin, rate = given.rounds, given.margin, given.edge_rate
    generator = np.random.default_rng(0)
    pairs = dict(all_pairs())
    wanted = ("final → regressed", "middle → final", "middle → lora-hurts", "middle → lora-helps", "regressed → final")

    print(f"\nReal pairs, margin {margin}, {rounds} orders each\n")
    table = Table("pair", "cases", "difference", "regressed", "harmless", "median share asked")
    for name, scores in pairs.items():
        if name.endswith(wanted):
            verdicts = [asked(scores, margin, seed, rate) for seed in range(rounds)]
            found = [_share([verdict.claim.startswith(claim) for verdict in verdicts]) for claim in ("regressed", "harmless")]
            table.row(name, len(scores.base), f"{(scores.candidate - scores.base).mean():+.3f}", *found, _median(verdicts))

    print(f"\nFalse claims, over all {len(pairs)} pairs, {rounds} rounds each, margin {margin}: mean and worst pair\n")
    table = Table("set", "false “regressed” of no difference", "false “harmless” of a lost margin")
    for num in (None, 2000):
        alarms: list[list[bool]] = []
        losses: list[list[bool]] = []
        for place, scores in enumerate(pairs.values()):
            few = max(1, rounds // (1 if num is None else 4))
            sets = [scores if num is None else resampled(scores, num, generator) for _ in range(few)]
            alarms.append([asked(swapped(each, generator), margin, 1000 * place + seed, rate).regressed for seed, each in enumerate(sets)])
            if scores.base.mean() > 2 * margin:
                lost = [with_drop(each, margin, generator) for each in sets]
                losses.append([asked(each, margin, 1000 * place + seed, rate).harmless for seed, each in enumerate(lost)])
        cells = [f"{100 * np.mean(np.concatenate(each)):.2f} %, worst {_share(max(each, key=np.mean))}" for each in (alarms, losses)]
        table.row("as it is" if num is None else f"{num:,} cases", *cells)

    print(f"\nPlanted drops on pairs without a difference otherwise, margin {margin}: median share asked (claims: regressed, harmless)\n")
    table = Table("pair", "cases", *(f"{100 * drop:g} points" for drop in DROPS))
    for name in ("stage_a exact: final → regressed", "stage_b accuracy: middle → lora-hurts", "stage_a fact_f1: final → regressed"):
        for num in (200, 1000, 5000):
            cells = []
            for drop in DROPS:
                verdicts = []
                for seed in range(max(20, rounds // 4)):
                    null = swapped(resampled(pairs[name], num, generator), generator)
                    verdicts.append(asked(with_drop(null, drop, generator), margin, seed, rate))
                of_claims = [_share([verdict.claim.startswith(claim) for verdict in verdicts]) for claim in ("regressed", "harmless")]
                cells.append(f"{_median(verdicts)} ({', '.join(of_claims)})")
            table.row(name, f"{num:,}", *cells)
    edge_table(margin, max(20, rounds // 4))


if __name__ == "__main__":
    main()
