"""Workers killed with SIGKILL at twenty random moments: each run ends by itself with the rows of one that nobody disturbed."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.pytest_plugin.killing import CASES, CONFTEST, EVALS, NUM_CASES, content, workers_of
from tests.pytest_plugin.project import HEADER, Project, Run

NUM_KILLS = 20
STARTING_S = 0.7
KILLS_PER_RUN = 2
ARGUMENTS = ("--max-worker-restart=20",)
# What the kills of a clock do only now and then: both meet one case at work.
KILLED_TWICE = """
import os, signal

def meet(name):
    try:
        os.close(os.open(name, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)

def slow_and_killed(self, prompt, plugins):
    if "PYTEST_XDIST_WORKER" in os.environ and "ask c11 again" in prompt.text:
        meet("first"), meet("second")
    return slow(self, prompt, plugins)

FakeBackend._complete = slow_and_killed
"""


def disturbed(project: Project, run_id: str, draw: random.Random, span_s: float) -> tuple[Run, int]:
    """Return a run with workers killed at random moments, and how many were."""
    with project.start("--run-id", run_id, *ARGUMENTS, mode="n2") as process:
        started, num_killed = time.monotonic(), 0
        for moment in sorted(draw.uniform(STARTING_S, span_s) for _ in range(KILLS_PER_RUN)):
            time.sleep(max(0.0, started + moment - time.monotonic()))
            while not (workers := workers_of(process.pid, with_engine=num_killed > 0)) and process.poll() is None:
                time.sleep(0.02)
            if workers:
                draw.choice(workers).kill()
                num_killed += 1
        return project.wait(process, run_id=run_id), num_killed


def made_whole(project: Project, run: Run, run_id: str, num_killed: int) -> Run:
    """Return the run, resumed where both kills met one case at work: that is what a culprit looks like, and its rows say so."""
    blamed = [row for row in run.rows if row["outcome"] == "error"]
    if not blamed or num_killed < KILLS_PER_RUN:
        return run
    assert len({row["case_id"] for row in blamed}) == 1
    assert all("and another one had before" in row["problem"] for row in blamed)
    return project.run("--resume", run_id, mode="n2")


def check(run: Run, calm: Run) -> None:
    """Assert that a disturbed run lost nothing, made nothing twice and hid nothing."""
    assert content(run) == content(calm)
    assert len({row["nodeid"] for row in run.rows}) == len(run.rows)
    made = Counter((line["engine"], line["eval"], line["case_id"], line["sample"]) for line in generated(run))
    assert set(made.values()) == {1}, "what is in a journal is not generated again"
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


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_twenty_random_kills_change_no_row(project: Project, calm: Run) -> None:
    draw = random.Random(20)
    kills, number = 0, 0
    while kills < NUM_KILLS:
        number += 1
        run, num_killed = disturbed(project, f"r{number}", draw, calm.duration_s)
        kills += num_killed
        assert (run.run_dir / "samples.jsonl").exists(), run.output
        check(made_whole(project, run, run.run_dir.name, num_killed), calm)


def test_two_kills_that_meet_one_case_change_no_row_of_the_resumed_run(project: Project, calm: Run) -> None:
    project.write(conftest=CONFTEST + KILLED_TWICE)
    run = project.run("--run-id", "r", *ARGUMENTS, mode="n2")
    assert {row["case_id"] for row in run.rows if row["outcome"] == "error"} == {"c11"}
    resumed = made_whole(project, run, "r", KILLS_PER_RUN)
    assert resumed is not run
    check(resumed, calm)


def generated(run: Run) -> list[dict[str, Any]]:
    """Return the generations that the journals have, those apart that were taken over, and a line that was cut by a kill."""
    lines = []
    for path in (run.run_dir / "journal").glob("gw*.jsonl"):
        whole = [line for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
        lines += [line for line in map(json.loads, whole) if line["kind"] == "generation" and not line.get("copied")]
    return lines
