"""JSON answers: your own prompts, each with the fields that its answer must have.

One row per line in `<data folder>/json_answers.jsonl`:

    {"id": "invoice-7", "prompt": "Which total? Answer as JSON.", "images": ["7.png"], "expected": {"total": {"$number": 12.5}}}

    pytest evals/test_json_answers.py --model CHECKPOINT --data FOLDER

Rows and expected values are described in `evalharness/tasks/json_answers.py`. The shipped file asks for Stage-A summaries, which
the shipped checkpoints were trained on; they write a header line before the JSON, so `strict` (nothing but JSON) is 0 there and
has no gate. Where the answer must be JSON alone, add "strict >= 0.95".

Gates: `valid`, there is JSON in the answer; `fields_right`, the share of expected fields that are right.
"""

from __future__ import annotations

import pytest

from evalharness import GenerationOptions
from evalharness.tasks import json_answers

pytestmark = pytest.mark.eval(
    cases=json_answers.load_cases,
    request=json_answers.request,
    options=GenerationOptions(max_new_tokens=1024),
    tables=json_answers.tables,
    directions={"num_missing": "lower", "num_extra": "lower"},
)


@pytest.mark.gate("valid >= 0.95", "fields_right >= 0.95", "invalid_rate <= 0.02")
def test_fields(case, generation, score, details):
    judged = json_answers.judge(generation.answer, case.reference, generation.finish_reason)
    score(**judged.scores)
    details(**judged.details)
    assert judged.all_right, judged.problem
