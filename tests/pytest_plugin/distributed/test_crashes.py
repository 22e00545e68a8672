"""Dying workers, Ctrl-C, full disks, engines that cannot open: the run ends by itself, says so and loses nothing."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from evalharness.api.errors import BROKEN
from evalharness.backends.fake import FakeBackend
from evalharness.runs.journal import read_lines
from tests.pytest_plugin.project import HEADER, MARK, MODES, TIMEOUT_S, Project, wait_until

pytestmark = pytest.mark.slow

DYING = (
    HEADER
    + """
import pathlib, signal, time
pytestmark = pytest.mark.eval(cases=lambda d: [Case(id=f"c{i:02}", tags={"n": str(i)}) for i in range(12)], request=ask)

@pytest.mark.gate("x >= 1")
def test_s(case, generation, score):
    score(x=1)
    if case.id == "c03":
        os.kill(os.getpid(), signal.SIGKILL)
    if case.id == "c09":
        os._exit(0)
"""
)


class TestDyingWorkers:
    def test_the_culprits_are_error_rows_that_say_why_and_all_others_ran_and_are_judged(self, project: Project) -> None:
        run = project.write(test_a=DYING).run(mode="n2")
        assert {row["case_id"] for row in run.rows if row["outcome"] == "error"} == {"c03", "c09"}
        assert run.counts == {"pass": 10, "error": 2}
        assert run.exit_code == BROKEN
        row = run.row("c03")
        assert re.fullmatch(r"worker gw\d died while test_a.py::test_s\[fake:echo-c03\] ran; it was tried \d times", row["problem"])
        assert (row["tags"], row["eval"], row["test"], row["checkpoint"]) == ({"n": "3"}, "a", "test_s", "echo")
        gate = run.gate("x >= 1")
        assert (gate["passed"], gate["n"]) == (True, 10)

    def test_without_restarts_the_rest_was_not_run_and_no_gate_passes(self, project: Project) -> None:
        run = project.write(test_a=DYING).run("--max-worker-restart=0", mode="n2")
        assert len(run.rows) == 12
        assert run.counts["error"] in (1, 2)
        assert run.exit_code in (BROKEN, 2)
        assert {row["problem"] for row in run.rows if row["outcome"] == "skip"} == {"not run: the session ended before it"}
        assert not run.gate("x >= 1")["passed"]
        assert "cases were not run (the session ended before them)" in run.gate("x >= 1")["reason"]

    def test_a_module_that_kills_its_worker_ends_the_run(self, project: Project) -> None:
        kill = "if os.environ.get('PYTEST_XDIST_WORKER'): os._exit(3)\n"
        run = project.write(test_a=MARK + kill + "def test_s(case, generation): pass\n").run("--max-worker-restart=1", mode="n2")
        assert run.exit_code != 0

    @pytest.mark.parametrize(("dies", "counts"), [("once", {"pass": 4}), ("always", {"pass": 3, "error": 1})])
    def test_a_worker_that_dies_after_its_last_test_has_that_run_once_more(
        self, project: Project, dies: str, counts: dict[str, int]
    ) -> None:
        project.write(
            test_a=MARK
            + f"""
@pytest.fixture(scope="session", autouse=True)
def deadly(request):
    yield
    seen = [item.nodeid for item in request.session.items if getattr(item, "ran", False)]
    if any("c3" in nodeid for nodeid in seen) and ({dies!r} == "always" or not os.path.exists("died")):
        open("died", "w").close()
        os._exit(1)
def test_s(case, generation, request):
    request.node.ran = True
"""
        )
        run = project.run(mode="n2")
        assert run.exit_code == BROKEN
        assert run.counts == counts
        for row in run.rows:
            assert row["generation"]["text"] == f"ask {row['case_id']}"


SLOW = (
    HEADER
    + """
import pathlib
def cases(data_dir): return [Case(id=f"c{i}") for i in range(200)]
pytestmark = pytest.mark.eval(cases=cases, request=ask)
@pytest.mark.gate("x >= 1")
def test_s(case, generation, score):
    score(x=1)
    pathlib.Path(f"done-{case.id}").touch()
"""
)


def has_rows(project: Project) -> bool:
    """Return whether a journal has a row; a test's own traces are there a moment earlier, in which it can be interrupted."""
    return any(b'{"kind":"row"' in path.read_bytes() for path in project.root.glob("reports/*/journal/*.jsonl"))


@contextlib.contextmanager
def started(project: Project, mode: str) -> Iterator[subprocess.Popen[str]]:
    """Start a run of 200 slow cases and give it when a few are done."""
    project.write(test_a=SLOW)
    script = project.script({"text": "x", "delay_s": 0.5})
    with project.start("--model", script, mode=mode) as process:
        wait_until(lambda: has_rows(project))
        yield process


