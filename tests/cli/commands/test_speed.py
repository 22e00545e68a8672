"""`evalharness speed`: of a live run, of one that was killed, of a merged one, and of runs that say nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.pytest_plugin.project import PLAIN, Project
from tests.report.runs import row, write_run


@pytest.fixture
def run(project: Project) -> Path:
    """A run on the scripted backend."""
    return project.write(test_a=PLAIN).run("--run-id", "r").run_dir


def test_a_run_says_what_is_known_and_why_the_rest_is_not(run: Path, printed: Command) -> None:
    shown = printed("speed", str(run))
    for words in ("fake:", "tokens", "what limits", "card: the backend does not say", "model: it has no config.json"):
        assert words in shown
    assert json.loads((run / "run.json").read_text())["speed"] == json.loads(printed("speed", str(run), "--json"))
    assert "tests_s" in json.loads((run / "run.json").read_text())["throughput"][0]


def test_of_a_killed_run_the_journals_tell(run: Path, printed: Command) -> None:
    before = json.loads(printed("speed", str(run), "--json"))
    facts = json.loads((run / "run.json").read_text())
    at_start = {name: facts[name] for name in ("run_id", "command", "started_at", "config")}
    (run / "run.json").write_text(json.dumps(at_start))
    assert json.loads(printed("speed", str(run), "--json")) == before


def test_a_run_without_engines_is_refused(tmp_path: Path, refused: Command) -> None:
    write_run(tmp_path / "r", [row("a")])
    assert "says of no engine how long it took" in refused("speed", str(tmp_path / "r"))


def test_a_merged_run_has_the_work_of_all_parts(project: Project, printed: Command) -> None:
    project.write(test_a=PLAIN)
    parts = [project.run("--run-id", f"p{part}", "--shard", f"{part}/2").run_dir for part in (1, 2)]
    assert project.evalharness("merge", *map(str, parts), "--run-id", "whole")[0] == 0
    (whole,) = json.loads(printed("speed", parts[0].parent / "whole", "--json"))
    each = [json.loads(printed("speed", part, "--json"))[0] for part in parts]
    for name in ("num_prompt_tokens", "num_completion_tokens", "load_s", "generation_s", "tests_s"):
        assert whole[name] == pytest.approx(sum(part[name] for part in each), abs=0.002)


def test_a_rescored_run_tells_of_the_run_that_generated(run: Path, project: Project, printed: Command) -> None:
    assert project.evalharness("rescore", str(run), "--run-id", "again")[0] == 0
    assert printed("speed", run.parent / "again", "--json") == printed("speed", run, "--json")
