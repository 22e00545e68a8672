"""Which folder a run belongs to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.pytest_plugin.project import PLAIN, Project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project without a file that marks its root, beside a folder that has one."""
    project = Project(tmp_path / "here" / "project").write(test_a=PLAIN)
    (project.root / "pytest.ini").unlink()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "pytest.ini").write_text("[pytest]\n")
    return project


def test_an_option_value_that_moves_the_rootdir_is_refused(project: Project) -> None:
    run = project.run_inline("--data", "../../elsewhere", "test_a.py", by_name=True)
    assert run.exit_code == pytest.ExitCode.USAGE_ERROR
    assert "pytest took the value of an option for a test path" in run.output
    assert f"or add --rootdir {project.root}" in run.output
    assert run.opened_no_run


def test_a_folder_without_any_ini_file_is_the_root_whatever_folders_options_name(project: Project, tmp_path: Path) -> None:
    (tmp_path / "elsewhere" / "pytest.ini").unlink()
    run = project.run_inline("--report-dir", str(tmp_path / "elsewhere"), "test_a.py", "--run-id", "r", by_name=True)
    assert run.exit_code == 0, run.output
    assert f"rootdir: {project.root}\n" in run.output
    row = json.loads((tmp_path / "elsewhere" / "r" / "samples.jsonl").read_bytes().splitlines()[0])
    assert row["nodeid"] == "test_a.py::test_s[fake:echo-c0]"
    assert (project.root / ".pytest_cache").is_dir() == (not (tmp_path / ".pytest_cache").exists())


@pytest.mark.parametrize(
    "arguments", [("--data=../../elsewhere", "test_a.py"), ("--data", "../../elsewhere", "test_a.py", "--rootdir", ".")]
)
def test_what_the_message_advises_runs_in_the_right_place(project: Project, arguments: tuple[str, ...]) -> None:
    run = project.run_inline(*arguments, by_name=True)
    assert (run.exit_code, run.rows[0]["nodeid"]) == (0, "test_a.py::test_s[fake:echo-c0]")


def test_an_option_value_inside_the_project_is_fine_either_way(project: Project) -> None:
    (project.root / "pytest.ini").write_text("[pytest]\n")
    (project.root / "data").mkdir()
    assert project.run_inline("test_a.py", "--data", "data", by_name=True).exit_code == 0
