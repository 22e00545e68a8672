"""Which run directory a word of the command line means."""

from __future__ import annotations

from pathlib import Path

from evalharness.commands.run_options import project_root
from evalharness.errors import BaselineError, RecordError
from evalharness.regression_gates import LATEST, find_baseline
from evalharness.suggestions import did_you_mean

__all__ = ["find_run"]

_REPORTS = "reports"


def find_run(word: str) -> Path:
    """Return the run directory that `word` names: a path, the name of a run in reports/, or `latest`, the one that ended last."""
    if Path(word).is_dir():
        return Path(word)
    reports = project_root(Path.cwd()) / _REPORTS
    names = sorted(path.name for path in reports.iterdir() if path.is_dir()) if reports.is_dir() else []
    if word in names:
        return reports / word
    if word == LATEST:
        try:
            return find_baseline(LATEST, root=reports.parent, base=reports.parent, report_dir=reports)
        except BaselineError:
            raise RecordError(f"there is no finished run in {reports}; give the path of a run directory") from None
    raise RecordError(f"{word} is no run directory, and {reports} has none of that name{did_you_mean(word, names)}")
