"""The section of report.md that says what each worker did with its time; nothing where one process ran all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from evalharness.report.collecting import text_of
from evalharness.report.score_tables import markdown_table
from evalharness.report.tables import records
from evalharness.report.text import markdown_cell

__all__ = ["worker_sections"]

_HEADERS = ["worker", "devices", "loads", "swaps", "units", "loading (s)", "generating (s)", "idle"]


def worker_sections(run: dict[str, Any]) -> Iterator[str]:
    """Yield "Workers", with how often engines were loaded; parts that run.json lacks are left out."""
    entries = records(run, "workers")
    if len(entries) < 2:
        return
    yield "## Workers"
    yield (
        "Idle is the share of the time, from the first load to the last result, in which a worker neither loaded nor generated. "
        "A swap puts a checkpoint's weights into an engine that runs already."
    )
    yield markdown_table(_HEADERS, [_line(entry) for entry in entries], 2)


def _line(entry: dict[str, Any]) -> list[str]:
    devices = entry.get("devices")
    names = [text_of(entry.get("worker")), "as the machine has them" if devices is None else ", ".join(map(text_of, devices)) or "cpu"]
    counts = [_number(entry.get(name), ",") for name in ("num_loads", "num_swaps", "num_units")]
    seconds = [_number(entry.get(name), ",.1f") for name in ("load_s", "generation_s")]
    return [*(markdown_cell(name) for name in names), *counts, *seconds, _number(entry.get("idle_share"), ".1%")]


def _number(value: Any, form: str) -> str:
    return format(value, form) if isinstance(value, (int, float)) and not isinstance(value, bool) else "-"
