"""pytest tests/tasks/dense/test_dense_coordinates.py"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalharness.api.errors import ConfigError
from evalharness.tasks.dense.objects import NORM1000, Space, patch_size, space_of, to_pixels
from evalharness.tasks.dense.parse import parse_dump
from tests.tasks.dense_examples import dumped, one_box


@pytest.mark.parametrize(
    ("coordinates", "said"),
    [
        ("norm1000", [250, 500, 750, 1000]),
        ("unit", [0.25, 0.5, 0.75, 1.0]),
        ("pixels", [160, 240, 480, 480]),
        ("processed:14", [140, 154, 420, 308]),
    ],
    ids=["norm1000", "unit", "pixels", "processed"],
)
def test_every_space_ends_on_the_same_grid(coordinates: str, said: list[float]) -> None:
    # A photo of 640 × 480 that the model saw as 40 × 22 patches of 14: 560 × 308, not quite its proportions.
    space = space_of(coordinates, (640, 480), patches=(40, 22))
    dump = parse_dump(dumped(object_1=one_box(*said)), "bbu", space)
    assert dump.objects[0].points == (250, 500, 750, 1000)
    assert (dump.valid, dump.objects[0].out_of_range) == (True, False)


def test_fractions_are_strict_in_the_unit_space_only() -> None:
    text = dumped(object_1=one_box(0.25, 0.5, 0.75, 1.0))
    assert parse_dump(text, "bbu", Space(1, 1)).valid
    assert not parse_dump(text, "bbu", NORM1000).valid


def test_points_outside_are_moved_onto_the_picture_and_flagged() -> None:
    assert Space(640, 480).to_grid([-5, 240, 700, 480]) == ([0, 500, 1000, 1000], True)
    assert Space(640, 480).to_grid([0, 0, 640, 480]) == ([0, 0, 1000, 1000], False)


def test_processed_pixels_without_a_patch_grid_are_refused() -> None:
    with pytest.raises(ConfigError, match="coordinates 'processed:14' need the patch grid of the image, .* ask with `verify=True`"):
        space_of("processed:14", (640, 480))


@pytest.mark.parametrize("coordinates", ["norm100", "processed", "processed:0", "pixels:14", "", None], ids=repr)
def test_an_unknown_space_is_refused(coordinates: str) -> None:
    with pytest.raises(ConfigError, match="coordinates must be norm1000, unit, pixels or processed:PATCH_SIZE"):
        patch_size(coordinates)


def test_back_to_pixels_is_clamped_and_rounded() -> None:
    assert to_pixels([-3, 500, 1200, 333], (641, 480)) == [0, 240, 641, 160]


@given(st.tuples(st.integers(4, 1000), st.integers(4, 1000)), st.data())
def test_pixels_survive_the_way_to_the_grid_and_back_where_the_grid_is_finer(size: tuple[int, int], data: st.DataObject) -> None:
    points = [data.draw(st.integers(0, edge)) for edge in size * 2]
    assert to_pixels(Space(*size).to_grid(points)[0], size) == points
