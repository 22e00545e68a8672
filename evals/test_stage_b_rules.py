"""Stage-B's rules, improved by the checkpoint from its own mistakes: does it propose usable changes, and do they help?

One case per mission. All tickets are judged; the most confident mistakes among the train tickets are shown to the checkpoint, which says
which lack evidence, why the others happened, and which rules to change. Every change that passes the guards is tried on all tickets, and
promoted if the gate says so. `evalharness/tasks/stage_b/rule_search.py` describes it; `evalharness rules RUN` goes on for more rounds.

Scores: `usable`, the share of the proposed changes that passed the guards (none where nothing was judged wrongly); `promoted`, how many
passed the gate; `gain` and `held_out_gain`, the accuracy that they add on train tickets and on held-out ones, which decided nothing.

Gates: rules that help on train tickets must not harm elsewhere; no search may break. Tickets and rules are Stage-B's; --data gives another
root.
"""

from __future__ import annotations

import pytest

from evalharness.tasks import stage_b
from evalharness.tasks.shared import judged_text
from evalharness.tasks.stage_b import rules as stage_b_rules

pytestmark = pytest.mark.eval(
    cases=stage_b_rules.load_cases,
    request=stage_b_rules.request,
    options=stage_b.ONE_VOTE,
    tables=stage_b_rules.tables,
    outputs=stage_b_rules.write_outputs,
    directions={"hard_cases": "lower", "promoted": "none", "hardest_right": "none"},
)


@pytest.mark.gate("held_out_gain >= 0", "invalid_rate <= 0.02")
def test_rules(case, generation, steps, score, details):
    judged = stage_b_rules.judge(case, steps, judged_text(generation))
    score(**judged.scores)
    details(**judged.details)
