"""Kills processes of runs at random moments, resumes the runs, and compares their rows with those of an undisturbed run.

    python -m benchmarks.fault_campaign --backend vllm --victim engine --kills 20 --seed 1

The victims `worker` and `controller` run with -n2 (vLLM with -n1, as two of its engines fill a small machine); `engine` is vLLM's engine
process, alternately in a run without workers and with -n1. Each session gets one signal (`--signals`; SIGKILL alone if not said; `stop` is
SIGSTOP, and SIGCONT up to two seconds later), at a random moment within the length of the
undisturbed run (for `engine`, after its process appeared), until a session ends before its kill; then the run is resumed once more.
Everything is greedy, in float32, on a tiny checkpoint. The tests do a few such kills; this does as many as you want.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.pytest_plugin.killing import CONFTEST, content, engines_of, generations, workers_of
from tests.pytest_plugin.project import HEADER, Project, Run

KILLS_PER_RUN = 3
SIGNALS = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "hup": signal.SIGHUP, "stop": signal.SIGSTOP}
_STOPPED_S = 2.0
SESSION_TIMEOUT_S = 600
EVAL = """
def cases(data_dir): return [Case(id=f"c{{i:03}}") for i in range({num_cases})]
def words(case): return f"{name} {{case.id}} " * (1 + int(case.id[1:]) % 5)
{request}
pytestmark = pytest.mark.eval(cases=cases, request=asks, options=GenerationOptions(max_new_tokens={num_tokens}))

@pytest.mark.gate("n >= 0")
def test_s(case, generation, score): score(n=len(generation.text))
"""
PLAIN = """
def asks(case): return TextGenerationRequest([{"role": "user", "content": words(case)}])
"""
STEPPED = """
def asks(case):
    (first,) = yield [TextGenerationRequest([{"role": "user", "content": words(case)}])], GenerationOptions(max_new_tokens=8)
    return TextGenerationRequest([{"role": "user", "content": f"{case.id} {first.text[:20]}"}])
