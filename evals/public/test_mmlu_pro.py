"""MMLU-Pro: harder questions with up to ten choices, five worked examples with their reasoning (Wang et al. 2024, arXiv 2406.01574).

    pytest evals/public/test_mmlu_pro.py --model CHECKPOINT --data FOLDER

FOLDER holds TIGER-Lab/MMLU-Pro (revision b189ec765aa7ed75c8acfea42df31fdae71f97be, MIT): `data/test-*.parquet` and
`data/validation-*.parquet`, of which the first five rows of each category are the examples.

    {"question_id": 70, "question": "What is 7 plus 8?", "options": ["15", "78", …], "answer": "A", "category": "math", "cot_content": …}

Metric of lm-eval 0.4.13, group `mmlu_pro` (version 2.0; tasks 3.1), equal per item: `exact_match_first`, the letter behind the first
"answer is". It takes the A of "the answer is Another" for one; `exact_match_letter` is the letter that the answer states last, or is.
`not_found_…` are answers without any: nothing is guessed in their place, as the authors' own script does. `…_macro` is the mean over
categories.
https://github.com/EleutherAI/lm-evaluation-harness/tree/v0.4.13/lm_eval/tasks/mmlu_pro

For a chat model: --as-chat.
"""

from __future__ import annotations

import pytest

from evalharness import DecodeOptions, GenerationOptions, StopOptions
from evalharness.answers import by_filter, choice_letter, first_match
from evalharness.data import cases_from
from evalharness.prompts import few_shot, template
from evalharness.scores import exact_match, macro_over

LETTERS = "ABCDEFGHIJ"
COLUMNS = ("question_id", "question", "options", "answer", "category", "cot_content")
FILTERS = {"first": first_match(r"answer is \(?([ABCDEFGHIJ])\)?"), "letter": choice_letter(LETTERS)}


def rows_of(split):
    """Return the rows of a split."""
    names = (f"data/{split}-*.parquet", f"*/data/{split}-*.parquet", f"{split}-*.parquet")
    return cases_from(*names, needs=COLUMNS, id="question_id", reference="answer", tags=["category"])


def question(row):
    """Return the question with its choices, up to where reasoning begins."""
    choices = "".join(f"{letter}. {choice.strip()}\n" for letter, choice in zip(LETTERS, row["options"], strict=False))
    return f"Question:\n{row['question']}\nOptions:\n{choices}Answer: Let's think step by step."


request = template(
    question,
    description="The following are multiple choice questions (with answers) about {{category}}. Think step by step and then finish your "
    'answer with "the answer is (X)" where X is the correct letter choice.\n',
    target=lambda row: row["cot_content"].replace("A: Let's think step by step. ", ""),
    shots=few_shot(rows_of("validation"), k=5, sampler="first_n", within="category"),
)
pytestmark = pytest.mark.eval(
    cases=rows_of("test"),
    request=request,
    options=GenerationOptions(max_new_tokens=2048, stop=StopOptions(stop=("Question:",)), decode=DecodeOptions(strip_whitespace=False)),
    aggregate=macro_over("category", "exact_match_first", "exact_match_letter"),
    directions={"not_found_first": "lower", "not_found_letter": "lower"},
    optional=True,
)


@pytest.mark.gate("not_found_letter <= 0.2", "invalid_rate <= 0.02")
def test_letter(case, generation, score, details):
    judged = by_filter(generation.answer, FILTERS, exact_match=lambda found: exact_match(found, case.reference))
    score(**judged.scores)
    details(**judged.details)
    found = judged.details["filters"]["letter"]["answer"]
    assert found == case.reference, f"expected {case.reference}, got {found}"
