"""Degeneration: does the model loop, think aloud, echo its prompt, change language, say nothing, or never end?

A sample of cases of every task, greedy. Whether answers are right does not matter here; the signs are described in
`evalharness/tasks/degeneration.py`. The test needs the generation alone, so it judges any recorded run as well:

    evalharness rescore reports/RUN --tests evals/test_degeneration.py

Gates: `cap_hit`, answers that never end; `degenerate`, answers with any sign. SCRIPT is the expected script of the answers
("han", "latin", …); None is that of the prompt.
"""

from __future__ import annotations

from functools import partial

import pytest

from evalharness import GenerationOptions
from evalharness.tasks import degeneration, task_sample

SCRIPT = None

pytestmark = pytest.mark.eval(
    cases=partial(task_sample.load_cases, num_per_task=24),
    request=task_sample.request,
    options=GenerationOptions(max_new_tokens=1024),
    directions=dict.fromkeys((*degeneration.SIGNS, "degenerate"), "lower"),
)


@pytest.mark.gate("degenerate <= 0.02", "cap_hit <= 0.02", "invalid_rate <= 0.02")
def test_signs(case, generation, score):
    signs = degeneration.find_signs(generation, SCRIPT)
    score(**degeneration.scores(signs))
    assert not signs, "; ".join(f"{sign}: {evidence}" for sign, evidence in signs.items())