class TestCtrlC:
    @pytest.mark.parametrize("mode", MODES[::2])
    def test_once_writes_rows_and_reports_and_passes_no_gate(self, project: Project, mode: str) -> None:
        with started(project, mode) as process:
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does: workers get it too
            run = project.wait(process)
        assert run.exit_code == pytest.ExitCode.INTERRUPTED
        assert len(run.rows) == 200
        assert run.counts["pass"] >= 1
        assert run.facts["interrupted"] == "interrupted by the user"
        assert run.row("c199")["problem"] == "not run: interrupted by the user"
        assert "cases were not run" in run.gate("x >= 1")["reason"]
        assert (run.run_dir / "report.md").exists()
        assert f"report: {run.run_dir / 'report.md'}" in run.output
        assert "INTERNALERROR" not in run.output
        assert run.facts["problems"] == [], "workers that are interrupted have not died"
        assert set(run.counts) == {"pass", "skip"}

    @pytest.mark.parametrize(
        ("mode", "number", "whom"),
        [
            ("no-xdist", signal.SIGTERM, "controller"),
            ("no-xdist", signal.SIGHUP, "controller"),
            ("n2", signal.SIGTERM, "controller"),
            ("n2", signal.SIGHUP, "group"),
        ],
        ids=["alone, term", "alone, hup", "n2, term", "n2, hup to all"],
    )
    def test_other_signals_that_end_a_process_do_so_with_everything_written(
        self, project: Project, mode: str, number: signal.Signals, whom: str
    ) -> None:
        with started(project, mode) as process:
            (os.killpg if whom == "group" else os.kill)(process.pid, number)
            run = project.wait(process)
            wait_until(lambda: process_group(process.pid) == [])
        assert run.exit_code == pytest.ExitCode.INTERRUPTED
        assert len(run.rows) == 200
        assert run.counts["pass"] >= 1
        assert run.facts["interrupted"] == f"interrupted by {number.name}"
        assert (run.run_dir / "report.md").exists()
        assert "INTERNALERROR" not in run.output

    def test_a_signal_while_workers_start_leaves_no_folder_and_no_process(self, project: Project, tmp_path: Path) -> None:
        (tmp_path / "temporary").mkdir()
        waiting = "open(os.environ['PYTEST_XDIST_WORKER'], 'x').close(); time.sleep(60)"
        project.write(test_a=SLOW, conftest=f"import os, time\nif 'PYTEST_XDIST_WORKER' in os.environ: {waiting}\n")
        with project.start(mode="n2", env={"TMPDIR": str(tmp_path / "temporary")}) as process:
            wait_until(lambda: (project.root / "gw0").exists() or process.poll() is not None)
            process.terminate()
            run = project.wait(process)
            wait_until(lambda: process_group(process.pid) == [])
        assert run.exit_code == pytest.ExitCode.INTERRUPTED
        assert [path.name for path in (tmp_path / "temporary").iterdir() if path.name.startswith("evalharness")] == []

    @pytest.mark.parametrize("mode", MODES[::2])
    def test_twice_ends_at_once_and_keeps_the_journal(self, project: Project, mode: str) -> None:
        with started(project, mode) as process:
            for _ in range(2):
                os.killpg(process.pid, signal.SIGINT)
                time.sleep(0.1)
            run = project.wait(process)
        assert run.exit_code != 0
        assert [line for line in read_lines(run.run_dir) if line.values["kind"] == "row"]

    def test_the_controller_alone_takes_its_workers_along(self, project: Project) -> None:
        with started(project, "n2") as process:
            assert len(process_group(process.pid)) >= 3, "the controller and two workers"
            process.send_signal(signal.SIGINT)
            run = project.wait(process)
            assert len(run.rows) == 200
            wait_until(lambda: process_group(process.pid) == [])


