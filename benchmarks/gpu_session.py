"""Runs a session on lent GPUs in calls of a few minutes each: tests of everything that runs on a GPU, then the measurements.

    python -m benchmarks.gpu_session one FOLDER     on one GPU: tests/gpu, overheads, changes of weights, parity of dtypes
    python -m benchmarks.gpu_session two FOLDER     on two GPUs: one worker and two, texts and photos, two checkpoints
    python -m benchmarks.gpu_session one two FOLDER --list    the steps and their states

Each call starts steps while they fit into `--limit-s`, and ends before it; the next call continues with the remaining steps.
On two GPUs, two steps that need one GPU run side by side; steps wait for the steps that they need. Every step has a time limit, after
which it is killed with all its processes. A step that fails stops only the steps that need its results. Logs are in FOLDER/logs, and
their main lines are printed at the end of the call. Exit codes: 0 all steps are done, 1 a step failed, 3 steps remain: call again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
STATE = "session.json"
GRACE_S = 5
LOOK_S = 0.1
LINES_SHOWN = 24
SHOWN = re.compile(r"^\| (?!-)|\d+ (passed|failed|skipped)|^(FAILED|ERROR|E  )|[A-Za-z]+(Error|Exit): |same_tokens|_gap_|gates?\b")
"""Lines of a log that are printed: rows of tables, what pytest says at its end, parity, errors."""


@dataclass(frozen=True)
class Step:
    """`seconds`: what it may take, at most; `cards`: how many it has to itself; `needs`: steps that must have been done well before."""

    name: str
    stage: str
    command: tuple[str, ...]
    seconds: int
    cards: int = 1
    needs: tuple[str, ...] = ()


def python(*arguments: object) -> tuple[str, ...]:
    """Return a command of this interpreter's."""
    return (sys.executable, *map(str, arguments))


def steps_of(folder: Path, *, tiny: bool) -> list[Step]:
    """Return all steps, those first that others need or that matter most. `tiny`: sizes with which a CPU is through in minutes."""
    text, vision = ("text-small", "vl-small") if tiny else ("text-4b", "vl-4b")
    num_texts, num_photos, num_of_two = (12, 6, 6) if tiny else (6144, 2048, 2048)
    first, second = folder / text / "checkpoint-0", folder / text / "checkpoint-1"
    of_texts = python("-m", "benchmarks.gpu_scaling", folder, "--kind", text)
    of_photos = python("-m", "benchmarks.gpu_scaling", folder, "--kind", vision)
    tests = python("-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=8")
    final = ROOT / "fixtures" / "checkpoints" / "final"
    parity = python("-m", "pytest", "evals/test_parity.py", "-q", "--model", final, "--report-dir", folder / "parity")
    overhead = ("--num-requests", "8", "--max-new-tokens", "8", "--rounds", "1") if tiny else ()
    batching = ("--num-prompts", "2", "--max-new-tokens", "2") if tiny else ("--num-prompts", "32", "--max-new-tokens", "32")
    return [
        Step("texts", "one", (*of_texts, "prepare", "--cases", str(num_texts), "--checkpoints", "2"), 240),
        Step("tests-vllm", "one", (*tests, "tests/gpu/test_vllm_on_gpu.py"), 480),
        Step("tests-hf", "one", (*tests, "tests/gpu/test_hf_on_gpu.py"), 200),
        Step("overhead", "one", python("benchmarks/vllm_overhead.py", "--model", first, *overhead), 240, needs=("texts",)),
        Step("weights-vllm", "one", python("-m", "benchmarks.live_weights", first, second), 240, needs=("texts",)),
        Step("parity-hf", "one", (*parity, "--backend", "hf", "--dtype", "float32,bfloat16"), 180),
        Step("parity-bf16", "one", (*parity, "--backend", "hf,vllm", "--dtype", "bfloat16"), 240),
        Step("parity-f32", "one", (*parity, "--backend", "hf,vllm", "--dtype", "float32"), 240),
        Step("weights-hf", "one", python("-m", "benchmarks.live_weights", first, second, "--backend", "hf"), 180, needs=("texts",)),
        Step("batching", "one", python("benchmarks/hf_batching.py", "--rounds", "1", *batching), 150),
        # The first of a kind compiles, and on some machines memory is slow when it is first touched: what is compared comes after that.
        Step("raw-texts", "two", (*of_texts, "raw"), 300, needs=("texts",)),
        Step("photos", "two", (*of_photos, "prepare", "--cases", str(num_photos)), 240),
        Step("raw-photos", "two", (*of_photos, "raw"), 300, needs=("photos",)),
        Step("one-texts", "two", (*of_texts, "harness", "--workers", "1"), 240, needs=("texts",)),
        Step("one-photos", "two", (*of_photos, "harness", "--workers", "1"), 240, needs=("photos",)),
        Step("two-texts", "two", (*of_texts, "harness", "--workers", "2"), 240, cards=2, needs=("texts",)),
        Step("two-photos", "two", (*of_photos, "harness", "--workers", "2"), 240, cards=2, needs=("photos",)),
        Step(
            "two-checkpoints",
            "two",
            (*of_texts, "harness", "--workers", "1", "--checkpoints", "2", "--pytest", f"--limit {num_of_two}"),
            240,
            needs=("texts",),
        ),
        Step("tests-cards", "two", (*tests, "tests/gpu/test_cards_on_gpu.py"), 150, cards=2),
        Step("table-texts", "two", (*of_texts, "table"), 30, needs=("one-texts",)),
        Step("table-photos", "two", (*of_photos, "table"), 30, needs=("one-photos",)),
    ]


