"""The watch runs as a process of its own and starts the real pytest; its test files note what they were asked."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from evalharness.cli.commands import watch as watch_command
from evalharness.cli.commands.watch import Watch
from tests.checkpoints.test_info import GOOD, write
from tests.cli.conftest import Command

pytestmark = pytest.mark.slow

# Stands for evals: says which checkpoint it got, and leaves the run.json of a run that ended.
NOTING = """
import json, sys, time
from pathlib import Path

def test_it(pytestconfig):
    model, run_id, reports = (pytestconfig.getoption("evalharness_" + name) for name in ("model", "run_id", "report_dir"))
    folder = Path(reports, run_id)
    folder.mkdir(parents=True)
    (folder / "started").touch()
    if Path("slow").exists():
        time.sleep(600)
    (folder / "new.json").write_text(json.dumps({"finished_at": "now", "interrupted": None, "model": model}))
    (folder / "new.json").rename(folder / "run.json")
    assert "bad" not in str(model)
"""
WAIT_S = 300


def start(root: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "evalharness", "watch", "run", "--interval", "0.1", *arguments, "--", "-q", "test_noting.py"]
    return subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def runs(root: Path) -> list[str]:
    """Return the names of the checkpoints that were evaluated, in the order of time."""
    found = sorted((root / "reports").glob("*/run.json"), key=lambda path: path.stat().st_mtime_ns)
    return [Path(json.loads(path.read_text())["model"][0]).name for path in found]


def until(watch: subprocess.Popen[str], condition: Any) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert watch.poll() is None, f"the watch has ended: {watch.communicate()[0]}"
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path, {"test_noting.py": NOTING, "pytest.ini": "[pytest]\n"})
    (tmp_path / "run").mkdir()
    return tmp_path


def test_checkpoints_that_are_there_come_by_their_steps_and_new_ones_as_they_appear(root: Path) -> None:
    for step in (200, 30):
        write(root / f"run/checkpoint-{step}", {**GOOD, "trainer_state.json": {"global_step": step}})
    watch = start(root)
    until(watch, lambda: len(runs(root)) == 2)
    half = write(root / "run/checkpoint-1000", {**GOOD, "model.safetensors": GOOD["model.safetensors"][:-4]})
    time.sleep(0.5)
    assert runs(root) == ["checkpoint-30", "checkpoint-200"]
    write(half, GOOD)
    time.sleep(0.5)
    assert len(runs(root)) == 2  # its trainer_state.json, the last file of all, is not there yet
    write(half, {"trainer_state.json": {}})
    until(watch, lambda: len(runs(root)) == 3 and not psutil.Process(watch.pid).children())
    watch.send_signal(signal.SIGTERM)
    output, _ = watch.communicate(timeout=WAIT_S)
    assert runs(root) == ["checkpoint-30", "checkpoint-200", "checkpoint-1000"]
    assert (watch.returncode, output.count("1 passed")) == (0, 3)
    assert output.rstrip().endswith("evalharness watch: stopped")


def watched(root: Path) -> tuple[str, int]:
    """Watch until there is nothing new; returns what was printed and the exit code."""
    watch = start(root, "--idle", "0.2")
    return watch.communicate(timeout=WAIT_S)[0].rstrip(), watch.returncode


def test_a_watch_that_is_started_again_goes_on_where_it_was_and_makes_a_run_again_that_was_cut_short(root: Path) -> None:
    write(root / "run/checkpoint-1", GOOD)
    watched(root)
    (first,) = (root / "reports").iterdir()
    write(root / "run/checkpoint-2", {**GOOD, "tokenizer.json": {"model": {"x": 1}}})
    output, _ = watched(root)
    assert runs(root) == ["checkpoint-1", "checkpoint-2"]
    assert "checkpoint-1 was evaluated already: reports/watch-checkpoint-1-" in output
    assert output.endswith("evalharness watch: no new checkpoint for 0.2 s")
    write(first, {"run.json": {"finished_at": "now", "interrupted": "Ctrl-C"}})
    watched(root)
    assert [path.name for path in (root / "reports").glob("watch-checkpoint-1-*-2")] == [f"{first.name}-2"]


def test_a_checkpoint_that_fails_leaves_the_next_alone_and_the_exit_code_says_so(root: Path) -> None:
    write(root / "run/bad", GOOD)
    write(root / "run/good", {**GOOD, "generation_config.json": {}})
    output, code = watched(root)
    assert (runs(root), code) == (["bad", "good"], 1)
    assert "bad ended with exit code 1" in output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
def test_stopping_ends_the_running_pytest_too(root: Path, number: int) -> None:
    write(root / "run/checkpoint-1", GOOD)
    (root / "slow").touch()
    watch = start(root)
    until(watch, lambda: list((root / "reports").glob("*/started")))
    watch.send_signal(number)
    output, _ = watch.communicate(timeout=WAIT_S)
    assert (watch.returncode, "KeyboardInterrupt" in output, "ended with exit code 2" in output) == (1, True, True)


def test_a_training_run_that_is_rotated_away_is_no_crash(root: Path) -> None:
    write(root / "run/checkpoint-1", GOOD)
    watch = start(root)
    until(watch, lambda: len(runs(root)) == 1)
    shutil.rmtree(root / "run/checkpoint-1")
    time.sleep(0.3)
    assert watch.poll() is None
    watch.send_signal(signal.SIGTERM)
    assert watch.communicate(timeout=WAIT_S)[0].rstrip().endswith("evalharness watch: stopped")


def test_what_was_looked_at_is_not_read_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(root / "run/checkpoint-1", GOOD)
    read = []
    monkeypatch.setattr(watch_command, "fingerprint_of", lambda path: read.append(path) or f"{len(read):064}")
    watch = Watch(root / "run", ["evals"], root / "reports", 1.0, None)
    assert [watch._next(), watch._next(), watch._next()] == [(folder, f"{1:064}"), None, None]
    (folder / "config.json").write_text((folder / "config.json").read_text() + " ")
    assert [watch._next(), watch._next()] == [(folder, f"{2:064}"), None]
    assert len(read) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["nowhere"], "nowhere is not a folder; give the folder that training writes", id="no-folder"),
        pytest.param(["."], "no tests to run; name them after `--`", id="nothing-to-run"),
        pytest.param([".", "--", "evals", "--model=x"], "--model=x is set by watch for each checkpoint", id="model"),
        pytest.param([".", "--idle", "0"], "must be seconds above 0", id="no-time"),
    ],
)
def test_what_cannot_be_watched_says_why(arguments: list[str], message: str, refused: Command) -> None:
    assert message in refused("watch", *arguments)
