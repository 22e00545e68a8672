"""DocVQA: questions on scanned documents, answered in their words (Mathew et al. 2021, arXiv 2007.00398).

    pytest evals/public/test_docvqa.py --model CHECKPOINT --data FOLDER

FOLDER holds lmms-lab/DocVQA (revision 539088e, Apache-2.0), `DocVQA/validation-*.parquet`, or the challenge's `val_v1.0_withQT.json`
(older: `val_v1.0.json`) beside its `documents/`; registration is needed for the latter. The test split has no answers.

    {"questionId": "24580", "question": "What is the total?", "answers": ["$12.50", "12.50"], "docId": 7029, "image": {"bytes": …}, …}

Metric of lmms-eval 0.7.3, task `docvqa_val`, and of the challenge, equal per item: `anls`, 1 − the edit distance to the nearest answer as
a part of the longer text, in any case; below 0.5 it is 0. Spaces behind a wrong answer raise it, but not `anls_corrected`. `exact`: the
same text as an answer, in any case.
https://github.com/EvolvingLMMs-Lab/lmms-eval/tree/v0.7.3/lmms_eval/tasks/docvqa
"""

from __future__ import annotations

import pytest

from evalharness import GenerationOptions
from evalharness.api.errors import MissingData
from evalharness.data import cases_from
from evalharness.prompts import template
from evalharness.scores import anls, anls_corrected, exact_match

FILES = ("DocVQA/validation-*.parquet", "val_v1.0*.json", "validation-*.parquet", "*/val_v1.0*.json", "*/DocVQA/validation-*.parquet")


def question_of(row):
    """Return the row; `MissingData` for rows of the test split."""
    if not row["answers"]:
        raise MissingData(f"{row['__file__']} has no answers, as DocVQA's test split; take the validation split")
    return row


pytestmark = pytest.mark.eval(
    cases=cases_from(
        *FILES,
        field="data",
        needs=("questionId", "docId", "answers"),
        id="questionId",
        group="docId",
        tags={"kind": lambda row: ", ".join(row.get("question_types") or ["unnamed"])},
        reference="answers",
        image="image",
        map=question_of,
    ),
    request=template("{{question}}\nAnswer the question using a single word or phrase.", chat=True),
    options=GenerationOptions(max_new_tokens=32),
    optional=True,
)


@pytest.mark.gate("invalid_rate <= 0.02")
def test_answer(case, generation, score):
    near = anls_corrected(generation.answer, case.reference)
    exact = exact_match(generation.answer.strip(), case.reference, ignore_case=True)
    score(anls=anls(generation.answer, case.reference), anls_corrected=near, exact=exact)
    assert near, f"expected {' or '.join(case.reference)}, got {generation.answer!r}"
