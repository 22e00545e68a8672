"""What a run says while it runs: one live line on a terminal, a line now and then in a log, a record for other terminals."""

from __future__ import annotations

import json
import re
import threading
import time

import pytest

from evalharness.report.html import index_page
from tests.pytest_plugin.progress.screen import seen_on_terminal
from tests.pytest_plugin.project import MARK, MODES, TIMEOUT_S, Project, environment

TEST = "@pytest.mark.gate('pass_rate >= 0')\ndef test_s(case, generation): assert case.id != 'c1', 'x'\n"
QUICK = """
from evalharness.pytest_plugin.progress import showing
showing.LOG_EVERY_S, showing.EVERY_S, showing._QUIET_S, showing._LIVE_S, showing._SEND_S = 0.4, 0.2, 0.1, 0.1, 0.1
"""
SLOW = {"text": "x" * 50, "delay_s": 0.3}


def run_on_terminal(project: Project, *arguments: str, mode: str, columns: int = 100) -> tuple[str, list[str]]:
    """Return what a terminal shows when the run has ended, and each last row that it showed meanwhile."""
    env = {name: value for name, value in environment().items() if name != "COLUMNS"}
    return seen_on_terminal(project.command(*arguments, mode=mode), project.root, env, columns, TIMEOUT_S)


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "columns"), [("no-xdist", 60), ("n2", 100)])
def test_a_terminal_shows_a_line_beneath_pytests_own_and_nothing_of_it_stays(project: Project, mode: str, columns: int) -> None:
    project.write(conftest=QUICK, test_a=MARK.replace("range(4)", "range(12)") + TEST)
    shown, rows = run_on_terminal(project, "--model", project.script(SLOW), "--max-new-tokens", "64", mode=mode, columns=columns)
    lines = [row for row in rows if "fake:" in row and "/12" in row]
    assert any(re.search(r"a on fake:answers: \d+/12( answers)?, (\d in flight, )?\d+ tokens/s", line) for line in lines), rows
    assert all(len(line) < columns for line in lines)
    assert "in flight" not in shown, "it is taken away"
    assert "tokens/s" not in shown
    tests = "".join(re.findall(r"(?m)^(?:test_a\.py )?([.m]+) *\[", shown))
    assert sorted(tests) == sorted("m" + "." * 11), "pytest's own are whole"
    assert re.search(r"(?m)^evalharness: 12 eval tests on fake:answers", shown), "so is the announcement"


@pytest.mark.slow
def test_it_is_there_beside_verbose_lines_too(project: Project) -> None:
    project.write(conftest=QUICK, test_a=MARK + TEST)
    shown, rows = run_on_terminal(project, "-v", "--model", project.script(SLOW), mode="no-xdist")
    assert len(re.findall(r"(?m)^test_a.py::test_s\[fake:answers-c\d\] (?:PASSED|MISS) +\[ ?\d+%\]$", shown)) == 4, shown
    assert any("tokens/s" in row for row in rows)


@pytest.mark.slow
def test_the_line_says_what_loads(project: Project) -> None:
    loading = """
import time
from evalharness.pytest_plugin.execution.engines import EnginePool
opens = EnginePool.open
def slowly(self, spec):
    time.sleep(1.5)
    return opens(self, spec)
EnginePool.open = slowly
"""
    project.write(conftest=QUICK + loading, test_a=MARK + TEST)
    _, rows = run_on_terminal(project, mode="no-xdist")
    assert any(re.search(r"loading fake:echo … \d s, 0/4 tests", row) for row in rows), rows


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES[::2])
def test_a_log_gets_a_line_with_time_eval_and_engine_and_no_control_character(project: Project, mode: str) -> None:
    project.write(conftest=QUICK, test_a=MARK.replace("range(4)", "range(8)") + TEST)
    run = project.run("--model", project.script(SLOW), "--max-new-tokens", "64", mode=mode, apart=True)
    line = r"(?m)^evalharness \d\d:\d\d:\d\d: a on fake:answers: \d/8 answers, \d in flight, \d+ tokens/s, \d/8 tests(, 1 not passed)?"
    assert len(re.findall(line, run.output)) >= 2, run.output
    assert "\r" not in run.output
    assert "\x1b" not in run.output
    assert "\n\n" not in run.output.partition(": a on fake")[2].rpartition(": a on fake")[0]


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES[::2])
def test_the_run_leaves_word_of_its_progress_while_it_runs_and_none_after(project: Project, mode: str) -> None:
    project.write(conftest=QUICK, test_a=MARK.replace("range(4)", "range(12)") + TEST)
    with project.start("--model", project.script(SLOW), "--run-id", "r", mode=mode) as process:
        path, seen = project.root / "reports" / "r" / "progress.json", list[dict[str, object]]()
        while process.poll() is None:
            if path.exists():
                seen.append(json.loads(path.read_bytes()))
            time.sleep(0.1)
    last = seen[-1]
    assert (last["num_tests"], last["engines"][0]["num_asked"]) == (12, 12)  # type: ignore[index]
    assert any(one["engines"][0]["tokens_per_s"] for one in seen)  # type: ignore[index]
    names = {worker["name"] for worker in last["workers"]}  # type: ignore[attr-defined]
    assert names == ({"gw0", "gw1"} if mode == "n2" else {"main"})
    assert not path.exists()


def test_a_short_run_in_a_log_is_pytests_own_lines(project: Project) -> None:
    run = project.write(test_a=MARK + TEST).run_inline()
    assert re.search(r"^test_a.py \.m\.\. ", run.output, re.MULTILINE)
    assert "tokens/s" not in run.output


def test_the_last_index_is_written_when_no_other_thread_can_write_one(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    at_work: list[list[str]] = []
    monkeypatch.setattr(index_page, "write_index", lambda folder: at_work.append([thread.name for thread in threading.enumerate()]))
    project.write(test_a=MARK + TEST).run_inline()
    assert len(at_work) == 1
    assert "progress" not in at_work[0]


@pytest.mark.slow
def test_an_error_of_the_display_ends_no_run(project: Project) -> None:
    broken = "from evalharness.report import progress\ndef line(*what): raise ValueError('odd')\nprogress.progress_line = line\n"
    project.write(conftest=QUICK + broken, test_a=MARK + TEST)
    run = project.run("--model", project.script(SLOW), apart=True)
    assert run.counts == {"pass": 3, "miss": 1}
    assert run.output.count("evalharness: progress is not shown any more: ValueError: odd") == 1
