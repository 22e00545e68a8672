"""Whether new rules are better than old ones: relative error reduction (RER) over the tickets judged under both.

    RER = (err0 - err1) / err0        1: no errors are left, 0: as many as before, below 0: more than before

A lucky choice of tickets must not decide, so the tickets are resampled (seeded bootstrap): `probability` is the share of
samples whose RER reaches the threshold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from evalharness.api.errors import ContractValueError, RecordError
from evalharness.runs.schema import Row
from evalharness.tasks.shared import read_lines
from evalharness.tasks.stage_a.data import LABELS, Label
from evalharness.tasks.stage_b.metrics import confusion, rates

WORST_RER = -1.0
"""The lowest reported RER: twice the errors or more, or any error where there was none before."""
STRICT_OPS = ("update", "merge", "remove")
OPS = ("upsert", *STRICT_OPS)


class Judged(NamedTuple):
    """One ticket under one set of rules: the right label and the majority's prediction."""

    label: Label
    prediction: Label | None


@dataclass(frozen=True)
class GateLimits:
    """The limits for a change of rules; `max_fp_rate_increase` applies to update, merge and remove."""

    min_rer: float = 0.1
    max_changed_fraction: float = 0.05
    min_probability: float = 0.8
    max_fp_rate_increase: float = 0.01
    num_draws: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("min_rer", "max_changed_fraction", "min_probability", "max_fp_rate_increase"):
            if not isfinite(getattr(self, name)):
                raise ContractValueError(f"limits.{name} must be finite, got {getattr(self, name)}")
        if self.num_draws < 1:
            raise ContractValueError(f"limits.num_draws must be at least 1, got {self.num_draws}")


@dataclass(frozen=True)
class GateResult:
    """The numbers and the verdict; `failed` has the conditions that were not met, each with a sentence."""

    num_tickets: int
    base: Mapping[str, float]
    candidate: Mapping[str, float]
    rer: float
    changed_fraction: float
    probability: float
    failed: Mapping[str, str] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether every condition was met."""
        return not self.failed

    @property
    def reasons(self) -> tuple[str, ...]:
        """The sentences of the conditions that were not met."""
        return tuple(self.failed.values())

    def to_json(self) -> dict[str, Any]:
        """Return the result as a row of `rule_candidates.jsonl` has it, RER included."""
        names = {"acc": "accuracy", "false_release": "false_release_rate", "false_block": "false_block_rate"}
        sides = {"base": self.base, "cand": self.candidate}
        return {
            "decision": "promoted" if self.passed else "rejected",
            "n": self.num_tickets,
            "rer": self.rer,
            "changed_fraction": self.changed_fraction,
            "probability": self.probability,
            **{f"{side}_{short}": values[name] for side, values in sides.items() for short, name in names.items()},
            "failed": list(self.failed),
            "reasons": list(self.reasons),
        }


def read_judged(path: Path | str) -> dict[str, Judged]:
    """Return the tickets of a `baseline_ticket_stats.jsonl`, ours or the original's, by key. `RecordError` names a bad line."""
    tickets: dict[str, Judged] = {}
    for where, row in read_lines(path):
        try:
            key, label, prediction = row["ticket_key"], row["gt_label"], row["majority_pred"]
        except (TypeError, KeyError) as error:
            raise RecordError(f"{where} is not a row of ticket_key, gt_label and majority_pred: {error!r}") from error
        if not isinstance(key, str) or label not in LABELS or prediction not in (*LABELS, None):
            raise RecordError(f"{where}: gt_label must be pass or fail, and majority_pred too or null, got {label!r} and {prediction!r}")
        if key in tickets:
            raise RecordError(f"{where}: ticket {key} was there already")
        tickets[key] = Judged(label, prediction)
    return tickets


