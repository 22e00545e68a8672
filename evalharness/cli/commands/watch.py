"""`evalharness watch DIR -- evals …`: evaluates each checkpoint of a training run as it appears, in a pytest of its own."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import click

from evalharness.api.errors import DONE, NOT_PASSED, CheckpointError, ConfigError
from evalharness.checkpoints.discovery import is_numbered, why_unfinished
from evalharness.checkpoints.identity import fingerprint_of, stamp_of
from evalharness.checkpoints.info import name_checkpoints, natural_key
from evalharness.cli.framework import PATH, command

_SET_BY_WATCH = ("--model", "--run-id", "--report-dir")


def seconds(text: Any) -> float:
    """Return seconds above 0; the `type` of an option."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise click.BadParameter(f"must be seconds above 0, got {text!r}")
    return value


@command(
    "watch",
    examples=[
        "evalharness watch runs/sft-42 -- evals --backend vllm",
        "evalharness watch runs/sft-42 --idle 3600 --report-dir reports/sft-42 -- evals/test_stage_a.py",
    ],
    exit_codes={DONE: "every run ended with 0", NOT_PASSED: "a run ended with another code"},
)
@click.argument("folder", type=PATH, metavar="DIR")
@click.argument("for_pytest", nargs=-1, type=click.UNPROCESSED, metavar="-- PYTEST_ARGUMENTS")
@click.option("--report-dir", type=PATH, default=Path("reports"), metavar="FOLDER", help="Folder for the runs (default: reports)")
@click.option("--interval", type=seconds, default=10.0, metavar="SECONDS", help="Seconds between two looks at DIR (default: 10)")
@click.option("--idle", type=seconds, metavar="SECONDS", help="End after this many seconds without a new checkpoint (default: never)")
def watch(folder: Path, for_pytest: Sequence[str], report_dir: Path, interval: float, idle: float | None) -> int:
    """Evaluate each checkpoint of a training run as it appears, until stopped (Ctrl-C).

    DIR is the folder that training writes its checkpoints into. Each checkpoint gets a run of its own, one at a time, in the order
    of their steps: pytest PYTEST_ARGUMENTS --model CHECKPOINT. A checkpoint with a finished run is not evaluated again.
    """
    taken = [part for part in for_pytest if part.partition("=")[0] in _SET_BY_WATCH]
    if taken:
        raise ConfigError(f"{taken[0]} is set by watch for each checkpoint; leave it out after `--`")
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder; give the folder that training writes its checkpoints into")
    if not for_pytest:
        raise ConfigError("no tests to run; name them after `--`, as for pytest: evalharness watch DIR -- evals")

    watching = Watch(folder, for_pytest, report_dir, interval, idle)
    with watching.stopped_by_signals():
        watching.run()
    return NOT_PASSED if watching.num_failed else DONE


