"""Boxes in a model's answer, and how well one covers the object that it is about (RefCOCO, COCO).

Read are `[x1, y1, x2, y2]`, also in JSON such as `{"bbox_2d": [26, 29, 115, 58], "label": "cup"}`, and Qwen-VL's `(x1,y1),(x2,y2)`.
What its numbers mean no answer says: pixels, 0..1 or, for most Qwen-VL models, 0..1000. It must be declared; it is never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from evalharness.api.json_schema import AnswerDecoder

Corners: TypeAlias = "tuple[float, float, float, float]"
"""x1, y1, x2, y2: left, top, right, bottom."""

# Bounded everywhere, so that no text takes more than time in its length.
_NUMBER = r"(-?\d{1,12}(?:\.\d{1,24})?)"
_COMMA, _SPACE = r"\s{0,16},\s{0,16}", r"\s{0,16}"
_BOX = re.compile(
    rf"[\[(]{_SPACE}{_COMMA.join([_NUMBER] * 4)}{_SPACE}[\])]"
    rf"|[\[(]{_SPACE}{_NUMBER}{_COMMA}{_NUMBER}{_SPACE}[\])]\s{{0,16}},?\s{{0,16}}[\[(]{_SPACE}{_NUMBER}{_COMMA}{_NUMBER}{_SPACE}[\])]"
)
_OBJECT = re.compile(r"\{[^{}]*\}")
_LABELS = ("label", "category", "name", "class", "desc")
_JSON = AnswerDecoder()


@dataclass(frozen=True)
class TextBox:
    """A box as an answer writes it: its numbers, the label of the JSON object around it, and its place in the text."""

    corners: Corners
    label: str | None
    start: int
    end: int

    def in_pixels(self, span: tuple[float, float], size: tuple[int, int]) -> Corners:
        """Return the box in pixels of an image of `size` (width, height); `span`: the numbers of its right and lower edges."""
        return _scaled(self.corners, span, size)


def boxes_in(text: str) -> list[TextBox]:
    """Return the boxes of an answer in their order."""
    objects = _OBJECT.finditer(text)
    around = next(objects, None)
    boxes = []
    for match in _BOX.finditer(text):
        while around is not None and around.end() <= match.start():
            around = next(objects, None)
        label = _label(around[0]) if around is not None and around.start() < match.start() else None
        boxes.append(TextBox(_four(number for number in match.groups() if number is not None), label, *match.span()))
    return boxes


def iou(one: Corners, other: Corners) -> float:
    """Return the area that two boxes share, as a part of what both cover; 0 where a box has no area."""
    width = max(0.0, min(one[2], other[2]) - max(one[0], other[0]))
    height = max(0.0, min(one[3], other[3]) - max(one[1], other[1]))
    areas = [max(0.0, box[2] - box[0]) * max(0.0, box[3] - box[1]) for box in (one, other)]
    union = areas[0] + areas[1] - width * height
    return width * height / union if union > 0 else 0.0


def best_iou(text: str, truth: Corners, size: tuple[int, int]) -> float:
    """Return the IoU that lmms-eval's refcoco_grounding gives: that of the best box, its numbers as pixels or as 0..1000.

    The right answer thus chooses the box and what its numbers mean; but Qwen-VL's `(x1,y1),(x2,y2)` it does not read. `truth` in pixels of
    an image of `size`.
    """
    read = [way for box in _lmms_boxes(text) for way in (box, _scaled(box, (1000, 1000), size))]
    return max((iou(box, truth) for box in read), default=0.0)


def _scaled(corners: Corners, span: tuple[float, float], size: tuple[int, int]) -> Corners:
    # Nothing is divided where nothing changes: 2.7 / 640 * 640 need not be 2.7.
    return _four(
        value if span[place % 2] == size[place % 2] else value / span[place % 2] * size[place % 2] for place, value in enumerate(corners)
    )


def _four(values: Iterable[Any]) -> Corners:
    x1, y1, x2, y2 = map(float, values)
    return x1, y1, x2, y2


def _label(text: str) -> str | None:
    try:
        values = _JSON.decode(text)
    except ValueError:
        return None
    return next((value for name in _LABELS if isinstance(value := values.get(name), str)), None)


_FENCED = re.compile(r"```(?:json)?(.*?)```", re.DOTALL | re.IGNORECASE)
_BOX_KEYS = ("bbox_2d", "bbox", "box", "coordinates", "coord", "location", "position")
_GAP = r"(?:\s{0,16},\s{0,16}|\s{1,16})"
_BARE_BOX = re.compile(_GAP.join([_NUMBER] * 4))


def _lmms_boxes(text: str) -> list[Corners]:
    """Return the boxes that lmms-eval reads: of the first text that is JSON, else any four numbers in a row."""
    fenced = _FENCED.search(text)
    for part in (fenced[1] if fenced else None, text, _between(text, "[", "]"), _between(text, "{", "}")):
        if part:
            try:
                boxes = list(_json_boxes(_JSON.decode(part.strip())))
            except ValueError:
                continue
            if boxes:
                return boxes
            break
    return [_four(match.groups()) for match in _BARE_BOX.finditer(text)]


def _between(text: str, opening: str, closing: str) -> str | None:
    start, end = text.find(opening), text.rfind(closing)
    return text[start : end + 1] if 0 <= start < end else None


def _json_boxes(value: Any) -> Iterator[Corners]:
    """Yield the boxes in a JSON value: lists of four numbers, or the value of a usual key."""
    ahead = [value]
    while ahead:
        value = ahead.pop()
        if isinstance(value, list):
            if _are_four_numbers(value) and _is_box(value):
                yield _four(value)
            else:
                ahead += reversed(value)
        elif isinstance(value, dict):
            keyed = next((value[key] for key in _BOX_KEYS if _is_box(value.get(key))), None)
            if keyed is None:
                ahead += reversed(value.values())
            else:
                yield _four(keyed)


def _are_four_numbers(values: Sequence[Any]) -> bool:
    return len(values) == 4 and all(isinstance(value, (int, float)) for value in values)


def _is_box(value: Any) -> bool:
    """Return whether a value is four numbers, texts of numbers included."""
    if not isinstance(value, list) or len(value) != 4:
        return False
    try:
        _four(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True
