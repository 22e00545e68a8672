"""What an eval asks about: one case per sample. Knows nothing about engines or pytest."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

__all__ = ["Case", "EngineComparison", "OutputTarget", "folder_name", "one_test_per_case"]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One sample of an eval; tasks subclass it with what they need.

    `id` is stable and unique within its eval: it names the test, the row and the case in every comparison.
    `group` joins cases that belong together (photos of one work order). `tags` become breakdown tables.
    `invalid` says why the case cannot be asked at all (an unreadable image): it ends as an `invalid` row.
    """

    id: str
    group: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    reference: Any = None
    invalid: str | None = None


# Where an eval's `outputs` function writes files for other tools, and what it is told. Knows nothing about pytest


@dataclass(frozen=True)
class OutputTarget:
    """One engine's folder of output files, `reports/<run-id>/outputs/<engine>`; it exists.

    `data_dir` is what the eval's `cases` function got. `spot` is how many cases a spot check shows (--spot, 0: none), `seed`
    draws them.
    """

    folder: Path
    engine: str
    data_dir: Path | None = None
    spot: int = 0
    seed: int = 0


def folder_name(engine_id: str) -> str:
    """Return `backend-checkpoint` as a name that every file system takes; where more must change, a hash keeps engines apart."""
    joined = engine_id.replace(":", "-", 1)
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", joined).strip(".-")[:100]
    if plain == joined:
        return plain
    return f"{plain or 'engine'}-{hashlib.sha256(engine_id.encode('utf-8', 'surrogatepass')).hexdigest()[:6]}"


_Row = TypeVar("_Row", bound=Mapping[str, Any])


def one_test_per_case(rows: Iterable[_Row], detail: str) -> list[_Row]:
    """Return each case's rows of one test, in order: of the first test whose details have `detail`, else of the first one.

    An eval's `outputs` function gets the rows of all its tests; what counts cases would count each as often.
    """
    rows = list(rows)
    chosen: dict[str, tuple[bool, Any]] = {}
    for row in rows:
        has_detail = detail in (row.get("details") or {})
        if has_detail > chosen.get(row["case_id"], (-1, None))[0]:
            chosen[row["case_id"]] = has_detail, row.get("test")
    return [row for row in rows if row.get("test") == chosen[row["case_id"]][1]]


# What an eval's `across` function may give: metrics of each engine against the others, tables, and remarks for gates


@dataclass(frozen=True)
class EngineComparison:
    """By engine id: metrics for gates, tables by title for the report, and a remark that a failed gate on a metric shows."""

    metrics: Mapping[str, Mapping[str, float]]
    tables: Mapping[str, Mapping[str, Sequence[Mapping[str, str | int | float | None]]]] = field(default_factory=dict)
    remarks: Mapping[str, str] = field(default_factory=dict)
