"""The evals of docs/from_lm_eval.md are as short as it says, and are what lm-eval's tasks are."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.docs.pages import blocks
from tests.public.test_text_benchmarks import Task, scripted, splits
from tests.pytest_plugin.project import Project

PORTS = [block for block in blocks("python") if block.page == "docs/from_lm_eval.md"]
_ARC = splits("arc/ARC-Challenge", test="test-00000-of-00001.parquet")
_GSM8K = splits("gsm8k/main", train="train-00000-of-00001.parquet", test="test-00000-of-00001.parquet")
TASKS = [
    Task("arc/arc_challenge", _ARC, {"acc,none": "acc", "acc_norm,none": "acc_norm"}),
    Task("gsm8k/gsm8k", _GSM8K, {"exact_match,strict-match": "exact_strict", "exact_match,flexible-extract": "exact_flexible"}),
    Task("arc/arc_challenge_chat", _ARC, {"exact_match,remove_whitespace": "exact_match"}),
]


def test_each_port_has_at_most_15_lines_of_code() -> None:
    assert len(PORTS) == len(TASKS) == 3
    assert [num for block in PORTS if (num := sum(bool(line.strip()) for line in block.text.splitlines())) > 15] == []


@pytest.mark.slow
@pytest.mark.parametrize("number", range(3))
def test_a_port_asks_and_scores_as_its_task_does(number: int, tmp_path: Path) -> None:
    from tests.public.lm_eval_oracle import RecordedModel, asked_by_lm_eval, judged_by_lm_eval, official_task

    task, project = TASKS[number], Project(tmp_path)
    theirs = official_task(task.name, task.files)
    for name in task.files.values():
        shutil.copy(name, project.root)
    project.write(test_port=PORTS[number].text)
    project.script(*scripted(asked_by_lm_eval(theirs)))
    run = project.run("test_port.py", "--data", ".", "--model", "answers.jsonl")
    items, _ = judged_by_lm_eval(theirs, RecordedModel(run.rows))
    for metric, score in task.scores.items():
        assert [row["scores"][score] for row in run.rows] == [pytest.approx(item[metric], abs=1e-12) for item in items], metric
