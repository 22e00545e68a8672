"""TextVQA: questions on photos whose answers are written in them, judged by ten people's answers (Singh et al. 2019, arXiv 1904.08920).

    pytest evals/public/test_textvqa.py --model CHECKPOINT --data FOLDER

FOLDER holds lmms-lab/textvqa (revision 9c0699c, CC BY 4.0), `data/validation-*.parquet`, or the authors' `TextVQA_0.5.1_val.json` beside
its `train_images/`. The test split has no answers.

    {"question_id": 34602, "image_id": "003a8ae2ef43b901", "question": "what does the sign say?", "answers": ["open", …], "image": …, …}

Metric of lmms-eval 0.7.3, task `textvqa_val`, and of the challenge's server, equal per item: `vqa_accuracy`, the mean over each person left
out of min(1, others who gave this answer / 3), after both were normalised. Answers with more than 32 periods apart, see `scores/vqa.py`.
https://github.com/EvolvingLMMs-Lab/lmms-eval/tree/v0.7.3/lmms_eval/tasks/textvqa
"""

from __future__ import annotations

import pytest

from evalharness import GenerationOptions
from evalharness.api.errors import MissingData
from evalharness.data import cases_from
from evalharness.prompts import template
from evalharness.scores import vqa_accuracy
from evalharness.scores.vqa import vqa_normalised

FILES = (
    "data/validation-*.parquet",
    "TextVQA_0.5.1_val.json",
    "validation-*.parquet",
    "*/TextVQA_0.5.1_val.json",
    "*/data/validation-*.parquet",
)


def question_of(row):
    """Return a row with its image, which the authors' file names by its id only; `MissingData` for rows of the test split."""
    if not any(row["answers"] or ()):
        raise MissingData(f"{row['__file__']} has no answers, as TextVQA's test split; take the validation split")
    return {"image": f"train_images/{row['image_id']}.jpg", **row}


pytestmark = pytest.mark.eval(
    cases=cases_from(
        *FILES,
        field="data",
        needs=("question_id", "image_id", "answers"),
        id="question_id",
        group="image_id",
        reference="answers",
        image="image",
        map=question_of,
    ),
    request=template("{{question.capitalize()}}\nAnswer the question using a single word or phrase.", chat=True),
    options=GenerationOptions(max_new_tokens=32),
    optional=True,
)


@pytest.mark.gate("invalid_rate <= 0.02")
def test_answer(case, generation, score, details):
    agreed = vqa_accuracy(generation.answer, case.reference)
    score(vqa_accuracy=agreed)
    details(compared=vqa_normalised(generation.answer))
    assert agreed, f"nobody answered {generation.answer!r}, but {', '.join(dict.fromkeys(case.reference))}"
