"""MMMU: questions of college exams on figures, 30 subjects, multiple choice and open (Yue et al. 2024, arXiv 2311.16502).

    pytest evals/public/test_mmmu.py --model CHECKPOINT --data FOLDER

FOLDER holds MMMU/MMMU (Apache-2.0), `<Subject>/validation-*.parquet` of any subjects, or lmms-lab/MMMU (revision
5f93af86377c18552077e1ffdb193d9f8d2b1343), `data/validation-*.parquet`. The test split has no answers.

    {"id": "validation_Art_1", "question": "<image 1> What shape is drawn?", "options": "['A square', 'A circle']", "answer": "A", …}

Metrics, the mean over all questions of both kinds: `acc_official` is that of lmms-eval 0.7.3, task `mmmu_val`, and MMMU's own script, equal
per item; but where the script finds no letter it draws one, and here such an item counts as often as that is right. `acc` never guesses
(a wrong answer, and `not_found`), takes only words for letters, and reads lists of right answers (`scores/mmmu.py`). The tag `subject` has
the subjects apart. Images stand where the text names them; lmms-eval's order differs if they are named out of turn or twice.
https://github.com/EvolvingLMMs-Lab/lmms-eval/tree/v0.7.3/lmms_eval/tasks/mmmu
https://github.com/MMMU-Benchmark/MMMU/blob/51ce7f3e829c16bb44bc5445782686b4c3508794/eval/eval_utils.py
"""

from __future__ import annotations

import ast
import re

import pytest

from evalharness import GenerationOptions, TextGenerationRequest, VlmGenerationRequest
from evalharness.api.errors import MissingData
from evalharness.data import cases_from
from evalharness.scores import mmmu

FILES = ("*/validation-*.parquet", "validation-*.parquet", "*/*/validation-*.parquet")


def question_of(row):
    """Return a row with its options as a list, which the data set has as a text; an open question has none."""
    if row["answer"] == "?":
        raise MissingData(f"{row['__file__']} has no answers, as MMMU's test split; take the validation split")
    options = ast.literal_eval(row["options"]) if row["question_type"] == "multiple-choice" else []
    return {**row, "options": options, "subject": re.sub(r"^[^_]*_|_\d+$", "", row["id"])}


def request(case):
    row = case.row
    ask = "Answer with the option's letter from the given choices directly." if row["options"] else ""
    options = [f"{letter}. {option}" for letter, option in zip(mmmu.LETTERS, row["options"], strict=False)]
    text = "\n".join([row["question"], *options, "", ask or "Answer the question using a single word or phrase."])
    parts = [
        {"type": "image", "image": row[f"image_{part}"]} if place % 2 else {"type": "text", "text": part.strip()}
        for place, part in enumerate(re.split(r"<image ([1-7])>", text))
    ]
    if len(parts) == 1:
        return TextGenerationRequest([{"role": "user", "content": text}])
    return VlmGenerationRequest([{"role": "user", "content": [part for part in parts if part.get("text") != ""]}])


pytestmark = pytest.mark.eval(
    cases=cases_from(
        *FILES, needs=("question_type", "image_1"), id="id", tags=["subject", "question_type"], reference="answer", map=question_of
    ),
    request=request,
    options=GenerationOptions(max_new_tokens=128),
    directions={"not_found": "lower"},
    optional=True,
)


@pytest.mark.gate("invalid_rate <= 0.02")
def test_answer(case, generation, score, details):
    judged = mmmu.judge(generation.answer, case.reference, case.row["options"])
    score(**judged.scores)
    details(parsed=judged.found)
    assert judged.scores["acc"], f"expected {case.reference}, got {generation.answer!r}"
