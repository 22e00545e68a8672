"""Runs that were really killed, and what `evalharness report` makes of them."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from evalharness.cli import main
from evalharness.report.writing import rebuild_run
from evalharness.runs.journal import read_lines
from evalharness.runs.run_file import read_run
from tests.pytest_plugin.project import MARK, Project, Run

KILLED = (
    MARK.replace("range(4)", "range(12)")
    + """
import signal, time

@pytest.mark.gate("x >= 0.5", "pass_rate >= 0")
def test_s(case, generation, score):
    score(x=1)
    if case.id == "c10":
        time.sleep(1)  # with two workers, until the other one has written something
        os.killpg(0, signal.SIGKILL)
"""
)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project")


def killed(project: Project, mode: str, *arguments: str) -> Run:
    run = project.write(test_a=KILLED).run(*arguments, mode=mode, apart=True)
    assert run.exit_code == -9
    assert not (run.run_dir / "samples.jsonl").exists()
    return run


@pytest.fixture(scope="module")
def dead(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that was killed in its eleventh test; to be changed in copies only."""
    return killed(Project(tmp_path_factory.mktemp("dead") / "project"), "no-xdist")


def copied(run: Run, folder: Path) -> Run:
    return replace(run, root=shutil.copytree(run.root, folder))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["no-xdist", "n2"])
