"""Real workers on scripted checkpoints that take time to load: how often they load, and what run.json and report.md say."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest

from tests.pytest_plugin.project import HEADER, TIMEOUT_S, Project

pytestmark = pytest.mark.slow

NUM_CHECKPOINTS = 5
NUM_CASES = 16
LOAD_S = 0.1
CONFTEST = f"""
import time
from evalharness.backends.fake import FakeBackend
start = FakeBackend.__init__

def slow(self, config, preprocess):
    time.sleep({LOAD_S})
    start(self, config, preprocess)

FakeBackend.__init__ = slow
"""
EVAL = (
    HEADER
    + f"""
pytestmark = pytest.mark.eval(cases=lambda d: [Case(id=f"c{{i:02}}") for i in range({NUM_CASES})], request=ask)
def test_s(case, generation): pass
"""
)
# Each worker begins its next test when the other one is as far: both are equally quick on a machine of any speed.
IN_STEP = EVAL.replace(
    "def test_s(case, generation): pass",
    f"""
import time

def num_begun(worker):
    return os.path.getsize(worker) if os.path.exists(worker) else 0

def test_s(case, generation):
    own = os.environ["PYTEST_XDIST_WORKER"]
    with open(own, "a") as file:
        file.write(".")
    until = time.monotonic() + {TIMEOUT_S / 8}
    while num_begun({{"gw0": "gw1", "gw1": "gw0"}}[own]) < num_begun(own) - 1 and time.monotonic() < until:
        time.sleep(0.01)
""",
)


def scripts(project: Project, delays: list[float]) -> list[str]:
    """Write one file of answers per checkpoint, and return the --model options that name them."""
    for number, delay_s in enumerate(delays):
        (project.root / f"ckpt{number}.jsonl").write_text(json.dumps({"text": "x", "delay_s": delay_s}) + "\n")
    return [f"--model=ckpt{number}.jsonl" for number in range(len(delays))]


def test_five_equal_checkpoints_on_two_equal_workers(project: Project) -> None:
    project.write(conftest=CONFTEST, test_a=IN_STEP)
    run = project.run(*scripts(project, [0.01] * NUM_CHECKPOINTS), mode="n2")
    assert run.counts == {"pass": NUM_CHECKPOINTS * NUM_CASES}
    workers = run.facts["workers"]
    assert sum(entry["num_loads"] + entry["num_swaps"] for entry in workers) == NUM_CHECKPOINTS + 1, "one is shared by both"
    assert [(entry["worker"], entry["num_units"]) for entry in workers] == [("gw0", 5), ("gw1", 5)], "none idles while there is work"
    assert Counter(row["worker"] for row in run.rows) == {"gw0": len(run.rows) / 2, "gw1": len(run.rows) / 2}
    assert all(0 <= entry["idle_share"] < 1 for entry in workers)
    num_workers = Counter(len({row["worker"] for row in run.rows if row["checkpoint"] == f"ckpt{n}"}) for n in range(NUM_CHECKPOINTS))
    assert num_workers == {1: NUM_CHECKPOINTS - 1, 2: 1}
    section = (run.run_dir / "report.md").read_text("utf-8").partition("## Workers")[2]
    assert re.search(r"\| gw0 +\|.*\| gw1 +\|", section, re.DOTALL)


def test_the_next_run_begins_with_what_took_long_in_this_one(project: Project) -> None:
    project.write(conftest=CONFTEST, test_a=EVAL)
    models = scripts(project, [0.0, 0.0, 0.0, 0.3])
    first = project.run(*models, "--run-id", "first", mode="n2")
    slow = next(entry for entry in first.facts["durations"] if entry["engine"] == "fake:ckpt3")
    assert slow["num_outcomes"] == NUM_CASES
    assert slow["generation_s"] >= NUM_CASES * 0.3
    scripts(project, [0.0] * 4)
    second = project.run(*models, "--run-id", "second", mode="n2")
    opened = {}
    for path in (second.run_dir / "journal").glob("gw*.jsonl"):
        lines = map(json.loads, path.read_text().splitlines())
        opened[path.stem] = [line["id"] for line in lines if line["kind"] == "engine_start"]
    assert "fake:ckpt3" in (opened["gw0"][0], opened["gw1"][0])
