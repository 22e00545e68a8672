"""A run has one writer at a time, and a writer that is gone holds nothing."""

from __future__ import annotations

import fcntl
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from evalharness.api.errors import RecordError
from evalharness.runs.files import RunLock, is_written_now, wait_for_writers
from evalharness.runs.journal import Journal

pytestmark = pytest.mark.slow


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "r" / "journal").mkdir(parents=True)
    return tmp_path / "r"


def test_a_second_one_is_refused_until_the_first_is_closed(run_dir: Path) -> None:
    first = RunLock(run_dir)
    with pytest.raises(RecordError, match=r"run 'r' is still running, or another process resumes it; wait for it, or stop it"):
        RunLock(run_dir)
    first.close()
    first.close()
    RunLock(run_dir).close()


def test_a_killed_process_holds_nothing(run_dir: Path) -> None:
    script = "import sys, time; from pathlib import Path; from evalharness.runs.files import RunLock\n"
    script += "lock = RunLock(Path(sys.argv[1])); print('held', flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", script, str(run_dir)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(RecordError):
            RunLock(run_dir)
        process.send_signal(signal.SIGKILL)
        process.wait()
    RunLock(run_dir).close()


def test_who_only_looks_is_told_and_takes_nothing(run_dir: Path) -> None:
    assert is_written_now(run_dir) is False
    lock = RunLock(run_dir)
    assert is_written_now(run_dir) is True
    lock.close()
    assert is_written_now(run_dir) is False
    assert list((run_dir / "journal").iterdir()) == []


def test_a_look_at_the_same_moment_refuses_nobody(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evalharness.runs.files._LOOK_S", 120)
    path = run_dir / "journal" / "run.lock"
    with path.open("w") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        threading.Timer(0.03, fcntl.flock, (looking, fcntl.LOCK_UN)).start()
        RunLock(run_dir).close()


def test_a_lock_on_a_file_that_was_taken_away_is_worth_nothing(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, real = run_dir / "journal" / "run.lock", RunLock._lock
    times = []

    def slow(self: RunLock, where: Path) -> bool:
        if not times:
            path.unlink()  # its holder ends between the opening and the locking of the file
        times.append(1)
        return real(self, where)

    monkeypatch.setattr(RunLock, "_lock", slow)
    lock = RunLock(run_dir)
    assert len(times) == 2
    with pytest.raises(RecordError):
        RunLock(run_dir)
    lock.close()


def test_without_locks_nobody_can_tell(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(file: int, operation: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    lock = RunLock(run_dir)
    assert not lock.is_certain
    Journal(run_dir, "main").close()
    wait_for_writers(run_dir, 0)
    lock.close()


def test_writers_are_waited_for(run_dir: Path) -> None:
    journal = Journal(run_dir, "gw0")
    started = time.monotonic()
    with pytest.raises(RecordError, match=r"gw0\.jsonl is still being written, by a worker that outlives its run"):
        wait_for_writers(run_dir, 0.3)
    assert time.monotonic() - started >= 0.3
    journal.close()
    wait_for_writers(run_dir, 0.3)


def test_two_writers_of_one_journal_and_a_folder_that_is_gone_are_refused(run_dir: Path) -> None:
    journal = Journal(run_dir, "gw0")
    with pytest.raises(RecordError, match=r"gw0\.jsonl is being written by another process"):
        Journal(run_dir, "gw0")
    journal.close()
    with pytest.raises(RecordError, match=r"run\.lock cannot be opened: No such file or directory"):
        RunLock(run_dir / "gone")
