"""Processes killed with SIGKILL at random moments, then resumed by another number of workers: the rows of an undisturbed run."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.pytest_plugin.killing import CASES, CONFTEST, EVALS, NUM_CASES, content, generations, has_begun, kill_one, num_lines, workers_of
from tests.pytest_plugin.project import HEADER, TIMEOUT_S, Project, Run, environment, wait_until

pytestmark = pytest.mark.slow

OTHER_MODE = {"no-xdist": "n2", "n2": "no-xdist"}
ARGUMENTS = {"no-xdist": (), "n2": ("--max-worker-restart=0",)}
MAX_SESSIONS = 6
NUM_KILLS = 3
LINE_S = 0.02
"""About as long as a line of a journal takes."""
HELD = """
import os

def pytest_runtest_setup():
    while os.path.exists("held"):
        time.sleep(0.01)
"""
CHECKPOINT = Path(__file__).parents[2] / "fixtures" / "checkpoints" / "final"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    modules = {name: HEADER + CASES + text for name, text in EVALS.items()}
    return Project(tmp_path_factory.mktemp("resumed") / "project").write(conftest=CONFTEST + HELD, **modules)


@pytest.fixture(scope="module")
def calm(project: Project) -> Run:
    return project.run("--run-id", "calm", mode="n2")


def kill(process: subprocess.Popen[str], victim: str, draw: random.Random) -> None:
    """Kill what runs: the single process or the controller, or one of its workers."""
    if victim != "worker" or not kill_one(workers_of(process.pid), draw):
        process.kill()


def wait_for_a_moment(process: subprocess.Popen[str], run_dir: Path, draw: random.Random, num_calm: int) -> None:
    """Return at a random moment: while the process starts, or after so many lines of this session."""
    before, moment = num_lines(run_dir), draw.randrange(-num_calm // 4, num_calm)
    if moment < 0:
        time.sleep(draw.uniform(0.3, 1.0))
    while num_lines(run_dir) - before < moment and process.poll() is None:
        time.sleep(LINE_S / 4)
    time.sleep(draw.uniform(0.0, LINE_S))


def disturbed(project: Project, run_id: str, mode: str, victim: str, draw: random.Random, calm: Run) -> tuple[Run, int]:
    """Return a run that was killed and resumed until a session came to its end, and how many sessions it took."""
    run_dir = project.root / "reports" / run_id
    began, num_calm = False, num_lines(calm.run_dir)
    for number in range(MAX_SESSIONS):
        start = ("--resume", run_id) if began else ("--run-id", run_id)
        with project.start(*start, *ARGUMENTS[mode], mode=mode) as process:
            if number < MAX_SESSIONS - 2:
                wait_for_a_moment(process, run_dir, draw, num_calm)
                kill(process, victim, draw)
            output, _ = process.communicate(timeout=TIMEOUT_S)
        if not began and not has_begun(run_dir):
            shutil.rmtree(run_dir, ignore_errors=True)
            continue
        began = True
        run = Run(process.returncode, output, 0.0, project.root, run_id)
        if process.returncode == 0 and set(run.counts) <= {"pass", "miss"}:
            return run, number + 1
        mode = OTHER_MODE[mode]
    raise AssertionError(f"no session came to its end: {output}")


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("mode", "victim"), [("no-xdist", "main"), ("n2", "controller"), ("n2", "worker")])
def test_a_killed_and_resumed_run_has_the_rows_of_one_that_nobody_disturbed(project: Project, calm: Run, mode: str, victim: str) -> None:
    draw = random.Random(f"{mode} {victim}")
    num_kills, number = 0, 0
    while num_kills < NUM_KILLS:
        number += 1
        run, num_sessions = disturbed(project, f"{mode}-{victim}-{number}", mode, victim, draw, calm)
        num_kills += num_sessions - 1
        assert content(run) == content(calm), f"run {number}"
        assert len({row["nodeid"] for row in run.rows}) == len(run.rows) == 4 * NUM_CASES
        counts = generations(run.run_dir)
        assert set(counts.values()) == {1}, "what is in a journal is not generated again"
        assert counts.keys() == generations(calm.run_dir).keys(), "nothing is lost"


def test_two_runs_at_once_in_one_folder_never_touch_each_other(project: Project, calm: Run) -> None:
    with project.start("--run-id", "one") as first, project.start("--run-id", "two", mode="n2") as second:
        runs = [project.wait(first, run_id="one"), project.wait(second, run_id="two")]
    for run in runs:
        assert run.exit_code == 0, run.output
        assert content(run) == content(calm)
        assert {row["run_id"] for row in run.rows} == {run.run_id}
        assert set(generations(run.run_dir).values()) == {1}


def test_of_two_sessions_that_resume_one_run_at_once_one_is_refused(project: Project, calm: Run) -> None:
    with project.start("--run-id", "both", mode="n2") as process:
        wait_until(lambda: bool(list(project.root.glob("reports/both/journal/gw*.jsonl"))))
        process.kill()
        (project.root / "held").touch()  # whoever goes on ends after the other one was refused
        with project.start("--resume", "both") as first, project.start("--resume", "both", mode="n2") as second:
            wait_until(lambda: first.poll() is not None or second.poll() is not None)
            (project.root / "held").unlink()
            runs = [project.wait(one, run_id="both") for one in (first, second)]
    assert sorted(run.exit_code for run in runs) == [0, 4], [run.output for run in runs]
    assert any("is still running, or another process resumes it" in run.output for run in runs)
    assert content(runs[0]) == content(calm)
    assert set(generations(runs[0].run_dir).values()) == {1}


def has_row(journal: Path) -> bool:
    return journal.exists() and b'{"kind":"row"' in journal.read_bytes()


def test_the_command_line_tool_reports_a_resumed_run_that_was_killed_too(project: Project, calm: Run) -> None:
    for start, name in (("--run-id", "main"), ("--resume", "resumed-001-main")):
        journal = project.root / "reports" / "reported" / "journal" / f"{name}.jsonl"
        with project.start(start, "reported") as process:
            wait_until(partial(has_row, journal))
            process.kill()
            process.wait()
    command = [sys.executable, "-m", "evalharness", "report", "reports/reported"]
    done = subprocess.run(command, cwd=project.root, env=environment(), capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    assert project.run("--resume", "reported").exit_code == 0
    assert content(Run(0, "", 0.0, project.root, "reported")) == content(calm)


HF = """
import pytest
from evalharness import Case, GenerationOptions, TextGenerationRequest

