"""What a run says while it runs: one live line on a terminal, a line now and then in a pipe."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import time

import pytest

from tests.pytest_plugin.project import MARK, MODES, TIMEOUT_S, Project, environment

pytestmark = pytest.mark.slow

# Each test takes as many more seconds by the clock of the progress line, however quick or slow the machine is.
CLOCK = """
import time
from types import SimpleNamespace
from evalharness.pytest_plugin import reporting

ended, later = reporting.Progress.test_ended, SimpleNamespace(s=0.0)

def ends_later(self, *what):
    later.s += TEST_S
    ended(self, *what)

reporting.Progress.test_ended = ends_later
reporting.time = SimpleNamespace(monotonic=lambda: CLOCK() + later.s)
"""
TEST = "@pytest.mark.gate('pass_rate >= 0')\ndef test_s(case, generation): assert case.id != 'c1', 'x'\n"


def run_on_terminal(project: Project, *arguments: str, mode: str) -> str:
    """Return everything that a run wrote to a terminal 100 columns wide."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        project.command(*arguments, mode=mode), cwd=project.root, env=environment(COLUMNS="100", TERM="xterm"), stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    written = b""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            written += os.read(ours, 65536)
        except OSError:  # the other end was closed: the process has ended
            break
    process.kill()
    process.wait()
    os.close(ours)
    return written.decode("utf-8")


@pytest.mark.parametrize("mode", MODES[::2])
def test_a_terminal_shows_one_live_line_with_cases_speed_and_time_left(project: Project, mode: str) -> None:
    clock = CLOCK.replace("TEST_S", "1.0").replace("CLOCK", "time.monotonic")
    project.write(conftest=clock, test_a=MARK.replace("range(4)", "range(20)") + TEST)
    shown = run_on_terminal(project, "--model", project.script({"text": "x" * 50, "delay_s": 0.06}), mode=mode)
    lines = re.findall(r"evalharness: (\d+)/20 tests, (?:\d+ generated, )?[\d,]+ tokens/s(, about \d+ s left)?", shown)
    assert len(lines) >= 2
    assert any(left for _, left in lines)
    assert "test_a.py ...." not in shown, "pytest's dots would break the line"
    last = shown[shown.rindex("/20 tests") :]
    assert "\r" in last.partition("= evalharness =")[0], "the line is taken away before the summary"


@pytest.mark.parametrize("mode", MODES[::2])
def test_tokens_of_a_generation_that_tests_share_count_once(project: Project, mode: str) -> None:
    conftest = """
from evalharness.pytest_plugin.reporting import REPORTING
def pytest_sessionfinish(session):
    progress = session.config.stash[REPORTING].progress
    if progress is not None:
        print("tokens told:", progress._num_tokens)
"""
    tests = "".join(f"def test_{name}(case, generation): pass\n" for name in "stu")
    project.write(conftest=conftest, test_a=MARK + tests)
    run = project.run("-s", "--model", project.script({"text": "x" * 9}), mode=mode)
    made = sum(line["generation"]["num_completion_tokens"] for line in run.journal if line["kind"] == "generation")
    assert f"tokens told: {made}\n" in run.output


def test_verbose_on_a_terminal_keeps_pytests_own_lines(project: Project) -> None:
    project.write(test_a=MARK + TEST)
    shown = run_on_terminal(project, "-v", mode="no-xdist")
    assert re.search(r"test_a.py::test_s\[fake:echo-c0\] .*PASSED", shown)
    assert "tokens/s" not in shown


def test_a_pipe_gets_pytests_dots_and_no_control_character(project: Project) -> None:
    run = project.write(test_a=MARK + TEST).run_inline()
    assert re.search(r"^test_a.py \.m\.\. ", run.output, re.MULTILINE)
    assert "\r" not in run.output
    assert "\x1b" not in run.output
    assert "tokens/s" not in run.output


def test_a_long_run_in_a_pipe_says_how_far_it_is_now_and_then(project: Project) -> None:
    clock = CLOCK.replace("TEST_S", "10.0").replace("CLOCK", "0.0.__abs__")
    project.write(conftest=clock, test_a=MARK.replace("range(4)", "range(8)") + TEST)
    run = project.run(apart=True)
    lines = [line for line in run.output.splitlines() if re.match(r"evalharness: \d/8 tests, ", line)]
    assert len(lines) == 2, "every half a minute"
    assert lines[0].startswith("evalharness: 3/8 tests, ")
    assert lines[0].endswith(", about 50 s left, 1 not passed")
    assert lines[1].startswith("evalharness: 6/8 tests, ")
