"""Disks that are full or read-only while a run goes on or is resumed: a clear end, nothing lost, and it goes on once there is room."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evalharness.api.errors import BROKEN
from evalharness.cli import main
from evalharness.runs.journal import read_lines
from tests.pytest_plugin.killing import generations
from tests.pytest_plugin.project import MARK, MODES, Project

pytestmark = pytest.mark.slow

NUM_CASES = 40
CASES = MARK.replace("range(4)", f"range({NUM_CASES})")
TEST = CASES + "def test_s(case, generation): pass\n"


def mounted(*arguments: str | Path) -> bool:
    return subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MB, of which a file takes most."""
    folder = tmp_path / "small"
    folder.mkdir()
    if not mounted("-t", "tmpfs", "-o", "size=8m", "tmpfs", folder):
        pytest.skip("mounting a small file system needs rights that this machine does not give")
    (folder / "ballast").write_bytes(bytes(8_000_000))
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Make a folder read-only, for root as well."""
    if not (mounted("--bind", folder, folder) and mounted("-o", "remount,bind,ro", folder)):
        subprocess.run(["umount", "--lazy", folder], capture_output=True, check=False)
        pytest.skip("mounting a folder read-only needs rights that this machine does not give")
    yield
    subprocess.run(["umount", "--lazy", folder], check=False)


@pytest.mark.parametrize("mode", MODES[::2])
def test_a_run_that_filled_the_disk_goes_on_once_there_is_room(project: Project, small_disk: Path, mode: str) -> None:
    project.write(test_a=TEST)
    model = ("--model", project.script({"text": "z" * 5000}), "--max-new-tokens", "5001")
    first = project.run(*model, f"--report-dir={small_disk}", "--run-id", "r", mode=mode)
    assert first.exit_code not in (0, 1, 5)
    assert "the run cannot go on: " in first.output
    assert "No space left on device" in first.output
    assert not any(traced in first.output for traced in ("INTERNALERROR", "The above exception"))
    made = generations(small_disk / "r")
    assert 3 <= len(made) < NUM_CASES
    full = project.run("--resume", "r", f"--report-dir={small_disk}", mode=mode)
    assert full.exit_code not in (0, 1, 5)
    assert "No space left on device" in full.output
    assert "INTERNALERROR" not in full.output
    assert generations(small_disk / "r").keys() >= made.keys()
    (small_disk / "ballast").unlink()
    resumed = project.run("--resume", "r", f"--report-dir={small_disk}", mode=mode)
    assert resumed.exit_code == 0, resumed.output
    counts = generations(small_disk / "r")
    assert (len(counts), set(counts.values())) == (NUM_CASES, {1})


READ_ONLY = """
import subprocess
def test_s(case, generation, pytestconfig):
    if case.id == "c20":
        folder = os.path.abspath("reports")
        for arguments in (["--bind", folder, folder], ["-o", "remount,bind,ro", folder]):
            subprocess.run(["mount", *arguments], check=True)
"""


def test_a_folder_that_turns_read_only_while_running_keeps_the_journal(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    (project.root / "reports").mkdir()
    with read_only(project.root / "reports"):
        pass  # skips where it is not possible
    project.write(test_a=CASES + READ_ONLY)
    try:
        run = project.run_inline("--run-id", "r")
        assert run.exit_code == BROKEN
        assert "no report: " in run.output
        assert "Read-only file system" in run.output
        refused = project.run_inline("--resume", "r")
        assert refused.exit_code == pytest.ExitCode.USAGE_ERROR
        assert "cannot be opened: Read-only file system; the folder of a run must be writable" in refused.output
    finally:
        subprocess.run(["umount", "--lazy", project.root / "reports"], check=False)
    monkeypatch.chdir(project.root)
    assert main(["report", "reports/r"]) in (0, 1)
    assert len(run.rows) == NUM_CASES


LIMIT = """
import resource
from evalharness.pytest_plugin.session import STATE

