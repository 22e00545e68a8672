"""COCO's detection as it lies on disks: one case per image, with all objects of the given categories in it.

    {"images": [{"id": 139, "file_name": "000000000139.jpg", …}], "categories": [{"id": 1, "name": "person"}, …],
     "annotations": [{"image_id": 139, "category_id": 1, "bbox": [left, top, width, height], "area": 2913.1, "iscrowd": 0, …}]}

`annotations/instances_val2017.json` beside `val2017/`; any file of this form works, such as one's own labels, with its images in a folder
that is named as the file is, in `images/`, or beside it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evalharness.api.checks import read_regular, shown
from evalharness.api.errors import ConfigError, MissingData
from evalharness.api.requests import GenerationResult
from evalharness.data import RowCase, cases_from
from evalharness.data.finding import row_files
from evalharness.data.text_files import read_json
from evalharness.scores.averages import with_draws
from evalharness.scores.detection import average_precision, average_precision_of_draws, confidences
from evalharness.scores.grounding import boxes_in, iou
from evalharness.tasks.dense.objects import patches_of, space_of
from evalharness.tasks.prompt_rows import Judgement, none_in

FILES = ("annotations/instances_val*.json", "instances_val*.json", "*/annotations/instances_val*.json")
KEYS = ("images", "annotations", "categories")


def load_cases(data_dir: Path | None) -> Iterator[RowCase]:
    """Yield a case per image; `reference` lists its objects: `label`, `bbox` in pixels as COCO has it, `area`, `iscrowd`.

    `MissingData` where no file is of COCO's form.
    """
    return cases_from(_rows(data_dir), id="id", reference="objects", image="image")(data_dir)


def _rows(data_dir: Path | None) -> Iterator[dict[str, Any]]:
    file = row_files(FILES, data_dir)[0]
    path = file.folder / Path(file.name).name
    content = read_json(read_regular(path), file.name) if path.suffix == ".json" else None
    if not isinstance(content, dict) or not all(isinstance(content.get(key), list) for key in KEYS):
        raise MissingData(f"{file.name} is not of COCO's form: an object with the lists {', '.join(KEYS)}")
    names, images = _named(content, file.name)
    objects: dict[int, list[dict[str, Any]]] = {}
    for mark in content["annotations"]:
        try:
            left, top, width, height = mark["bbox"]
            if not all(map(math.isfinite, (left, top, width, height))):
                raise ValueError("not a number")
            known = {"label": names[mark["category_id"]], "bbox": mark["bbox"], "iscrowd": mark.get("iscrowd", 0)}
            known["area"] = mark.get("area", width * height)
            objects.setdefault(mark["image_id"], []).append(known)
        except (KeyError, TypeError, ValueError) as error:
            needed = "a bbox of four numbers, an image_id, and a category_id that categories have"
            raise ConfigError(f"{file.name}: each annotation needs {needed}, got {shown(mark)}") from error
    if images and objects and objects.keys().isdisjoint(images):
        raise ConfigError(f"{file.name}: no annotation is of one of its images: {shown(next(iter(objects)))} is no id of an image")
    folders = _image_folders(path)
    for image_id, file_name in images.items():
        places = [folder / file_name for folder in folders]
        found = next((place for place in places if place.is_file()), places[0])
        yield {"id": image_id, "image": str(found), "objects": objects.get(image_id, []), "labels": list(names.values())}


def _named(content: Mapping[str, Any], file: str) -> tuple[dict[Any, str], dict[Any, str]]:
    """Return the names of categories and the files of images by their ids."""
    try:
        names = {each["id"]: each["name"] for each in content["categories"]}
        images = {each["id"]: each["file_name"] for each in content["images"]}
    except (KeyError, TypeError) as error:
        raise ConfigError(f"{file}: each category needs an id and a name, each image an id and a file_name ({error})") from error
    again = [name for name, count in Counter(str(name).casefold() for name in names.values()).items() if count > 1]
    if again or len(names) < len(content["categories"]) or len(images) < len(content["images"]):
        what = f"{again[0]!r} names several categories" if again else "a category or an image has the id of another one"
        raise ConfigError(f"{file}: {what}; answers are told apart by names, whatever their case, and images by ids")
    return names, images


def _image_folders(path: Path) -> list[Path]:
    """Return where images may lie: `val2017` for `instances_val2017.json`, `images`, or the file's own folder."""
    around = (path.parent.parent, path.parent)
    name = path.stem.removeprefix("instances_")
    return [*(folder / inner for inner in (name, "images") for folder in around), path.parent]


def judge(
    generation: GenerationResult, objects: Sequence[Mapping[str, Any]], labels: Iterable[str], tokenizer: Any, coordinates: str | None
) -> Judgement:
    """Return `f1_50`, which weighs all boxes alike, `not_found` (objects, and no box with a known label) and `unknown_labels`.

    `details` has what `aggregate` needs: `objects`, and `detections`, each with its confidence (`scores.detection.confidences`).
    """
    size = generation.images[0]["width"], generation.images[0]["height"]
    space = space_of(coordinates or "norm1000", size, patches_of(generation))
    known = {label.casefold(): label for label in labels}
    detections = []
    boxes = boxes_in(generation.answer)
    for box, confidence in zip(boxes, confidences(generation, len(boxes), tokenizer), strict=True):
        label = known.get((box.label or "").casefold().strip())
        if label is not None:
            x1, y1, x2, y2 = box.in_pixels((space.width, space.height), size)
            detections.append({"label": label, "bbox": [x1, y1, x2 - x1, y2 - y1], "score": confidence})
    wanted = [each for each in objects if not each["iscrowd"]]
    hits = _num_hits(wanted, detections)
    f1 = 2 * hits / (len(wanted) + len(detections)) if wanted or detections else 1.0
    not_found = float(bool(wanted) and not detections)
    scores = {"f1_50": f1, "not_found": not_found, "unknown_labels": float(len(boxes) - len(detections))}
    shapes = {"truth": [_shape(each) for each in wanted], "predictions": [_shape(each) for each in detections]}
    details = {"image": {"width": size[0], "height": size[1]}, **shapes, "objects": list(objects), "detections": detections}
    problem = f"{hits} of {len(wanted)} objects, {len(detections)} boxes"
    if not_found:
        problem = none_in("box of a known label", generation.answer, generation.finish_reason)
    return Judgement(scores, details, "" if f1 == 1 else problem)


def _images(rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Any, Any]]:
    return ((row["details"]["objects"], row["details"]["detections"]) for row in rows)


@with_draws(lambda rows, times: average_precision_of_draws(_images(rows), times))
def aggregate(rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return COCO's metrics of the rows: `AP`, `AP_50`, `AP_75`, by size, and recall at 1, 10 and 100 boxes."""
    return average_precision(_images(rows))


def _num_hits(objects: Sequence[Mapping[str, Any]], detections: Sequence[Mapping[str, Any]]) -> int:
    """Return how many objects are found with an IoU of at least 0.5, in the order of the answer, each by one box."""
    left = list(objects)
    for each in detections:
        pairs = [
            (iou(_corners(each["bbox"]), _corners(other["bbox"])), place)
            for place, other in enumerate(left)
            if other["label"] == each["label"]
        ]
        best = max(pairs, default=(0.0, 0))
        if best[0] >= 0.5:
            left.pop(best[1])
    return len(objects) - len(left)


def _corners(box: Sequence[float]) -> tuple[float, float, float, float]:
    return box[0], box[1], box[0] + box[2], box[1] + box[3]


def _shape(each: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "bbox_2d", "pixels": [round(value) for value in _corners(each["bbox"])], "desc": f"category={each['label']}"}
