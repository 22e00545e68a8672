"""What came of searches for rules: a summary of each from its rows, and tables over several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from evalharness.tasks.stage_b.rule_search import BENCHMARKS, CANDIDATES, DROPPED, FAILURES, HARD_CASES, REFUSED

UNREADABLE = "unreadable answer"
"""Stands beside the guards: a reflection or proposal without JSON of the form that was asked for proposes nothing."""


def summary(mission: str, logs: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Return a search in numbers, as plain JSON: what was proposed, what stopped it, and the rates before and after.

    `usable` is the share of the proposed changes that passed the guards, an unreadable answer counting as one; None where the model was
    asked for nothing.
    """
    before, after = logs[BENCHMARKS][0], logs[BENCHMARKS][-1]
    refused = Counter(row["guard"] for row in logs[REFUSED])
    refused.update(UNREADABLE for row in logs[FAILURES] if row["question"] != "decision")
    tried = logs[CANDIDATES]
    num_proposed = len(tried) + refused.total()
    return {
        "mission": mission,
        "rounds": after["round"],
        "train": after["n"],
        "held_out": after["eval_n"],
        "dropped": len({row["ticket_key"] for row in logs[DROPPED]}),
        "hard_cases": len({row["ticket_key"] for row in logs[HARD_CASES]}),
        "proposed": num_proposed,
        "usable": len(tried) / num_proposed if num_proposed else None,
        "refused": dict(refused.most_common()),
        "rejected": dict(Counter(name for row in tried for name in row["failed"]).most_common()),
        "promoted": [{name: row[name] for name in _SHOWN} for row in tried if row["decision"] == "promoted"],
        "before": {name: before[name] for name in _RATES},
        "after": {name: after[name] for name in _RATES},
    }


_RATES = tuple(f"{pool}{name}" for pool in ("", "eval_") for name in ("acc", "false_release", "false_block"))
_SHOWN = ("op", "targets", "text", "base_acc", "cand_acc", "eval_base_acc", "eval_acc")


def tables(summaries: Sequence[Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return tables over searches: by mission, which guards refused changes, why candidates were rejected, and the promoted rules."""
    made = {"Search for rules": [_line(one) for one in summaries]}
    promoted = [{"mission": one["mission"], **_rule(rule)} for one in summaries for rule in one["promoted"]]
    for title, column, counts in (
        ("Which guard refused proposed changes", "guard", _total(one["refused"] for one in summaries)),
        ("Which condition rejected candidates", "condition", _total(one["rejected"] for one in summaries)),
    ):
        if counts:
            made[title] = [{column: name, "changes": count} for name, count in counts.most_common()]
    return {**made, "Promoted rules": promoted} if promoted else made


def _total(counts: Iterable[Mapping[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for one in counts:
        total.update(one)
    return total


def _line(one: Mapping[str, Any]) -> dict[str, Any]:
    before, after = one["before"], one["after"]
    return {
        "mission": one["mission"],
        "rounds": one["rounds"],
        "train": one["train"],
        "held out": one["held_out"],
        "hard cases": one["hard_cases"],
        "proposed": one["proposed"],
        "usable": one["usable"],
        "promoted": len(one["promoted"]),
        "accuracy": before["acc"],
        "accuracy after": after["acc"],
        "held-out accuracy": before["eval_acc"],
        "held-out accuracy after": after["eval_acc"],
    }


def _rule(rule: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "change": " ".join([rule["op"], *rule["targets"]]),
        "rule": rule["text"],
        "accuracy": rule["base_acc"],
        "accuracy after": rule["cand_acc"],
        "held-out accuracy": rule["eval_base_acc"],
        "held-out accuracy after": rule["eval_acc"],
    }
