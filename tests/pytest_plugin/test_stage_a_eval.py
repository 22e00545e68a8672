"""evals/test_stage_a.py as it is shipped, on four small orders and scripted answers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from evalharness.api.errors import BROKEN
from evalharness.tasks import stage_a
from tests.pytest_plugin.project import Project

ROOT = Path(__file__).parents[2]
EVAL = ROOT / "evals" / "test_stage_a.py"
TINY = ROOT / "fixtures" / "tiny_photos"
MISSIONS = ("BBU安装方式检查（正装）", "RRU安装检查")
ANSWERS: Sequence[dict[str, Any]] = (
    {"contains": "<DOMAIN=BBU>", "text": '<DOMAIN=BBU>, <TASK=SUMMARY>\n{"统计": [{"类别": "电线", "捆扎": {"整齐": 1}}]}'},
    {"text": "无关图片"},
)


@pytest.fixture
def stage_a_project(project: Project) -> Project:
    """The eval beside a copy of its photos that a test may damage."""
    shutil.copy(EVAL, project.root / "test_stage_a.py")
    shutil.copytree(TINY, project.root / "photos")
    project.script(*ANSWERS)
    return project


def damage(project: Project, pattern: str) -> int:
    """Cut photos to nothing; return how many."""
    photos = [path for path in sorted((project.root / "photos").glob(pattern)) if path.is_file()]
    for path in photos:
        path.write_bytes(b"")
    return len(photos)


def test_the_eval_gives_scores_tables_and_files_in_three_modes(stage_a_project: Project, mode: str) -> None:
    run = stage_a_project.run("--data", "photos", "--model", "answers.jsonl", mode=mode)
    assert len(run.rows) == 8
    assert [entry["plugins"] for entry in run.facts["evals"]] == [[]], "none acts unless it is named"
    titles = {"by category", "by mission", "by domain", "why answers are not strictly valid"}
    assert {entry["title"] for entry in run.facts["tables"]} == titles
    assert {"category_min_f1", "category_macro_f1"} <= {entry["metric"] for entry in run.facts["aggregates"]}
    files = [run.run_dir / entry["path"] for entry in run.facts["outputs"]]
    assert sorted(path.name for path in files) == sorted(f"{mission}_stage_a.jsonl" for mission in MISSIONS)
    for path in files:
        theirs = [json.loads(text) for text in (TINY / path.name).read_text("utf-8").splitlines()]
        ours = stage_a.read_rows(path)
        facts = ("group_id", "mission", "label", "images")
        assert [[row[name] for name in facts] for row in ours] == [[row[name] for name in facts] for row in theirs]
    assert run.facts["problems"] == []


def test_a_corrupt_photo_costs_its_group_only_and_a_run_without_any_group_fails(stage_a_project: Project) -> None:
    assert damage(stage_a_project, "RRU*/审核通过/*/*_2.jpg") == 1
    run = stage_a_project.run_inline("--data", "photos", "--model", "answers.jsonl", "--run-id", "one")
    assert run.counts["invalid"] == 1
    (path,) = (run.run_dir / "outputs").glob("*/RRU*_stage_a.jsonl")
    assert [row["label"] for row in stage_a.read_rows(path)] == ["fail"]
    (left_out,) = [json.loads(text) for text in (path.parent / "stage_a_left_out.jsonl").read_text().splitlines()]
    assert (left_out["group"], "_2.jpg is empty" in left_out["problem"]) == ("QC-TINY-20300102-0000002::pass", True)
    assert damage(stage_a_project, "*/*/*/*_1.jpg") == 4
    run = stage_a_project.run_inline("--data", "photos", "--model", "answers.jsonl", "--run-id", "none")
    assert run.exit_code == BROKEN
    assert "no group is complete, so no Stage-A file was written" in run.facts["problems"][0]
