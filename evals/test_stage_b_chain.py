"""Stage-B in a chain: one verdict per work order, from the summaries that the same checkpoint has just written of its photos.

The checkpoint writes a summary of every photo, then a verdict from these summaries and, to distinguish two kinds of mistakes,
another from the reference summaries: in `could_not_see` Stage-A lost the evidence, in `judged_wrongly` the verdict is wrong
although the evidence was there. `evalharness/tasks/stage_b/chain.py` describes how that is decided.

Photos, references and rules are where Stage-A and Stage-B have them; --data gives another root.
"""

from __future__ import annotations

import pytest

from evalharness.tasks import stage_b
from evalharness.tasks.shared import judged_text
from evalharness.tasks.stage_b import chain as stage_b_chain

pytestmark = pytest.mark.eval(
    cases=stage_b_chain.load_cases,
    request=stage_b_chain.request,
    options=stage_b.ONE_VOTE,
    aggregate=stage_b.aggregate,
    tables=stage_b_chain.tables,
    outputs=stage_b_chain.write_outputs,
    directions={"difficulty": "none", "hard_wrong": "lower", "thinking": "lower", "third_state": "lower"},
)


@pytest.mark.gate("accuracy >= 0.90", "could_not_see <= 0.05", "judged_wrongly <= 0.05", "invalid_rate <= 0.02")
def test_chain(case, generations, steps, score, details):
    chain = stage_b_chain.judge(case, steps, [judged_text(generation) for generation in generations])
    score(**chain.scores)
    details(**chain.details)
    assert chain.own.is_right, chain.problem
