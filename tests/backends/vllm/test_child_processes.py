"""Whose processes an engine ends, without vLLM. With it: test_processes.py. Run: pytest tests/backends/vllm/test_child_processes.py"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from evalharness.backends.vllm.processes import ChildProcesses

pytestmark = pytest.mark.slow

START_S = 120
# A process that starts another one when it is told to; both would go on for long.
PARENT = (
    "import subprocess, sys; sys.stdin.readline(); subprocess.Popen(['sleep', '600']); print('started', flush=True); sys.stdin.readline()"
)


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts processes that are ended with the test."""
    started: list[subprocess.Popen[str]] = []

    def run(*command: str) -> subprocess.Popen[str]:
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate(timeout=START_S)


def is_alive(process: subprocess.Popen[str]) -> bool:
    return process.poll() is None


def has_ended(process: psutil.Process) -> bool:
    """Return whether a process of somebody else has ended; it may be taken away, whoever has to, while it is looked at."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_what_an_engine_started_is_ended(start: Callable[..., subprocess.Popen[str]]) -> None:
    children = ChildProcesses()
    engine = start("sleep", "600")
    children.look()
    assert children.end(grace_s=0) == 1
    assert not is_alive(engine)


@pytest.mark.parametrize("when", ["before", "while it lives"])
def test_what_others_started_is_left_alone(start: Callable[..., subprocess.Popen[str]], when: str) -> None:
    foreign = start("sleep", "600") if when == "before" else None
    children = ChildProcesses()
    engine = start("sleep", "600")
    children.look()
    foreign = foreign or start("sleep", "600")
    assert children.end(grace_s=0) == 1
    assert not is_alive(engine)
    assert is_alive(foreign)


def test_what_an_engine_starts_later_is_ended_too(start: Callable[..., subprocess.Popen[str]]) -> None:
    children = ChildProcesses()
    engine = start(sys.executable, "-c", PARENT)
    children.look()
    assert engine.stdin is not None
    assert engine.stdout is not None
    engine.stdin.write("now\n")
    engine.stdin.flush()
    assert engine.stdout.readline() == "started\n"
    (below,) = psutil.Process(engine.pid).children()
    assert children.end(grace_s=0) == 2
    assert not is_alive(engine)
    deadline = time.monotonic() + START_S
    while not has_ended(below):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_an_engine_that_has_ended_needs_no_ending(start: Callable[..., subprocess.Popen[str]]) -> None:
    children = ChildProcesses()
    engine = start("true")
    children.look()
    engine.wait(timeout=START_S)
    foreign = start("sleep", "600")
    assert children.end(grace_s=0) == 0
    assert is_alive(foreign)
