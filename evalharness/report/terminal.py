"""The end of a run on a terminal: verdict, gates and one short line per eval and engine, as wide as the terminal."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from evalharness.report import what_broke
from evalharness.report.columns import fit, pad
from evalharness.report.earlier_run import compare_command
from evalharness.report.findings import ERRORS, findings, verdict
from evalharness.report.levers import draft_lines, tuning_lines
from evalharness.report.markdown import go_on_command
from evalharness.report.noise import noise_summary
from evalharness.report.tables import COUNTS, RunTables
from evalharness.report.text import figure_text, plural, terminal_text
from evalharness.runs.schema import entries_of, number_of, text_of


def fit_apart(texts: Iterable[str], width: int) -> dict[str, str]:
    """Return each text as `fit` cuts it; where that makes different ones equal, they lose their middle instead, else get numbers."""
    shown = {text: fit(text, width) for text in texts}
    for cut in (_without_middle, _numbered):
        for alike in _alike(shown):
            shown.update((text, cut(text, width, number)) for number, text in enumerate(alike, 1))
    return shown


def _alike(shown: Mapping[str, str]) -> list[list[str]]:
    groups: dict[str, list[str]] = {}
    for text, cut in shown.items():
        groups.setdefault(cut, []).append(text)
    return [group for group in groups.values() if len(group) > 1]


def _without_middle(text: str, width: int, number: int) -> str:
    head = fit(text, (width + 1) // 2)
    return next(head + text[start:] for start in range(len(text) + 1) if cell_len(head + text[start:]) <= width)


def _numbered(text: str, width: int, number: int) -> str:
    return f"{fit(text, width - len(str(number)))}{number}"


def wrapped(text: str, columns: int) -> Iterator[str]:
    """Yield the text in lines, broken at spaces; a longer word is left to be cut."""
    indent = " " * (len(text) - len(text.lstrip(" ")))
    first, *words = text.split() or [""]
    line = indent + first
    for word in words:
        if cell_len(line) + 1 + cell_len(word) > columns:
            yield line
            line = f"{indent}  {word}"
        else:
            line = f"{line} {word}"
    yield line


def table_lines(lines: Sequence[Sequence[str]], num_text_columns: int) -> Iterator[str]:
    """Yield lines of cells as columns two apart; those after the first `num_text_columns` are set right."""
    widths = [max(cell_len(line[column]) for line in lines) for column in range(len(lines[0]))]
    for line in lines:
        cells = [pad(cell, width, right=column >= num_text_columns) for column, (cell, width) in enumerate(zip(line, widths, strict=True))]
        yield "  ".join(cells).rstrip()


DEFAULT_COLUMNS = 120
MIN_COLUMNS = 40
NUM_REMARKS = 5
NUM_LINES = 40
NUM_SCORES = 6
_VALIDITY = ("malformed", "length_cap", "empty", "unclosed", "invalid", "error", "skip", "miss", "fail", "other")
_TITLES = {**COUNTS, "length_cap": "cut", "other": "unknown"}
_ALWAYS_SHOWN = ("malformed", "length_cap", "invalid", "error")
_SHORTEST_NAME = 8


def terminal_width() -> int:
    """Return COLUMNS if it is a number, else the width of the terminal, else, in a log or a pipe, `DEFAULT_COLUMNS`."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isascii() and columns.isdigit():
        return int(columns)
    try:
        return os.get_terminal_size(1).columns or DEFAULT_COLUMNS
    except OSError:
        return DEFAULT_COLUMNS


def terminal_lines(tables: RunTables, columns: int) -> Iterator[str]:
    """Yield lines that take at most `columns` columns (never fewer than `MIN_COLUMNS`) and hold no control character.

    Commands, which come last, are neither cut nor broken.
    """
    columns = max(columns, MIN_COLUMNS)
    for line in _lines(tables, columns):
        yield fit(line, columns)
    yield from what_broke.worst_lines(tables)
    if command := compare_command(tables):
        yield f"compare: {command}"
    if command := go_on_command(tables.run):
        yield f"go on: {command}"


