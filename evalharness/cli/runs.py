"""Which run a word of the command line means: the same for every command that takes one."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from evalharness.api.errors import RecordError
from evalharness.api.suggestions import did_you_mean
from evalharness.cli.run_options import project_root
from evalharness.config import resolve
from evalharness.report.text import one_line
from evalharness.runs.run_latest import find_latest, is_latest

__all__ = ["find_run", "name_side"]

_SHOWN_CHARS = 500


def find_run(word: str) -> Path:
    """Return the run directory that `word` names: `latest` or `latest~1`, a path, or the name of a run in the report folder.

    `latest` is that word wherever it stands; a folder of this name is `./latest`. Raises `RecordError` where no run is meant.
    """
    if is_latest(word):
        return _announced(word, find_latest(word, _report_dir()))
    if Path(word).is_dir():
        return Path(word)
    reports = _report_dir()
    names = _run_names(reports)
    if word in names:
        return reports / word
    raise RecordError(
        f"{word} is no run directory, and {reports} has none of that name{did_you_mean(word, names)}; "
        "give a run directory, the name of one in there, or latest"
    )


def name_side(text: str) -> str:
    """Return one side of a comparison as `read_side` takes it: RUN and RUN:ENGINE with the path of the run, all else as it is."""
    word, colon, engine = text.partition(":")
    is_name = is_latest(word) or (not Path(text).exists() and not Path(word).exists() and word in _run_names(_report_dir()))
    return f"{find_run(word)}{colon}{engine}" if is_name else text


def _announced(word: str, run_dir: Path) -> Path:
    """Return the run, once stderr says which one it is: what is blessed or exported should be no guess."""
    print(f"evalharness: {word} is {one_line(str(run_dir), _SHOWN_CHARS)}", file=sys.stderr)
    return run_dir


def _report_dir() -> Path:
    """Return the folder that runs go to, as settings and environment say."""
    return Path(resolve({}, os.environ, project_root(Path.cwd())).report_dir)


def _run_names(report_dir: Path) -> list[str]:
    return sorted(path.name for path in report_dir.iterdir() if path.is_dir()) if report_dir.is_dir() else []
