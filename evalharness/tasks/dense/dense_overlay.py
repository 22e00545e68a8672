"""A picture with the objects that one answer names drawn on it, whoever asked for them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from evalharness.api.images import load_image
from evalharness.api.requests import GenerationResult
from evalharness.tasks.dense.dense_coordinates import space_of, to_pixels
from evalharness.tasks.dense.parse import parse_dump

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["draw_answer"]


def draw_answer(generation: GenerationResult, picture: Path, coordinates: str) -> tuple[Image.Image, int, str]:
    """Return the drawing, how many objects it shows, and what is wrong with the answer's form ("" for nothing).

    `coordinates` is the space of the answer's numbers. Raises `ImageError`, or `ConfigError` where the space needs a patch grid that
    the generation has not.
    """
    from evalharness.report.html.overlays import Shape, overlay

    photo = load_image(picture)
    grid = generation.images[0].get("grid") if generation.images else None
    patches = (int(grid[2]), int(grid[1])) if grid else None
    dump = parse_dump(generation.text, None, space_of(coordinates, photo.size, patches))
    shapes = [Shape(one.type, tuple(to_pixels(one.points, photo.size)), one.category or one.desc) for one in dump.objects]
    notes = ["no objects could be read in the answer"] if not dump.readable else [*dump.dropped[:3]]
    return overlay(photo, None, shapes, notes), len(shapes), dump.problem
