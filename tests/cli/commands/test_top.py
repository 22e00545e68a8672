"""`evalharness top`: a running run, one that was killed, and one that has ended, from their folders alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from evalharness.runs.files import RunLock
from evalharness.runs.progress import EngineProgress, RunProgress, WorkerProgress, write_progress
from tests.cli.conftest import Command
from tests.report.runs import row, write_run

PROGRESS = RunProgress(
    90.0,
    240,
    60,
    3,
    187.5,
    (EngineProgress("hf:final", 31, 120, 16, 4120, 38.2),),
    (WorkerProgress("main", "generating", "hf:final", "a"),),
)


@pytest.fixture
def nightly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A run that goes on, beside one that has ended."""
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "reports" / "ended", [row("a")])
    folder = tmp_path / "reports" / "nightly"
    (folder / "journal").mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"run_id": "nightly", "started_at": "2030-01-01T00:00:00+00:00"}))
    lock = RunLock(folder)
    yield folder
    lock.close()


@pytest.mark.parametrize("arguments", [(), ("nightly",), ("reports/nightly", "--once")])
def test_the_running_run_is_shown_with_its_engines(nightly: Path, arguments: tuple[str, ...], printed: Command) -> None:
    write_progress(nightly, PROGRESS)
    first, second, third, _ = printed("top", *arguments).splitlines()
    assert first.startswith("nightly: running, as of 0 s ago")
    assert second == "  60 of 240 tests, 3 not passed, running for 1 min 30 s, about 3 min 10 s left"
    assert third == "  hf:final  31/120 answers, 16 in flight, 38 tokens/s"


def test_one_that_has_just_begun_says_when_more_is_known(nightly: Path, printed: Command) -> None:
    assert printed("top", "nightly") == "nightly: running\n  it has just begun: its progress comes within 15 s\n"


def test_a_killed_run_says_how_it_goes_on(nightly: Path, printed: Command) -> None:
    write_progress(nightly, PROGRESS)
    (nightly / "journal" / "run.lock").unlink()
    shown = printed("top")
    assert shown.startswith("nightly: killed, as of 0 s ago\n  60 of 240 tests")
    assert shown.endswith("  what it has is kept; go on: pytest evals --resume nightly\n")


def test_a_record_that_a_killed_run_left_does_not_hide_what_runs_now(nightly: Path, printed: Command) -> None:
    killed = nightly.parent / "killed"
    write_run(killed, [row("a")], finished_at=None)
    write_progress(killed, PROGRESS)
    assert printed("top").startswith("nightly: running\n")


def test_one_that_has_ended_says_what_to_type_next(nightly: Path, printed: Command) -> None:
    assert printed("top", "ended") == "ended: finished; evalharness summary ended shows its results\n"


def test_without_any_run_it_says_how_one_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Command) -> None:
    monkeypatch.chdir(tmp_path)
    assert "start one: pytest evals --model PATH" in refused("top")


def test_a_name_of_no_run_is_refused(nightly: Path, refused: Command) -> None:
    assert "did you mean 'nightly'" in refused("top", "nihgtly")
