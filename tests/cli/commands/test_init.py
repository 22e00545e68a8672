"""`evalharness init`: projects that run at once, in a clean folder, as somebody would start them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from evalharness.api.errors import REFUSED
from evalharness.cli import main
from evalharness.cli.commands.init import STARTERS
from tests.cli.conftest import Command
from tests.processes import python
from tests.pytest_plugin.project import Project, environment


@pytest.mark.parametrize("starter", STARTERS)
def test_a_new_project_runs_at_once_and_shows_one_miss(starter: str, tmp_path: Path) -> None:
    project = Project(tmp_path / "my evals")
    (project.root / "pytest.ini").unlink()
    code, printed = project.evalharness("init", "--template", starter)
    assert code == 0, printed
    *written, _, last = printed.splitlines()
    assert written == sorted(path.relative_to(project.root).as_posix() for path in project.root.rglob("*") if path.is_file())
    assert last == "now run: pytest evals"

    run = project.run("evals", backend=None)
    assert run.exit_code == 0, run.output
    assert {row["case_id"]: row["outcome"] for row in run.rows if row["outcome"] != "pass"} == {STARTERS[starter].case_id: "miss"}
    assert "length cap" not in run.output
    page = (project.root / "README.md").read_text("utf-8")
    assert "`report.html`" in page
    assert re.findall(r"@[A-Z]+@", page) == []
    for name in re.findall(r"^\| `([^`*]+)`", page, re.MULTILINE):
        assert (project.root / name).is_file(), name
    code, printed = project.evalharness("show", "latest", STARTERS[starter].case_id)
    assert code == 0, printed


@pytest.mark.slow
def test_the_commands_of_the_readme_run_as_typed(tmp_path: Path) -> None:
    env = {name: value for name, value in environment().items() if name != "PYTEST_DISABLE_PLUGIN_AUTOLOAD"}
    code, output = python("-m", "evalharness", "init", "my evals", cwd=tmp_path, env=env)
    assert (code, output.splitlines()[-1]) == (0, "now run: cd 'my evals' && pytest evals")
    code, output = python("-m", "pytest", "evals", cwd=tmp_path / "my evals", env=env)
    assert code == 0, output


def test_a_checkpoint_is_written_into_the_settings(
    tmp_path: Path, printed: Command, tiny_vlm_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed("init", tmp_path / "new", "--model", tiny_vlm_checkpoint)
    monkeypatch.chdir(tmp_path / "new")
    answer = printed("generate", "--prompt", "x", "--json", "--max-new-tokens", "1", "--device", "cpu")
    assert json.loads(answer)["engine"].startswith("hf:")


def test_nothing_is_overwritten_and_then_nothing_is_written(tmp_path: Path, refused: Command) -> None:
    (tmp_path / "README.md").write_text("mine")
    assert f"{tmp_path / 'README.md'} exists already; nothing is overwritten" in refused("init", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]
    assert (tmp_path / "README.md").read_text() == "mine"


def test_a_link_that_leads_nowhere_is_there_already(tmp_path: Path) -> None:
    (tmp_path / "answers.jsonl").symlink_to(tmp_path / "elsewhere")
    assert main(["init", str(tmp_path)]) == REFUSED
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["x", "--template", "jsn"], "'jsn' is not one of", id="template"),
        pytest.param(["x", "--model", "nowhere"], "--model nowhere is not a folder; the nearest that exists", id="model"),
        pytest.param(["/proc/version/x"], "cannot be written", id="folder"),
    ],
)
def test_what_cannot_be_started_says_why(
    tmp_path: Path, arguments: list[str], message: str, refused: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in refused("init", *arguments)
    assert list(tmp_path.iterdir()) == []
