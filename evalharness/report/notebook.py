"""A finished run in a notebook: `open_run("latest")` shows its verdict, gates and scores, and gives its samples as a data frame.

What it shows may be a model's words: all of it is escaped, and MathJax leaves it alone.
"""

from __future__ import annotations

import html
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from evalharness.api.checks import first_names
from evalharness.api.errors import RecordError, did_you_mean
from evalharness.api.wording import figure_text, number_text, plural
from evalharness.config import resolve
from evalharness.config.sources import project_root
from evalharness.report.findings import findings, gate_state, verdict
from evalharness.report.flat_table import samples_frame
from evalharness.report.tables import RunTables, load_tables
from evalharness.report.text import one_line
from evalharness.runs.run_file import LATEST, find_latest, is_latest
from evalharness.runs.schema import Aggregate, RunFile, entries_of, number_of, text_of

if TYPE_CHECKING:
    import pandas

_MOST_LINES = 50
_CELL_CHARS = 300
_FILES = ("run.json", "samples.jsonl")


def open_run(name: str | os.PathLike[str] = LATEST) -> Run:
    """Return a finished run: "latest", "latest~1", the name of a run in the project's report folder, or the path of one.

    Raises `RecordError` where it names none.
    """
    word = os.fspath(name)
    reports = resolve({}, os.environ, project_root(Path.cwd())).report_dir
    if is_latest(word):
        return Run(find_latest(word, reports))
    found = next(
        (path for path in (Path(word), reports / word) if (path / "run.json").is_file() or (path / "samples.jsonl").is_file()), None
    )
    if found is None:
        names = sorted(path.parent.name for path in reports.glob("*/run.json"))
        hint = did_you_mean(word, [*names, LATEST]) or ";"
        raise RecordError(f"{word!r} is not a run{hint} in {reports} are: {first_names(names, 10) or 'none'}")
    return Run(found)


class Run:
    """A finished run: `path` is its directory, `facts` the content of run.json."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def _tables(self) -> RunTables:
        return load_tables(self.path)

    @property
    def facts(self) -> RunFile:
        """What run.json says."""
        return self._tables.run

    def frame(self) -> pandas.DataFrame:
        """Return the samples as a data frame, a line per test, case and engine; columns as `samples_frame`."""
        return samples_frame(self.path)

    def __repr__(self) -> str:
        word, sentence = verdict(self._tables)
        return f"<Run {one_line(self.path.name, 100)}: {word}, {one_line(sentence, 200)}; {plural(self._tables.num_rows, 'sample')}>"

    def _repr_html_(self) -> str:
        return f'<div class="tex2jax_ignore mathjax_ignore">{"".join(_html(self._tables, self.path))}</div>'


def _html(tables: RunTables, path: Path) -> Iterator[str]:
    word, sentence = verdict(tables)
    yield f"<p><b>{_text(word)}</b>: {_text(sentence)} ({_text(path.name)}, {plural(tables.num_rows, 'sample')})</p>"
    yield from (f"<p>! {_text(remark)}</p>" for remark in findings(tables)[:5])
    gates = entries_of(tables.run.get("gates"))
    lines = [
        (gate_state(gate), gate.get("expression"), f"{text_of(gate.get('eval'))}::{text_of(gate.get('test'))}", gate.get("engine"),
         number_text(gate.get("value")), gate.get("reason"))
        for gate in sorted(gates, key=lambda gate: gate_state(gate) != "failed")
    ]  # fmt: skip
    yield from _table(("", "gate", "test", "engine", "value", "reason"), lines)
    scores = [
        (f"{name}::{test}", engine, metric, figure_text(score.mean, metric), _interval(score.low, score.high, metric), f"{score.n:,}")
        for (name, test, engine, metric), score in tables.scores.items()
    ]
    yield from _table(("test", "engine", "score", "mean", "95 % interval", "n"), scores)
    yield from _table(("test", "engine", "aggregate", "value", "95 % interval"), map(_aggregate, entries_of(tables.run.get("aggregates"))))


def _aggregate(entry: Aggregate) -> tuple[object, ...]:
    metric = text_of(entry.get("metric"))
    low, high = (number_of(entry.get(name)) for name in ("low", "high"))
    place = f"{text_of(entry.get('eval'))}::{text_of(entry.get('test'))}"
    value = figure_text(number_of(entry.get("value")), metric)
    return place, entry.get("engine"), metric, value, "" if low is None or high is None else _interval(low, high, metric)


def _interval(low: float, high: float, metric: str) -> str:
    return f"{figure_text(low, metric)} … {figure_text(high, metric)}" if low == low else ""


def _table(head: Sequence[str], lines: Iterable[Iterable[object]]) -> Iterator[str]:
    """Yield a table of texts, cut where it is long; nothing without lines."""
    lines = list(lines)
    if not lines:
        return
    yield f"<table><thead><tr>{''.join(f'<th>{_text(name)}</th>' for name in head)}</tr></thead><tbody>"
    for line in lines[:_MOST_LINES]:
        yield f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in line)}</tr>"
    yield "</tbody></table>"
    if len(lines) > _MOST_LINES:
        yield f"<p>and {len(lines) - _MOST_LINES:,} more</p>"


def _text(value: object) -> str:
    return html.escape(one_line(value if isinstance(value, str) else text_of(None if value is None else str(value)), _CELL_CHARS))
