"""vLLM's engine process killed with SIGKILL in the middle of a run: what is missing is error rows, and --resume makes it good.

One moment here, for a start of vLLM takes half a minute; `python -m benchmarks.fault_campaign --backend vllm --victims engine` kills at
as many random ones as it is told to.
"""

from __future__ import annotations

import contextlib
import random
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from evalharness.api.errors import BROKEN
from evalharness.engine.engine import Engine
from evalharness.pytest_plugin.execution import engines as engine_loading
from tests.pytest_plugin.killing import content, engines_of, generations
from tests.pytest_plugin.project import HEADER, Project, Run

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
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_whose_engine_was_killed_is_resumed_to_the_rows_of_an_undisturbed_one(
    tmp_path: Path, tiny_vlm_checkpoint: Path, vllm_vlm_backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = Project(tmp_path / "project").write(test_a=HEADER + EVAL)
    # Few at once: all at once would end together, so that on a busy machine the kill came after the last.
    options = (f"--model={tiny_vlm_checkpoint}", "--dtype=float32", "--engine-option=max_num_seqs=32")
    wanted = random.Random(SEED).randrange(1, NUM_CASES // 4)
    print(f"seed {SEED}: killed after {wanted} generations")
    with project.start("--run-id", "r", *options, backend="vllm") as process:
        run_dir, deadline = project.root / "reports" / "r", time.monotonic() + 600
        while len(generations(run_dir)) < wanted and process.poll() is None and time.monotonic() < deadline:
            for engine in engines_of(process.pid):
                with contextlib.suppress(psutil.NoSuchProcess):
                    engine.nice(19)  # on a busy machine it would be done before this test looks again
            time.sleep(0.02)
        (engine,) = engines_of(process.pid)
        engine.kill()
        killed = project.wait(process, run_id="r")
    assert killed.exit_code == BROKEN
    assert set(killed.counts) == {"pass", "error"}
    problems = {row["problem"] for row in killed.rows if row["outcome"] == "error"}
    assert all("the vLLM engine failed" in problem for problem in problems), problems

    def warm(*arguments: Any, **keywords: Any) -> Engine:
        """Return an engine on the session's vLLM, which is as the killed one was."""
        engine = Engine(vllm_vlm_backend)
        monkeypatch.setattr(engine, "close", lambda: None)
        return engine

    monkeypatch.setattr(engine_loading, "open_engine", warm)
    resumed = project.run_inline("--resume", "r", *options, backend=None)
    calm = project.run_inline("--run-id", "calm", *options, backend="vllm")
    assert (resumed.exit_code, calm.exit_code) == (0, 0), resumed.output
    counts = generations(run_dir)
    assert set(counts.values()) == {1}, "nothing twice"
    assert counts.keys() == generations(calm.run_dir).keys(), "nothing lost"
    assert content(Run(0, "", 0.0, project.root, "r")) == content(calm)