def _lines(tables: RunTables, columns: int) -> Iterator[str]:
    if any(tables.total(outcome) for outcome in ("pass", "miss", "fail", "invalid", "other")):
        yield from _table(tables, columns)
    words = what_broke.legend(tables, _VALIDITY, _TITLES)
    noise = noise_summary(tables.run)
    for line in (
        *_suite_lines(tables),
        *([words] if words else ()),
        *what_broke.gate_lines(tables),
        *([f"noise: {noise}"] if noise else ()),
        *what_broke.slice_lines(tables),
        *what_broke.reason_lines(tables),
        *tuning_lines(tables.run),
        *draft_lines(tables.run),
    ):
        yield from wrapped(line, columns)
    remarks = [remark for remark in findings(tables) if not remark.endswith(ERRORS)]  # their reasons say it here
    for remark in remarks[:NUM_REMARKS]:
        yield from wrapped(f"! {terminal_text(remark, 400)}", columns)
    if len(remarks) > NUM_REMARKS:
        yield f"! {plural(len(remarks) - NUM_REMARKS, 'more caveat')} in report.md"
    yield from wrapped(verdict_line(tables), columns)


def verdict_line(tables: RunTables) -> str:
    """Return the verdict of a run and its reasons."""
    word, sentence = verdict(tables)
    return f"{word}: {terminal_text(sentence, 400)}"


def _table(tables: RunTables, columns: int) -> Iterator[str]:
    """Yield the score table: validity counts are never dropped; scores, and names that were cut, stand below their line in full."""
    shown = [name for name in _VALIDITY if name in _ALWAYS_SHOWN or tables.total(name)]
    lines: list[list[str]] = [["eval", "engine", "cases", *(_TITLES[name] for name in shown)]]
    scores: list[str] = [""]
    means = _means(tables)
    tests = {key[:2] for key in tables.counts}
    is_one_each = len(tests) == len({eval_name for eval_name, _ in tests})
    for key, row in tables.counts.items():
        if tables.not_run.get(key) == row["cases"]:
            continue  # a remark names it
        numbers = ["-" if name == "malformed" and not row["form_judged"] else f"{row[name]}" for name in shown]
        lines.append(
            [terminal_text(key[0] if is_one_each else f"{key[0]}::{key[1]}", 80), terminal_text(key[2], 80), f"{row['cases']}", *numbers]
        )
        scores.append(means.get(key, ""))
    left_out = len(lines) - 1 - NUM_LINES
    lines, scores = lines[: NUM_LINES + 1], scores[: NUM_LINES + 1]
    widths = _column_widths(lines, columns)
    names = [fit_apart((line[position] for line in lines), widths[position]) for position in (0, 1)]
    room = columns - sum(widths) - 2 * len(widths)
    if room < -2:
        yield from _stacked(lines, scores, columns)
        return
    beside = max(map(cell_len, scores)) <= room
    for line, score in zip(lines, scores, strict=True) if len(lines) > 1 else ():
        shown = [names[0][line[0]], names[1][line[1]], *line[2:]]
        cells = [pad(cell, width, right=position > 1) for position, (cell, width) in enumerate(zip(shown, widths, strict=True))]
        yield "  ".join([*cells, score] if beside else cells).rstrip()
        cut = " on ".join(name for name, fitted in zip(line[:2], shown, strict=False) if name != fitted)
        if below := ": ".join(filter(None, (cut, "" if beside else score))):
            yield from wrapped(f"  {below}", columns)
    if left_out > 0:
        yield f"{left_out} more lines in report.md"


def _stacked(lines: Sequence[Sequence[str]], scores: Sequence[str], columns: int) -> Iterator[str]:
    """Yield each line of the table as a sentence, for a terminal too narrow for columns."""
    titles = lines[0][2:]
    for (name, engine, *numbers), score in zip(lines[1:], scores[1:], strict=True):
        counts = ", ".join(f"{number} {title}" for number, title in zip(numbers, titles, strict=True))
        yield from wrapped(f"{name} on {engine}: {counts}", columns)
        if score:
            yield from wrapped(f"  {score}", columns)