def test_s(case, generation, pytestconfig):
    if case.id == "c20" and not os.path.exists("limited"):
        open("limited", "w").close()
        size = os.path.getsize(pytestconfig.stash[STATE].context.journal.path)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, size + 100))
"""


@pytest.mark.parametrize("mode", MODES)
def test_a_journal_that_cannot_grow_ends_the_run_and_is_gone_on_with(project: Project, mode: str) -> None:
    """Needs no rights: the process may write no file that is longer."""
    project.write(test_a=CASES + LIMIT)
    run = project.run("--run-id", "r", mode=mode, apart=True)
    assert run.exit_code not in (0, 1, 5)
    assert "the run cannot go on: " in run.output
    assert "File too large; what is in it so far is kept" in run.output
    resumed = project.run("--resume", "r", mode=mode, apart=True)
    assert resumed.exit_code == 0, resumed.output
    counts = generations(run.run_dir)
    assert (len(counts), set(counts.values())) == (NUM_CASES, {1})
    assert {path.name for path in (run.run_dir / "journal").iterdir() if path.suffix != ".jsonl"} == set()


DYING = """
def test_s(case, generation):
    if case.id == "c20" and os.environ.get("DIE"):
        os._exit(7)
"""


@pytest.mark.parametrize("mode", MODES[:2])
def test_a_test_that_ends_its_process_without_workers_leaves_a_run_that_goes_on(
    project: Project, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write(test_a=CASES + DYING)
    monkeypatch.setenv("DIE", "1")
    run = project.run("--run-id", "r", mode=mode, apart=True)
    assert run.exit_code == 7
    monkeypatch.delenv("DIE")
    resumed = project.run("--resume", "r", mode=mode)
    assert (resumed.exit_code, os.path.exists(project.root / "reports" / "r" / "report.md")) == (0, True)
    counts = generations(project.root / "reports" / "r")
    assert (len(counts), set(counts.values())) == (NUM_CASES, {1})


# In a worker, a third fixture kills it: once nothing is asked any more, or the case would be suspected first.
RAISING = """
import time

@pytest.fixture
def shaky(case):
    if case.id == "c1": raise RuntimeError("before")
    if case.id == "c3" and os.environ.get("PYTEST_XDIST_WORKER"):
        while any(name.endswith(".asked") for name in os.listdir("reports/r/journal")): time.sleep(0.01)
        os._exit(1)
    yield
    if case.id == "c2": raise RuntimeError("after")

@pytest.mark.gate("x >= 1")
def test_s(shaky, case, generation, score): score(x=1)
"""


def test_a_fixture_that_raises_or_kills_twice_is_an_error_of_its_case_alone(project: Project, mode: str) -> None:
    run = project.write(test_a=MARK + RAISING).run("--run-id", "r", mode=mode)
    killed = mode == "n2"
    outcomes = {"c0": "pass", "c1": "error", "c2": "error", "c3": "error" if killed else "pass"}
    assert {row["case_id"]: row["outcome"] for row in run.rows} == outcomes
    assert run.row("c1")["problem"].startswith("setup: ")
    assert run.exit_code == 10
    assert len(run.facts["problems"]) == 2 * killed


GATED = MARK + "@pytest.mark.gate('right >= 1')\ndef test_s(case, generation, score): score(right=1)\n"


@pytest.mark.parametrize("num_before", [0, 2, 5, 9, 13])
@pytest.mark.parametrize(("writer", "number"), [("write", errno.ENOSPC), ("replace", errno.EDQUOT), ("open", errno.EMFILE)])
def test_from_whichever_write_on_nothing_more_can_be_written_the_run_ends_as_documented(
    project: Project, monkeypatch: pytest.MonkeyPatch, writer: str, number: int, num_before: int
) -> None:
    """Not with pytest's code for an internal error: 10, and 4 where no run could begin. What was written before is kept."""
    original, left = getattr(os, writer), num_before

    def failing(target: Any, *arguments: Any, **keywords: Any) -> Any:
        nonlocal left
        place = os.readlink(f"/proc/self/fd/{target}") if isinstance(target, int) else str(target)
        left -= "reports" in place
        if "reports" in place and left < 0:
            raise OSError(number, os.strerror(number))
        return original(target, *arguments, **keywords)

    project.write(test_a=GATED)
    with monkeypatch.context() as patch:
        patch.setattr(os, writer, failing)
        run = project.run_inline("--run-id", "r")
    assert run.exit_code in ((BROKEN, pytest.ExitCode.USAGE_ERROR) if left < 0 else (0,))
    assert "INTERNALERROR" not in run.output
    assert "Traceback" not in run.output
    if run.exit_code == BROKEN:
        assert os.strerror(number) in run.output
        assert [line for line in read_lines(run.run_dir) if line.values["kind"] == "collected"]


