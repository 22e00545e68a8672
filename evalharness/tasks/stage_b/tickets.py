"""Tickets: what Stage-B judges, one per work order and label, read from `<mission>_stage_a.jsonl`.

A row that is none is left out and told, not raised: files come from other tools, and one bad row must not cost the rest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalharness.api.errors import RecordError
from evalharness.tasks.stage_a.data import LABELS, Label
from evalharness.tasks.stage_a.schema import MISSIONS

__all__ = ["BadRow", "Ticket", "TicketFile", "read_tickets", "ticket_key"]

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


@dataclass(frozen=True)
class BadRow:
    """A line (from 1) that gives no ticket, and why."""

    line: int
    problem: str


@dataclass(frozen=True)
class TicketFile:
    """What a file holds: tickets in its order, and the rows that are none."""

    tickets: tuple[Ticket, ...]
    bad_rows: tuple[BadRow, ...]


def read_tickets(path: Path | str, mission: str) -> TicketFile:
    """Return the tickets of one mission's file. Raises `RecordError` if it cannot be read or holds no ticket at all.

    Labels count in any case, further keys are ignored, and image keys are put in the order of their trailing digits.
    """
    tickets: dict[str, Ticket] = {}
    bad = []
    for number, line in enumerate(_lines(Path(path)), start=1):
        if not line.strip():
            continue
        ticket = _ticket(line, mission)
        if isinstance(ticket, Ticket) and ticket.key in tickets:
            ticket = f"ticket {ticket.key} was there already"
        if isinstance(ticket, Ticket):
            tickets[ticket.key] = ticket
        else:
            bad.append(BadRow(number, ticket))
    if not tickets:
        first = f"; line {bad[0].line}: {bad[0].problem}" if bad else ""
        raise RecordError(f"{path} holds no ticket: {len(bad)} rows, none of them usable{first}")
    return TicketFile(tuple(tickets.values()), tuple(bad))


def _lines(path: Path) -> list[str]:
    try:
        # Not splitlines: a summary may hold other line ends as they are. A broken byte spoils its own row only.
        return path.read_bytes().decode("utf-8", "surrogateescape").split("\n")
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error}") from error


def _ticket(line: str, mission: str) -> Ticket | str:
    """Return the ticket of a row, or why it is none."""
    try:
        line.encode("utf-8")
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        return f"no JSON: {error}"
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
