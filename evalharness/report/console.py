"""Rich's console as this package uses it: whatever a model, a file name or a case id says is text, never markup or an escape.

Colour where the stream is a terminal, unless NO_COLOR is set; piped, the same characters without it. Rich is imported here and
where tables are made of it only, so not by the pytest plugin.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TextIO

from rich.console import Console
from rich.text import Text

from evalharness.report.columns import pad
from evalharness.report.text import display_width, terminal_text

__all__ = ["OUTCOME_STYLES", "open_console", "print_fields", "print_heading", "print_lines", "print_text", "safe_lines"]

OUTCOME_STYLES = {"pass": "green", "ok": "green", "miss": "yellow", "warning": "yellow", "skip": "dim", "invalid": "magenta"}
"""Colours of outcomes; of any other, red. The word is always there, too."""

_VERDICT_STYLES: Mapping[tuple[str, ...], str] = {("REGRESSED", "FAILED"): "bold red", ("improved",): "green", ("not enough data",): "dim"}


def open_console(file: TextIO | None = None) -> Console:
    """Return a console on stdout or `file` that takes no text for markup, emoji code or something to highlight."""
    # Without a colour system there is no bold either: NO_COLOR is plain text.
    plain = bool(os.environ.get("NO_COLOR"))
    return Console(file=file, markup=False, emoji=False, highlight=False, color_system=None if plain else "auto")


def safe_lines(text: str) -> str:
    """Return a text of several lines with nothing in it that could steer a terminal; its line breaks stay."""
    return "\n".join(terminal_text(line, len(line)) for line in text.split("\n"))


def print_heading(console: Console, title: str, outcome: str = "") -> None:
    """Print a line with a title, and with an outcome in its colour."""
    words = Text("── ", style="dim").append(terminal_text(title, 300), style="not dim bold")
    if outcome:
        words.append(": ").append(terminal_text(outcome, 40), style=f"not dim bold {OUTCOME_STYLES.get(outcome, 'red')}")
    console.print(words, soft_wrap=True)


def print_lines(console: Console, lines: Iterable[str]) -> None:
    """Print lines that are safe and laid out already; verdicts in them, and remarks, get their colour."""
    for line in lines:
        text = Text(line, style="yellow" if line.startswith("! ") else "")
        for words, style in _VERDICT_STYLES.items():
            text.highlight_words(words, style)
        console.print(text, soft_wrap=True)


def print_fields(console: Console, fields: Mapping[str, object]) -> None:
    """Print names and values as two columns; further lines of a value go below its first. None is left out."""
    shown = {terminal_text(name, 60): safe_lines(str(value)) for name, value in fields.items() if value is not None}
    width = max(map(display_width, shown), default=0)
    for name, value in shown.items():
        label = Text(pad(name, width, right=False) + "  ", style="dim")
        console.print(label.append(value.replace("\n", "\n" + " " * (width + 2)), style="not dim"), soft_wrap=True)


def print_text(console: Console, name: str, text: str, styles: Iterable[str] = ()) -> None:
    """Print a text below its name, line by line as it is, neither cut nor broken to the terminal's width."""
    console.print(Text(terminal_text(name, 60), style="dim"))
    console.print(Text(safe_lines(text), style=" ".join(styles)), soft_wrap=True)
