"""Dense dumps: every object of a site photo, with its description and its geometry.

For each photo the model writes two lines, coordinates on a grid of 0 to 1000, objects from top to bottom and left to right:

    <DOMAIN=BBU>, <TASK=DETECTION>
    {"object_1": {"desc": "类别=标签,文本=DEMO-01", "bbox_2d": [40, 60, 180, 120]}, "object_2": {"desc": …, "line_points": 2, "line": …}}

`<root>/gt_vs_pred.jsonl` names the photos and their reference objects; --data gives another root. The form is described in
`evalharness/tasks/dense/parse.py`, IoU and matching in `geometry.py` and the metrics in `metrics.py` beside it. `--spot 12` draws
references and predictions on twelve photos. `--coordinates` declares models that answer in another space: `unit`, `pixels`,
`processed:14` (pixels as resized to patches of 14), or `'base-*=pixels'` for some checkpoints.

Gates: `valid`, the form is strict; `loc_micro_f1`, objects in the right place; `category_min_f1`, the worst category;
`cap_hit`, answers that never end; `invalid_rate`, photos that cannot be run.
"""

from __future__ import annotations

import pytest

from evalharness import GenerationOptions
from evalharness.tasks import dense

pytestmark = pytest.mark.eval(
    cases=dense.load_cases,
    request=dense.request,
    options=GenerationOptions(max_new_tokens=2048),
    aggregate=dense.aggregate,
    tables=dense.tables,
    outputs=dense.outputs,
)


@pytest.mark.gate("valid >= 0.95", "loc_micro_f1 >= 0.90", "category_min_f1 >= 0.80", "cap_hit <= 0.02", "invalid_rate <= 0.02")
@pytest.mark.gate("no_regression")
def test_objects(case, generation, score, details, coordinates):
    dump = dense.read(generation, case, coordinates)
    judged = dense.judge(dump, case, generation.finish_reason)
    score(**judged.scores)
    details(**judged.details)
    assert dump.valid, dump.problem