def process_group(pid: int) -> list[int]:
    """Return the live processes of a group."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[2]) == pid and fields[0] != "Z":
                found.append(int(stat.parent.name))
    return found


class TestDisk:
    @pytest.fixture
    def small_disk(self, tmp_path: Path) -> Iterator[Path]:
        """A file system of 256 kB."""
        folder = tmp_path / "small"
        folder.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", folder], capture_output=True, check=False)
        if mounted.returncode:
            pytest.skip("mounting a small file system needs rights that this machine does not give")
        yield folder
        subprocess.run(["umount", "--lazy", folder], check=True)

    @pytest.mark.parametrize("mode", MODES[::2])
    def test_a_disk_too_small_for_the_reports_keeps_the_journal(self, project: Project, small_disk: Path, mode: str) -> None:
        project.write(test_a=MARK.replace("range(4)", "range(40)") + "def test_s(case, generation): pass\n")
        run = project.run("--model", project.script({"text": "z" * 300}), "--report-dir", str(small_disk), "--run-id", "r", mode=mode)
        assert run.exit_code == BROKEN
        assert re.search("no report: .* cannot be written: No space left on device", run.output)
        assert sum(line.values["kind"] == "row" for line in read_lines(small_disk / "r")) == 40

    @pytest.mark.parametrize("mode", MODES[::2])
    def test_a_report_folder_that_cannot_be_made_is_a_usage_error(self, project: Project, mode: str) -> None:
        project.write(test_a=MARK + "def test_s(case, generation): pass\n")
        (project.root / "reports").write_text("a file is in the way")
        run = project.run(mode=mode)
        assert run.exit_code == pytest.ExitCode.USAGE_ERROR
        (error,) = [line for line in run.output.splitlines() if line.startswith("ERROR: ")]
        assert "cannot be made: Not a directory; choose another folder with --report-dir" in error
        assert "Traceback" not in run.output

    @pytest.mark.parametrize("mode", MODES[::2])
    def test_a_run_id_that_is_taken_is_refused_and_the_old_run_kept(self, project: Project, mode: str) -> None:
        project.write(test_a=MARK + "def test_s(case, generation): pass\n")
        before = project.run_inline("--run-id", "mine")
        content = (before.run_dir / "run.json").read_bytes(), (before.run_dir / "samples.jsonl").read_bytes()
        run = project.run("--run-id", "mine", mode=mode)
        assert run.exit_code == pytest.ExitCode.USAGE_ERROR
        assert "ERROR: run 'mine' already exists in " in run.output
        assert ((before.run_dir / "run.json").read_bytes(), (before.run_dir / "samples.jsonl").read_bytes()) == content
        assert len([line for line in read_lines(before.run_dir) if line.values["kind"] == "eval"]) == 1

    def test_reports_that_cannot_be_written_are_said_and_the_rows_stay(self, project: Project) -> None:
        test = """
def test_s(case, generation, pytestconfig):
    from evalharness.pytest_plugin.session import STATE
    (pytestconfig.stash[STATE].context.run_dir / "report.md").mkdir(exist_ok=True)
"""
        run = project.write(test_a=MARK + test).run_inline()
        assert run.exit_code == BROKEN
        assert re.search(r"no report: .*report\.md", run.output)
        assert len(run.rows) == 4


def test_what_went_wrong_with_the_report_cannot_steer_the_terminal(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_records(run_dir: Path) -> None:
        raise ValueError("\x1b[2J\nforged line")

    monkeypatch.setattr("evalharness.pytest_plugin.finish.read_records", read_records)
    run = project.write(test_a=MARK + "def test_s(case, generation): pass\n").run_inline()
    assert run.exit_code == BROKEN
    assert "no report: ValueError: \\x1b[2J\\nforged line; the results are safe in " in run.output
    assert "\x1b" not in run.output


class TestEnginesThatCannotOpen:
    @pytest.mark.parametrize("mode", MODES[::2])
    def test_every_case_is_an_error_row_with_one_short_message(self, project: Project, mode: str) -> None:
        num_cases = 1000 if mode == "no-xdist" else 100
        project.write(
            test_a=MARK.replace("range(4)", f"range({num_cases})")
            + "@pytest.mark.gate('x >= 1')\ndef test_s(case, generation, score): score(x=1)\n"
        )
        run = project.run("--keep-going", "--model", project.script({"txt": "x"}), mode=mode)
        assert run.counts == {"error": num_cases}
        assert len({row["problem"] for row in run.rows}) == 1
        assert run.rows[0]["problem"].startswith("setup: engine fake:answers cannot be opened: answers.jsonl:1 is not a script row")
        assert run.exit_code == BROKEN
        assert "fixtures.py" not in run.output
        assert not run.gate("x >= 1")["passed"]

    def test_an_unexpected_exception_costs_one_traceback_not_one_per_case(self, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
        def broken(self: FakeBackend, config: object, preprocess: object) -> None:
            raise RuntimeError("CUDA is gone")

        monkeypatch.setattr(FakeBackend, "__init__", broken)
        run = project.write(test_a=MARK.replace("range(4)", "range(100)") + "def test_s(case, generation): pass\n").run_inline(
            "--keep-going"
        )
        assert run.counts == {"error": 100}
        assert {row["problem"] for row in run.rows} == {"setup: engine fake:echo cannot be opened: RuntimeError: CUDA is gone"}
        assert run.output.count('raise RuntimeError("CUDA is gone")') == 1
        assert len(run.output) < 100 * 500


class TestUnitsThatDoNotEnd:
    CONFTEST = """
import threading
import time
from pathlib import Path
from evalharness.backends.fake import FakeBackend
from evalharness.pytest_plugin.execution import engine_queue

