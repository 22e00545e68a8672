"""evals/test_stage_b.py and its chain as they are shipped, on scripted answers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from evalharness.tasks import stage_b
from tests.pytest_plugin.project import Project

ROOT = Path(__file__).parents[2]
SITE, TINY = ROOT / "fixtures" / "site_photos", ROOT / "fixtures" / "tiny_photos"
MISSION = "RRU线缆"
RIGHT = {"pass": "Verdict: 通过\nReason: Image1: 齐全; 总结: 证据齐全", "fail": "Verdict: 不通过\nReason: Image1: 缺少; 总结: 缺少证据"}


def answers() -> list[dict[str, Any]]:
    """Return a script with the right verdict on every ticket of the mission, the first ticket apart: it gets none."""
    rows = []
    for case in stage_b.load_cases(SITE / MISSION):
        assert isinstance(case, stage_b.StageBCase)
        rows.append({"contains": stage_b.request(case).messages[1]["content"], "text": RIGHT[case.label]})
    rows[0]["text"] = "<think>难</think>待定"
    return rows


@pytest.fixture
def stage_b_project(project: Project) -> Project:
    """The eval beside twelve tickets, one more row that is none, and a script of answers."""
    shutil.copy(ROOT / "evals" / "test_stage_b.py", project.root)
    data = project.root / "tickets"
    data.mkdir()
    shutil.copy(SITE / "guidance.json", data)
    good = (SITE / f"{MISSION}_stage_a.jsonl").read_text("utf-8")
    (data / f"{MISSION}_stage_a.jsonl").write_text(good + '{"group_id": "x"}\n', "utf-8")
    project.script(*answers())
    return project


def test_the_eval_gives_scores_tables_and_files_in_three_modes(stage_b_project: Project, mode: str) -> None:
    run = stage_b_project.run("--data", "tickets", "--model", "answers.jsonl", mode=mode)
    assert run.counts == {"pass": 11, "miss": 1, "invalid": 1}
    assert {entry["title"] for entry in run.facts["tables"]} == {"Verdicts by mission", "Verdicts by domain", "What was wrong with answers"}
    rates = {entry["metric"]: entry["value"] for entry in run.facts["aggregates"]}
    assert rates["unparsed_rate"] == pytest.approx(1 / 12)
    assert rates["false_release_rate"] == pytest.approx(1 / 7)
    assert run.facts["problems"] == []
    (path,) = (run.run_dir / "outputs").rglob("baseline_metrics.json")
    metrics = json.loads(path.read_text("utf-8"))
    assert (metrics["n_total"], metrics["n_used"], metrics["tp"], metrics["ng"], metrics["n_invalid"]) == (13, 12, 6, 1, 1)
    (dropped,) = [json.loads(line) for line in (path.parent / "dropped.jsonl").read_text("utf-8").splitlines()]
    assert f"{MISSION}_stage_a.jsonl:13: mission must be a text" in dropped["problem"]


def test_prompts_over_budget_are_invalid_and_listed(stage_b_project: Project) -> None:
    eval_file = stage_b_project.root / "test_stage_b.py"
    text = eval_file.read_text("utf-8")
    small = 'options=stage_b.decode_grid([{"temperature": 0, "top_p": 1, "max_new_tokens": 99, "max_prompt_tokens": 700}])'
    eval_file.write_text(text.replace("options=stage_b.ONE_VOTE", small), "utf-8")
    run = stage_b_project.run_inline("--data", "tickets", "--model", "answers.jsonl", "--run-id", "budget")
    over = [row for row in run.rows if "max_prompt_tokens is 700" in (row["problem"] or "")]
    assert 0 < len(over) < 12
    assert {(row["outcome"], row["cause"]) for row in over} == {("invalid", "PromptTooLong")}
    (path,) = (run.run_dir / "outputs").rglob("baseline_metrics.json")
    metrics = json.loads(path.read_text("utf-8"))
    assert (metrics["n_dropped_overlength"], metrics["n_used"]) == (len(over), 12 - len(over))


def test_several_votes_decide_together(stage_b_project: Project) -> None:
    eval_file = stage_b_project.root / "test_stage_b.py"
    eval_file.write_text(eval_file.read_text("utf-8").replace("options=stage_b.ONE_VOTE", "options=stage_b.THREE_VOTES"), "utf-8")
    run = stage_b_project.run_inline("--data", "tickets", "--model", "answers.jsonl", "--seed", "7")
    judged = [row for row in run.rows if row["outcome"] == "pass"]
    assert {sum(row["details"]["votes"].values()) for row in judged} == {3}
    assert {options["seed"] for options in judged[0]["options"]} == {7}


def test_the_chain_tells_lost_evidence_from_wrong_judgement(project: Project) -> None:
    shutil.copy(ROOT / "evals" / "test_stage_b_chain.py", project.root)
    shutil.copytree(TINY, project.root / "photos")
    shutil.copy(SITE / "guidance.json", project.root / "photos")
    # A model that sees nothing, and judges by whether it was told of anything.
    nothing = ["Image1: 无关图片\nImage2: 无关图片<", "Image1: 无关图片<"]
    script = [{"contains": text, "text": RIGHT["fail"]} for text in nothing]
    script += [{"contains": "任务: ", "text": RIGHT["pass"]}, {"text": "无关图片"}]
    project.script(*script)
    run = project.run_inline("--data", "photos", "--model", "answers.jsonl")
    assert run.facts["problems"] == []
    (table,) = [entry for entry in run.facts["tables"] if entry["title"] == "Where verdicts go wrong"]
    total = table["rows"][-1]
    assert (total["mission"], total["tickets"]) == ("all", 4)
    passes = [row for row in run.rows if row["tags"]["label"] == "pass"]
    assert {row["details"]["cause"] for row in passes} == {"could not see"}
    assert {row["outcome"] for row in passes} == {"miss"}
    assert list((run.run_dir / "outputs").rglob("stage_b_chain/*/baseline_metrics.json"))
