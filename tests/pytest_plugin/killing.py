"""What tests and `benchmarks/fault_campaign.py` kill: evals whose rows can be compared, and the processes of a run."""

from __future__ import annotations

import contextlib
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

from tests.pytest_plugin.project import Run

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

def slow(self, prompt, plugins, *_):
    time.sleep(0.01)
    return complete(self, prompt, plugins)

FakeBackend._complete = slow
"""


def workers_of(pid: int, *, with_engine: bool = False) -> list[psutil.Process]:
    """Return the workers of a controller that are at work; not those that xdist is starting, whose loss it takes for its own fault.

    `with_engine`: nor those that open theirs. An engine is given up after two such deaths, which would be met by chance.
    """
    try:
        return [child for child in psutil.Process(pid).children() if _has_journal(child, b'{"kind":"engine"' if with_engine else b"")]
    except psutil.NoSuchProcess:
        return []


def kill_one(workers: list[psutil.Process], draw: random.Random) -> bool:
    """Kill one of them; False where there is none, or it has just ended by itself."""
    with contextlib.suppress(psutil.NoSuchProcess):
        if workers:
            draw.choice(workers).kill()
            return True
    return False


def num_lines(run_dir: Path) -> int:
    """Return how many lines the journals have: how far a run is, on a machine of any speed."""
    return sum(path.read_bytes().count(b"\n") for path in (run_dir / "journal").glob("*.jsonl"))


def has_begun(run_dir: Path) -> bool:
    """Return whether it is known what was collected; before that there is nothing to resume, and --resume would say so."""
    return any(b'{"kind":"collected"' in path.read_bytes().rpartition(b"\n")[0] for path in (run_dir / "journal").glob("[cm]*.jsonl"))


def _has_journal(process: psutil.Process, line: bytes) -> bool:
    with contextlib.suppress(psutil.Error, OSError):
        journals = [Path(file.path) for file in process.open_files() if Path(file.path).parent.name == "journal"]
        return any(line in path.read_bytes() for path in journals)
    return False


def engines_of(pid: int) -> list[psutil.Process]:
    """Return vLLM's live engine processes below a process of pytest; while they start, nothing but their parent tells what they are."""
    try:
        below = [child for child in psutil.Process(pid).children(recursive=True) if child.status() != psutil.STATUS_ZOMBIE]
        return [child for child in below if "EngineCore" in child.name()]
    except psutil.NoSuchProcess:
        return []


def content(run: Run) -> list[dict[str, Any]]:
    """Return the rows without what tells of clocks and processes."""
    volatile = {"run_id", "worker", "started_at", "duration_s"}
    return [{name: value for name, value in row.items() if name not in volatile} for row in run.rows]


def generations(run_dir: Path) -> Counter[tuple[Any, ...]]:
    """Return how often each sample and each step was generated; a line that was cut by a kill is none."""
    counts: Counter[tuple[Any, ...]] = Counter()
    for path in (run_dir / "journal").glob("*.jsonl"):
        for line in path.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n") and line.startswith((b'{"kind":"generation"', b'{"kind":"step"')):
                values = json.loads(line)
                if not values.get("copied"):
                    place = ("kind", "engine", "eval", "case_id", "sample", "step", "request")
                    counts[tuple(values.get(name) for name in place)] += 1
    return counts
