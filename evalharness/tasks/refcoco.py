"""RefCOCO, RefCOCO+ and RefCOCOg as they lie on disks: one case per expression, with the box of the object that it names.

    {"question_id": "1", "answer": ["red square", "left box"], "bbox": [12, 20, 40, 40], "image": {"bytes": …}, …}      the hub's Parquet
    {"sent": "red square", "bbox": [12, 20, 52, 60], "width": 160, "height": 120, "image": "data/coco/train2014/….jpg"}  Qwen-VL's lines
    {"images": [{"id": 0, "caption": "red square", "file_name": "….jpg"}], "annotations": [{"image_id": 0, "bbox": […]}]}  MDETR's JSON

Boxes are left, top, width, height in the first and the last, left, top, right, bottom in Qwen-VL's. The pickled original is not read.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from evalharness.api.errors import ConfigError
from evalharness.api.requests import GenerationResult
from evalharness.data import RowCase, cases_from, read_rows
from evalharness.data.finding import row_files
from evalharness.data.stored import RowFile
from evalharness.scores.grounding import Corners, best_iou, boxes_in, iou
from evalharness.tasks.dense.objects import patches_of, space_of
from evalharness.tasks.prompt_rows import Judgement, none_in

FILES = (
    "data/*.parquet",
    "refcoco*_[vt][ae][ls]*.jsonl",
    "finetune_refcoco*_[vt][ae][ls]*.json",
    "*/refcoco*_[vt][ae][ls]*.jsonl",
    "*/finetune_refcoco*_[vt][ae][ls]*.json",
    "[vt][ae][ls]*-*.parquet",
    "*/data/*.parquet",
    "val-*.parquet",
)
"""Splits val, test, testA and testB, not train."""
FORMS = ({"sent", "bbox", "image"}, {"answer", "bbox", "image", "question_id"}, {"caption", "file_name", "id"})


def load_cases(data_dir: Path | None) -> Iterator[RowCase]:
    """Yield a case per expression; `reference` is its box in pixels (x1, y1, x2, y2). Expressions about one image are a group.

    `MissingData` where no file is of one of the three forms.
    """
    return cases_from(_rows(data_dir), id="id", group="image_id", tags=["split"], reference="box", image="image")(data_dir)


def _rows(data_dir: Path | None) -> Iterator[dict[str, Any]]:
    seen: Counter[str] = Counter()
    for file in row_files(FILES, data_dir, field="images", needs=lambda row: any(form <= row.keys() for form in FORMS)):
        split = next(iter(re.findall(r"(?:^|[/_])(val|test[AB]?)(?=[-./])", file.name)), "unnamed")
        boxes: dict[int, list[float]] = {}
        for place, row in file.scan():
            if "caption" in row and not boxes:
                whole = file.folder / Path(file.name).name
                boxes = {each["image_id"]: each["bbox"] for each in read_rows(whole, field="annotations")}
            for expression in _checked(row, file, place, boxes):
                image_id = expression["image_id"]
                seen[image_id] += 1
                yield {**expression, "split": split, "id": f"{split}-{image_id}-{seen[image_id]}"}


def _checked(row: Mapping[str, Any], file: RowFile, place: int, boxes: Mapping[int, list[float]]) -> list[dict[str, Any]]:
    try:
        found = list(_expressions(row, file, boxes))
        for each in found:
            if not each["text"].strip() or len(each["box"]) != 4 or not all(map(math.isfinite, each["box"])):
                raise ValueError("the expression is empty, or the box has not four numbers")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{file.where(place)}: a row needs an expression, a box of four numbers and an image's name ({error})") from error
    return found


def _expressions(row: Mapping[str, Any], file: RowFile, boxes: Mapping[int, list[float]]) -> Iterator[dict[str, Any]]:
    folder = file.folder
    if "sent" in row:
        image = _found(folder, row["image"])
        yield {"text": row["sent"], "box": row["bbox"], "image": str(image), "image_id": image.stem}
    elif "answer" in row:
        image_id = re.sub(r"_\d+$", "", Path(row.get("file_name") or row["question_id"]).stem)
        texts = [row["answer"]] if isinstance(row["answer"], str) else row["answer"]
        yield from ({"text": text, "box": _corners(row["bbox"]), "image": row["image"], "image_id": image_id} for text in texts)
    else:
        image = _found(folder, f"train2014/{row['file_name']}")
        yield {"text": row["caption"], "box": _corners(boxes[row["id"]]), "image": str(image), "image_id": image.stem}


def _found(folder: Path, name: str) -> Path:
    """Return where an image lies: at its path or the end of it in the file's folder or one around it, or beside the file by its name alone.

    Qwen-VL's files name images from the folder in which its scripts run (`data/coco/train2014/….jpg`).
    """
    around = [folder, *folder.absolute().parents[:3]]
    parts = Path(name).parts
    ends = [Path(*parts[start:]) for start in range(len(parts) - 1)]
    places = [*(place / end for end in ends for place in around), folder / Path(name).name]
    return next((place for place in places if place.is_file()), folder / name)


def _corners(box: list[float]) -> list[float]:
    left, top, width, height = box
    return [left, top, left + width, top + height]


def judge(generation: GenerationResult, truth: Corners, coordinates: str | None) -> Judgement:
    """Return `iou` of the first box with the right one, `acc_50`, whether it is at least 0.5, and `not_found`, without a box.

    `coordinates` says what the model's numbers mean, None for 0..1000. `acc_50_best` is the accuracy of lmms-eval's refcoco_grounding
    (`scores.grounding.best_iou`).
    """
    size = generation.images[0]["width"], generation.images[0]["height"]
    boxes = boxes_in(generation.answer)
    space = space_of(coordinates or "norm1000", size, patches_of(generation))
    read = [box.in_pixels((space.width, space.height), size) for box in boxes]
    overlap = iou(read[0], truth) if read else 0.0
    best = best_iou(generation.answer, truth, size)
    scores = {"acc_50": float(overlap >= 0.5), "iou": overlap, "acc_50_best": float(best >= 0.5), "not_found": float(not read)}
    shapes = {"predictions": [_shape(box) for box in read[:1]], "truth": [_shape(truth)]}
    pairs = [[0, 0, round(overlap, 3)]] if overlap >= 0.5 else []
    parsed = [round(value) for value in read[0]] if read else None
    details = {"image": {"width": size[0], "height": size[1]}, **shapes, "pairs": pairs, "parsed": parsed}
    problem = none_in("box", generation.answer, generation.finish_reason) if not read else f"IoU {overlap:.2f} with the right box"
    return Judgement(scores, details, "" if overlap >= 0.5 else problem)


def _shape(corners: Corners) -> dict[str, Any]:
    return {"type": "bbox_2d", "pixels": [round(value) for value in corners], "desc": "object"}
