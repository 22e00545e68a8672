"""ARC: science questions of school, multiple choice by likelihood, zero-shot (Clark et al. 2018, arXiv 1803.05457).

    pytest evals/public/test_arc.py --model CHECKPOINT --data FOLDER

FOLDER holds allenai/ai2_arc (revision 210d026faf9955653af8916fad021475a3f00453, CC BY-SA 4.0), or `ARC-Challenge-Test.jsonl` and
`ARC-Easy-Test.jsonl` of AI2's archive. All sets that it holds are asked; the tag `set` tells them apart.

    {"id": "Own_0", "question": "Which of these is a mammal?", "choices": {"text": ["a trout", …], "label": ["A", …]}, "answerKey": "B"}

Metrics of lm-eval 0.4.13, tasks `arc_challenge` and `arc_easy` (version 1.0), equal per item: `acc`, the answer with the highest
log-probability; `acc_norm`, the highest per character, which leaderboards report.
https://github.com/EleutherAI/lm-evaluation-harness/tree/v0.4.13/lm_eval/tasks/arc
"""

from __future__ import annotations

import pytest

from evalharness.data import cases_from
from evalharness.prompts import template
from evalharness.scores import CHOICE_DIRECTIONS, choice_aggregates, choice_scores

FILES = (
    "ARC-*/test-*.parquet",
    "*/ARC-*/test-*.parquet",
    "ARC-*-Test.jsonl",
    "ARC-*/ARC-*-Test.jsonl",
    "*/ARC-*/ARC-*-Test.jsonl",
    "test-*.parquet",
)


def question_of(row):
    """Return a row, of the hub or of AI2's archive, as a question, its choices and the place of the right one."""
    if isinstance(row["question"], dict):
        answers = row["question"]["choices"]
        row |= {"choices": {name: [answer[name] for answer in answers] for name in ("text", "label")}, "question": row["question"]["stem"]}
    gold = row["choices"]["label"].index(row["answerKey"])
    return {"id": row["id"], "question": row["question"], "choices": row["choices"]["text"], "gold": gold, "set": set_of(row["__file__"])}


def set_of(file: str) -> str:
    """Return the set that a file's name names."""
    return next((name for name in ("ARC-Challenge", "ARC-Easy") if name in file), "unnamed")


ask = template("Question: {{question}}\nAnswer:", choices="choices", target="gold")
pytestmark = pytest.mark.eval(
    cases=cases_from(*FILES, needs=("id", "question", "answerKey"), id=("set", "id"), tags=["set"], map=question_of),
    request=ask.ask_choices,
    aggregate=choice_aggregates,
    directions=CHOICE_DIRECTIONS,
    optional=True,
)


@pytest.mark.gate("invalid_rate <= 0.02")
def test_answer(case, steps, score, details):
    judged = choice_scores(steps[0], ask.choices_of(case), ask.target_of(case))
    score(**judged.scores)
    details(**judged.details)
    assert not judged.problem, judged.problem
