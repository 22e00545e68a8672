"""One object of a dense dump: geometry, points on the 0..1000 grid, description; and the coordinate spaces of models.

A description reads `类别=标签,文本=DEMO-01`: key=value, 类别 first. A part without `=` belongs to the value before it, so a
comma does not end a text; in front of all others it is the category, as other tools write it: `dog`, `dog,colour=brown`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, get_args

from evalharness.api.errors import ConfigError
from evalharness.api.requests import GenerationResult
from evalharness.tasks.stage_a.schema import CATEGORY_KEY, DISTANCE

GeometryType: TypeAlias = Literal["bbox_2d", "poly", "line"]
TYPES: tuple[GeometryType, ...] = get_args(GeometryType)

# † The original's documents name a matching mode "phase" between localisation and category without defining it; here it asks for
# the right kind of thing, wherever that is mounted.
_KINDS: Mapping[str, tuple[str, ...]] = {
    "设备": ("BBU设备", "RRU设备"),
    "挡风板": ("挡风板",),
    "螺丝与紧固": ("BBU安装螺丝", "机柜处接地螺丝", "地排处接地螺丝", "紧固件", "RRU接地端", "地排接地端螺丝"),
    "光纤插头": ("BBU端光纤插头", "ODF端光纤插头"),
    "光纤": ("光纤", "尾纤"),
    "电线": ("电线", "接地线"),
    "标签": ("标签",),
    DISTANCE: (DISTANCE,),
}
FAMILIES: Mapping[str, str] = {category: family for family, categories in _KINDS.items() for category in categories}
"""Category → kind of thing; an unlisted category is a kind of its own."""


@dataclass(frozen=True)
class DenseObject:
    """One object. `points` are x, y, x, y… on the grid: two corners of a bbox_2d, three or more points of a poly, two or more of a line.

    `inverted` marks a box whose second corner lies left of or above its first: it encloses nothing and matches nothing.
    `out_of_range` marks an object with points outside the image, which were moved onto its edge.
    """

    type: GeometryType
    points: tuple[int, ...]
    desc: str
    inverted: bool = False
    out_of_range: bool = False

    @property
    def category(self) -> str:
        """The category, see `category_of`."""
        return category_of(self.desc)

    def to_json(self) -> dict[str, Any]:
        """Return type, flat points and description as dumps have them."""
        return {"type": self.type, "points": list(self.points), "desc": self.desc}


@lru_cache(maxsize=4096)  # descriptions repeat from image to image, and several metrics read each
def attributes_of(desc: str) -> Mapping[str, str]:
    """Return key → value as written, the category included; a key written twice keeps its first value."""
    parts: list[tuple[str, list[str]]] = [(CATEGORY_KEY, [])]  # the pieces before the first key
    for piece in desc.split(","):
        key, sign, value = piece.partition("=")
        if sign:
            parts.append((key.strip(), [value]))
        else:
            parts[-1][1].append(piece)
    attributes: dict[str, str] = {}
    for key, pieces in (*parts[1:], parts[0]):  # a category with its key counts more
        if pieces:
            attributes.setdefault(key, ",".join(pieces).strip())
    return MappingProxyType(attributes)


def category_of(desc: str) -> str:
    """Return the category in a description, the whole of it where it names none: objects without a category are not all alike."""
    return attributes_of(desc).get(CATEGORY_KEY) or desc.strip()


def family_of(category: str) -> str:
    """Return the kind of thing of a category."""
    return FAMILIES.get(category, category)


Mode: TypeAlias = Literal["localization", "phase", "category"]
"""What must agree for a pair of objects to match, besides the geometry."""
MODES: tuple[Mode, ...] = get_args(Mode)
PRIMARY_THRESHOLD = 0.5
THRESHOLDS: tuple[float, ...] = tuple(percent / 100 for percent in range(50, 100, 5))
LINE_TOLERANCE = 8
"""Radius of a line's tube, on the grid."""

GRID = 1000
LEGAL = "norm1000, unit, pixels or processed:PATCH_SIZE (such as processed:14)"

_PROCESSED = re.compile(r"processed:([1-9][0-9]{0,3})")


@dataclass(frozen=True)
class Space:
    """The rectangle (0, 0) to (width, height) that a model's coordinates span."""

    width: float = GRID
    height: float = GRID

    @property
    def whole(self) -> bool:
        """Whether coordinates must be whole numbers in the strict form."""
        return self.width != 1

    def to_grid(self, values: Sequence[float]) -> tuple[list[int], bool]:
        """Return flat x, y, x, y… clamped and rounded to the grid, and whether any of them lay outside."""
        on_grid, outside = [], False
        for place, value in enumerate(values):
            size = self.height if place % 2 else self.width
            inside = min(max(value, 0), size)
            outside = outside or inside != value
            # On the grid itself nothing is divided: 2.5 / 1000 * 1000 need not be 2.5.
            on_grid.append(round(inside if size == GRID else inside / size * GRID))
        return on_grid, outside


NORM1000 = Space()


def patch_size(coordinates: str) -> int | None:
    """Return the patch size of `processed:14`, None for the other spaces; `ConfigError` for an unknown space."""
    match = _PROCESSED.fullmatch(coordinates) if isinstance(coordinates, str) else None
    if match:
        return int(match[1])
    if coordinates not in ("norm1000", "unit", "pixels"):
        raise ConfigError(f"coordinates must be {LEGAL}, got {coordinates!r}")
    return None


def patches_of(generation: GenerationResult) -> tuple[int, int] | None:
    """Return the patches (across, down) of a generation's first image, None where the backend did not tell them."""
    grid = generation.images[0].get("grid") if generation.images else None
    return (int(grid[2]), int(grid[1])) if grid else None


def space_of(coordinates: str, size: tuple[int, int], patches: tuple[int, int] | None = None) -> Space:
    """Return the space of an image of `size` (width, height) in pixels that the model saw as `patches` (across, down).

    `ConfigError` where the patches are needed but not known.
    """
    patch = patch_size(coordinates)
    if patch is not None:
        if patches is None:
            raise ConfigError(
                f"coordinates {coordinates!r} need the patch grid of the image, and the generation has none; "
                "ask with `verify=True` on a backend that tells it (hf, vllm), or declare another space"
            )
        return Space(patches[0] * patch, patches[1] * patch)
    if coordinates == "pixels":
        return Space(*size)
    return NORM1000 if coordinates == "norm1000" else Space(1, 1)


def to_pixels(points: Sequence[float], size: tuple[int, int]) -> list[int]:
    """Return flat points of the grid in pixels of an image of `size` (width, height), clamped to it."""
    return [round(min(max(value, 0), GRID) / GRID * size[place % 2]) for place, value in enumerate(points)]
