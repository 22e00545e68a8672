"""Files of Stage-B: tickets and guidance, read and checked, and what the original's tools read of a run.

Tickets come from `<mission>_stage_a.jsonl`. A row that is not a ticket is left out and reported, not raised: files come from
other tools, and one bad row must not cost the rest. A run writes one folder per mission, as the original's baseline runs do:

    <folder>/stage_b/<mission>/baseline_metrics.json          counts and rates of the mission
                               baseline_metrics_steps.jsonl   the same as its only step
                               baseline_ticket_stats.jsonl    one row per judged ticket
                               baseline_wrong_cases.jsonl     wrong tickets, most confident first, with answers and reasons
                               baseline_np_cases.jsonl        those of them that block a good order
                               baseline_ng_cases.jsonl        those of them that release a bad one
                               dropped.jsonl                  tickets that were not run, and why

As in the original, `fn` (np) and `fp` (ng) include tickets without any verdict; `n_invalid` counts those.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from evalharness.answers.json_text import loads
from evalharness.api.cases import OutputTarget, one_test_per_case
from evalharness.api.checks import read_regular
from evalharness.api.errors import ConfigError, PromptTooLong, RecordError
from evalharness.api.wording import plural
from evalharness.runs.schema import Row
from evalharness.tasks.shared import write_json, write_lines, write_whole
from evalharness.tasks.stage_a.data import LABELS, Label
from evalharness.tasks.stage_a.schema import MISSIONS
from evalharness.tasks.stage_b.metrics import Ballot, confusion, rates

_NUMBER = re.compile(r"[0-9]{1,9}\Z")


@dataclass(frozen=True)
class Ticket:
    """One work order under one label, with its photos' summaries in order."""

    group_id: str
    mission: str
    label: Label
    summaries: tuple[str, ...]

    @property
    def key(self) -> str:
        """`<group id>::<label>`: the same work order under two labels is two tickets."""
        return ticket_key(self.group_id, self.label)


def ticket_key(group_id: str, label: str) -> str:
    """Return the name of a ticket in every file."""
    return f"{group_id}::{label}"


def read_tickets(path: Path | str, mission: str) -> tuple[list[Ticket], dict[int, str]]:
    """Return the tickets of one mission's file in its order, and why each other line (from 1) is not one.

    Labels count in any case, further keys are ignored, and image keys are put in the order of their trailing digits. Raises
    `RecordError` if the file cannot be read or holds no ticket at all.
    """
    tickets: dict[str, Ticket] = {}
    bad: dict[int, str] = {}
    try:
        # Not splitlines: a summary may hold other line ends as they are. A broken byte spoils its own row only.
        lines = read_regular(path).decode("utf-8-sig", "surrogateescape").split("\n")
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error}") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        ticket = _ticket(line, mission)
        if isinstance(ticket, Ticket) and ticket.key in tickets:
            ticket = f"ticket {ticket.key} was there already"
        if isinstance(ticket, Ticket):
            tickets[ticket.key] = ticket
        else:
            bad[number] = ticket
    if not tickets:
        first = "".join(f"; line {number}: {problem}" for number, problem in [*bad.items()][:1])
        raise RecordError(f"{path} holds no ticket: {plural(len(bad), 'row')}, none usable{first}")
    return list(tickets.values()), bad


def _ticket(line: str, mission: str) -> Ticket | str:
    """Return the ticket of a row, or why it is not one."""
    try:
        line.encode("utf-8")
        row = loads(line)
    except ValueError as error:
        return f"not JSON: {error}"
    if not isinstance(row, Mapping):
        return f"a row must be an object, got {type(row).__name__}"
    for key in ("group_id", "mission", "label"):
        if not isinstance(row.get(key), str) or not row[key].strip():
            return f"{key} must be a text, got {str(row.get(key))[:40]!r}"
    if row["mission"] != mission:
        known = "" if row["mission"] in MISSIONS else ", which is unknown"
        return f"mission is {row['mission'][:40]!r}{known}; this file is of {mission}"
    label = next((label for label in LABELS if label == row["label"].strip().lower()), None)
    if label is None:
        return f"label must be one of {', '.join(LABELS)}, got {row['label'][:40]!r}"
    summaries = _summaries(row.get("per_image"))
    return summaries if isinstance(summaries, str) else Ticket(row["group_id"], mission, label, summaries)


