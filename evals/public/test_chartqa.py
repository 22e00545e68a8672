"""ChartQA: questions on charts, answered with a number or a word (Masry et al. 2022, arXiv 2203.10244).

    pytest evals/public/test_chartqa.py --model CHECKPOINT --data FOLDER

FOLDER holds lmms-lab/ChartQA (revision 9e63b7df1592a1c2158e735cc1725454aef0d6d9) or HuggingFaceM4/ChartQA (revision
b605b6e08b57faf4359aeb2fe6a3ca595f99b6c5), `data/test-*.parquet`, or the authors' `ChartQA Dataset` with `test/test_human.json`,
`test/test_augmented.json` and `test/png/`. GPL-3.0.

    {"type": "human_test", "question": "What is the value of fig?", "answer": "55", "image": {"bytes": …}}
    {"imgname": "fruit.png", "query": "What is the value of fig?", "label": "55"}

Metric of lmms-eval 0.7.3, task `chartqa`, equal per item: `relaxed`, a number within 5 % of the answer, or else the same text in any case.
To it "1,000" is no number, and 2019 is near the year 2010; `relaxed_corrected` knows better. The tag `split` has the human and the
augmented questions apart.
https://github.com/EvolvingLMMs-Lab/lmms-eval/tree/v0.7.3/lmms_eval/tasks/chartqa
"""

from __future__ import annotations

import pytest

from evalharness import GenerationOptions
from evalharness.data import cases_from
from evalharness.prompts import template
from evalharness.scores import relaxed_accuracy, relaxed_accuracy_corrected

FILES = ("data/test-*.parquet", "test/test_[ha]u*.json", "test-*.parquet", "*/test/test_[ha]u*.json", "*/data/test-*.parquet")


def is_meant(row):
    """Return whether a row is of one of these forms."""
    return {"type", "question", "answer"} <= row.keys() or {"query", "label"} <= row.keys()


def question_of(row):
    """Return a row as lmms-lab/ChartQA has it; the others name their columns otherwise, and one its split only by the file's name."""
    if "query" not in row:
        return row
    answer = row["label"][0] if isinstance(row["label"], list) else row["label"]
    is_human = row["human_or_machine"] == 0 if "human_or_machine" in row else "human" in row["__file__"]
    image = row["image"] if "image" in row else f"png/{row['imgname']}"
    return {"type": "human_test" if is_human else "augmented_test", "question": row["query"], "answer": answer, "image": image}


pytestmark = pytest.mark.eval(
    cases=cases_from(*FILES, needs=is_meant, reference="answer", tags={"split": "type"}, image="image", map=question_of),
    request=template("{{question}}\nAnswer the question with a single word.", chat=True),
    options=GenerationOptions(max_new_tokens=16),
    optional=True,
)


@pytest.mark.gate("invalid_rate <= 0.02")
def test_answer(case, generation, score):
    right = relaxed_accuracy_corrected(generation.answer, case.reference)
    score(relaxed=relaxed_accuracy(generation.answer, case.reference), relaxed_corrected=right)
    assert right, f"expected {case.reference}, got {generation.answer!r}"
