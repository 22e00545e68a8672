"""Stage-A: one structured summary per site photo.

For each photo of a work order the model writes two lines (or `无关图片` alone if it shows no site):

    <DOMAIN=RRU>, <TASK=SUMMARY>
    {"统计": [{"类别": "站点距离", "站点距离": {"7": 1}}, {"类别": "紧固件", "安装状态": {"合格": 2}}], "分组统计": {"1": 2}}

Photos are in `<root>/<mission>/{审核通过|审核不通过}/<group>/`, references in `<root>/<mission>_stage_a.jsonl`; --data gives
another root. The schema is described in `evalharness/tasks/stage_a/schema.py`, the metrics in `metrics.py` beside it. Summaries go
to `outputs/<engine>/<mission>_stage_a.jsonl`, for Stage-B. For a full-size checkpoint, bound the size of large photos:
`cases=partial(stage_a.load_cases, max_pixels=stage_a.PIXEL_BUDGETS)`.

Gates: `valid`, form and schema are strict; `category_f1`, the categories in the photo, none missed or invented;
`category_min_f1`, the same for the worst category, which an average hides; `runaway`, answers that never end; `invalid_rate`,
photos that cannot be run, which count in no other metric; `no_regression`, nothing worse than in --baseline NAME, over all photos,
by mission and by category.
"""

from __future__ import annotations

import pytest

from evalharness import GenerationOptions
from evalharness.tasks import stage_a
from evalharness.tasks.shared import judged_text

pytestmark = pytest.mark.eval(
    cases=stage_a.load_cases,
    request=stage_a.request,
    options=GenerationOptions(max_new_tokens=1024),
    aggregate=stage_a.aggregate,
    tables=stage_a.tables,
    outputs=stage_a.outputs,
    directions={"irrelevant": "none", "runaway": "lower"},
)


@pytest.mark.gate("valid >= 0.95", "category_f1 >= 0.80", "category_min_f1 >= 0.80", "runaway <= 0.02", "invalid_rate <= 0.02")
@pytest.mark.gate("no_regression")
def test_summary(case, generation, score, details):
    summary = stage_a.parse_summary(judged_text(generation), domain=case.domain)
    score(**stage_a.scores(summary, case, generation.num_completion_tokens))
    details(**stage_a.details(summary, case))
    assert summary.valid, summary.problem
