"""COCO's cases, the boxes in answers, their confidences, and average precision against pycocotools on the same files."""

from __future__ import annotations

import contextlib
import io
import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from evalharness import GenerationResult
from evalharness.analysis.eval_functions import EvalFunctions, aggregate_rows
from evalharness.analysis.statistics.aggregates import draws_of
from evalharness.api.errors import ConfigError, MissingData
from evalharness.backends.fake import FakeTokenizer
from evalharness.scores.detection import METRICS, average_precision, average_precision_of_draws, confidences
from evalharness.tasks import coco

ROWS = Path(__file__).parents[2] / "fixtures" / "public" / "coco"
LABELS = ("square", "circle", "line")


def answered(text: str, logprobs: Sequence[float] | None = None, size: tuple[int, int] = (160, 120)) -> GenerationResult:
    """Return an answer, a token a character."""
    ids = tuple(FakeTokenizer().encode(text))
    values = None if logprobs is None else (*logprobs, *[-1.0] * (len(ids) - len(logprobs)))
    return GenerationResult(text, text, "stop", token_ids=ids, logprobs=values, images=({"width": size[0], "height": size[1]},))


def scorer_of(truth: Path, found: list[dict[str, Any]]) -> COCOeval:
    with contextlib.redirect_stdout(io.StringIO()):
        objects = COCO(str(truth))
        scorer = COCOeval(objects, objects.loadRes(found), "bbox")
        scorer.evaluate()
        scorer.accumulate()
        scorer.summarize()
    return scorer


def test_metrics_are_those_of_pycocotools_on_the_file(tmp_path: Path) -> None:
    draw = random.Random(7)
    images = [{"id": 3 + 2 * number, "file_name": f"{number}.jpg", "width": 640, "height": 480} for number in range(12)]
    categories = [{"id": 10 * number, "name": label} for number, label in enumerate(LABELS, start=1)]
    marks = []
    for image in images:
        for _ in range(draw.randint(0, 6)):
            box = [draw.randint(0, 300), draw.randint(0, 200), draw.randint(4, 300), draw.randint(4, 250)]
            area, kind = box[2] * box[3] * draw.uniform(0.4, 1), draw.choice(categories)["id"]
            mark = {"id": len(marks) + 1, "image_id": image["id"], "category_id": kind, "bbox": box, "area": area}
            marks.append({**mark, "iscrowd": int(draw.random() < 0.1)})
    path = tmp_path / "instances_val.json"
    path.write_text(json.dumps({"images": images, "annotations": marks, "categories": categories}))
    ids = {each["name"]: each["id"] for each in categories}
    rows, found = [], []
    for case in coco.load_cases(tmp_path):
        boxes = []
        for each in [*case.reference, *case.reference[:1]]:
            left, top, width, height = (value + draw.randint(-12, 12) for value in each["bbox"])
            label = draw.choice([each["label"], each["label"], "LINE", "dog"])
            boxes.append({"bbox_2d": [left, top, left + width, top + height], "label": label})
        text = json.dumps(boxes)
        generation = answered(text, [-draw.random() for _ in text], (640, 480))
        judged = coco.judge(generation, case.reference, case.row["labels"], FakeTokenizer(), "pixels")
        rows.append({"details": judged.details})
        for each in judged.details["detections"]:
            found.append({"image_id": int(case.id), "category_id": ids[each["label"]], "bbox": each["bbox"], "score": each["score"]})
    ours = coco.aggregate(rows)
    theirs = dict(zip(METRICS, scorer_of(path, found).stats, strict=True))
    assert 0.02 < ours["AP"] < 0.9
    assert ours == {name: pytest.approx(value) for name, value in theirs.items() if value >= 0}


