"""Objects, dumps and strategies for the tests of dense dumps."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from evalharness.tasks.dense.objects import DenseObject

HEADER = "<DOMAIN=BBU>, <TASK=DETECTION>"
LABEL = "类别=标签,文本=DEMO-01"
WIRE = "类别=电线,捆扎=整齐"
SCREW = "类别=BBU安装螺丝,可见性=完整,符合性=符合"


def box(*points: int, desc: str = LABEL) -> DenseObject:
    return DenseObject("bbox_2d", points, desc, inverted=points[0] > points[2] or points[1] > points[3])


def poly(*points: int, desc: str = "类别=BBU设备") -> DenseObject:
    return DenseObject("poly", points, desc)


def line(*points: int, desc: str = WIRE) -> DenseObject:
    return DenseObject("line", points, desc)


def dumped(**objects: Any) -> str:
    """Return the text of a dump with these objects, given as plain data."""
    return f"{HEADER}\n{json.dumps(objects, ensure_ascii=False)}"


def one_box(*points: Any, desc: str = LABEL) -> dict[str, Any]:
    return {"desc": desc, "bbox_2d": list(points)}


coordinates = st.integers(0, 1000)
descriptions = st.sampled_from([LABEL, WIRE, SCREW, "类别=标签,文本=B", "类别=ODF端光纤插头,可见性=部分", "类别=自创", "没有类别"])
texts = st.text(st.characters(exclude_categories=()), min_size=1).filter(str.strip)


@st.composite
def boxes(draw: st.DrawFn, desc: st.SearchStrategy[str] = descriptions) -> DenseObject:
    (left, right), (top, bottom) = (sorted(draw(st.tuples(coordinates, coordinates))) for _ in range(2))
    return box(left, top, right, bottom, desc=draw(desc))


@st.composite
def polygons(draw: st.DrawFn, desc: st.SearchStrategy[str] = descriptions) -> DenseObject:
    points = draw(st.lists(coordinates, min_size=6, max_size=12).filter(lambda values: len(values) % 2 == 0))
    return poly(*points, desc=draw(desc))


@st.composite
def lines(draw: st.DrawFn, desc: st.SearchStrategy[str] = descriptions) -> DenseObject:
    points = draw(st.lists(coordinates, min_size=4, max_size=10).filter(lambda values: len(values) % 2 == 0))
    return line(*points, desc=draw(desc))


def objects(desc: st.SearchStrategy[str] = descriptions) -> st.SearchStrategy[DenseObject]:
    return st.one_of(boxes(desc), polygons(desc), lines(desc))


@st.composite
def crowded(draw: st.DrawFn) -> DenseObject:
    """Boxes on a coarse grid: many overlap, many IoUs are equal."""
    left, top = draw(st.tuples(st.integers(0, 3), st.integers(0, 3)))
    width, height = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    return box(left * 10, top * 10, (left + width) * 10, (top + height) * 10, desc=draw(descriptions))
