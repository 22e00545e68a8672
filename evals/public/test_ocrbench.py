"""OCRBench: text in images read, searched and understood, in ten kinds of questions (Liu et al. 2024, arXiv 2305.07895).

    pytest evals/public/test_ocrbench.py --model CHECKPOINT --data FOLDER

FOLDER holds echo840/OCRBench (revision 276bd0b72b4eb57bc78d80df6d182cb21d7e926d), `data/test-*.parquet`, or the authors' `OCRBench.json`
beside `OCRBench_Images/`. The images are of 29 data sets, each under its own licence.

    {"dataset": "SROIE", "question_type": "Key Information Extraction", "question": "How much is to be paid?", "answer": ["9.30"], …}
    {"dataset_name": "SROIE", "type": "Key Information Extraction", "question": …, "answers": ["9.30"], "image_path": "SROIE/0.png"}

Metric of lmms-eval 0.7.3, task `ocrbench`, equal per item: `contains`, an answer stands in what the model said, in any case, full-width
letters as usual ones; for formulas (HME100k) with any spaces. Times 1,000 it is the benchmark's score. `contains_as_published`: the
authors' script, equal per item, to which full-width letters are others. The tag `kind` has the ten kinds apart.
https://github.com/EvolvingLMMs-Lab/lmms-eval/tree/v0.7.3/lmms_eval/tasks/ocrbench
https://github.com/Yuliang-Liu/MultimodalOCR/blob/f5cbec66817b643f732f11cdc7b3a550963b70dc/OCRBench/example.py
"""

from __future__ import annotations

import pytest

from evalharness import GenerationOptions
from evalharness.data import cases_from
from evalharness.prompts import template
from evalharness.scores import ocr_contains

FILES = ("data/test-*.parquet", "OCRBench.json", "test-*.parquet", "*/OCRBench.json", "*/data/test-*.parquet")


def question_of(row):
    """Return a row as the hub has it; the authors' file names its columns otherwise."""
    if "dataset_name" in row:
        image = f"OCRBench_Images/{row['image_path']}"
        row = {**row, "dataset": row["dataset_name"], "question_type": row["type"], "answer": row["answers"], "image": image}
    answers = row["answer"] if isinstance(row["answer"], list) else [row["answer"]]
    return {**row, "question": row["question"].strip(), "answer": [*map(str, answers)]}


pytestmark = pytest.mark.eval(
    cases=cases_from(
        *FILES,
        needs=lambda row: {"dataset", "question_type"} <= row.keys() or {"dataset_name", "type"} <= row.keys(),
        reference="answer",
        tags={"kind": "question_type", "dataset": "dataset"},
        image="image",
        map=question_of,
    ),
    request=template("{{question}}", chat=True),
    options=GenerationOptions(max_new_tokens=128),
    optional=True,
)


@pytest.mark.gate("invalid_rate <= 0.02")
def test_answer(case, generation, score):
    formula = case.tags["dataset"] == "HME100k"
    right = ocr_contains(generation.answer, case.reference, formula=formula, fold_width=True)
    score(contains=right, contains_as_published=ocr_contains(generation.answer, case.reference, formula=formula))
    assert right, f"{' or '.join(case.reference)} is not in {generation.answer!r}"
