"""Which folder a run belongs to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

EVAL = """
import pytest
from evalharness import Case, TextGenerationRequest

pytestmark = pytest.mark.eval(
    cases=lambda data_dir: [Case(id="a")], request=lambda case: TextGenerationRequest([{"role": "user", "content": case.id}])
)

def test_a(case, generation):
    assert generation.text == "a"
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    project = tmp_path / "here" / "project"
    project.mkdir(parents=True)
    (project / "test_a.py").write_text(EVAL)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "pytest.ini").write_text("[pytest]\n")
    return project


def run(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "evalharness.pytest_plugin", "-q", "--backend=fake", *arguments]
    return subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=300, check=False)


def test_an_option_value_that_moves_the_rootdir_is_refused(project: Path) -> None:
    done = run(project, "--data", "../../elsewhere", "test_a.py")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "pytest took the value of an option for a test path" in done.stderr
    assert f"or add --rootdir {project}" in done.stderr
    assert not (project / "reports").exists()


@pytest.mark.parametrize(
    "arguments", [("--data=../../elsewhere", "test_a.py"), ("--data", "../../elsewhere", "test_a.py", "--rootdir", ".")]
)
def test_what_the_message_advises_runs_in_the_right_place(project: Path, arguments: tuple[str, ...]) -> None:
    assert run(project, *arguments).returncode == 0
    (report,) = (project / "reports").glob("*/report.md")
    assert "test_a.py::test_a" in (report.parent / "samples.jsonl").read_text()


def test_an_option_value_inside_the_project_is_fine_either_way(project: Path) -> None:
    (project / "pytest.ini").write_text("[pytest]\n")
    (project / "data").mkdir()
    assert run(project, "test_a.py", "--data", "data").returncode == 0