def _summaries(per_image: Any) -> tuple[str, ...] | str:
    if not isinstance(per_image, Mapping) or not per_image:
        return "per_image must be an object with at least one summary"
    numbered: dict[int, str] = {}
    for key, summary in per_image.items():
        match = _NUMBER.search(key)
        if match is None:
            return f"per_image key {key[:40]!r} has no number at its end"
        if int(match[0]) in numbered:
            return f"per_image has number {int(match[0])} twice"
        if not isinstance(summary, str) or not summary.strip():
            return f"per_image.{key[:40]} must be a text that is not blank"
        numbered[int(match[0])] = summary
    return tuple(numbered[number] for number in sorted(numbered))


FOCUS = "G0"
FORM = '{mission: {"step": 0, "updated_at": ISO time, "experiences": {"G0": text, …}, "metadata": {}}}'
_RULE_ID = re.compile(r"([GS])(0|[1-9][0-9]{0,8})\Z")
_SNAPSHOT = re.compile(r"guidance-([0-9]{6,})\.json\Z")
_METADATA: Mapping[str, tuple[type[Any], ...]] = {
    "updated_at": (str,),
    "reflection_id": (str,),
    "sources": (list,),
    "rationale": (str, type(None)),
    "hit_count": (int,),
    "miss_count": (int,),
    "confidence": (int, float),
}


@dataclass(frozen=True)
class Guidance:
    """One mission's entry in guidance.json: rules (`experiences`) and `metadata` by rule id; `step` counts changes."""

    step: int
    updated_at: str
    experiences: Mapping[str, str]
    metadata: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the mission's entry as the file has it, rules in reading order."""
        rules = {rule_id: self.experiences[rule_id] for rule_id in in_order(self.experiences)}
        metadata = {rule_id: dict(values) for rule_id, values in self.metadata.items()}
        return {"step": self.step, "updated_at": self.updated_at, "experiences": rules, "metadata": metadata}


def is_invariant(rule_id: str) -> bool:
    """Return whether a rule is an invariant (`S*`), which nothing may change."""
    return rule_id.startswith("S")


def in_order(rule_ids: Iterable[str]) -> list[str]:
    """Return rule ids in reading order: G0, invariants, learnable rules, each by number (G2 before G10)."""
    return sorted(rule_ids, key=lambda rule_id: (rule_id != FOCUS, not is_invariant(rule_id), int(rule_id[1:])))