@dataclass
class Watch:
    """Watches one folder; `num_failed` counts the runs that ended with another code than 0."""

    _folder: Path
    _for_pytest: Sequence[str]
    _report_dir: Path
    _interval_s: float
    _idle_s: float | None
    num_failed: int = 0
    _seen: set[tuple[Path, str]] = field(default_factory=set)
    _stamps: dict[Path, str] = field(default_factory=dict)
    """Of what was seen: it need not be read again, which takes minutes where checkpoints are large."""
    _printed: set[tuple[Path, str]] = field(default_factory=set)
    _stop: threading.Event = field(default_factory=threading.Event)
    _child: subprocess.Popen[bytes] | None = None

    @contextmanager
    def stopped_by_signals(self) -> Iterator[None]:
        """Let SIGINT and SIGTERM end the watch, once the running pytest, which gets each as Ctrl-C, has ended."""
        numbers = (signal.SIGINT, signal.SIGTERM)
        previous = [signal.signal(number, self._on_signal) for number in numbers]
        try:
            yield
        finally:
            for number, handler in zip(numbers, previous, strict=True):
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._stop.set()
        child = self._child
        if child is not None and child.poll() is None:
            child.send_signal(signal.SIGINT)

    def run(self) -> None:
        """Look, evaluate, and look again."""
        _say(f"watching {self._folder}, stop with Ctrl-C")
        last_new = time.monotonic()
        while not self._stop.is_set():
            checkpoint = self._next()
            if checkpoint is not None:
                self._evaluate(*checkpoint)
                last_new = time.monotonic()
                continue
            if self._idle_s is not None and time.monotonic() - last_new >= self._idle_s:
                _say(f"no new checkpoint for {self._idle_s:g} s")
                return
            self._stop.wait(self._interval_s)
        _say("stopped")

    def _next(self) -> tuple[Path, str] | None:
        """Return the first checkpoint, by step, that has no finished run, with its fingerprint."""
        for folder in _candidates(self._folder):
            why = why_unfinished(folder)
            if why is not None:
                self._tell(folder, f"waiting for {folder.name}: {why}")
                continue
            try:
                stamp = stamp_of(folder)
                if self._stamps.get(folder) == stamp:
                    continue
                fingerprint = fingerprint_of(folder)
            except CheckpointError as error:
                self._tell(folder, f"leaving out {folder.name}: {error}")
                continue
            self._stamps[folder] = stamp
            if (folder, fingerprint) not in self._seen:
                self._seen.add((folder, fingerprint))
                finished = _finished_run(self._report_dir, _run_id(folder, fingerprint))
                if finished is None:
                    return folder, fingerprint
                self._tell(folder, f"{folder.name} was evaluated already: {finished}")
        return None

    def _tell(self, folder: Path, text: str) -> None:
        if (folder, text) not in self._printed:
            self._printed.add((folder, text))
            _say(text)

    def _evaluate(self, folder: Path, fingerprint: str) -> None:
        run_id = _runs(self._report_dir, _run_id(folder, fingerprint))[-1].name
        arguments = [f"--model={folder}", f"--run-id={run_id}", f"--report-dir={self._report_dir}"]
        _say(f"evaluating {folder.name}, run {run_id}")
        # In a session of its own, so that Ctrl-C at the terminal reaches it once, from here.
        self._child = subprocess.Popen(
            [sys.executable, "-m", "pytest", *self._for_pytest, *arguments], stdin=subprocess.DEVNULL, start_new_session=True
        )
        if self._stop.is_set():
            self._child.send_signal(signal.SIGINT)
        code = self._child.wait()
        self._child = None
        self.num_failed += code != 0
        _say(f"{folder.name} ended with exit code {code}")


def _candidates(folder: Path) -> Sequence[Path]:
    """Return the subfolders that are, or will be, checkpoints, by step."""
    folders = [
        entry
        for entry in folder.iterdir()
        if entry.is_dir() and (is_numbered(entry) or (entry / "config.json").is_file() or (entry / "adapter_config.json").is_file())
    ]
    return sorted(folders, key=natural_key)


def _run_id(folder: Path, fingerprint: str) -> str:
    return f"watch-{name_checkpoints([folder])[0][:60]}-{fingerprint[:8]}"


def _runs(report_dir: Path, run_id: str) -> list[Path]:
    """Return the folders of a checkpoint's runs, and last the first that is free."""
    folders = [report_dir / run_id]
    while folders[-1].exists():
        folders.append(report_dir / f"{run_id}-{len(folders) + 1}")
    return folders


def _finished_run(report_dir: Path, run_id: str) -> Path | None:
    """Return the folder of the checkpoint's first complete run; None if there is none."""
    for folder in _runs(report_dir, run_id):
        with suppress(OSError, ValueError):
            run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
            if isinstance(run, dict) and run.get("finished_at") is not None and run.get("interrupted") is None:
                return folder
    return None


def _say(text: str) -> None:
    print(f"evalharness watch: {text}", flush=True)
