"""One object of a dense dump: its kind of geometry, points on the 0..1000 grid, and what its description says.

A description reads `类别=标签,文本=DEMO-01`: key=value, 类别 first. A part without `=` belongs to the value before it, so a
comma inside a text does not cut it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, get_args

from evalharness.tasks.stage_a.schema import CATEGORY_KEY, DISTANCE

__all__ = ["FAMILIES", "TYPES", "DenseObject", "GeometryType", "attributes_of", "category_of", "family_of"]

GeometryType: TypeAlias = Literal["bbox_2d", "poly", "line"]
TYPES: tuple[GeometryType, ...] = get_args(GeometryType)

# What kind of thing a category is, wherever it sits. The documents name a matching mode "phase" between localisation and
# category without defining it; here it asks for the right kind of thing.
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
"""Category → kind of thing; a category that is not here is a kind of its own."""


@dataclass(frozen=True)
class DenseObject:
    """One object. `points` are x, y, x, y… on the grid: two corners for a bbox_2d, three or more points for a poly, two or more for a line.

    `inverted` marks a box whose second corner lies left of or above its first: it encloses nothing and matches nothing.
    `out_of_range` marks points that had to be moved onto the picture.
    """

    type: GeometryType
    points: tuple[int, ...]
    desc: str
    inverted: bool = False
    out_of_range: bool = False

    @property
    def category(self) -> str:
        """What it is, "" where the description does not say."""
        return category_of(self.desc)

    def to_json(self) -> dict[str, Any]:
        """Return type, flat points and description as plain JSON data, as dumps have them."""
        return {"type": self.type, "points": list(self.points), "desc": self.desc}


@lru_cache(maxsize=4096)  # descriptions repeat from picture to picture, and each is asked for in several metrics
def attributes_of(desc: str) -> Mapping[str, str]:
    """Return key → value as written, the category included; a key written twice keeps its first value."""
    parts: list[list[str]] = []
    for piece in desc.split(","):
        key, sign, value = piece.partition("=")
        if sign or not parts:
            parts.append([key.strip(), value])
        else:
            parts[-1][1] += f",{piece}"
    found: dict[str, str] = {}
    for key, value in parts:
        found.setdefault(key, value.strip())
    return MappingProxyType(found)


def category_of(desc: str) -> str:
    """Return the category that a description names, "" where it names none."""
    return attributes_of(desc).get(CATEGORY_KEY, "")


def family_of(category: str) -> str:
    """Return what kind of thing a category is."""
    return FAMILIES.get(category, category)