def read_guidance(path: Path | str) -> dict[str, Guidance]:
    """Return the checked guidance by mission; `ConfigError` says what is wrong and where."""
    try:
        data = json.loads(read_regular(path).decode("utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"guidance {path} cannot be read ({error}); it must be {FORM}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"guidance {path} is not JSON ({error}); it must be {FORM}") from error
    return check_guidance(data, str(path))


def check_guidance(data: Any, where: str = "guidance") -> dict[str, Guidance]:
    """Return plain data as guidance by mission; `ConfigError` for anything that breaks its form, empty guidance included."""
    if not isinstance(data, Mapping) or not data:
        raise ConfigError(f"{where} is empty or not an object; it must be {FORM}")
    for mission in data:
        if mission not in MISSIONS:
            raise ConfigError(f"{where} is about {mission!r}; known missions: {', '.join(MISSIONS)}")
    return {mission: _entry(entry, f"{where}.{mission}") for mission, entry in data.items()}


def _entry(entry: Any, where: str) -> Guidance:
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{where} must be an object, got {type(entry).__name__}")
    unknown = [str(key) for key in entry if key not in ("step", "updated_at", "experiences", "metadata")]
    if unknown:
        raise ConfigError(f"{where}.{unknown[0]} is unknown; known: step, updated_at, experiences, metadata")
    step = entry.get("step")
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise ConfigError(f"{where}.step must be an int of at least 0, got {step!r}")
    updated_at = _time(entry.get("updated_at"), f"{where}.updated_at")
    rules = entry.get("experiences")
    if not isinstance(rules, Mapping) or not rules:
        raise ConfigError(f"{where}.experiences is empty; a mission needs at least {FOCUS}, its focus")
    for rule_id, text in rules.items():
        if not _RULE_ID.match(rule_id):
            raise ConfigError(f"{where}.experiences has rule id {rule_id!r}; ids are G0, G1, … and S1, S2, …")
        if not isinstance(text, str) or not text.strip():
            raise ConfigError(f"{where}.experiences.{rule_id} must be a text that is not blank, got {str(text)[:40]!r}")
    if FOCUS not in rules:
        raise ConfigError(f"{where}.experiences lacks {FOCUS}, the focus of the mission")
    return Guidance(step, updated_at, dict(rules), _metadata(entry.get("metadata", {}), rules, f"{where}.metadata"))


def _time(value: Any, where: str) -> str:
    try:
        datetime.fromisoformat(value.replace("Z", "+00:00"))
    except (AttributeError, TypeError, ValueError):
        raise ConfigError(f"{where} must be an ISO time such as 2030-01-01T00:00:00+00:00, got {str(value)[:40]!r}") from None
    return str(value)


def _metadata(metadata: Any, rules: Mapping[str, str], where: str) -> dict[str, dict[str, Any]]:
    if not isinstance(metadata, Mapping):
        raise ConfigError(f"{where} must be an object, got {type(metadata).__name__}")
    for rule_id, values in metadata.items():
        if rule_id not in rules:
            raise ConfigError(f"{where} is about {rule_id!r}, but there is no such rule")
        if not isinstance(values, Mapping):
            raise ConfigError(f"{where}.{rule_id} must be an object, got {type(values).__name__}")
        for name, value in values.items():
            _check_metadata(name, value, f"{where}.{rule_id}.{name}")
    return {rule_id: dict(values) for rule_id, values in metadata.items()}


def _check_metadata(name: str, value: Any, where: str) -> None:
    if name not in _METADATA:
        raise ConfigError(f"{where} is unknown; known: {', '.join(_METADATA)}")
    if isinstance(value, bool) or not isinstance(value, _METADATA[name]):
        raise ConfigError(f"{where} must be {_METADATA[name][0].__name__}, got {str(value)[:40]!r}")
    if name == "updated_at":
        _time(value, where)
    elif name.endswith("_count") and value < 0:
        raise ConfigError(f"{where} must be at least 0, got {value}")
    elif name == "confidence" and not 0 <= value <= 1:
        raise ConfigError(f"{where} must be 0 to 1, got {value}")


def write_guidance(path: Path | str, guidance: Mapping[str, Guidance], *, num_snapshots: int = 20) -> Path:
    """Write guidance whole and return its path; the file before it is kept in `snapshots/` beside it.

    Snapshots are numbered; the newest `num_snapshots` stay. `RecordError` if anything cannot be written: the old file is
    then still there.
    """
    if num_snapshots < 1:
        raise ConfigError(f"num_snapshots must be at least 1, got {num_snapshots}")
    data = {mission: entry.to_json() for mission, entry in guidance.items()}
    check_guidance(data, str(path))
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            folder = path.parent / "snapshots"
            folder.mkdir(exist_ok=True)
            numbered = {int(match[1]): entry for entry in folder.iterdir() if (match := _SNAPSHOT.match(entry.name))}
            write_whole(folder / f"guidance-{max(numbered, default=0) + 1:06}.json", read_regular(path))
            for old in sorted(numbered)[: max(0, len(numbered) + 1 - num_snapshots)]:
                numbered[old].unlink()
        write_json(path, data)
    except (OSError, UnicodeEncodeError) as error:
        raise RecordError(f"guidance {path} cannot be written: {error}") from error
    return path


NUM_REASONS = 5


def write_outputs(rows: Sequence[Row], target: OutputTarget, name: str = "stage_b") -> None:
    """Write the files of every mission in `rows` (of one engine) below `<target.folder>/<name>/`.

    Of several tests of a ticket, the first that judged it counts.
    """
    rows = one_test_per_case(rows, "votes")
    for mission in dict.fromkeys(row["tags"]["mission"] for row in rows if "mission" in row["tags"]):
        folder = target.folder / name / mission
        folder.mkdir(parents=True, exist_ok=True)
        _write_mission(folder, mission, [row for row in rows if row["tags"].get("mission") == mission])


def _write_mission(folder: Path, mission: str, rows: Sequence[Row]) -> None:
    judged = [row for row in rows if _was_judged(row)]
    metrics, wrong = baseline_metrics(mission, rows), wrong_cases(judged)
    write_json(folder / "baseline_metrics.json", metrics)
    files: dict[str, Iterable[Mapping[str, Any]]] = {
        "baseline_metrics_steps": [{"step": 0, **metrics}],
        "baseline_ticket_stats": map(ticket_stats, judged),
        "baseline_wrong_cases": wrong,
        "baseline_np_cases": [case for case in wrong if case["gt_label"] == "pass"],
        "baseline_ng_cases": [case for case in wrong if case["gt_label"] == "fail"],
        "dropped": [
            {"case_id": row["case_id"], "outcome": row["outcome"], "problem": row.get("problem")} for row in rows if not _was_judged(row)
        ],
    }
    for file_name, lines in files.items():
        write_lines(folder / f"{file_name}.jsonl", lines)


def _was_judged(row: Row) -> bool:
    return "votes" in (row.get("details") or {})


def baseline_metrics(mission: str, rows: Sequence[Row]) -> dict[str, Any]:
    """Return a mission's metrics; tickets that were not run are in `n_total` only, those over the prompt budget counted apart.

    The timestamp is that of the last judged ticket.
    """
    judged = [row for row in rows if _was_judged(row)]
    cells = confusion((row["tags"]["label"], row["details"]["prediction"]) for row in judged)
    shares = rates(cells)
    return {
        "timestamp": max((started for row in judged if (started := row.get("started_at"))), default=None),
        "mission": mission,
        "mode": "baseline",
        "n_total": len(rows),
        "n_used": len(judged),
        "n_dropped_overlength": sum(row.get("cause") == PromptTooLong.__name__ for row in rows),
        "acc": shares["accuracy"],
        "fn": cells.num_blocked,
        "fp": cells.num_released,
        "tp": cells.tp,
        "fn_rate": shares["fn_rate"],
        "fp_rate": shares["fp_rate"],
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
    """Return the wrong tickets with their verdicts and reasons, the most confident mistakes first; `rank` counts from 1."""
    wrong = [row for row in judged if row["details"]["prediction"] != row["tags"]["label"]]
    wrong.sort(key=lambda row: (-_ballot(row).hard_wrong(row["tags"]["label"]), row["details"]["ticket_key"]))
    cases = []
    for rank, row in enumerate(wrong, start=1):
        reasons = [reason for reason in row["details"]["reasons"] if reason]
        case = {
            **ticket_stats(row),
            "difficulty": round(_ballot(row).difficulty, 4),
            "verdict_samples": row["details"]["verdicts"],
            "reason_samples": reasons,
            "reason_counts": [{"reason": reason, "count": count} for reason, count in Counter(reasons).most_common(NUM_REASONS)],
            "rank": rank,
        }
        cases.append(case)
    return cases
