"""What an eval's `across` function may give: metrics of each engine against the others, tables, and remarks for gates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["EngineComparison"]


@dataclass(frozen=True)
class EngineComparison:
    """By engine id: metrics for gates, tables by title for the report, and a remark that a failed gate on a metric shows."""

    metrics: Mapping[str, Mapping[str, float]]
    tables: Mapping[str, Mapping[str, Sequence[Mapping[str, str | int | float | None]]]] = field(default_factory=dict)
    remarks: Mapping[str, str] = field(default_factory=dict)
