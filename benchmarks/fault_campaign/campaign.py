"""One run after another, struck at random moments and resumed until it ends by itself; then it must be as if nothing had happened."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.fault_campaign.faults import SIGNALS, Faults
from evalharness.api.errors import BROKEN
from evalharness.api.temporary import OwnFolder
from tests.pytest_plugin.killing import CONFTEST, content, engines_of, generations, has_begun, workers_of
from tests.pytest_plugin.project import HEADER, Project, Run

VICTIMS = ("alone", "controller", "worker", "engine")
"""A run without workers; the process that starts workers; one of its workers; vLLM's engine process."""
FAULTS_PER_RUN = 4
SESSION_TIMEOUT_S = 600
_SHORTEST = 0.2
"""A session that has little left to generate is struck within so much of the time that all of it takes, too."""
_ORPHANS_S = 30.0
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
SIZES = {"fake": (40, 256), "hf": (48, 24), "vllm": (80, 48)}
"""By backend: cases of each of two evals, and new tokens."""
_CODES = {
    **dict.fromkeys(("disk", "files", "size"), (BROKEN, int(pytest.ExitCode.USAGE_ERROR))),
    **dict.fromkeys(("term", "hup"), (int(pytest.ExitCode.INTERRUPTED),)),
}
"""Exit codes that a struck session may have beside 0 once its run has begun (4: nothing could be written when it was to be resumed)."""
SESSION_STARTS = "test session starts"
ENDING = ("kill", "term", "hup")


@dataclass
class Strike:
    """One fault, and what came of it."""

    seed: int
    run_id: str
    fault: str
    victim: str
    phase: str
    moment_s: float
    exit_code: int = 0


@dataclass
class Tally:
    """What a campaign came to."""

    strikes: list[Strike] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    num_sessions: int = 0
    num_runs: int = 0


@dataclass
class Pace:
    """How long undisturbed sessions of a kind take until their first generation and to their end."""

    run: Run
    first_s: float
    total_s: float


