"""Stage-B: one verdict per work order, from the reference summaries of its photos.

From the mission's rules and the summaries the model writes two lines:

    Verdict: 不通过
    Reason: Image1: 站点7有RRU但未见紧固件; Image2: 无关图片; 总结: 固定件证据缺失

Summaries are in `<root>/<mission>_stage_a.jsonl`, rules in `<root>/guidance.json`; --data gives another root. The grammar is
described in `evalharness/tasks/stage_b/verdict.py`, the rates in `metrics.py` beside it. Here one greedy answer decides; with
`options=stage_b.THREE_VOTES`, or a `stage_b.decode_grid` of your own, several answers vote, and a tie is fail.

Gates: `valid`, there is a verdict; `strict`, form and wording are as documented; `accuracy`; `false_release_rate`, the share of
the released orders that should not have been; `false_block_rate`, the share of the orders to be released that were not (a missing
verdict counts as either mistake); `invalid_rate`, tickets that cannot be run, such as a prompt over budget.
"""

from __future__ import annotations

import pytest

from evalharness.tasks import stage_b
from evalharness.tasks.shared import judged_text

pytestmark = pytest.mark.eval(
    cases=stage_b.load_cases,
    request=stage_b.request,
    options=stage_b.ONE_VOTE,
    aggregate=stage_b.aggregate,
    tables=stage_b.tables,
    outputs=stage_b.write_outputs,
    directions={"difficulty": "none", "hard_wrong": "lower", "thinking": "lower", "third_state": "lower"},
)


@pytest.mark.gate("valid >= 0.95", "strict >= 0.95", "accuracy >= 0.90", "invalid_rate <= 0.02")
@pytest.mark.gate("false_release_rate <= 0.05", "false_block_rate <= 0.10", "no_regression")
def test_verdict(case, generations, score, details):
    ticket = stage_b.judge([judged_text(generation) for generation in generations], case)
    score(**ticket.scores)
    details(**ticket.details)
    assert ticket.is_right, ticket.problem
