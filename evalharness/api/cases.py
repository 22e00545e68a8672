"""Cases, which are the samples of an eval, and the arguments and results of its `outputs` and `across` functions.

Knows nothing about engines or pytest.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar


@dataclass(frozen=True, kw_only=True)
class Case:
    """One sample of an eval; tasks add fields in subclasses.

    `id` is stable and unique within its eval: it names the test, the row and the case in every comparison.
    `group` joins cases that belong together (photos of one work order). `tags` become breakdown tables.
    `invalid` says why the case cannot be run (an unreadable image); such a case ends as an `invalid` row.
    """

    id: str
    group: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    reference: Any = None
    invalid: str | None = None

    def __init_subclass__(cls) -> None:
        # Before `dataclass` looks whether the class has one: a subclass's own fields would make it as long as its data.
        if "__repr__" not in vars(cls):
            cls.__repr__ = Case.__repr__  # type: ignore[method-assign]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"


@dataclass(frozen=True)
class OutputTarget:
    """Where an eval's `outputs` function writes: the existing folder `reports/<run-id>/outputs/<engine>` of one engine.

    `data_dir` is the folder that the eval's `cases` function got. `spot` is the number of cases in a spot check (--spot; 0: no spot
    check), and `seed` draws them.
    """

    folder: Path
    engine: str
    data_dir: Path | None = None
    spot: int = 0
    seed: int = 0


def folder_name(engine_id: str) -> str:
    """Return `backend-checkpoint` as a name for any file system. If other characters must change too, a hash keeps engines apart."""
    joined = engine_id.replace(":", "-", 1)
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", joined).strip(".-")[:100]
    if plain == joined:
        return plain
    return f"{plain or 'engine'}-{hashlib.sha256(engine_id.encode('utf-8', 'surrogatepass')).hexdigest()[:6]}"


_Row = TypeVar("_Row", bound=Mapping[str, Any])


def one_test_per_case(rows: Iterable[_Row], detail: str) -> list[_Row]:
    """Return, in order, the rows of one test per case: the first test whose details have `detail`, else the first test.

    An eval's `outputs` function gets the rows of all tests, in which each case occurs once per test.
    """
    rows = list(rows)
    chosen: dict[str, tuple[bool, Any]] = {}
    for row in rows:
        has_detail = detail in (row.get("details") or {})
        if has_detail > chosen.get(row["case_id"], (-1, None))[0]:
            chosen[row["case_id"]] = has_detail, row.get("test")
    return [row for row in rows if row.get("test") == chosen[row["case_id"]][1]]


@dataclass(frozen=True)
class EngineComparison:
    """What an eval's `across` function returns, by engine id: metrics for gates, and tables by title for the report.

    `remarks`, by metric, are shown where a gate on that metric fails.
    """

    metrics: Mapping[str, Mapping[str, float]]
    tables: Mapping[str, Mapping[str, Sequence[Mapping[str, str | int | float | None]]]] = field(default_factory=dict)
    remarks: Mapping[str, str] = field(default_factory=dict)