class Campaign:
    """Runs of one backend in a folder of its own; what was struck when follows from the seed, as far as the machine's pace allows."""

    def __init__(self, root: Path, backend: str, victims: Sequence[str], kinds: Sequence[str], seed: int, kept: Path) -> None:
        num_cases, num_tokens = SIZES[backend]
        values = {"num_cases": num_cases, "num_tokens": num_tokens}
        self.backend, self.victims, self.kinds, self.seed, self.kept = backend, victims, kinds, seed, kept
        self._draw = random.Random(seed)
        root.mkdir(parents=True, exist_ok=True)
        self._faults = Faults(root, self._draw)
        self._project = Project(root / "project").write(
            conftest=CONFTEST if backend == "fake" else "",
            test_plain=HEADER + EVAL.format(name="plain", request=PLAIN, **values),
            test_stepped=HEADER + EVAL.format(name="stepped", request=STEPPED, **values),
        )
        (self._project.root / "reports").symlink_to(self._faults.disk)
        self._options = self._options_for(root)
        self._paces: dict[str, Pace] = {}
        self._next: list[tuple[str, str]] = []
        self.tally = Tally()

    def _options_for(self, root: Path) -> tuple[str, ...]:
        if self.backend == "fake":
            return ()
        from fixtures.make_tiny_checkpoint import make_tiny_checkpoint

        limits = ("--device=cpu",) if self.backend == "hf" else ("--max-model-len=512",)
        return (f"--model={make_tiny_checkpoint(root / 'tiny')}", "--dtype=float32", *limits)

    def run(self, num_faults: int, deadline: float) -> Tally:
        """Strike that often, or until the time (of `time.monotonic`) has come."""
        with self._faults.mounted() as is_mounted:
            kinds = [kind for kind in self.kinds if is_mounted or kind != "disk"]
            for victim in self.victims:
                self._paces[victim] = self._calm(victim)
            while (left := num_faults - len(self.tally.strikes)) > 0 and time.monotonic() < deadline:
                self._disturb(kinds, min(FAULTS_PER_RUN, left))
        return self.tally

    def _mode(self, victim: str) -> tuple[str, ...]:
        """Return xdist's part of the command line."""
        if victim == "alone" or (victim == "engine" and self.tally.num_sessions % 2):
            return ()
        # Two of vLLM's engines fill a small machine.
        return ("-p", "xdist", "-n1" if self.backend == "vllm" else "-n2", "--max-worker-restart=20")

    @contextlib.contextmanager
    def _started(self, run_id: str, is_new: bool, victim: str):
        self.tally.num_sessions += 1
        start = ("--run-id" if is_new else "--resume", run_id, *self._options, *self._mode(victim))
        with self._project.start(*start, backend=self.backend if is_new else None, env=self._faults.environment) as process:
            yield process

    def _calm(self, victim: str) -> Pace:
        """Return the undisturbed run, and how long it took until there was something to strike in it."""
        began, first = time.monotonic(), None
        run_id = f"calm-{victim}"
        with self._started(run_id, True, victim) as process:
            while process.poll() is None:
                if first is None and generations(self._run_dir(run_id)):
                    first = time.monotonic()
                time.sleep(0.05)
                if process.poll() is None and time.monotonic() - began > SESSION_TIMEOUT_S:
                    raise RuntimeError("the undisturbed run does not end")
            output = process.communicate()[0]
        run = Run(process.returncode, output, 0.0, self._project.root, run_id)
        if run.exit_code != 0:
            raise RuntimeError(f"the undisturbed run failed:\n{output[-3000:]}")
        ended = time.monotonic()
        return Pace(run, (first or ended) - began, ended - began)

    def _run_dir(self, run_id: str) -> Path:
        return self._project.root / "reports" / run_id

    def _disturb(self, kinds: Sequence[str], most: int) -> None:
        """Strike, resume and strike again one run, then compare it and remove it: the disk is small, so that it can be filled."""
        self._faults.check_room()
        self.tally.num_runs += 1
        run_id, begun, strikes, num_problems = f"r{self.tally.num_runs}", False, 0, len(self.tally.problems)
        while len(self.tally.problems) == num_problems:
            fault, victim = self._pair(kinds)
            strike = Strike(self.seed, run_id, fault, victim, "", 0.0) if strikes < most else None
            run = self._session(run_id, not begun, victim, strike)
            is_struck = strike is not None and bool(strike.phase)
            strikes += is_struck
            begun = begun or has_begun(run.run_dir)
            self._judge_session(run, strike if is_struck else None, begun, self._paces[victim].run)
            if not begun and run.run_dir.exists():
                run_id += "b"  # struck before it began, and --resume would say so
            if strike is not None and not is_struck:
                self._next.append((fault, victim))  # it ended before
            if begun and not is_struck and run.exit_code == 0:
                self._compare(run, self._paces[victim].run)
                break
        if len(self.tally.problems) > num_problems:
            self._keep(run)
        for folder in self._run_dir("").glob(f"r{self.tally.num_runs}*"):  # "b" in its name, too
            shutil.rmtree(folder)

    def _pair(self, kinds: Sequence[str]) -> tuple[str, str]:
        """Return a fault and a victim, each pair once in random order before any comes again."""
        if not self._next:
            self._next = [(fault, victim) for fault in kinds for victim in self.victims]
            self._draw.shuffle(self._next)
        return self._next.pop()

    def _session(self, run_id: str, is_new: bool, victim: str, strike: Strike | None) -> Run:
        """Return how a session ended, with the place of the strike noted where there was one."""
        with self._started(run_id, is_new, victim) as process:
            if strike is not None:
                self._strike(process, strike)
            output, _ = process.communicate(timeout=SESSION_TIMEOUT_S)
            self._note(run_id, _outlived(process.pid), "processes stay")
        self._faults.lift()
        if process.returncode >= 0 and (strike is None or strike.fault != "files"):  # a folder cannot be listed without a descriptor
            self._note(run_id, self._temporary_files(), f"temporary files stay after {strike}")
        with OwnFolder("campaign", self._faults.disk / "tmp"):
            pass  # removes what a killed session left, as the next one does
        if strike is not None and strike.phase:
            strike.exit_code = process.returncode
            self.tally.strikes.append(strike)
        return Run(process.returncode, output, 0.0, self._project.root, run_id)

    def _strike(self, process: subprocess.Popen[str], strike: Strike) -> None:
        run_dir, pace = self._run_dir(strike.run_id), self._paces[strike.victim]
        made, before = generations(run_dir), _files_of(run_dir)
        num_all = len(generations(pace.run.run_dir))
        span = pace.first_s + (pace.total_s - pace.first_s) * max(1 - len(made) / num_all, _SHORTEST)
        strike.moment_s = round(self._draw.uniform(0.0, span), 2)
        deadline = time.monotonic() + strike.moment_s
        _wait_until(lambda: process.poll() is not None or (time.monotonic() > deadline and bool(self._victims(process, strike.victim))))
        victims = self._victims(process, strike.victim) if process.poll() is None else []
        if victims:
            new = {name for name, written in _files_of(run_dir).items() if before.get(name) != written}
            with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
                self._faults.strike(strike.fault, self._draw.choice(victims))
                strike.phase = "end" if "samples.jsonl" in new else "working" if any(".jsonl" in name for name in new) else "start"

    def _victims(self, process: subprocess.Popen[str], victim: str) -> list[int]:
        if victim in ("alone", "controller"):
            return [process.pid]
        return [found.pid for found in (engines_of if victim == "engine" else workers_of)(process.pid)]

    def _judge_session(self, run: Run, strike: Strike | None, begun: bool, calm: Run) -> None:
        """Note an exit code that is none of the documented ones, and rows that say what an undisturbed run does not."""
        allowed: Collection[int] = {0}
        if strike is not None:
            allowed = {0, *_CODES.get(strike.fault, ())}
            if strike.fault in ENDING and strike.victim == "worker":
                allowed.add(BROKEN)
            elif strike.fault == "kill" or (strike.fault in ENDING and strike.phase != "working"):
                allowed.add(-SIGNALS[strike.fault])  # the handlers are not there yet, or no more
        if strike is not None and strike.phase == "start" and strike.fault in ("disk", "files", "size"):
            if SESSION_STARTS not in run.output:
                return  # before Python and pytest have begun, the end is theirs
            allowed = {*allowed, int(pytest.ExitCode.INTERRUPTED)}  # a test module that could not be read
        if run.exit_code not in allowed and (begun or strike is None or strike.fault in ("disk", "files", "size")):
            self._note(run.run_id, [run.exit_code], f"undocumented exit code after {strike}")
        if "INTERNALERROR" in run.output:
            self._note(run.run_id, [run.exit_code], f"internal error after {strike}")
        if (run.run_dir / "samples.jsonl").exists():
            right = {row["nodeid"]: (row["outcome"], row["scores"]) for row in calm.rows}
            judged = [row for row in run.rows if row["outcome"] in ("pass", "miss", "fail")]
            self._note(run.run_id, [row["nodeid"] for row in judged if right[row["nodeid"]] != (row["outcome"], row["scores"])], "scored")
            self._note(run.run_id, [row["nodeid"] for row in run.rows if row not in judged and row["scores"]], "failures with scores")

    def _compare(self, run: Run, calm: Run) -> None:
        counts, wanted = generations(run.run_dir), generations(calm.run_dir)
        differing = [row["nodeid"] for row, calm_row in zip(content(run), content(calm), strict=False) if row != calm_row]
        self._note(run.run_id, wanted.keys() - counts.keys(), "generations lost")
        self._note(run.run_id, [place for place, number in counts.items() if number > 1], "generations twice")
        self._note(run.run_id, differing, "rows differ")
        self._note(run.run_id, {row["nodeid"] for row in run.rows} ^ {row["nodeid"] for row in calm.rows}, "rows lost or new")
        self._note(run.run_id, [path.name for path in run.run_dir.rglob("*.asked")], "files stay")

    def _temporary_files(self) -> list[str]:
        """Return what lies there but pytest's own folder, of which it keeps the last three."""
        return sorted(path.name for path in (self._faults.disk / "tmp").iterdir() if not path.name.startswith("pytest-of-"))

    def _note(self, run_id: str, found: Collection[Any], what: str) -> None:
        if found:
            problem = f"seed {self.seed}, {run_id}: {len(found)} {what}: {sorted(map(str, found))[:5]}"
            self.tally.problems.append(problem)
            print(f"PROBLEM {problem}", flush=True)

    def _keep(self, run: Run) -> None:
        folder = self.kept / f"seed-{self.seed}-{run.run_id}"
        if run.run_dir.exists():
            shutil.copytree(run.run_dir, folder, dirs_exist_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "output.txt").write_text(run.output, errors="backslashreplace")


def campaign(
    root: Path, seed: int, num_faults: int, backend: str, victims: Sequence[str], kinds: Sequence[str], kept: Path, deadline: float
) -> Tally:
    """Run a campaign in a process of its own; what ends it is a problem of it alone."""
    one = Campaign(root, backend, victims, kinds, seed, kept)
    try:
        return one.run(num_faults, deadline)
    except Exception as error:
        one.tally.problems.append(f"seed {seed}: the campaign itself failed: {error!r}"[:3000])
        print(f"PROBLEM {one.tally.problems[-1]}", flush=True)
        return one.tally


def _files_of(folder: Path) -> dict[str, int]:
    """Return {name: when it was written} of a run's files."""
    found = {}
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            found[path.name] = path.stat().st_mtime_ns
    return found


def _outlived(session: int) -> list[str]:
    """Return the processes of a session that do not end by themselves although its first one has."""
    deadline = time.monotonic() + _ORPHANS_S
    while (found := _processes_of(session)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def _processes_of(session: int) -> list[str]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getsid(process.pid) == session and process.pid != session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline())[:200])
    return found


def _wait_until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.02)
