"""evals/public on rows of our own: what they ask and score is what lm-eval's own tasks ask and score, item by item."""

from __future__ import annotations

import hashlib
import random
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from tests.pytest_plugin.project import Project, Run

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
ROWS = ROOT / "fixtures" / "public"
PIECES = (
    " The answer is", " (B)", " (A)", " A.", "answer is C", "\n#### 19", "\n#### 1,320", " $12", " 60.00", " 9.", "...", " -5", " so", "\n",
    "$-3$", "$x=9$",
    r"\boxed{\frac{5}{6}}", r"$\frac56$", r"$2\sqrt3$", " river", " Rivers, river", "* a\n* b\n* c", '"That is all."', "{}",
    " THE END", "<think>", "é",
)  # fmt: skip


@dataclass(frozen=True)
class Task:
    """A task of lm-eval: its files by split, the score that each of its metrics is, and the tag of its cases where an eval has several."""

    name: str
    files: Mapping[str, str]
    scores: Mapping[str, str]
    tag: tuple[str, str] | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)


def splits(folder: str, **files: str) -> dict[str, str]:
    """Return the paths of files by split."""
    return {split: str(ROWS / folder / name) for split, name in files.items()}


_FIRST = "00000-of-00001.parquet"
_CHOICE = {"acc,none": "acc", "acc_norm,none": "acc_norm"}
_GSM8K = {"exact_match,strict-match": "exact_match_strict", "exact_match,flexible-extract": "exact_match_flexible"}
_TRUTH = splits("truthfulqa/multiple_choice", validation=f"validation-{_FIRST}")
_PRO = splits("mmlu_pro/data", validation=f"validation-{_FIRST}", test=f"test-{_FIRST}")
BENCHMARKS = {
    "gsm8k": [Task("gsm8k/gsm8k", splits("gsm8k/main", train=f"train-{_FIRST}", test=f"test-{_FIRST}"), _GSM8K)],
    "math500": [Task("hendrycks_math/hendrycks_math500", splits("math500", test="test.jsonl"), {"exact_match,none": "exact_match"})],
    "arc/ARC-Challenge": [Task("arc/arc_challenge", splits("arc/ARC-Challenge", test=f"test-{_FIRST}"), _CHOICE)],
    "hellaswag/data": [Task("hellaswag/hellaswag", splits("hellaswag/data", validation=f"validation-{_FIRST}"), _CHOICE)],
    "truthfulqa": [Task(f"truthfulqa/truthfulqa_{name}", _TRUTH, {"acc,none": name}) for name in ("mc1", "mc2")],
    "mmlu": [
        Task(
            f"mmlu/default/mmlu_{subject}",
            splits(f"mmlu/hub/{subject}", dev=f"dev-{_FIRST}", test=f"test-{_FIRST}"),
            {"acc,none": "acc"},
            ("subject", subject),
            {"num_fewshot": 5},
        )
        for subject in ("anatomy", "high_school_geography")
    ],
    "mmlu_pro": [
        Task(f"mmlu_pro/mmlu_pro_{category}", _PRO, {"exact_match,custom-extract": "exact_match_first"}, ("category", category))
        for category in ("math", "law")
    ],
    "ifeval": [
        Task(
            "ifeval/ifeval",
            splits("ifeval", train="ifeval_input_data.jsonl"),
            {f"prompt_level_{kind}_acc,none": f"prompt_level_{kind}_acc" for kind in ("strict", "loose")},
        )
    ],
}
"""By folder of `fixtures/public`, which begins with the eval's name."""


def run_eval(project: Project, name: str, data: Path, script: Sequence[Mapping[str, Any]], *more: str) -> Run:
    """Run a shipped eval on the answers of a script."""
    shutil.copy(ROOT / "evals" / "public" / f"test_{name}.py", project.root)
    project.script(*script)
    return project.run(f"test_{name}.py", "--data", str(data), "--model", "answers.jsonl", *more)


def scripted(requests: Sequence[tuple[Any, ...]]) -> list[dict[str, Any]]:
    """Return a script that answers these requests of lm-eval, and no other, in ways that differ from request to request."""
    rows = []
    for first, second in requests:
        asked = first + second if isinstance(second, str) else first
        draw = random.Random(hashlib.sha256(asked.encode()).digest())
        answer = (
            {"logprobs": -draw.randint(1, 40) / 8}
            if isinstance(second, str)
            else {"text": "".join(draw.choices(PIECES, k=draw.randint(1, 9)))}
        )
        rows.append({"contains": asked, **answer})
    return sorted(rows, key=lambda row: -len(row["contains"]))  # a choice may begin with another one


@pytest.mark.parametrize(("folder", "as_chat"), [*((folder, False) for folder in BENCHMARKS), ("gsm8k", True), ("mmlu", True)])
def test_prompts_and_scores_are_those_of_lm_eval(folder: str, as_chat: bool, tmp_path: Path) -> None:
    from tests.public.lm_eval_oracle import RecordedModel, asked_by_lm_eval, judged_by_lm_eval, official_task

    tasks = [(task, official_task(task.name, task.files, **task.changes)) for task in BENCHMARKS[folder]]
    script = scripted([asked for _, theirs in tasks for asked in asked_by_lm_eval(theirs, as_chat=as_chat)])
    run = run_eval(Project(tmp_path), folder.partition("/")[0], ROWS / folder, script, *["--as-chat"] * as_chat)
    for task, theirs in tasks:
        rows = [row for row in run.rows if task.tag is None or row["tags"][task.tag[0]] == task.tag[1]]
        items, results = judged_by_lm_eval(theirs, RecordedModel(rows), as_chat=as_chat)
        for metric, score in task.scores.items():
            assert [row["scores"][score] for row in rows] == [pytest.approx(float(item[metric]), abs=1e-12) for item in items], metric
            assert fmean(row["scores"][score] for row in rows) == pytest.approx(results.pop(metric), abs=1e-12)
        over_all = {entry["metric"]: entry["value"] for entry in run.facts["aggregates"]}
        assert {metric: over_all.get(metric.partition(",")[0]) for metric in results} == pytest.approx(results), "metrics that are no means"