"""
SIZES = {"fake": (60, 256), "hf": (48, 24), "vllm": (80, 48)}
"""By backend: cases of each of two evals, and new tokens."""


@dataclass
class Tally:
    """What the campaign came to."""

    num_kills: int = 0
    num_sessions: int = 0
    num_runs: int = 0
    problems: list[str] = field(default_factory=list)
    moments: list[float] = field(default_factory=list)
    signals: Counter[str] = field(default_factory=Counter)


class Campaign:
    """Runs of one backend, with one kind of victim."""

    def __init__(self, root: Path, backend: str, victim: str, seed: int, signals: Sequence[str]) -> None:
        num_cases, num_tokens = SIZES[backend]
        values = {"num_cases": num_cases, "num_tokens": num_tokens}
        self.backend, self.victim, self.signals = backend, victim, signals
        self.draw = random.Random(seed)
        self.project = Project(root / "project").write(
            conftest=CONFTEST if backend == "fake" else "",
            test_plain=HEADER + EVAL.format(name="plain", request=PLAIN, **values),
            test_stepped=HEADER + EVAL.format(name="stepped", request=STEPPED, **values),
        )
        self.options = self._options(root)
        self.tally = Tally()
        self.span_s = 0.0
        """Within how many seconds sessions are killed."""

    def _options(self, root: Path) -> tuple[str, ...]:
        if self.backend == "fake":
            return ()
        from fixtures.make_tiny_checkpoint import make_tiny_checkpoint

        limits = ("--device=cpu",) if self.backend == "hf" else ("--max-model-len=512",)
        return (f"--model={make_tiny_checkpoint(root / 'tiny')}", "--dtype=float32", *limits)

    def mode(self) -> tuple[str, ...]:
        """Return xdist's part of the next session's command line."""
        if self.victim == "engine":
            return () if self.tally.num_sessions % 2 else ("-p", "xdist", "-n1")
        return ("-p", "xdist", "-n1" if self.backend == "vllm" else "-n2")

    def session(self, run_id: str, is_new: bool, moment_s: float | None) -> tuple[Run, bool]:
        """Return how a session ended, and whether anything was killed; without a moment nothing is."""
        start = ("--run-id" if is_new else "--resume", run_id, *self.options)
        with self.project.start(*start, *self.mode(), backend=self.backend if is_new else None) as process:
            killed = moment_s is not None and self._kill(process, moment_s)
            output, _ = process.communicate(timeout=SESSION_TIMEOUT_S)
        self.tally.num_sessions += 1
        return Run(process.returncode, output, 0.0, self.project.root, run_id), killed

    def _kill(self, process: subprocess.Popen[str], moment_s: float) -> bool:
        if self.victim != "controller":
            wait_until(lambda: process.poll() is not None or self._victims(process))
            if process.poll() is not None:
                return False  # nothing was left to generate
        deadline = time.monotonic() + moment_s
        wait_until(lambda: process.poll() is not None or time.monotonic() > deadline)
        if process.poll() is not None:  # a machine that others use is slower at times
            self.span_s = min(self.span_s, moment_s * 0.8)
            return False
        victims = [process.pid] if self.victim == "controller" else [victim.pid for victim in self._victims(process)]
        if victims:
            with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
                self._strike(self.draw.choice(victims))
        return bool(victims)

    def _strike(self, pid: int) -> None:
        name = self.draw.choice(self.signals)
        self.tally.signals[name] += 1
        os.kill(pid, SIGNALS[name])
        if name == "stop":
            time.sleep(self.draw.uniform(0.0, _STOPPED_S))
            os.kill(pid, signal.SIGCONT)

    def _victims(self, process: subprocess.Popen[str]) -> list[psutil.Process]:
        return engines_of(process.pid) if self.victim == "engine" else workers_of(process.pid)

    def calm(self) -> Run:
        """Return the undisturbed run, and note how long it took, or how long workers or an engine were there to be killed."""
        began, victim_at = time.monotonic(), None
        with self.project.start("--run-id", "calm", *self.options, *self.mode(), backend=self.backend) as process:
            while process.poll() is None:
                if victim_at is None and self.victim != "controller" and self._victims(process):
                    victim_at = time.monotonic()
                time.sleep(0.05)
                if process.poll() is None and time.monotonic() - began > SESSION_TIMEOUT_S:
                    raise RuntimeError("the undisturbed run does not end")
            output = process.communicate()[0]
        self.tally.num_sessions += 1
        run = Run(process.returncode, output, 0.0, self.project.root, "calm")
        if run.exit_code != 0:
            raise RuntimeError(f"the undisturbed run failed:\n{output[-3000:]}")
        self.span_s = time.monotonic() - (victim_at or began)
        return run

    def disturb(self, calm: Run, most: int) -> None:
        """Kill, resume and kill again one run, then compare it."""
        self.tally.num_runs += 1
        run_id, begun, num_kills = f"r{self.tally.num_runs}", False, 0
        while True:
            moment_s = self.draw.uniform(0.0, self.span_s) if num_kills < most else None
            run, killed = self.session(run_id, not begun, moment_s)
            if killed and moment_s is not None:
                num_kills += 1
                self.tally.moments.append(round(moment_s, 2))
            begun = begun or any((run.run_dir / "journal").glob("*.jsonl"))
            if not begun and run.run_dir.exists():
                run_id += "b"  # killed before it began, and --resume would say so
            if begun and not killed and run.exit_code == 0:
                break
            if not killed and run.exit_code != 0:
                self.tally.problems.append(f"{run_id}: exit code {run.exit_code}: {run.output[-500:]}")
                break
        self.tally.num_kills += num_kills
        self._compare(run, calm)
        print(f"{run_id}: {num_kills} kills, {len(run.rows)} rows, {'equal' if not self.tally.problems else 'NOT equal'}", flush=True)

    def _compare(self, run: Run, calm: Run) -> None:
        counts, wanted = generations(run.run_dir), generations(calm.run_dir)
        lost, twice = wanted.keys() - counts.keys(), [place for place, number in counts.items() if number > 1]
        differing = sum(row != calm_row for row, calm_row in zip(content(run), content(calm), strict=False))
        if lost or twice or differing or len(run.rows) != len(calm.rows):
            self.tally.problems.append(f"{run.run_id}: {len(lost)} lost, {len(twice)} twice, {differing} rows differ, {len(run.rows)} rows")


def wait_until(condition: object) -> None:
    """Return when it holds."""
    assert callable(condition)
    while not condition():
        time.sleep(0.02)


def main() -> int:
    """Print the moments and one row for the table; 1 if any run differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=tuple(SIZES), default="fake")
    parser.add_argument("--victim", choices=("worker", "controller", "engine"), default="worker")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--signals", nargs="+", choices=tuple(SIGNALS), default=["kill"])
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.victim == "engine" and options.backend != "vllm":
        parser.error("only vLLM has an engine process: --backend vllm")
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="evalharness-faults-") as folder:
        campaign = Campaign(Path(folder), options.backend, options.victim, options.seed, options.signals)
        calm = campaign.calm()
        print(f"undisturbed: {len(calm.rows)} rows; seed {options.seed}, kills within {campaign.span_s:.1f} s", flush=True)
        tally = campaign.tally
        while tally.num_kills < options.kills and not tally.problems:
            campaign.disturb(calm, min(KILLS_PER_RUN, options.kills - tally.num_kills))
    print(f"moments: {tally.moments}; signals: {dict(tally.signals)}")
    for problem in tally.problems:
        print(problem)
    print(
        f"| {options.backend} | {options.victim} | {options.seed} | {tally.num_kills} | {tally.num_runs} | {tally.num_sessions} "
        f"| {'all equal' if not tally.problems else '**differ**'} | {time.monotonic() - started:.0f} s |"
    )
    return 1 if tally.problems else 0


if __name__ == "__main__":
    sys.exit(main())
