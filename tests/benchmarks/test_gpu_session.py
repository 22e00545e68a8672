"""The order, the limits and the ends of a GPU session's steps, with small processes in their place."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import psutil
import pytest

from benchmarks.gpu_session import STATE, Session, Step, exit_code, main, steps_of, with_needs

pytestmark = pytest.mark.slow

NOTE_CARDS = (
    "import os, sys, time; open(sys.argv[1], 'a').write(f\"{sys.argv[2]} {os.environ['CUDA_VISIBLE_DEVICES']}\\n\"); time.sleep(0.3)"
)


def step(
    name: str, code: str = "print('| 1 | row |')", *arguments: object, seconds: int = 20, cards: int = 1, needs: tuple[str, ...] = ()
) -> Step:
    return Step(name, "one", (sys.executable, "-S", "-c", code, *map(str, arguments)), seconds, cards, needs)


def run(folder: Path, *steps: Step, cards: tuple[str, ...] = ("0",), limit_s: float = 30) -> Session:
    session = Session(folder, steps, cards)
    session.run(limit_s)
    return session


def test_a_step_that_fails_stops_only_those_that_need_it(tmp_path: Path) -> None:
    broken = step("broken", "print('ValueError: no'); raise SystemExit(7)")
    session = run(tmp_path, broken, step("after", needs=("broken",)), step("last", needs=("after",)), step("other"))
    codes = {name: found["code"] for name, found in session.done.items()}
    assert codes == {"broken": 7, "after": -1, "last": -1, "other": 0}
    assert session.done["after"]["note"] == "not begun, for broken failed"
    assert exit_code(session.steps, session.done) == 1
    assert (session.shown(broken), session.shown(step("other"))) == (["ValueError: no"], ["| 1 | row |"])


def test_a_step_that_takes_too_long_is_killed_with_all_its_processes(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time; print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']).pid); time.sleep(60)"
    )
    session = run(tmp_path, step("endless", code, seconds=1), step("next"))
    assert session.done["endless"]["note"] == "killed after 1 s"
    assert session.done["next"]["code"] == 0
    child = int((tmp_path / "logs" / "endless.log").read_text())
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


def test_the_next_call_goes_on_where_the_last_had_no_time_for_more(tmp_path: Path) -> None:
    steps = (step("short", seconds=5), step("long", seconds=500))
    first = run(tmp_path, *steps, limit_s=30)
    assert list(first.done) == ["short"]
    assert exit_code(steps, first.done) == 3
    begun = (tmp_path / "logs" / "short.log").stat().st_mtime_ns
    second = run(tmp_path, *steps, limit_s=600)
    assert exit_code(steps, second.done) == 0
    assert (tmp_path / "logs" / "short.log").stat().st_mtime_ns == begun
    assert json.loads((tmp_path / STATE).read_text()).keys() == {"short", "long"}


def test_two_steps_share_two_cards_and_one_that_needs_both_waits_for_them(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    names = ("a", "b", "both", "c")
    started = time.monotonic()
    session = run(tmp_path, *(step(name, NOTE_CARDS, seen, name, cards=2 if name == "both" else 1) for name in names), cards=("4", "GPU-x"))
    assert time.monotonic() - started < 10
    assert all(found["code"] == 0 for found in session.done.values())
    lines = seen.read_text().splitlines()
    assert {line.split()[1] for line in lines[:2]} == {"4", "GPU-x"}
    assert lines[2:] == ["both 4,GPU-x", "c 4"]


def test_a_step_for_too_many_cards_and_an_unknown_one_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    session = run(tmp_path, step("both", cards=2), step("a"))
    assert session.done["both"]["note"] == "not begun, for it needs 2 cards"
    assert session.done["a"]["code"] == 0
    with pytest.raises(SystemExit):
        main(["one", str(tmp_path), "--only", "test"])
    assert "there is no step test; there are texts, tests-vllm" in capsys.readouterr().err
    assert main(["two", str(tmp_path), "--list"]) == 3
    assert "two-texts        left" in capsys.readouterr().out


def test_a_call_that_is_interrupted_leaves_no_process_and_the_step_is_left(tmp_path: Path) -> None:
    pids: list[int] = []

    class Interrupted(Session):
        def _look(self) -> None:
            if self._running:
                pids.extend(process.pid for _, process, _, _ in self._running.values())
                raise KeyboardInterrupt

    session = Interrupted(tmp_path, [step("endless", "import time; time.sleep(60)")], ["0"])
    with pytest.raises(KeyboardInterrupt):
        session.run(30)
    assert pids
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert session.left() == list(session.steps)


@pytest.mark.parametrize("tiny", [False, True])
def test_steps_need_what_comes_before_them_and_fit_into_a_call(tmp_path: Path, tiny: bool) -> None:
    steps = steps_of(tmp_path, tiny=tiny)
    names = [one.name for one in steps]
    assert len(set(names)) == len(names)
    assert all(set(one.needs) <= set(names[:number]) for number, one in enumerate(steps))
    assert all(one.seconds <= 500 for one in steps)
    assert [one.name for one in with_needs(steps[-1:], steps)] == ["photos", "one-photos", "table-photos"]
