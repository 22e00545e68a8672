"""Workers killed with SIGKILL at twenty random moments: each run ends by itself with the rows of one that nobody disturbed."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.pytest_plugin.project import HEADER, Project, Run

NUM_KILLS = 20
KILLS_PER_RUN = 2
STARTING_S = 0.7
NUM_CASES = 24
EVALS = {
    "test_plain": """
pytestmark = pytest.mark.eval(cases=cases, request=ask)

@pytest.mark.gate("x >= 1")
def test_one(case, generation, score, details):
    score(x=len(generation.text))
    details(text=generation.text)

@pytest.mark.gate("y >= 1")
def test_two(case, generation, score):
    score(y=1)
    assert case.id[-1] != "7"
""",
    "test_sampled": """
pytestmark = pytest.mark.eval(cases=cases, request=ask, num_samples=2, options=GenerationOptions(temperature=1.0))

def test_many(case, generations): assert len(generations) == 2
""",
    "test_stepped": """
def ask(case):
    (first,) = yield [TextGenerationRequest([{"role": "user", "content": f"ask {case.id}"}])], GenerationOptions()
    return TextGenerationRequest([{"role": "user", "content": first.text + " again"}])

pytestmark = pytest.mark.eval(cases=cases, request=ask)

def test_steps(case, generation, steps): assert generation.text == f"{steps[0][0].text} again"
""",
}
CASES = f"\ndef cases(data_dir): return [Case(id=f'c{{i:02}}') for i in range({NUM_CASES})]\n"
# Answers like the echo, but slow enough to be killed at.
CONFTEST = """
import time
from evalharness.backends.fake import FakeBackend
complete = FakeBackend._complete

def slow(self, prompt, plugins):
    time.sleep(0.01)
    return complete(self, prompt, plugins)

FakeBackend._complete = slow
"""
ARGUMENTS = ("--max-worker-restart=20",)


def workers_of(pid: int) -> list[psutil.Process]:
    """Return the live workers of a controller; not those that xdist is just starting, whose loss it takes for its own fault."""
    try:
        children = psutil.Process(pid).children()
        return [child for child in children if child.status() != psutil.STATUS_ZOMBIE and time.time() - child.create_time() > STARTING_S]
    except psutil.NoSuchProcess:
        return []


def content(run: Run) -> list[dict[str, Any]]:
    """Return the rows without what tells of clocks and processes."""
    volatile = {"run_id", "worker", "started_at", "duration_s"}
    return [{name: value for name, value in row.items() if name not in volatile} for row in run.rows]


def disturbed(project: Project, run_id: str, draw: random.Random, span_s: float) -> tuple[Run, int]:
    """Return a run with workers killed at random moments, and how many were."""
    with project.start("--run-id", run_id, *ARGUMENTS, mode="n2") as process:
        started, num_killed = time.monotonic(), 0
        for moment in sorted(draw.uniform(STARTING_S, span_s) for _ in range(KILLS_PER_RUN)):
            time.sleep(max(0.0, started + moment - time.monotonic()))
            if workers := workers_of(process.pid):
                draw.choice(workers).kill()
                num_killed += 1
        return project.wait(process, run_id=run_id), num_killed


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_twenty_random_kills_change_no_row(tmp_path: Path) -> None:
    project = Project(tmp_path / "project").write(conftest=CONFTEST, **{name: HEADER + CASES + text for name, text in EVALS.items()})
    calm = project.run("--run-id", "calm", *ARGUMENTS, mode="n2")
    assert calm.counts == {"pass": 4 * NUM_CASES - 2, "miss": 2}
    draw = random.Random(20)
    kills, number = 0, 0
    while kills < NUM_KILLS:
        number += 1
        run, num_killed = disturbed(project, f"r{number}", draw, calm.duration_s)
        kills += num_killed
        assert (run.run_dir / "samples.jsonl").exists(), run.output
        assert content(run) == content(calm), f"run {number}"
        assert len({row["nodeid"] for row in run.rows}) == len(run.rows)
        made = Counter((line["engine"], line["eval"], line["case_id"], line["sample"]) for line in generated(run))
        assert set(made.values()) == {1}, "what is in a journal is not generated again"
        assert bool(run.facts["problems"]) == (run.exit_code == 10)


def generated(run: Run) -> list[dict[str, Any]]:
    """Return the generations that the journals have, those apart that were taken over, and a line that was cut by a kill."""
    lines = []
    for path in (run.run_dir / "journal").glob("gw*.jsonl"):
        whole = [line for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
        lines += [line for line in map(json.loads, whole) if line["kind"] == "generation" and not line.get("copied")]
    return lines
