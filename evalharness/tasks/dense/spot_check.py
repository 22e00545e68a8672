"""Spot checks of dense dumps: a sample of rows, and drawings of references and predictions on their photos."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from evalharness.api.errors import BackendError, ImageError
from evalharness.api.images import load_image
from evalharness.api.requests import GenerationResult
from evalharness.api.wording import plural
from evalharness.runs.schema import Row
from evalharness.tasks.dense.objects import category_of, patches_of, space_of, to_pixels
from evalharness.tasks.dense.parse import parse_dump

if TYPE_CHECKING:
    from PIL import Image

    from evalharness.report.html.pictures import Shape

INDEX_NAME = "index.md"
GREY_EDGE = 640
"""Pixels of the longer edge of the grey image in place of a photo that cannot be shown."""


def pick_rows(rows: Sequence[Row], number: int, seed: int) -> list[Row]:
    """Return at most `number` rows with details, sampled so that each category gets its turn; the same seed gives the same rows.

    Categories take turns in a random order, each with one of its images that is not picked yet. An image belongs to every
    category that it has a reference or prediction of; images without objects are a category of their own.
    """
    random = Random(seed)
    unpicked = sorted((row for row in rows if row.get("details")), key=lambda row: str(row["case_id"]))
    random.shuffle(unpicked)
    categories = sorted({category for row in unpicked for category in _categories(row)})
    random.shuffle(categories)
    picked: list[Row] = []
    while unpicked and len(picked) < number:
        for category in categories:
            row = next((row for row in unpicked if category in _categories(row)), None)
            if row is not None and len(picked) < number:
                unpicked.remove(row)
                picked.append(row)
    return picked


def _categories(row: Row) -> set[str]:
    details = row["details"]
    return {category_of(item["desc"]) for item in (*details["truth"], *details["predictions"])} or {""}


def draw_rows(rows: Sequence[Row], folder: Path, data_dir: Path) -> None:
    """Write `vis_00000.jpg`… and an index of the cases and their categories into `folder`, which is created."""
    from evalharness.report.html.pictures import index_entry, overlay

    folder.mkdir(parents=True, exist_ok=True)
    entries = ["# Spot check\n"]
    for place, row in enumerate(rows):
        name = f"vis_{place:05d}.jpg"
        image, truth, predictions, notes = _shapes_on_photo(row, data_dir)
        overlay(image, truth, predictions, notes).save(folder / name, quality=88)
        entries.append(index_entry(name, str(row["case_id"]), truth, predictions, notes))
    (folder / INDEX_NAME).write_text("\n".join(entries), encoding="utf-8", errors="backslashreplace")


def draw_row(row: Row, data_dir: Path) -> Image.Image:
    """Return the drawing of one row of a dense eval, references and predictions side by side."""
    from evalharness.report.html.pictures import overlay

    return overlay(*_shapes_on_photo(row, data_dir))


def _shapes_on_photo(row: Row, data_dir: Path) -> tuple[Image.Image, list[Shape], list[Shape], list[str]]:
    """Return the upright photo, or a grey image of its shape, the shapes of references and predictions on it, and notes."""
    recorded = row["details"]["image"]
    problem = ""
    try:
        image = load_image(data_dir / recorded["path"])
    except (ImageError, BackendError) as error:
        from PIL import Image

        size = (recorded["width"], recorded["height"])  # of any size that the file claims
        width, height = (max(1, GREY_EDGE * edge // max(size)) for edge in size)
        image, problem = Image.new("RGB", (width, height), (190, 190, 190)), f"photo not shown: {error}"
    truth, predictions = _shapes(row["details"], image.size)
    return image, truth, predictions, [note for note in (problem, *_notes(row)) if note]


def _notes(row: Row) -> list[str]:
    details, scores = row["details"], row.get("scores", {})
    form = details.get("form", {})
    return [
        "parse failed" if form and not form["readable"] else "",
        "answer cut off" if form.get("truncated") else "",
        "hit the token cap" if scores.get("cap_hit") else "",
        f"{plural(form['num_duplicates'], 'repeated object')} left out" if form.get("num_duplicates") else "",
        f"unusable objects left out: {'; '.join(form['dropped'][:3])}" if form.get("dropped") else "",
    ]


def _shapes(details: Mapping[str, Any], size: tuple[int, int]) -> tuple[list[Shape], list[Shape]]:
    """Return references and predictions in pixels of an image of `size`, each with a note on its match by category."""
    from evalharness.report.html.pictures import Shape

    # The photo may have been resized since the points were recorded in its pixels.
    recorded = (details["image"]["width"], details["image"]["height"])
    pairs = details["pairs"]["category"]
    matched, ious = {reference for reference, _, _ in pairs}, {prediction: iou for _, prediction, iou in pairs}
    references = []
    for place, item in enumerate(details["truth"]):
        points = tuple(round(value / recorded[axis % 2] * size[axis % 2]) for axis, value in enumerate(item["pixels"]))
        references.append(Shape(item["type"], points, category_of(item["desc"]), "" if place in matched else "missed"))
    predictions = []
    for place, item in enumerate(details["predictions"]):
        points = tuple(to_pixels(item["points"], size))
        note = f"{ious[place]:.2f}" if place in ious else "wrong"
        predictions.append(Shape(item["type"], points, category_of(item["desc"]), note))
    return references, predictions


def draw_answer(generation: GenerationResult, path: Path, coordinates: str) -> tuple[Image.Image, int, str]:
    """Return the drawing of an answer's objects on an image, their number, and what is wrong with the answer's form ("" for nothing).

    `coordinates` is the space of the answer's numbers. Raises `ImageError`, or `ConfigError` where the space needs a patch grid
    that the generation does not have.
    """
    from evalharness.report.html.pictures import Shape, overlay

    image = load_image(path)
    dump = parse_dump(generation.text, None, space_of(coordinates, image.size, patches_of(generation)))
    shapes = [Shape(item.type, tuple(to_pixels(item.points, image.size)), item.category) for item in dump.objects]
    notes = ["no objects could be read in the answer"] if not dump.readable else [*dump.dropped[:3]]
    return overlay(image, None, shapes, notes), len(shapes), dump.problem