engine_queue.STOP_TIMEOUT_S = PATIENCE
complete = FakeBackend._complete

def noted(self, prompt, plugins, *_):
    if "c2" in prompt.text:
        Path("at-c2").touch()
        time.sleep(HANGS_S)
    return complete(self, prompt, plugins)

def close(self):
    print("closed with", [t.name for t in threading.enumerate() if t.name.startswith("engine-queue")])

FakeBackend._complete, FakeBackend.close = noted, close
"""
    # It is deaf for longer than anybody waits for the run.
    IMPATIENT = CONFTEST.replace("PATIENCE", "0.2").replace("HANGS_S", f"{2 * TIMEOUT_S}")
    HEAD = MARK + "import time\ndef wait_for_c2():\n    while not os.path.exists('at-c2'): time.sleep(0.01)\n\n"
    TEST = HEAD + "def test_s(case, generation):\n    if case.id == 'c1':\n        wait_for_c2()\n        assert False\n"
    PROBLEM = "engine fake:answers still generates for test_a.py, though told to stop: it is left open until the process ends"

    def test_a_hanging_one_is_a_problem_of_the_run_and_its_engine_is_not_closed_under_it(self, project: Project) -> None:
        project.write(conftest=self.IMPATIENT, test_a=self.TEST)
        run = project.run("-x", "-s", "--model", project.script({"text": "x"}), apart=True)
        assert run.facts["problems"] == [self.PROBLEM]
        assert f"! {self.PROBLEM}" in run.output
        assert "closed with" not in run.output
        assert run.exit_code == BROKEN

    def test_an_engine_that_hangs_takes_no_further_unit(self, project: Project) -> None:
        skips = (
            self.HEAD + "@pytest.fixture\ndef early(case):\n    if case.id == 'c2':\n        wait_for_c2()\n        pytest.skip('early')\n"
        )
        project.write(
            conftest=self.IMPATIENT,
            test_a=skips + "def test_s(early, case, generation): pass\n",
            test_b=MARK + "def test_s(case, generation): pass\n",
        )
        model = project.script({"text": "x"})
        run = project.run("--model", model, "--deselect", "test_a.py::test_s[fake:answers-c3]", apart=True)
        assert [row["outcome"] for row in run.rows] == ["pass", "pass", "skip", "error", "error", "error", "error"]
        assert {row["problem"] for row in run.rows[3:]} == {self.PROBLEM}

    def test_one_that_ends_leaves_nothing_to_say(self, project: Project) -> None:
        run = project.write(conftest=self.CONFTEST.replace("PATIENCE", "60").replace("HANGS_S", "0"), test_a=self.TEST).run(
            "-x", "-s", apart=True
        )
        assert run.facts["problems"] == []
        assert "closed with []" in run.output


KILLED_AT_START = """
import os, signal, sys, threading, time

def die():
    try:
        os.unlink({marker!r})
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGKILL)

def die_later():
    while "execnet.gateway_base" not in sys.modules:
        time.sleep(0.001)
    die()

if any("stdin.readline" in argument for argument in sys.orig_argv):
    {how}
"""


@pytest.mark.parametrize("how", ["die()", "threading.Thread(target=die_later, daemon=True).start()"], ids=["at once", "a moment later"])
@pytest.mark.slow
def test_a_worker_killed_while_it_starts_is_replaced(project: Project, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    (project.root / "site").mkdir()
    (project.root / "marker").touch()
    source = KILLED_AT_START.format(marker=str(project.root / "marker"), how=how)
    (project.root / "site" / "sitecustomize.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", f"{project.root / 'site'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    run = project.write(test_a=MARK + "def test_s(case, generation): pass\n").run(mode="n2")
    assert not (project.root / "marker").exists(), "a worker was to be killed"
    assert "INTERNALERROR" not in run.output
    assert run.counts == {"pass": 4}
    assert run.exit_code == BROKEN, "every death is a problem of the run"
    [problem] = run.facts["problems"]
    assert "while it started" in problem


@pytest.mark.slow
def test_a_worker_killed_before_the_run_begins_is_replaced_and_a_problem_of_the_run(project: Project) -> None:
    kill = """
import os, signal

def pytest_collection_modifyitems():
    if "PYTEST_XDIST_WORKER" in os.environ:
        try:
            os.unlink("marker")
        except FileNotFoundError:
            return
        os.kill(os.getpid(), signal.SIGKILL)
"""
    (project.root / "marker").touch()
    run = project.write(test_a=MARK + "def test_s(case, generation): pass\n", conftest=kill).run(mode="n2")
    assert (run.counts, run.exit_code) == ({"pass": 4}, BROKEN)
    [problem] = run.facts["problems"]
    assert re.fullmatch(r"worker gw\d died .*", problem)