def read_verdict(row: Row) -> Judged:
    """Return the verdict of a judged row of samples.jsonl. Raises `ContractValueError` or `KeyError` where it has none."""
    label, prediction = row["tags"]["label"], row["details"]["prediction"]
    if label not in LABELS or prediction not in (*LABELS, None):
        raise ContractValueError(f"label must be pass or fail, and prediction too or None, got {label!r} and {prediction!r}")
    return Judged(label, prediction)


def relative_error_reduction(base_errors: int, candidate_errors: int) -> float:
    """Return the RER of two error counts over the same tickets, −1 to 1; 0 where there was and is no error."""
    if not base_errors:
        return WORST_RER if candidate_errors else 0.0
    return max(WORST_RER, (base_errors - candidate_errors) / base_errors)


def rule_gate(
    base: Mapping[str, Judged], candidate: Mapping[str, Judged], *, op: str = "upsert", limits: GateLimits | None = None
) -> GateResult:
    """Return the gate's verdict on the tickets (by key) that both have; the order of tickets does not matter.

    `ContractValueError` for an unknown `op`, or where the two do not agree on a ticket's label.
    """
    limits = limits or GateLimits()
    if op not in OPS:
        raise ContractValueError(f"op must be one of {', '.join(OPS)}, got {op!r}")
    keys = sorted(base.keys() & candidate.keys())
    for key in keys:
        if base[key].label != candidate[key].label:
            raise ContractValueError(f"ticket {key} is {base[key].label} in one and {candidate[key].label} in the other")
    errors = [(base[key].label != base[key].prediction, candidate[key].label != candidate[key].prediction) for key in keys]
    rer = relative_error_reduction(sum(before for before, _ in errors), sum(after for _, after in errors))
    changed = sum(base[key].prediction != candidate[key].prediction for key in keys) / len(keys) if keys else 0.0
    before, after = (rates(confusion(side[key] for key in keys)) for side in (base, candidate))
    result = GateResult(len(keys), before, after, rer, changed, _probability(errors, limits))
    return replace(result, failed=_failed(result, op, limits))


def _probability(errors: list[tuple[bool, bool]], limits: GateLimits) -> float:
    """Return the share of samples with replacement whose RER reaches the threshold."""
    if not errors:
        return 0.0
    draws = Random(limits.seed)
    errors = sorted(errors)
    reached = 0
    for _ in range(limits.num_draws):
        sample = draws.choices(errors, k=len(errors))
        both, before, after = sample.count((True, True)), sample.count((True, False)), sample.count((False, True))
        reached += relative_error_reduction(both + before, both + after) >= limits.min_rer
    return reached / limits.num_draws


def _failed(result: GateResult, op: str, limits: GateLimits) -> dict[str, str]:
    if not result.num_tickets:
        return {"tickets": "no ticket was judged under both rule sets"}
    failed = {}
    if result.rer < limits.min_rer:
        failed["rer"] = f"RER {result.rer:.4f} is below {limits.min_rer}"
    if result.changed_fraction > limits.max_changed_fraction:
        failed["changed_fraction"] = f"{result.changed_fraction:.4f} of the verdicts changed, more than {limits.max_changed_fraction}"
    if result.probability < limits.min_probability:
        failed["probability"] = f"P(RER >= {limits.min_rer}) is {result.probability:.4f}, below {limits.min_probability}"
    if op in STRICT_OPS:
        increase = result.candidate["fp_rate"] - result.base["fp_rate"]
        if increase >= 0:
            failed["fp_rate"] = f"{op} must lower fp_rate, it went from {result.base['fp_rate']:.4f} to {result.candidate['fp_rate']:.4f}"
        if result.candidate["accuracy"] <= result.base["accuracy"]:
            failed["accuracy"] = f"{op} must raise accuracy, it is {result.candidate['accuracy']:.4f} after {result.base['accuracy']:.4f}"
        if increase > limits.max_fp_rate_increase:
            failed["fp_rate_increase"] = f"fp_rate rose by {increase:.4f}, more than {limits.max_fp_rate_increase}"
    return failed
