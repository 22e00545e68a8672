from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from evalharness.cli import main


def test_version_is_that_of_the_installed_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"evalharness {version('evalharness')}\n"


@pytest.mark.parametrize(
    "arguments",
    [pytest.param([], id="no-command"), pytest.param(["repot", "x"], id="unknown-command"), pytest.param(["report"], id="no-run")],
)
def test_a_wrong_command_line_ends_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert "usage: evalharness" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "message"),
    [pytest.param("nowhere", "nowhere is no folder; give that of a run", id="missing"), pytest.param(".", "run.json", id="no-run")],
)
def test_a_folder_that_is_no_run_ends_with_1_and_says_why(
    tmp_path: Path, name: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(tmp_path / name)]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("evalharness: error: ")
    assert message in printed.err


def test_the_module_runs_as_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "evalharness", "--version"], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, f"evalharness {version('evalharness')}\n")