LIMITED = """
import os, pytest, resource

@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session):
    if os.environ.get("NO_MORE_FILES"):
        soft = len(os.listdir("/proc/self/fd")) - 1
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
"""


def test_a_run_that_cannot_begin_for_want_of_descriptors_says_so_and_leaves_its_name_free(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write(test_a=GATED, conftest=LIMITED)
    monkeypatch.setenv("NO_MORE_FILES", "1")
    run = project.run("--run-id", "r", apart=True)
    assert (run.exit_code, "INTERNALERROR" in run.output) == (pytest.ExitCode.USAGE_ERROR, False), run.output
    assert "the run cannot begin: " in run.output
    assert os.strerror(errno.EMFILE) in run.output
    monkeypatch.delenv("NO_MORE_FILES")
    assert project.run("--run-id", "r", apart=True).exit_code == 0


STOPPED_BY_CRASH = """
import os, pytest
from evalharness.pytest_plugin.distributed import crashes

def failing(*arguments): raise OSError({number}, os.strerror({number}))

@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_testnodedown(node, error):
    if error is not None:
        {what}
"""
KILLED = """
import os, pytest

@pytest.mark.gate("x >= 1")
def test_s(case, generation, score):
    if case.id == "c1": os._exit(1)
    score(x=1)
"""


@pytest.mark.parametrize(
    ("number", "what"),
    [
        pytest.param(errno.ENOSPC, "os.write = failing", id="full-disk"),
        pytest.param(errno.EMFILE, "crashes.last_signs = failing", id="descriptors"),
    ],
)
def test_a_death_that_cannot_be_noted_ends_the_run_as_documented(project: Project, number: int, what: str) -> None:
    project.write(test_a=MARK + KILLED, conftest=STOPPED_BY_CRASH.format(number=number, what=what))
    run = project.run("--run-id", "r", mode="n2")
    assert run.exit_code == BROKEN, run.output
    assert "INTERNALERROR" not in run.output
    assert "the run cannot go on: " in run.output


ELSEWHERE = """
import errno, os, pytest

@pytest.hookimpl(tryfirst=True)
def {hook}:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
"""


@pytest.mark.parametrize(
    ("hook", "mode", "exit_code"),
    [
        ("pytest_sessionstart()", "no-xdist", 4),
        ("pytest_sessionstart()", "n2", 4),
        ("pytest_runtest_protocol(item)", "no-xdist", BROKEN),
        ("pytest_runtest_protocol(item)", "n2", BROKEN),
        ("pytest_runtest_logfinish()", "n2", BROKEN),
    ],
)
def test_descriptors_that_are_missing_in_pytest_or_another_plugin_end_the_run_as_documented(
    project: Project, hook: str, mode: str, exit_code: int
) -> None:
    run = project.write(test_a=GATED, conftest=ELSEWHERE.format(hook=hook)).run("--run-id", "r", mode=mode)
    assert run.exit_code == exit_code, run.output
    assert "INTERNALERROR" not in run.output
    assert f"the run cannot {'go on' if exit_code == BROKEN else 'begin'}: [Errno {errno.EMFILE}]" in run.output
    if exit_code == BROKEN:
        assert len(run.rows) == 4