def drawn_images(num: int, labels: Sequence[str], draw: random.Random) -> list[tuple[list[dict[str, Any]], list[dict[str, Any]]]]:
    images = []
    for _ in range(num):
        objects, found = [], []
        for _ in range(draw.randint(0, 6)):
            size = draw.choice([20, 60, 200])
            box = [draw.uniform(0, 300), draw.uniform(0, 200), draw.uniform(4, size), draw.uniform(4, size)]
            objects.append({"label": draw.choice(labels), "bbox": box, "area": box[2] * box[3], "iscrowd": int(draw.random() < 0.1)})
            for label in draw.choices([objects[-1]["label"], "other"], k=draw.choice([0, 1, 2])):
                moved = [value + draw.uniform(-0.1, 0.1) * min(box[2:]) for value in box]
                found.append({"label": label, "bbox": moved, "score": draw.random()})
        images.append((objects, found))
    return images


@pytest.mark.parametrize(("num", "labels"), [(3, "a"), (12, "abc")], ids=["few", "several categories"])
def test_metrics_of_draws_are_those_of_pycocotools_on_the_drawn_images(num: int, labels: str) -> None:
    images = drawn_images(num, labels, random.Random(num))
    times = np.random.default_rng(num).poisson(1, (num, 5))
    times[:, 0] = 0
    ours = average_precision_of_draws(images, times)
    for place, counts in enumerate(times.T):
        drawn = [image for image, count in zip(images, counts, strict=True) for _ in range(count)]
        theirs = average_precision(drawn) if drawn else {}
        assert {name: values[place] for name, values in ours.items() if values[place] is not None} == pytest.approx(theirs)


def test_aggregates_of_images_have_intervals() -> None:
    images = drawn_images(30, "abc", random.Random(1))
    rows = [
        {"eval": "coco", "test": "test_o", "engine": "fake:x", "outcome": "pass", "case_id": str(number), "tags": {}, "group": None,
         "scores": {}, "details": {"objects": objects, "detections": found}}
        for number, (objects, found) in enumerate(images)
    ]  # fmt: skip
    evals = EvalFunctions("coco", "test_coco.py", None, coco.aggregate, None, None, None, draws=100)
    problems: list[str] = []
    entries = {entry["metric"]: entry for entry in aggregate_rows([evals], rows, problems)}
    assert not problems
    assert entries["AP"]["value"] == pytest.approx(average_precision(images)["AP"])
    assert entries["AP"]["low"] < entries["AP"]["value"] < entries["AP"]["high"]
    assert entries["AP_50"]["draws"][:3] == pytest.approx(draws_of(rows, coco.aggregate, 3)["AP_50"], rel=1e-4)


def test_where_nothing_is_found_all_metrics_of_the_objects_are_0() -> None:
    (case, *_) = coco.load_cases(ROWS)
    far = {"label": case.reference[0]["label"], "bbox": [0, 0, 1, 1], "score": 0.5}
    nothing = average_precision([(case.reference, [])])
    assert nothing == average_precision([(case.reference, [far])])
    assert {"AP", "AR_100"} <= nothing.keys()
    assert set(nothing.values()) == {0.0}


def test_a_box_is_as_certain_as_the_tokens_of_its_numbers() -> None:
    text = "1234 [12, 20, 5, 6]"
    sure = [-9.0 if not character.isdigit() else -9.0 if place < 4 else -0.5 for place, character in enumerate(text)]
    assert confidences(answered(text, sure), 1, FakeTokenizer()) == [pytest.approx(math.exp(-0.5))]
    assert confidences(answered("no box", [-1.0] * 6), 0, FakeTokenizer()) == []


def test_boxes_before_the_answer_have_no_part_in_its_confidences() -> None:
    thought, answer = "<think>[1, 2, 3, 4]</think>", "[5, 6, 7, 8]"
    values = [-3.0] * len(thought) + [-0.25] * len(answer)
    assert confidences(answered(thought + answer, values), 1, FakeTokenizer()) == [pytest.approx(math.exp(-0.25))]


