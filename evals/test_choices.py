"""Multiple choice by likelihood: is the right answer the most likely of the given ones? Nothing is generated.

One row per line in `<data folder>/choices.jsonl`:

    {"id": "sky-1", "prompt": "What colour is a clear sky at noon?", "choices": ["Blue", "Green"], "answer": "Blue"}

    pytest evals/test_choices.py --model CHECKPOINT --data FOLDER

Rows are described in `evalharness/tasks/choices.py`; base models take a bare `text` in place of the chat. `fixtures/given_text`
has rows that the shipped checkpoints were trained on: photos with four summaries, work orders with two verdicts.

Gates: `acc`, the right choice has the highest sum of log-probabilities. `acc_per_byte` and `acc_per_token` are for choices of very
different lengths; `p_right` moves before any of them does.
"""

from __future__ import annotations

import pytest

from evalharness.tasks import choices

pytestmark = pytest.mark.eval(cases=choices.load_cases, request=choices.request, optional=True)


@pytest.mark.gate("acc >= 0.80", "invalid_rate <= 0.02")
def test_choice(case, steps, generation, score, details):
    judged = choices.judge(generation, steps[0])
    score(**judged.scores)
    details(**judged.details)
    assert judged.all_right, judged.problem
