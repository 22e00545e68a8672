"""Which run `latest` and `latest~1` mean. Run: pytest tests/runs/test_run_latest.py"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from evalharness.api.errors import RecordError
from evalharness.runs.run_file import find_latest, is_latest
from tests.analysis.comparison.runs import cases, run_dir


def write(folder: Path, day: int, **run: Any) -> Path:
    """Write a run that ended, if it ended, on that day of 2030's first month."""
    return run_dir(folder, cases([1.0]), **{"finished_at": f"2030-01-{day:02}T00:00:00.000+00:00", **run})


@pytest.fixture
def reports(tmp_path: Path) -> Path:
    """Three complete runs, whose names are in another order than their ends, and four that are none."""
    for day, name in enumerate(("b", "c", "a"), 1):
        write(tmp_path / name, day)
    write(tmp_path / "cut", 4, interrupted="Ctrl-C")
    write(tmp_path / "killed", 5, rebuilt=True)
    write(tmp_path / "live", 6, finished_at=None)
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "run.json").write_text("{")
    return tmp_path


@pytest.mark.parametrize(("word", "name"), [("latest", "a"), ("latest~1", "c"), ("latest~2", "b")])
def test_complete_runs_are_counted_back_from_the_one_that_ended_last(reports: Path, word: str, name: str) -> None:
    assert find_latest(word, reports) == reports / name


def test_a_link_to_a_run_is_no_second_run(reports: Path) -> None:
    (reports / "0-newest").symlink_to(reports / "a")
    assert [find_latest(word, reports).name for word in ("latest", "latest~1")] == ["a", "c"]


def test_a_run_that_a_link_leads_to_counts(reports: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    (reports / "archived").symlink_to(write(tmp_path_factory.mktemp("elsewhere") / "old", 7))
    assert find_latest("latest", reports) == reports / "archived"


UNFINISHED = "4 unfinished (cut: interrupted, killed: killed, live: running or killed, torn: cannot be read)"


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("latest~3", f"3 complete runs and {UNFINISHED}; count back to latest~2 at most, or give a run directory"),
        ("latest~999999", "; count back to latest~2 at most, or give a run directory"),
    ],
)
def test_too_far_back_says_what_is_there(reports: Path, word: str, message: str) -> None:
    with pytest.raises(RecordError, match=f"^there is no run {word}: {re.escape(str(reports))} holds .*{re.escape(message)}$"):
        find_latest(word, reports)


def test_no_complete_run_says_what_is_there(reports: Path) -> None:
    for name in "abc":
        (reports / name / "run.json").unlink()
    with pytest.raises(RecordError, match=re.escape(f"holds 0 complete runs and {UNFINISHED}; let a run finish, or give a run directory")):
        find_latest("latest", reports)


def test_a_folder_that_is_not_there_holds_no_run(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="holds 0 complete runs; let a run finish, or give a run directory$"):
        find_latest("latest", tmp_path / "reports")


def test_one_run_is_the_furthest_back(tmp_path: Path) -> None:
    write(tmp_path / "only", 1)
    with pytest.raises(RecordError, match="holds 1 complete run; count back to latest at most"):
        find_latest("latest~1", tmp_path)


def test_of_many_broken_runs_the_first_are_named(tmp_path: Path) -> None:
    for number in range(7):
        write(tmp_path / f"r{number}", 1, finished_at=None)
    with pytest.raises(RecordError, match=r"and 7 unfinished \(r0: .*, r4: running or killed, and 2 more\);"):
        find_latest("latest", tmp_path)


@pytest.mark.parametrize(
    "word", ["latest~", "latest~0", "latest~-1", "latest~x", "latest~01", "latest~1.5", "latest~1\n", "latest~1000000"]
)
def test_what_counts_nothing_back_is_refused(reports: Path, word: str) -> None:
    assert is_latest(word)
    with pytest.raises(RecordError, match="does not count runs back; legal are latest, latest~1"):
        find_latest(word, reports)


@pytest.mark.parametrize("word", ["late", "latest1", "latest-1", "Latest", "./latest", "reports/latest", "latest:hf", ""])
def test_other_words_are_not_meant(word: str) -> None:
    assert not is_latest(word)
