"""Boxes in answers, and their overlap."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings, strategies as st

from evalharness.scores.grounding import best_iou, boxes_in, iou


@pytest.mark.parametrize(
    ("text", "boxes"),
    [
        ('```json\n[{"bbox_2d": [1, 2, 30, 40], "label": "cup"}]\n```', [((1, 2, 30, 40), "cup")]),
        ('[{"label": "cup", "bbox": [1, 2, 30, 40]}, {"box": [0.5,0.25,0.75,1]}]', [((1, 2, 30, 40), "cup"), ((0.5, 0.25, 0.75, 1), None)]),
        ("cup<box>(1,2),(30,40)</box>", [((1, 2, 30, 40), None)]),
        ("It is at [[1, 2], [30, 40]].", [((1, 2, 30, 40), None)]),
        ("(-1.5, 2, 30, 40)", [((-1.5, 2, 30, 40), None)]),
        ('[{"bbox_2d": [1, 2, 30, 40], "label": "cup"}, {"bbox_2d": [5, 6, 7', [((1, 2, 30, 40), "cup")]),
        ('{"bbox_2d": [1, 2, 30, 40], "label": 7}', [((1, 2, 30, 40), None)]),
        ("1, 2, 30, 40", []), ("[1, 2, 30]", []), ("[1, 2, 30, 40, 50]", []), ("", []),
    ],
)  # fmt: skip
def test_boxes_are_read_as_models_write_them(text: str, boxes: list[tuple[tuple[float, ...], str | None]]) -> None:
    assert [(box.corners, box.label) for box in boxes_in(text)] == boxes
    assert all("[" in text[box.start : box.end] or "(" in text[box.start : box.end] for box in boxes_in(text))


@given(st.text(st.sampled_from('[](),.-{}":0123456789 \nbox_2dlabel'), max_size=300))
@settings(max_examples=60, deadline=None)
def test_no_text_breaks_the_readers(text: str) -> None:
    assert 0 <= best_iou(text, (0, 0, 10, 10), (100, 100)) <= 1
    assert all(box.start < box.end for box in boxes_in(text))


@pytest.mark.parametrize("text", ["[1,", "1 ", "{", "[" * 9, "12345678901234567890", "(1,2),", "[1,2,3,", '{"a":'])
def test_reading_takes_time_in_proportion_to_the_text(text: str) -> None:
    began = time.process_time()
    boxes_in(text * 4_000)
    best_iou(text * 4_000, (0, 0, 10, 10), (100, 100))
    assert time.process_time() - began < 1


def test_numbers_become_pixels_by_the_span_they_are_on() -> None:
    (box,) = boxes_in("[250, 500, 1000, 2.7]")
    assert box.in_pixels((1000, 1000), (640, 480)) == (160, 240, 640, 2.7 / 1000 * 480)
    assert box.in_pixels((640, 480), (640, 480)) == (250, 500, 1000, 2.7)


@given(*[st.tuples(*[st.floats(0, 100)] * 4)] * 2)
@settings(max_examples=60, deadline=None)
def test_overlap_is_symmetric_and_a_part(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> None:
    assert iou(one, other) == pytest.approx(iou(other, one))
    assert 0 <= iou(one, other) <= 1 + 1e-9
    if one[2] - one[0] > 1 and one[3] - one[1] > 1:
        assert iou(one, one) == 1
