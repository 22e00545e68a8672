"""`evalharness init`: projects that run at once, in a clean folder, as somebody would start them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evalharness.api.errors import REFUSED
from evalharness.cli import main
from evalharness.cli.commands.init import STARTERS
from tests.cli.conftest import Command
from tests.processes import python
from tests.pytest_plugin.project import environment


@pytest.mark.slow
@pytest.mark.parametrize("starter", STARTERS)
def test_a_new_project_runs_at_once_and_passes_its_gates(
    starter: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "my evals"
    assert main(["init", str(folder), "--template", starter]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert {line for line in printed if line.startswith("/")} == {str(path) for path in folder.rglob("*") if path.is_file()}
    assert printed[-1] == f"now run: cd '{folder}' && pytest evals"
    env = {name: value for name, value in environment().items() if name != "PYTEST_DISABLE_PLUGIN_AUTOLOAD"}
    code, output = python("-m", "pytest", "evals", cwd=folder, env=env)
    assert code == 0, output
    [report] = (folder / "reports").glob("*/report.md")
    rows = [json.loads(line) for line in (report.parent / "samples.jsonl").read_text().splitlines()]
    assert {row["outcome"] for row in rows} == {"pass"}
    monkeypatch.chdir(folder)
    assert main(["show", "latest", rows[0]["case_id"]]) == 0


def test_all_files_are_those_of_the_starter_without_their_suffix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init"]) == 0
    names = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert names == {"pyproject.toml", ".gitignore", "README.md", "answers.jsonl", "data/capitals.jsonl", "evals/test_capitals.py"}
    assert not any("@" in (tmp_path / name).read_text("utf-8").replace("@pytest.mark", "") for name in names)


def test_a_checkpoint_is_written_into_the_settings(
    tmp_path: Path, printed: Command, tiny_vlm_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed("init", tmp_path / "new", "--model", tiny_vlm_checkpoint)
    monkeypatch.chdir(tmp_path / "new")
    answer = printed("generate", "--prompt", "x", "--json", "--max-new-tokens", "1", "--device", "cpu")
    assert json.loads(answer)["engine"].startswith("hf:")


def test_nothing_is_overwritten_and_then_nothing_is_written(tmp_path: Path, refused: Command) -> None:
    (tmp_path / "README.md").write_text("mine")
    assert f"{tmp_path / 'README.md'} exists already, and nothing is overwritten" in refused("init", tmp_path)
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