def with_needs(chosen: Iterable[Step], steps: Sequence[Step]) -> list[Step]:
    """Return the chosen steps, and those that they need, in the order of `steps`."""
    names = {step.name for step in chosen}
    while more := {name for step in steps if step.name in names for name in step.needs} - names:
        names |= more
    return [step for step in steps if step.name in names]


class Session:
    """The steps of a folder's session, what has become of each, and those that run. `cards`: their names as CUDA's mask has them."""

    def __init__(self, folder: Path, steps: Sequence[Step], cards: Sequence[str]) -> None:
        self.steps, self.cards = steps, cards
        self._logs, self._state_path = folder / "logs", folder / STATE
        self._logs.mkdir(parents=True, exist_ok=True)
        self.done: dict[str, dict[str, float | int | str]] = {}
        if self._state_path.exists():
            self.done = json.loads(self._state_path.read_text(encoding="utf-8"))
        self._running: dict[str, tuple[Step, subprocess.Popen[bytes], float, Sequence[str]]] = {}

    def run(self, limit_s: float) -> None:
        """Begin what fits, until nothing runs and nothing can begin; whatever still runs at the limit is killed and is left for later."""
        started = time.monotonic()
        try:
            while True:
                self._look()
                left_s = limit_s - (time.monotonic() - started)
                while (step := self._next(left_s)) is not None:
                    self._begin(step)
                if not self._running or left_s <= 0:
                    return
                time.sleep(LOOK_S)
        finally:
            for _, process, _, _ in self._running.values():
                end(process)
            self._running.clear()

    def left(self) -> list[Step]:
        """Return the steps of which nothing has become yet."""
        return [step for step in self.steps if step.name not in self.done and step.name not in self._running]

    def _next(self, left_s: float) -> Step | None:
        """Return the first step that can begin; one that waits for more cards than are free keeps later ones from taking them."""
        free = len(self.cards) - sum(len(cards) for _, _, _, cards in self._running.values())
        for step in self.left():
            missing = [name for name in step.needs if name not in self.done]
            broken = [name for name in step.needs if self.done.get(name, {}).get("code", 0) != 0]
            if broken:
                self._note(step, -1, 0.0, f"not begun, for {broken[0]} failed")
            elif step.cards > len(self.cards):
                self._note(step, -1, 0.0, f"not begun, for it needs {step.cards} cards")
            elif missing or step.seconds > left_s:
                continue
            elif step.cards > free:
                return None
            else:
                return step
        return None

    def _begin(self, step: Step) -> None:
        taken = {card for _, _, _, cards in self._running.values() for card in cards}
        cards = [card for card in self.cards if card not in taken][: step.cards]
        paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(cards), "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1", "COLUMNS": "160"}
        with (self._logs / f"{step.name}.log").open("wb") as log:
            process = subprocess.Popen(
                step.command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        self._running[step.name] = (step, process, time.monotonic(), cards)

    def _look(self) -> None:
        for name, (step, process, started, _) in list(self._running.items()):
            taken_s = time.monotonic() - started
            if process.poll() is None and taken_s <= step.seconds:
                continue
            note = f"killed after {step.seconds} s" if process.poll() is None else ""
            end(process)
            del self._running[name]
            self._note(step, process.wait(), taken_s, note)

    def _note(self, step: Step, code: int, taken_s: float, note: str) -> None:
        self.done[step.name] = {"code": code, "seconds": round(taken_s, 1), "note": note}
        self._state_path.write_text(json.dumps(self.done, indent=1), encoding="utf-8")
        print(f"{time.strftime('%T')} {self.line(step)}", flush=True)

    def line(self, step: Step) -> str:
        """Return the state of a step."""
        outcome = self.done.get(step.name)
        if outcome is None:
            return f"{step.name:16} left"
        word = "ok" if outcome["code"] == 0 else f"FAILED ({outcome['code']})"
        return f"{step.name:16} {word:12} {outcome['seconds']:>6} s  {outcome['note']}"

    def shown(self, step: Step) -> list[str]:
        """Return the lines of a step's log that count."""
        path = self._logs / f"{step.name}.log"
        if step.name not in self.done or not path.exists():
            return []
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        return [line[:200] for line in lines if SHOWN.search(line)][-LINES_SHOWN:]


def end(process: subprocess.Popen[bytes]) -> None:
    """End a step's process and all that are in its group: with a word first, then without."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        if process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=GRACE_S)


def exit_code(steps: Iterable[Step], done: Mapping[str, Mapping[str, object]]) -> int:
    """Return 0 where all steps went well, 3 where some are left, else 1."""
    codes = [done[step.name]["code"] if step.name in done else None for step in steps]
    return 3 if None in codes else int(any(codes))


def main(argv: Sequence[str] | None = None) -> int:
    """Run what fits into this call and print what it gave."""
    from evalharness.hardware.devices import installed_cards, visible_cards

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="+", choices=("one", "two"), help="What to do")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="Where all goes; 26 GB, best in memory")
    parser.add_argument("--limit-s", type=float, default=530, help="When the call ends (default: 530)")
    parser.add_argument("--only", nargs="+", metavar="STEP", help="These steps only")
    parser.add_argument("--again", nargs="+", metavar="STEP", default=[], help="Forget what became of these steps")
    parser.add_argument("--tiny", action="store_true", help="Small sizes, to try the session itself without a GPU")
    parser.add_argument("--list", action="store_true", help="Only say what has become of the steps")
    arguments = parser.parse_args(argv)
    folder = arguments.folder.resolve()
    steps = steps_of(folder, tiny=arguments.tiny)
    if unknown := {*(arguments.only or ()), *arguments.again} - {step.name for step in steps}:
        parser.error(f"there is no step {sorted(unknown)[0]}; there are {', '.join(step.name for step in steps)}")
    wanted = [step for step in steps if step.stage in arguments.stages and (arguments.only is None or step.name in arguments.only)]
    chosen = with_needs(wanted, steps)
    cards = visible_cards(os.environ, installed_cards()) or (["0", "1"] if arguments.tiny else ["0"])
    session = Session(folder, chosen, cards)
    for name in arguments.again:
        session.done.pop(name, None)
    before = set(session.done)
    if not arguments.list:
        session.run(arguments.limit_s)
    print()
    for step in chosen:
        print(session.line(step))
        for line in session.shown(step) if step.name not in before or arguments.list else ():
            print(f"    {line}")
    return exit_code(chosen, session.done)


if __name__ == "__main__":
    raise SystemExit(main())
