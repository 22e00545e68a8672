"""Average precision of boxes, as pycocotools computes it, with confidences from the log-probabilities of a box's tokens.

A language model writes boxes without confidences; AP needs an order. The confidence of a box is the geometric mean of the probabilities
of the tokens that write its numbers.
"""

from __future__ import annotations

import bisect
import contextlib
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, TypeAlias

from evalharness.api.errors import ConfigError, MissingDependency
from evalharness.api.installing import missing_package
from evalharness.api.requests import GenerationResult
from evalharness.generation_plugins.dense import token_texts
from evalharness.scores.grounding import boxes_in

METRICS = ("AP", "AP_50", "AP_75", "AP_small", "AP_medium", "AP_large", "AR_1", "AR_10", "AR_100", "AR_small", "AR_medium", "AR_large")
"""In the order of COCOeval's `stats`."""


def confidences(generation: GenerationResult, num_boxes: int, tokenizer: Any) -> list[float]:
    """Return the confidence of each of the last `num_boxes` boxes that a generation's tokens write, 0 to 1.

    `ConfigError` without log-probabilities (ask with `GenerationOptions(logprobs=True)`), or if the tokens write fewer boxes.
    """
    if not num_boxes:
        return []
    if generation.logprobs is None:
        raise ConfigError("boxes have no confidences: the generation has no log-probabilities; ask with GenerationOptions(logprobs=True)")
    texts = token_texts(tokenizer)
    pieces = [texts[token_id] for token_id in generation.token_ids]
    ends = list(accumulate(map(len, pieces)))
    boxes = boxes_in("".join(pieces))[-num_boxes:]
    if len(boxes) < num_boxes:
        raise ConfigError(f"the answer has {num_boxes} boxes, its tokens write {len(boxes)}: their log-probabilities are of another text")
    found = []
    for box in boxes:
        own = slice(bisect.bisect_right(ends, box.start), bisect.bisect_left(ends, box.end) + 1)
        tokens = zip(pieces[own], generation.logprobs[own], strict=True)
        values = [value for piece, value in tokens if value is not None and any(letter.isdigit() for letter in piece)]
        found.append(math.exp(math.fsum(values) / len(values)) if values else 0.0)
    return found


Images: TypeAlias = "Iterable[tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]]]"
"""Objects and detections of each image."""


def average_precision(images: Images) -> dict[str, float]:
    """Return COCOeval's metrics of (objects, detections) per image; without those that no object bears on, such as a size.

    Objects have `label`, `bbox` (left, top, width, height in pixels), `area`, `iscrowd`; detections `label`, `bbox`, `score`.
    """
    scorer = _evaluated(images)
    if scorer is None:
        return {}
    with contextlib.redirect_stdout(io.StringIO()):  # it prints tables
        scorer.accumulate()
        scorer.summarize()
    return {name: float(value) for name, value in zip(METRICS, scorer.stats, strict=True) if value >= 0}


def average_precision_of_draws(images: Images, times: Any) -> dict[str, list[float | None]]:
    """Return the same metrics of draws of the images, a list each; `times`: how often each image is drawn, `(images, draws)`."""
    from evalharness.scores.detection_draws import metrics_of_draws  # loads numpy

    scorer = _evaluated(images)
    return {} if scorer is None else metrics_of_draws(scorer, times)


def _evaluated(images: Images) -> Any:
    """Return a COCOeval that has matched the boxes of each image, None where there is no object."""
    try:
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval
    except ImportError as error:
        raise MissingDependency(missing_package("average precision", error, "metrics")) from error
    pairs = list(images)
    labels = sorted({each["label"] for objects, detections in pairs for each in (*objects, *detections)})
    ids = {label: number for number, label in enumerate(labels, start=1)}
    marks: list[dict[str, Any]] = []
    found: list[dict[str, Any]] = []
    for image_id, (objects, detections) in enumerate(pairs, start=1):
        for each in objects:
            kept = {key: each[key] for key in ("bbox", "area", "iscrowd")}
            marks.append({**kept, "id": len(marks) + 1, "image_id": image_id, "category_id": ids[each["label"]]})
        for each in detections:
            found.append({"image_id": image_id, "category_id": ids[each["label"]], "bbox": each["bbox"], "score": each["score"]})
    if not marks:
        return None
    with contextlib.redirect_stdout(io.StringIO()):  # it prints tables
        truth = COCO()
        categories = [{"id": number, "name": label} for label, number in ids.items()]
        truth.dataset = {"images": [{"id": number + 1} for number in range(len(pairs))], "annotations": marks, "categories": categories}
        truth.createIndex()
        answers = truth.loadRes(found) if found else COCO()
        if not found:  # which loadRes does not take
            answers.dataset = {**truth.dataset, "annotations": []}
            answers.createIndex()
        scorer = COCOeval(truth, answers, "bbox")
        scorer.evaluate()
    return scorer