def test_a_killed_run_has_a_report_and_one_row_for_each_case(project: Project, mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    run = killed(project, mode)
    recorded = {line.values["nodeid"] for line in read_lines(run.run_dir) if line.values["kind"] == "row"}
    assert recorded
    assert main(["report", str(run.run_dir)]) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [str(run.run_dir / name) for name in ("report.md", "report.csv", "samples.csv", "report.html")]
    assert "rebuilt from the journal" in printed.err
    assert len(run.rows) == 12
    assert {row["nodeid"] for row in run.rows if row["outcome"] == "pass"} == recorded
    rest = [row for row in run.rows if row["nodeid"] not in recorded]
    assert {(row["outcome"], row["problem"]) for row in rest} == {("skip", "not run: the run was killed, or is still running")}
    assert run.row("c11")["tags"] == {"parity": "odd"}
    assert run.row("c0")["generation"]["raw_text"]


@pytest.mark.slow
def test_no_gate_of_a_killed_run_passes_and_its_report_can_be_made_again(dead: Run, tmp_path: Path) -> None:
    run = copied(dead, tmp_path / "copy")
    assert main(["report", str(run.run_dir)]) == 0
    assert [(gate["passed"], gate["value"]) for gate in run.facts["gates"]] == [(False, 1.0), (False, 1.0)]
    assert run.facts["gates"][0]["reason"].startswith("not judged: ")
    assert run.facts["counts"] == {"pass": 10, "skip": 2}
    assert (run.facts["engines"][0]["num_loads"], run.facts["config"]["backend"]["value"]) == (1, ["fake"])
    report = (run.run_dir / "report.md").read_text("utf-8")
    assert "**INTERRUPTED**: the run did not finish" in report
    assert "The run did not finish: this report was made from its journal, no gate passes" in report
    contents = []
    for _ in range(2):
        assert main(["report", str(run.run_dir)]) == 0
        contents.append({path.name: path.read_bytes() for path in run.run_dir.iterdir() if path.is_file()})
    assert contents[0] == contents[1]


def test_a_run_killed_after_its_last_test_passes_no_gate_either(project: Project) -> None:
    run = project.write(test_a=MARK + "@pytest.mark.gate('x >= 0.5')\ndef test_s(case, generation, score): score(x=1)\n").run_inline()
    facts = {name: value for name, value in run.facts.items() if name not in ("finished_at", "gates")}
    (run.run_dir / "run.json").write_text(json.dumps(facts))
    (run.run_dir / "samples.jsonl").unlink()
    assert rebuild_run(run.run_dir)
    (gate,) = read_run(run.run_dir)["gates"]
    assert (gate["value"], gate["passed"], gate["reason"]) == (1.0, False, "not judged: the run was killed, or is still running")


def test_a_run_that_ended_is_left_as_it_is_but_for_lost_samples(project: Project) -> None:
    run = project.write(test_a=MARK + "@pytest.mark.gate('x >= 0.5')\ndef test_s(case, generation, score): score(x=1)\n").run_inline()
    before = {name: (run.run_dir / name).read_bytes() for name in ("samples.jsonl", "run.json", "report.md")}
    written_at = (run.run_dir / "samples.jsonl").stat().st_mtime_ns
    assert not rebuild_run(run.run_dir)
    assert (run.run_dir / "samples.jsonl").stat().st_mtime_ns == written_at
    (run.run_dir / "samples.jsonl").unlink()
    assert main(["report", str(run.run_dir)]) == 0
    assert {name: (run.run_dir / name).read_bytes() for name in before} == before


@pytest.mark.slow
def test_a_report_is_made_without_run_json_and_without_a_torn_last_line(dead: Run, tmp_path: Path) -> None:
    run = copied(dead, tmp_path / "bare")
    (run.run_dir / "run.json").unlink()
    assert main(["report", str(run.run_dir)]) == 0
    assert (run.facts["run_id"], len(run.rows)) == (run.run_dir.name, 12)
    run = copied(dead, tmp_path / "torn")
    journal = run.run_dir / "journal" / "main.jsonl"
    journal.write_bytes(journal.read_bytes()[:-20])
    assert main(["report", str(run.run_dir)]) == 0
    assert len(run.rows) == 12


@pytest.mark.slow
@pytest.mark.parametrize("content", [None, '{"kind":"colle'], ids=["no-file", "torn"])
def test_a_run_killed_before_anything_was_recorded_says_so(
    dead: Run, tmp_path: Path, content: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copied(dead, tmp_path / "copy")
    shutil.rmtree(run.run_dir / "journal")
    (run.run_dir / "journal").mkdir()
    if content is not None:
        (run.run_dir / "journal" / "main.jsonl").write_text(content)
    assert main(["report", str(run.run_dir)]) == 2
    printed = capsys.readouterr()
    assert (printed.out, "holds no record of any case" in printed.err) == ("", True)
    assert not (run.run_dir / "samples.jsonl").exists()


@pytest.mark.slow
def test_what_may_be_secret_is_in_no_file_of_the_run(project: Project) -> None:
    project.write(
        conftest="def pytest_addoption(parser):\n    parser.addoption('--x-token')\n    parser.addini('something', '')\n",
        test_a=MARK + "def test_s(case, generation): pass\n",
    )
    run = project.run("--x-token=abc_SECRET", "-o", "something=hf_SECRET", "--run-id", "r", apart=True)
    assert run.exit_code == 0
    assert run.facts["command"][-4:] == ["-o", "something=…", "--run-id", "r"]
    assert "--x-token=…" in (run.run_dir / "report.md").read_text("utf-8")
    assert not [path for path in run.run_dir.rglob("*") if path.is_file() and b"SECRET" in path.read_bytes()]


def test_the_git_state_is_that_of_the_start(project: Project) -> None:
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run([*git, "init", "-q"], cwd=project.root, check=True)
    (project.root / ".gitignore").write_text("*\n!.gitignore\n!tracked\n")
    subprocess.run([*git, "add", "."], cwd=project.root, check=True)
    subprocess.run([*git, "commit", "-q", "-m", "a"], cwd=project.root, check=True)
    project.write(test_a=MARK + "def test_s(case, generation): open('tracked', 'w').close()\n")
    run = project.run_inline()
    assert (project.root / "tracked").exists()
    assert run.facts["git"]["dirty"] is False


@pytest.mark.slow
def test_facts_of_an_engine_are_those_of_its_end(project: Project) -> None:
    project.write(
        conftest="""
            import pytest
            from evalharness.backends.fake import FakeBackend

            count = 0

            def describe(self):
                return {"backend": "fake", "num_batches_halved": count}

            FakeBackend.describe = describe

            @pytest.fixture(autouse=True)
            def counting():
                global count
                count += 1
        """,
        test_a=MARK + "def test_s(case, generation): pass\n",
    )
    run = project.run(apart=True)
    (engine,) = run.facts["engines"]
    assert (engine["settings"]["num_batches_halved"], engine["num_loads"]) == (4, 1)
