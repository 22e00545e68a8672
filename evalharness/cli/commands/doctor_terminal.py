"""Findings of the doctor on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from evalharness.api.redaction import redactor
from evalharness.cli.commands.diagnosis import Check
from evalharness.report.console import OUTCOME_STYLES, print_heading
from evalharness.report.text import one_line

__all__ = ["print_check"]


def print_check(console: Console, check: Check, *, new_section: bool) -> None:
    """Print one finding, below the heading of its section where it is the first of it."""
    if new_section:
        print_heading(console, check.section)
    line = Text(f"{check.status:7}  ", style=OUTCOME_STYLES.get(check.status, "red"))
    text = one_line(redactor().text(f"{check.name}: {check.text}"), 1000)
    console.print(line.append(text, style="not dim default"), soft_wrap=True)
    if check.remedy:
        console.print(Text(f"         → {one_line(check.remedy, 400)}"), soft_wrap=True)
