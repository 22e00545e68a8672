"""RefCOCO, RefCOCO+ and RefCOCOg: find the object that an expression names (Kazemzadeh et al. 2014; Yu et al. 2016, arXiv 1608.00272).

    pytest evals/public/test_refcoco.py --model CHECKPOINT --data FOLDER_OR_FILE [--coordinates pixels]

It reads lmms-lab/RefCOCO (revision e15256ece129a21d62e216f95f98ba2e808f96a0), RefCOCOplus and RefCOCOg, `data/*.parquet`; Qwen-VL's
`refcoco_val.jsonl`; MDETR's `finetune_refcoco_val.json`; the last two beside `train2014/` of COCO 2014 (boxes CC BY 4.0, photos under their
owners' terms on Flickr; for the expressions no licence is stated). The forms: evalharness/tasks/refcoco.py.

    {"sent": "red square", "bbox": [12, 20, 52, 60], "width": 160, "height": 120, "image": "data/coco/train2014/….jpg"}

`acc_50`: the first box in the answer has an IoU of at least 0.5 with the right one, Qwen-VL's "Precision @ 1". What its numbers mean is
declared: 0..1000 (Qwen2-VL, Qwen3-VL) unless `--coordinates` says `pixels`, `unit` or, for Qwen2.5-VL, `processed:14`. `acc_50_best`:
`refcoco_grounding_ACC@0.5` of lmms-eval 0.7.3, equal per item; it lets the right answer choose the best box and its space. The tag `split`
has the splits apart.
https://github.com/EvolvingLMMs-Lab/lmms-eval/tree/v0.7.3/lmms_eval/tasks/refcoco_grounding
https://github.com/QwenLM/Qwen-VL/blob/10cb904198d4e0e161d0f9f36ba9fac8ac7899e4/eval_mm/evaluate_grounding.py
"""

from __future__ import annotations

import pytest

from evalharness import GenerationOptions, VlmGenerationRequest
from evalharness.tasks import refcoco

PROMPT = 'Locate every object that matches the description "{}" in the image. Report bbox coordinates in JSON format.'


def request(case):
    content = [{"type": "image"}, {"type": "text", "text": PROMPT.format(case.row["text"])}]
    return VlmGenerationRequest([{"role": "user", "content": content}], images=case.images, verify=True)


pytestmark = pytest.mark.eval(
    cases=refcoco.load_cases,
    request=request,
    options=GenerationOptions(max_new_tokens=512),
    directions={"not_found": "lower"},
    optional=True,
)


@pytest.mark.gate("invalid_rate <= 0.02")
def test_box(case, generation, score, details, coordinates):
    judged = refcoco.judge(generation, case.reference, coordinates)
    score(**judged.scores)
    details(**judged.details)
    assert judged.all_right, judged.problem
