"""Dense dumps: every object of a site photo, with its description and its geometry.

A photo in, two lines out, coordinates on a grid of 0 to 1000, objects from top to bottom and left to right:

    <DOMAIN=BBU>, <TASK=DETECTION>
    {"object_1": {"desc": "类别=标签,文本=DEMO-01", "bbox_2d": [40, 60, 180, 120]}, "object_2": {"desc": …, "line_points": 2, "line": …}}

Photos and true objects are those of `<root>/gt_vs_pred.jsonl`; another root is given with --data. The form is that of
`evalharness/tasks/dense/parse.py`; IoU, matching and metrics are those of `dense_geometry.py`, `dense_matching.py` and
`dense_metrics.py`. `--spot 12` draws twelve photos with truth and prediction. Models that answer in another space are declared:
`--coordinates unit`, or `pixels`, `processed:14` (pixels as resized to patches of 14), `'base-*=pixels'` for some checkpoints.

Gates: `valid`, nothing to forgive in the form; `loc_micro_f1`, objects found where they are; `category_min_f1`, no
category lost; `cap_hit`, answers that never end; `invalid_rate`, photos that could not be asked.
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