def ask(case):
    return TextGenerationRequest([{"role": "user", "content": f"ask {case.id} {case.id}"}])

pytestmark = pytest.mark.eval(
    cases=lambda d: [Case(id=f"c{i}") for i in range(4)],
    request=ask,
    num_samples=2,
    options=GenerationOptions(max_new_tokens=NUM_TOKENS, temperature=0.8, logprobs=True),
)

def test_s(case, generations):
    assert len(generations) == 2
"""


# The first session stops after the first eval's answers, until it is killed.
STOPPED = """
import os, time

if not os.path.exists("free"):
    from evalharness.backends.hf.backend import HfBackend

    generate = HfBackend.generate

    def stopped(self, prompts, **more):
        for number, output in enumerate(generate(self, prompts, **more), 1):
            yield output
            while number == 8:
                time.sleep(0.1)

    HfBackend.generate = stopped
"""


def apart_from_logprobs(run: Run) -> tuple[list[dict[str, Any]], list[float]]:
    rows = content(run)
    made = [one for row in rows for one in (row["generation"], *row["generations"])]
    return rows, [value for one in made for value in one.pop("logprobs")]


@pytest.mark.engine
def test_a_killed_run_of_a_real_model_is_resumed_by_workers_token_by_token(tmp_path: Path) -> None:
    # Three evals go to the engine in one call; other lengths are other batches, so that the first ends well before the last.
    evals = {f"test_{name}": HF.replace("NUM_TOKENS", str(num_tokens)) for name, num_tokens in (("a", 24), ("b", 25), ("c", 26))}
    project = Project(tmp_path / "project").write(conftest=STOPPED, **evals)
    arguments = (f"--model={CHECKPOINT}", "--dtype=float32", "--device=cpu")
    with project.start("--run-id", "r", *arguments, backend="hf") as process:
        wait_until(lambda: len(generations(project.root / "reports" / "r")) == 8 or process.poll() is not None)
        process.kill()
    before = generations(project.root / "reports" / "r")
    assert len(before) == 8
    (project.root / "free").touch()
    resumed = project.run("--resume", "r", arguments[0], mode="n2", backend=None)
    calm = project.run("--run-id", "calm", *arguments, backend="hf")
    assert resumed.exit_code == 0, resumed.output
    assert "leaked" not in calm.output, "libraries take for leaks what is kept from the garbage collector at exit"
    run = Run(0, "", 0.0, project.root, "r")
    (rows, logprobs), (calm_rows, calm_logprobs) = apart_from_logprobs(run), apart_from_logprobs(calm)
    assert rows == calm_rows, "token ids too"
    assert logprobs == pytest.approx(calm_logprobs, abs=1e-4), "kernels round by batch and threads, which are others"
    counts = generations(run.run_dir)
    assert set(counts.values()) == {1}
    assert counts.keys() == generations(calm.run_dir).keys() > before.keys()
