"""Ctrl-C while an engine starts, without vLLM: what is interrupted here behaves as vLLM does. With it: test_processes.py."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time

import pytest

pytestmark = pytest.mark.slow

psutil = pytest.importorskip("psutil")

WAIT_S = 120
PROLOGUE = """
import contextlib, signal, subprocess, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from evalharness.backends.vllm import processes
from evalharness.backends.vllm.processes import ChildProcesses, interrupts_get_through

processes.REMIND_S = {remind_s}

signal.signal(signal.SIGINT, signal.default_int_handler)
engine = None

def start():
    global engine
    engine = subprocess.Popen(["sleep", "600"])
    print(engine.pid, flush=True)

def wait_for_engine():
    while engine.poll() is None:
        time.sleep(0.05)
    raise RuntimeError("the engine has ended")

children = ChildProcesses()
try:
    with interrupts_get_through(children):
        start()
{body}
except KeyboardInterrupt:
    print("interrupted", flush=True)
print("end", engine.poll(), flush=True)
"""


def run_and_interrupt(body: str, num_interrupts: int = 1, remind_s: float = 10 * WAIT_S) -> list[str]:
    """Return what the script said after its Ctrl-C; each but the first comes when the engine has been ended for the one before."""
    script = PROLOGUE.format(body=textwrap.indent(textwrap.dedent(body), " " * 8), remind_s=remind_s)
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        engine = psutil.Process(int(process.stdout.readline()))
        time.sleep(0.3)
        for _ in range(num_interrupts):
            process.send_signal(signal.SIGINT)
            deadline = time.monotonic() + WAIT_S
            while engine.is_running() and engine.status() != psutil.STATUS_ZOMBIE:
                assert time.monotonic() < deadline
                time.sleep(0.02)
        said = process.communicate(timeout=WAIT_S)[0].split("\n")[:-1]
        assert process.returncode == 0
        return said
    finally:
        process.kill()
        process.wait()


def test_the_engine_is_ended_and_nothing_is_raised_in_the_middle_of_things() -> None:
    body = """
    try:
        wait_for_engine()
    except BaseException as error:
        print(type(error).__name__, flush=True)
        raise
    """
    said = run_and_interrupt(body)
    assert said == ["RuntimeError", "interrupted", "end -9"]


def test_the_process_ends_although_a_pool_of_threads_was_being_made() -> None:
    body = """
    pools = []
    while engine.poll() is None:
        pools.append(ThreadPoolExecutor(1))
        pools[-1].submit(int).result()
    raise RuntimeError("the engine has ended")
    """
    said = run_and_interrupt(body)
    assert said == ["interrupted", "end -9"]


def test_a_start_that_succeeds_all_the_same_is_an_interrupted_one() -> None:
    said = run_and_interrupt("while engine.poll() is None: time.sleep(0.05)")
    assert said[0] == "interrupted"


def test_a_start_that_does_not_notice_its_dead_engine_is_ended_by_an_exception() -> None:
    said = run_and_interrupt("time.sleep(600)", remind_s=1.0)
    assert said == ["interrupted", "end -9"]


def test_an_exception_that_got_lost_is_raised_again() -> None:
    body = """
    lost = []
    while True:
        try:
            time.sleep(600)
        except BaseException as error:
            lost.append(type(error).__name__)
            if len(lost) > 1:
                raise
    """
    said = run_and_interrupt(body, remind_s=1.0)
    assert said == ["interrupted", "end -9"]


def test_a_second_ctrl_c_raises_at_once() -> None:
    body = """
    try:
        time.sleep(600)
    finally:
        print("raised", flush=True)
    """
    said = run_and_interrupt(body, num_interrupts=2)
    assert said[:2] == ["raised", "interrupted"]