def _means(tables: RunTables) -> dict[tuple[str, ...], str]:
    """Return "valid 0.950, f1 0.812 (n=19), f1_macro 0.790" by eval, test, engine; n only where it is not the number of cases.

    What gates ask for comes first, then scores, then aggregates, of which averages of a score before others.
    """
    aggregates = _aggregates(tables)
    texts: dict[tuple[str, ...], str] = {}
    for key, counts in tables.counts.items():
        values: dict[str, str] = {}
        for name in tables.metrics(*key[:2]):
            if (score := tables.scores.get((*key, name))) is not None:
                values[name] = f"{figure_text(score.mean, name)}{'' if score.n == counts['cases'] else f' (n={score.n})'}"
        found = aggregates.get(key, {})
        for name in sorted(found, key=lambda name: name.rpartition("_")[0] not in values):
            values.setdefault(name, figure_text(found[name], name))
        gated = [name for name in tables.gated(*key[:2]) if name in values]
        texts[key] = _listed({name: values[name] for name in (*gated, *values)})
    return texts


def _listed(values: Mapping[str, str]) -> str:
    parts = [f"{terminal_text(name, 30)} {value}" for name, value in [*values.items()][:NUM_SCORES]]
    return ", ".join([*parts, *([f"{len(values) - NUM_SCORES} more in report.md"] if len(values) > NUM_SCORES else [])])


def _aggregates(tables: RunTables) -> dict[tuple[str, ...], dict[str, float]]:
    """Return the aggregates by eval, test and engine; the test of an average over a suite is ""."""
    found: dict[tuple[str, ...], dict[str, float]] = {}
    for entry in entries_of(tables.run.get("aggregates")):
        if (value := number_of(entry.get("value"))) is not None:
            key = text_of(entry.get("eval")), text_of(entry.get("test")), text_of(entry.get("engine"))
            found.setdefault(key, {})[text_of(entry.get("metric"))] = value
    return found


def _suite_lines(tables: RunTables) -> Iterator[str]:
    """Yield "suite math on hf:base: acc_macro 0.612, acc_micro 0.598" for the averages over evals."""
    for (suite, test, engine), values in _aggregates(tables).items():
        if not test and suite not in tables.evals.names:
            shown = _listed({name: figure_text(value, name) for name, value in values.items()})
            yield f"suite {terminal_text(suite, 80)} on {terminal_text(engine, 80)}: {shown}"


def _column_widths(lines: Sequence[Sequence[str]], columns: int) -> list[int]:
    """Return the width of each column; the two name columns shrink where the line would be too long."""
    widths = [max(cell_len(line[position]) for line in lines) for position in range(len(lines[0]))]
    excess = sum(widths) + 2 * (len(widths) - 1) - columns
    for position in sorted((0, 1), key=lambda position: -widths[position]):
        if excess > 0:
            shrink = min(excess, max(0, widths[position] - _SHORTEST_NAME))
            widths[position] -= shrink
            excess -= shrink
    return widths


OUTCOME_STYLES = {"pass": "green", "ok": "green", "miss": "yellow", "warning": "yellow", "skip": "dim", "invalid": "magenta"}
"""Colours of outcomes; of any other, red. The word is always there, too."""

_LINE_STYLES = {
    ("GATE FAILED", "GATES FAILED", "FAILED:", "BROKEN:"): "bold red",
    ("INTERRUPTED:", "EMPTY:", "go on:"): "bold yellow",
    ("! ",): "yellow",
    ("PASSED:",): "bold green",
}


def line_style(line: str) -> str:
    """Return the style of a closing line of a run: words such as "bold red", "" for none."""
    return next((style for starts, style in _LINE_STYLES.items() if line.startswith(starts)), "")


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
    width = max(map(cell_len, shown), default=0)
    for name, value in shown.items():
        label = Text(pad(name, width, right=False) + "  ", style="dim")
        console.print(label.append(value.replace("\n", "\n" + " " * (width + 2)), style="not dim"), soft_wrap=True)


def print_text(console: Console, name: str, text: str, styles: Iterable[str] = ()) -> None:
    """Print a text below its name, line by line as it is, neither cut nor broken to the terminal's width."""
    console.print(Text(terminal_text(name, 60), style="dim"))
    console.print(Text(safe_lines(text), style=" ".join(styles)), soft_wrap=True)
