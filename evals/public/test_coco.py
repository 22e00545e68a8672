"""COCO's detection by a language model: all objects of 80 categories in photos (Lin et al. 2014, arXiv 1405.0312).

    pytest evals/public/test_coco.py --model CHECKPOINT --data FOLDER_OR_FILE [--coordinates pixels]

FOLDER holds `annotations/instances_val2017.json` (CC BY 4.0) and `val2017/` (photos under their owners' terms on Flickr) of COCO 2017, or
any labels of that form with their images: evalharness/tasks/coco.py.

Metrics of pycocotools' COCOeval, over the images that were run: `AP` (IoU 0.50 to 0.95, 100 boxes an image), `AP_50`, `AP_75`, by size, and
recall. The model gives boxes no confidences; they are the geometric mean of the probabilities of the tokens that write a box's numbers, so
the backend must give log-probabilities, and `rescore`, which has no tokenizer, cannot judge a run again. `f1_50` of an image weighs all its
boxes alike. What numbers mean is declared: 0..1000 unless `--coordinates` says otherwise. The question is this eval's own, there is no
official one; published results of language models ask for fewer categories at a time, and are not comparable.
https://github.com/cocodataset/cocoapi/blob/8c9bcc3cf640524c4c20a9c40e89cb6a2f2fa0e9/PythonAPI/pycocotools/cocoeval.py
"""

from __future__ import annotations

import pytest

from evalharness import GenerationOptions, VlmGenerationRequest
from evalharness.tasks import coco

PROMPT = (
    "Locate every object of these categories in the image: {}. Report bbox coordinates in JSON format, "
    'such as [{{"bbox_2d": [x1, y1, x2, y2], "label": "{}"}}].'
)


def request(case):
    labels = case.row["labels"]
    content = [{"type": "image"}, {"type": "text", "text": PROMPT.format(", ".join(labels), labels[0])}]
    return VlmGenerationRequest([{"role": "user", "content": content}], images=case.images, verify=True)


pytestmark = pytest.mark.eval(
    cases=coco.load_cases,
    request=request,
    options=GenerationOptions(max_new_tokens=2048, logprobs=True),
    aggregate=coco.aggregate,
    draws=400,
    directions={"not_found": "lower", "unknown_labels": "lower"},
    optional=True,
)


@pytest.mark.gate("invalid_rate <= 0.02")
def test_objects(case, generation, engine, score, details, coordinates):
    judged = coco.judge(generation, case.reference, case.row["labels"], engine.tokenizer, coordinates)
    score(**judged.scores)
    details(**judged.details)
    assert judged.all_right, judged.problem
