"""vLLM's engine process killed with SIGKILL in the middle of a run: what is missing is error rows, and --resume makes it good.

One moment here, for a start of vLLM takes half a minute; `python -m benchmarks.fault_campaign --backend vllm --victims engine` kills at
as many random ones as it is told to.
"""

from __future__ import annotations

import contextlib
import random
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from evalharness.api.errors import BROKEN, BackendError
from evalharness.engine.engine import Engine
from evalharness.pytest_plugin.execution import engines as engine_loading
from tests.backends.vllm.test_child_processes import has_ended
from tests.backends.vllm_models import chat, prompt_of
from tests.pytest_plugin.killing import content, generations
from tests.pytest_plugin.project import HEADER, Project, Run, wait_until

NUM_CASES = 240
SEED = 5
EVAL = f"""
pytestmark = pytest.mark.eval(
    cases=lambda d: [Case(id=f"c{{i:03}}") for i in range({NUM_CASES})], request=ask, options=GenerationOptions(max_new_tokens=48)
)

@pytest.mark.gate("n >= 0")
def test_s(case, generation, score): score(n=len(generation.text))
"""


@pytest.mark.vllm
@pytest.mark.kills_engine
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_whose_engine_was_killed_is_resumed_to_the_rows_of_an_undisturbed_one(
    tmp_path: Path, tiny_vlm_checkpoint: Path, vllm_vlm_backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last test that takes this engine, which it kills; a run's own engine, in one process, goes on where that ended."""
    project = Project(tmp_path / "project").write(test_a=HEADER + EVAL)
    options = (f"--model={tiny_vlm_checkpoint}", "--dtype=float32", "--distributed-executor-backend=uni")
    wanted = random.Random(SEED).randrange(1, NUM_CASES // 4)
    print(f"seed {SEED}: killed after {wanted} generations")
    processes = {process for process in vllm_vlm_backend._engine._children._started if process.name().startswith("VLLM::")}
    with pytest.MonkeyPatch.context() as patch:
        # Few at once: all at once would end together, so that on a busy machine the kill came after the last.
        patch.setattr(vllm_vlm_backend, "_window", 32)
        patch.setattr(engine_loading, "open_engine", lambda *_, **__: Engine(vllm_vlm_backend))
        patch.setattr(Engine, "close", lambda engine: None)
        calm = project.run_inline("--run-id", "calm", *options, backend="vllm")
        with killing(processes, project.root / "reports" / "r", wanted):
            killed = project.run_inline("--run-id", "r", *options, backend="vllm")
    assert killed.exit_code == BROKEN
    assert set(killed.counts) == {"pass", "error"}
    problems = {row["problem"] for row in killed.rows if row["outcome"] == "error"}
    assert all("the vLLM engine failed" in problem for problem in problems), problems
    assert_only_its_own_processes_end(vllm_vlm_backend, processes)

    resumed = project.run_inline("--resume", "r", *options, backend=None)
    assert (resumed.exit_code, calm.exit_code) == (0, 0), resumed.output
    counts = generations(project.root / "reports" / "r")
    assert set(counts.values()) == {1}, "nothing twice"
    assert counts.keys() == generations(calm.run_dir).keys(), "nothing lost"
    assert content(Run(0, "", 0.0, project.root, "r")) == content(calm)


@contextlib.contextmanager
def killing(processes: set[psutil.Process], run_dir: Path, num_generations: int) -> Iterator[None]:
    """Kill the engine core once the run has so many generations."""
    (core,) = (process for process in processes if "EngineCore" in process.name())
    core.nice(19)  # on a busy machine it would be done before this looks again
    over = threading.Event()

    def kill_in_time() -> None:
        while not over.wait(0.02) and len(generations(run_dir)) < num_generations:
            pass
        core.kill()

    thread = threading.Thread(target=kill_in_time)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def assert_only_its_own_processes_end(backend: Any, processes: set[psutil.Process]) -> None:
    """Close an engine whose core was killed: its worker ends, too, and nothing that others have started."""
    with pytest.raises(BackendError, match="the vLLM engine cannot be used"):
        list(backend.generate([prompt_of(backend.tokenizer, chat("say yes"))]))
    foreign = subprocess.Popen(["sleep", "600"])  # started while the engine lived, but not by it
    try:
        backend.close()
        assert foreign.poll() is None
    finally:
        foreign.kill()
        foreign.wait(timeout=30)
    wait_until(lambda: all(map(has_ended, processes)))  # nobody may take away what a killed process has left
