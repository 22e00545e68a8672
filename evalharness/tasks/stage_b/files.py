"""Files that the original's tools read, one folder per mission: what a baseline run of its Stage-B writes.

    <folder>/stage_b/<mission>/baseline_metrics.json          counts and rates of the mission
                               baseline_metrics_steps.jsonl   the same as its only step
                               baseline_ticket_stats.jsonl    one row per judged ticket
                               baseline_wrong_cases.jsonl     wrong ones, surest first, with answers and reasons
                               baseline_np_cases.jsonl        those of them that block a good order
                               baseline_ng_cases.jsonl        those of them that release a bad one
                               dropped.jsonl                  tickets that were not asked, and why

As in the original, `fn` (np) and `fp` (ng) include tickets without any verdict; `n_invalid` says how many those are.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from evalharness.api.cases import one_test_per_case
from evalharness.api.errors import PromptTooLong
from evalharness.tasks.shared import json_lines, write_whole
from evalharness.tasks.stage_b.metrics import Ballot, confusion, rates

__all__ = ["baseline_metrics", "is_over_budget", "ticket_stats", "write_outputs", "wrong_cases"]

NUM_REASONS = 5

Row = Mapping[str, Any]


class Target(Protocol):
    """Where to write; what the harness gives to an `outputs` function has more."""

    @property
    def folder(self) -> Path: ...


def write_outputs(rows: Sequence[Row], target: Target, name: str = "stage_b") -> None:
    """Write the files of every mission that `rows` (of one engine) are about, below `<target.folder>/<name>/`.

    Of several tests of a ticket the first that judged it counts.
    """
    rows = one_test_per_case(rows, "votes")
    for mission in dict.fromkeys(row["tags"]["mission"] for row in rows if "mission" in row["tags"]):
        folder = target.folder / name / mission
        folder.mkdir(parents=True, exist_ok=True)
        _write_mission(folder, mission, [row for row in rows if row["tags"].get("mission") == mission])


def _write_mission(folder: Path, mission: str, rows: Sequence[Row]) -> None:
    judged = [row for row in rows if _was_judged(row)]
    metrics = baseline_metrics(mission, rows)
    wrong = wrong_cases(judged)
    write_whole(folder / "baseline_metrics.json", f"{json.dumps(metrics, ensure_ascii=False, indent=2)}\n".encode())
    write_whole(folder / "baseline_metrics_steps.jsonl", json_lines([{"step": 0, **metrics}]))
    write_whole(folder / "baseline_ticket_stats.jsonl", json_lines(map(ticket_stats, judged)))
    write_whole(folder / "baseline_wrong_cases.jsonl", json_lines(wrong))
    write_whole(folder / "baseline_np_cases.jsonl", json_lines(row for row in wrong if row["gt_label"] == "pass"))
    write_whole(folder / "baseline_ng_cases.jsonl", json_lines(row for row in wrong if row["gt_label"] == "fail"))
    dropped = [
        {"case_id": row["case_id"], "outcome": row["outcome"], "problem": row.get("problem")} for row in rows if not _was_judged(row)
    ]
    write_whole(folder / "dropped.jsonl", json_lines(dropped))


def _was_judged(row: Row) -> bool:
    return "votes" in (row.get("details") or {})


def is_over_budget(row: Row) -> bool:
    """Return whether a row was not asked because its prompt is longer than `max_prompt_tokens`, or than the context."""
    return row.get("cause") == PromptTooLong.__name__


def baseline_metrics(mission: str, rows: Sequence[Row]) -> dict[str, Any]:
    """Return a mission's metrics; tickets that were not asked are in `n_total` only, those over budget counted apart.

    The timestamp is when the last ticket was judged.
    """
    judged = [row for row in rows if _was_judged(row)]
    cells = confusion((row["tags"]["label"], row["details"]["prediction"]) for row in judged)
    found = rates(cells)
    return {
        "timestamp": max((row["started_at"] for row in judged if row.get("started_at")), default=None),
        "mission": mission,
        "mode": "baseline",
        "n_total": len(rows),
        "n_used": len(judged),
        "n_dropped_overlength": sum(map(is_over_budget, rows)),
        "acc": found["accuracy"],
        "fn": cells.num_blocked,
        "fp": cells.num_released,
        "tp": cells.tp,
        "fn_rate": found["fn_rate"],
        "fp_rate": found["fp_rate"],
        "np": cells.num_blocked,
        "ng": cells.num_released,
        "n_invalid": cells.num_unparsed,
    }


def _ballot(row: Row) -> Ballot:
    votes = row["details"]["votes"]
    return Ballot(votes["pass"], votes["fail"], votes["invalid"])


def ticket_stats(row: Row) -> dict[str, Any]:
    """Return a judged row as one ticket's statistics."""
    ballot, label = _ballot(row), row["tags"]["label"]
    return {
        "ticket_key": row["details"]["ticket_key"],
        "gt_label": label,
        "majority_pred": ballot.prediction,
        "agreement": round(ballot.agreement, 4),
        "hard_wrong": round(ballot.hard_wrong(label), 4),
        "pass_count": ballot.num_pass,
        "fail_count": ballot.num_fail,
        "invalid_count": ballot.num_invalid,
        "total_samples": ballot.num_valid + ballot.num_invalid,
        "n_images": row["details"]["num_images"],
    }


def wrong_cases(judged: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the wrong tickets with what was said about them, the surest mistakes first; `rank` counts from 1."""
    wrong = [row for row in judged if row["details"]["prediction"] != row["tags"]["label"]]
    wrong.sort(key=lambda row: (-_ballot(row).hard_wrong(row["tags"]["label"]), row["details"]["ticket_key"]))
    return [_wrong_case(rank, row) for rank, row in enumerate(wrong, start=1)]


def _wrong_case(rank: int, row: Row) -> dict[str, Any]:
    reasons = [reason for reason in row["details"]["reasons"] if reason]
    return {
        **ticket_stats(row),
        "difficulty": round(_ballot(row).difficulty, 4),
        "verdict_samples": row["details"]["verdicts"],
        "reason_samples": reasons,
        "reason_counts": [{"reason": reason, "count": count} for reason, count in Counter(reasons).most_common(NUM_REASONS)],
        "rank": rank,
    }