def test_confidences_need_log_probabilities_of_this_text() -> None:
    with pytest.raises(ConfigError, match="logprobs=True"):
        confidences(answered("[1, 2, 3, 4]"), 1, FakeTokenizer())
    with pytest.raises(ConfigError, match="has 2 boxes, its tokens write 1"):
        confidences(answered("[1, 2, 3, 4]", [-1.0]), 2, FakeTokenizer())


def test_cases_are_images_with_their_objects() -> None:
    cases = list(coco.load_cases(ROWS))
    assert [(case.id, len(case.reference)) for case in cases] == [("139", 3), ("285", 1), ("632", 2)]
    assert all(path.is_file() for case in cases for path in case.images)
    assert cases[1].reference == [{"label": "square", "bbox": [12.0, 20.0, 40.0, 40.0], "area": 1600.0, "iscrowd": 0}]


@pytest.mark.parametrize(
    ("text", "scores"),
    [
        ('[{"bbox_2d": [75, 167, 325, 500], "label": "Square"}]', (1, 0, 0)),
        ('[{"bbox_2d": [75, 167, 325, 500], "label": "box"}]', (0, 1, 1)),
        ("nothing there", (0, 1, 0)),
        ('{"bbox_2d": [75, 167, 325, 500], "label": "square"}, {"bbox_2d": [75, 167, 325', (1, 0, 0)),
        ('[{"bbox_2d": [75, 167, 325, 500], "label": "square"}, {"bbox_2d": [0, 0, 9, 9], "label": "line"}]', (2 / 3, 0, 0)),
    ],
    ids=["found", "unknown label", "nothing", "cut off", "too much"],
)
def test_an_image_is_judged_by_the_boxes_of_known_labels(text: str, scores: tuple[float, ...]) -> None:
    case = list(coco.load_cases(ROWS))[1]
    judged = coco.judge(answered(text, [-0.1]), case.reference, LABELS, FakeTokenizer(), None)
    assert judged.scores == dict(zip(("f1_50", "not_found", "unknown_labels"), scores, strict=True))
    assert judged.all_right == (scores[0] == 1)


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("categories", {"name": None}, "each category needs an id and a name"),
        ("images", {"file_name": None}, "each image an id and a file_name"),
        ("categories", {"id": 7, "name": "SQUARE"}, "'square' names several categories"),
        ("images", {"id": 285}, "an image has the id of another one"),
        ("annotations", {"bbox": [1, 2, "3", 4]}, "each annotation needs a bbox of four numbers"),
        ("annotations", {"bbox": [1, 2, math.nan, 4]}, "each annotation needs a bbox of four numbers"),
        ("annotations", {"category_id": 9}, "a category_id that categories have"),
    ],
)
def test_damaged_labels_are_named(kind: str, change: dict[str, Any], message: str, tmp_path: Path) -> None:
    content = json.loads((ROWS / "annotations" / "instances_val2017.json").read_text("utf-8"))
    first, *others = content[kind]
    changed = {key: value for key, value in {**first, **change}.items() if value is not None}
    content[kind] = [first, *others, changed] if "id" in change else [changed, *others]
    (tmp_path / "instances_val.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=message):
        list(coco.load_cases(tmp_path))


def test_objects_that_belong_to_no_image_are_refused(tmp_path: Path) -> None:
    content = json.loads((ROWS / "annotations" / "instances_val2017.json").read_text("utf-8"))
    content["annotations"] = [{**mark, "image_id": str(mark["image_id"])} for mark in content["annotations"]]
    (tmp_path / "instances_val.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError, match="no annotation is of one of its images: '139' is no id of an image"):
        list(coco.load_cases(tmp_path))


def test_a_file_of_another_form_is_refused(tmp_path: Path) -> None:
    (tmp_path / "instances_val.json").write_text('{"images": []}')
    with pytest.raises(MissingData, match=r"instances_val.json is not of COCO's form.*images, annotations, categories"):
        list(coco.load_cases(tmp_path))
