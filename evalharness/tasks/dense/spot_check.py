"""Spot checks: which pictures of a dense eval a person looks at, and the pictures with truth and prediction drawn on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from evalharness.api.errors import BackendError, ImageError
from evalharness.api.images import load_image
from evalharness.api.requests import GenerationResult
from evalharness.runs.schema import Row
from evalharness.tasks.dense.objects import category_of, space_of, to_pixels
from evalharness.tasks.dense.parse import parse_dump

if TYPE_CHECKING:
    from PIL import Image

    from evalharness.report.html.pictures import Shape

__all__ = ["draw_answer", "draw_row", "draw_rows", "pick_rows"]

INDEX_NAME = "index.md"
GREY_EDGE = 640
"""Pixels of the longer edge of what stands for a photo that cannot be shown."""


def pick_rows(rows: Sequence[Row], number: int, seed: int) -> list[Row]:
    """Return at most `number` rows with details, drawn so that each category gets its turn; the same seed gives the same rows.

    Categories take turns in a drawn order, each giving one of its pictures that is not taken yet; one that is true or
    predicted in a picture counts. Pictures without objects are one more category.
    """
    random = Random(seed)
    left = sorted((row for row in rows if row.get("details")), key=lambda row: str(row["case_id"]))
    random.shuffle(left)
    categories = sorted({category for row in left for category in _categories(row)})
    random.shuffle(categories)
    picked: list[Row] = []
    while left and len(picked) < number:
        for category in categories:
            row = next((row for row in left if category in _categories(row)), None)
            if row is not None and len(picked) < number:
                left.remove(row)
                picked.append(row)
    return picked


def _categories(row: Row) -> set[str]:
    details = row["details"]
    return {category_of(one["desc"]) for one in (*details["truth"], *details["predictions"])} or {""}


def draw_rows(rows: Sequence[Row], folder: Path, data_dir: Path) -> None:
    """Write `vis_00000.jpg`… and an index that names the cases and their categories into `folder`, which is made."""
    from evalharness.report.html.pictures import index_entry, overlay

    folder.mkdir(parents=True, exist_ok=True)
    entries = ["# Spot check\n"]
    for place, row in enumerate(rows):
        name = f"vis_{place:05d}.jpg"
        picture, truth, predictions, notes = _drawn(row, data_dir)
        overlay(picture, truth, predictions, notes).save(folder / name, quality=88)
        entries.append(index_entry(name, str(row["case_id"]), truth, predictions, notes))
    (folder / INDEX_NAME).write_text("\n".join(entries), encoding="utf-8", errors="backslashreplace")


def draw_row(row: Row, data_dir: Path) -> Image.Image:
    """Return the picture of one row of a dense eval, truth and prediction side by side."""
    from evalharness.report.html.pictures import overlay

    return overlay(*_drawn(row, data_dir))


def _drawn(row: Row, data_dir: Path) -> tuple[Image.Image, list[Shape], list[Shape], list[str]]:
    """Return the photo, or a grey one, true and predicted shapes, and notes."""
    image = row["details"]["image"]
    picture, problem = _picture(data_dir / image["path"], (image["width"], image["height"]))
    truth, predictions = _shapes(row["details"], picture.size)
    return picture, truth, predictions, [note for note in (problem, *_notes(row)) if note]


def _picture(path: Path, size: tuple[int, int]) -> tuple[Image.Image, str]:
    """Return the upright photo, or a grey one of its shape and why it could not be shown."""
    try:
        return load_image(path), ""
    except (ImageError, BackendError) as error:
        from PIL import Image

        longest = max(size)  # whatever the file may claim of a photo that nobody can look at
        width, height = (max(1, GREY_EDGE * edge // longest) for edge in size)
        return Image.new("RGB", (width, height), (190, 190, 190)), f"photo not shown: {error}"


def _notes(row: Row) -> list[str]:
    details, scores = row["details"], row.get("scores", {})
    form = details.get("form", {})
    return [
        "parse failed" if form and not form["readable"] else "",
        "answer cut off" if form.get("truncated") else "",
        "hit the token cap" if scores.get("cap_hit") else "",
        f"{form['num_duplicates']} repeated objects left out" if form.get("num_duplicates") else "",
        f"unusable objects left out: {'; '.join(form['dropped'][:3])}" if form.get("dropped") else "",
    ]


def _shapes(details: Mapping[str, Any], size: tuple[int, int]) -> tuple[list[Shape], list[Shape]]:
    """Return truth and predictions in pixels of a picture of `size`, each with what the category matching says about it."""
    from evalharness.report.html.pictures import Shape

    recorded = (details["image"]["width"], details["image"]["height"])
    pairs = details["pairs"]["category"]
    found = {truth: iou for truth, _, iou in pairs}
    right = {prediction: iou for _, prediction, iou in pairs}
    truth = [
        Shape(one["type"], _moved(one["pixels"], recorded, size), category_of(one["desc"]), "" if place in found else "missed")
        for place, one in enumerate(details["truth"])
    ]
    predictions = [
        Shape(
            one["type"],
            tuple(to_pixels(one["points"], size)),
            category_of(one["desc"]),
            f"{right[place]:.2f}" if place in right else "wrong",
        )
        for place, one in enumerate(details["predictions"])
    ]
    return truth, predictions


def _moved(points: Sequence[int], recorded: tuple[int, int], size: tuple[int, int]) -> tuple[int, ...]:
    """Return points of a photo of its `recorded` size in pixels of the photo as it is now."""
    return tuple(round(value / recorded[place % 2] * size[place % 2]) for place, value in enumerate(points))


# A picture with the objects that one answer names drawn on it, whoever asked for them


def draw_answer(generation: GenerationResult, picture: Path, coordinates: str) -> tuple[Image.Image, int, str]:
    """Return the drawing, how many objects it shows, and what is wrong with the answer's form ("" for nothing).

    `coordinates` is the space of the answer's numbers. Raises `ImageError`, or `ConfigError` where the space needs a patch grid that
    the generation has not.
    """
    from evalharness.report.html.pictures import Shape, overlay

    photo = load_image(picture)
    grid = generation.images[0].get("grid") if generation.images else None
    patches = (int(grid[2]), int(grid[1])) if grid else None
    dump = parse_dump(generation.text, None, space_of(coordinates, photo.size, patches))
    shapes = [Shape(one.type, tuple(to_pixels(one.points, photo.size)), one.category or one.desc) for one in dump.objects]
    notes = ["no objects could be read in the answer"] if not dump.readable else [*dump.dropped[:3]]
    return overlay(photo, None, shapes, notes), len(shapes), dump.problem
