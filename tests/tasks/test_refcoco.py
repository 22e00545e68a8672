"""RefCOCO's cases from files of three forms, and the box of an answer in the space that a model writes in."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from evalharness import GenerationResult
from evalharness.api.errors import ConfigError, MissingData
from evalharness.tasks import refcoco

ROWS = Path(__file__).parents[2] / "fixtures" / "public"
TRUTH = (160.0, 120.0, 480.0, 360.0)


def answered(text: str, **facts: Any) -> GenerationResult:
    return GenerationResult(text, text, "stop", images=({"width": 640, "height": 480, **facts},))


@pytest.mark.parametrize(
    ("text", "coordinates", "facts"),
    [
        ("[250, 250, 750, 750]", None, {}),
        ('```json\n{"bbox_2d": [250, 250, 750, 750]}\n```', "norm1000", {}),
        ("cup (250,250),(750,750)", "norm1000", {}),
        ("[160, 120, 480, 360]", "pixels", {}),
        ("[0.25, 0.25, 0.75, 0.75]", "unit", {}),
        ("[140, 105, 420, 315]", "processed:14", {"grid": [1, 30, 40]}),
    ],
)
def test_numbers_mean_what_is_declared(text: str, coordinates: str | None, facts: dict[str, Any]) -> None:
    judged = refcoco.judge(answered(text, **facts), TRUTH, coordinates)
    assert judged.scores["iou"] == pytest.approx(1)
    assert judged.all_right
    assert judged.details["parsed"] == [160, 120, 480, 360]


def test_the_first_box_is_the_answer() -> None:
    judged = refcoco.judge(answered("[0, 0, 9, 9] or [250, 250, 750, 750]"), TRUTH, None)
    assert judged.scores == {"acc_50": 0, "iou": 0, "acc_50_best": 1, "not_found": 0}  # lmms-eval takes the best
    assert judged.problem == "IoU 0.00 with the right box"


def test_no_box_is_not_found() -> None:
    judged = refcoco.judge(answered("I see it"), TRUTH, None)
    assert judged.scores["not_found"] == 1
    assert judged.problem == "no box in 'I see it'"


def test_pixels_as_resized_need_the_grid() -> None:
    with pytest.raises(ConfigError, match="need the patch grid"):
        refcoco.judge(answered("[1, 2, 3, 4]"), TRUTH, "processed:14")


@pytest.mark.parametrize("place", ["data/coco/train2014/a.jpg", "refs/data/coco/train2014/a.jpg", "refs/a.jpg"])
def test_images_are_found_around_the_file(tmp_path: Path, place: str) -> None:
    (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / place).touch()
    (tmp_path / "refs").mkdir(exist_ok=True)
    row = {"image": "data/coco/train2014/a.jpg", "sent": "cup", "bbox": [1, 2, 3, 4], "width": 9, "height": 9}
    (tmp_path / "refs" / "refcoco+_testA.jsonl").write_text(f"{json.dumps(row)}\n{json.dumps(row)}\n")
    cases = list(refcoco.load_cases(tmp_path))
    assert [case.id for case in cases] == ["testA-a-1", "testA-a-2"]
    assert {case.group for case in cases} == {"a"}
    assert all(case.images == (tmp_path / place,) for case in cases)


@pytest.mark.slow
def test_a_saved_data_set_is_read_by_its_split(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = [
        {
            "question_id": "7",
            "answer": ["cup", "mug"],
            "bbox": [1.0, 2.0, 3.0, 4.0],
            "image": {"bytes": b"?", "path": None},
            "file_name": "a_0.jpg",
        }
    ]
    datasets.DatasetDict({"val": datasets.Dataset.from_list(rows)}).save_to_disk(tmp_path)
    cases = list(refcoco.load_cases(tmp_path))
    assert [(case.id, case.row["text"], case.reference) for case in cases] == [
        ("val-a-1", "cup", [1, 2, 4, 6]),
        ("val-a-2", "mug", [1, 2, 4, 6]),
    ]


@pytest.mark.parametrize(
    "change", [{"bbox": [1, 2, 3]}, {"bbox": "1234"}, {"bbox": [1, 2, math.nan, 4]}, {"sent": None}, {"sent": " "}, {"image": None}]
)
def test_a_damaged_row_is_named(change: dict[str, Any], tmp_path: Path) -> None:
    first, *others = (ROWS / "refcoco_qwen" / "refcoco_val.jsonl").read_text("utf-8").splitlines()
    (tmp_path / "refcoco_val.jsonl").write_text("\n".join([first, json.dumps({**json.loads(others[0]), **change})]))
    with pytest.raises(ConfigError, match=r"refcoco_val.jsonl:2: a row needs an expression, a box of four numbers and an image's name"):
        list(refcoco.load_cases(tmp_path))


def test_other_files_are_no_data(tmp_path: Path) -> None:
    (tmp_path / "refcoco_val.jsonl").write_text('{"sentence": "cup", "box": [1, 2, 3, 4]}\n')
    with pytest.raises(MissingData, match="refcoco"):
        list(refcoco.load_cases(tmp_path))
    with pytest.raises(MissingData, match="no data was given"):
        list(refcoco.load_cases(None))
