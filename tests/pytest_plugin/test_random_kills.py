"""Workers killed with SIGKILL at random moments: each run ends by itself with the rows of one that nobody disturbed."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tests.pytest_plugin.killing import CASES, CONFTEST, EVALS, NUM_CASES, content, generations, kill_one, num_lines, workers_of
from tests.pytest_plugin.project import HEADER, Project, Run

pytestmark = pytest.mark.slow

NUM_KILLS = 8
KILLS_PER_RUN = 2
LINE_S = 0.02
"""About as long as a line of a journal takes."""
ARGUMENTS = ("--max-worker-restart=20",)
# What kills at random do only now and then: both meet one case at work, or one test.
MEETING = """
import os, pytest, signal

def meet(name):
    try:
        os.close(os.open(name, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)

"""
KILLED_TWICE = {
    "case": """
def slow_and_killed(self, prompt, plugins, *_):
    if "PYTEST_XDIST_WORKER" in os.environ and "ask c11 again" in prompt.text:
        meet("first"), meet("second")
    return slow(self, prompt, plugins)

FakeBackend._complete = slow_and_killed
""",
    # The first time once nothing is asked any more: else it would be the case that is suspected.
    "test": """
@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item):
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker and item.nodeid == "test_plain.py::test_two[fake:echo-c11]":
        while not os.path.exists("first") and any(name.startswith(f"{worker}.") for name in asked()):
            time.sleep(0.01)
        meet("first"), meet("second")

def asked():
    return [name for name in os.listdir("reports/r/journal") if name.endswith(".asked")]
""",
}
BLAMED = "and another one had before", "; it was tried 2 times"


def disturbed(project: Project, run_id: str, draw: random.Random, calm: Run) -> tuple[Run, int]:
    """Return a run with workers killed at random moments of its progress, and how many were."""
    moments = sorted(draw.randrange(num_lines(calm.run_dir)) for _ in range(KILLS_PER_RUN))
    run_dir, num_killed = project.root / "reports" / run_id, 0
    with project.start("--run-id", run_id, *ARGUMENTS, mode="n2") as process:
        for moment in moments:
            while num_lines(run_dir) < moment and process.poll() is None:
                time.sleep(LINE_S / 4)
            time.sleep(draw.uniform(0.0, LINE_S))
            while not (workers := workers_of(process.pid, with_engine=num_killed > 0)) and process.poll() is None:
                time.sleep(LINE_S / 4)
            num_killed += kill_one(workers, draw)
        return project.wait(process, run_id=run_id), num_killed


def made_whole(project: Project, run: Run, run_id: str, num_killed: int) -> Run:
    """Return the run, resumed where both kills met one case or one test: that is what a culprit looks like, and its rows say so."""
    blamed = [row for row in run.rows if row["outcome"] == "error"]
    if not blamed or num_killed < KILLS_PER_RUN:
        return run
    assert len({row["case_id"] for row in blamed}) == 1
    assert all(any(sign in row["problem"] for sign in BLAMED) for row in blamed), blamed
    return project.run("--resume", run_id, mode="n2")


def check(run: Run, calm: Run) -> None:
    """Assert that a disturbed run lost nothing, made nothing twice and hid nothing."""
    assert content(run) == content(calm)
    assert len({row["nodeid"] for row in run.rows}) == len(run.rows)
    made = generations(run.run_dir)
    assert set(made.values()) == {1}, "what is in a journal is not generated again"
    assert made.keys() == generations(calm.run_dir).keys(), "nothing is lost"
    assert bool(run.facts["problems"]) == (run.exit_code == 10)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project").write(conftest=CONFTEST, **{name: HEADER + CASES + text for name, text in EVALS.items()})


@pytest.fixture
def calm(project: Project) -> Run:
    """A run that nobody disturbed."""
    run = project.run("--run-id", "calm", *ARGUMENTS, mode="n2")
    assert run.counts == {"pass": 4 * NUM_CASES - 2, "miss": 2}
    return run


@pytest.mark.timeout(900)
def test_random_kills_change_no_row(project: Project, calm: Run) -> None:
    draw = random.Random(20)
    kills, number = 0, 0
    while kills < NUM_KILLS:
        number += 1
        run, num_killed = disturbed(project, f"r{number}", draw, calm)
        kills += num_killed
        assert (run.run_dir / "samples.jsonl").exists(), run.output
        check(made_whole(project, run, run.run_dir.name, num_killed), calm)


@pytest.mark.parametrize("met", KILLED_TWICE)
def test_two_kills_that_meet_one_case_or_one_test_change_no_row_of_the_resumed_run(project: Project, calm: Run, met: str) -> None:
    project.write(conftest=CONFTEST + MEETING + KILLED_TWICE[met])
    run = project.run("--run-id", "r", *ARGUMENTS, mode="n2")
    assert {row["case_id"] for row in run.rows if row["outcome"] == "error"} == {"c11"}
    resumed = made_whole(project, run, "r", KILLS_PER_RUN)
    assert resumed is not run
    check(resumed, calm)
