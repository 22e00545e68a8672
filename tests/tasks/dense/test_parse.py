"""Dumps read from texts, coordinates in every space. Run: pytest tests/tasks/dense/test_parse.py"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from evalharness.api.errors import ConfigError, ContractValueError
from evalharness.tasks.dense.objects import NORM1000, Space, patch_size, space_of, to_pixels
from evalharness.tasks.dense.parse import Dump, parse_dump, render_dump
from tests.growth import assert_linear
from tests.tasks.dense_examples import HEADER, LABEL, WIRE, box, dumped, line, objects, one_box, texts

EXAMPLE = (
    f'{HEADER}\n{{"object_1": {{"desc": "{LABEL}", "bbox_2d": [40, 60, 180, 120]}}, '
    f'"object_2": {{"desc": "{WIRE}", "line_points": 2, "line": [[200, 300], [640, 910]]}}}}'
)
THREE = dumped(object_1=one_box(1, 2, 3, 4), object_2=one_box(5, 6, 7, 8), object_3=one_box(9, 10, 11, 12))


def corners(dump: Dump) -> list[tuple[int, ...]]:
    return [one.points for one in dump.objects]


def read_one(**fields: Any) -> Dump:
    """Read a good object, the given one, and a good one."""
    return parse_dump(dumped(object_1=one_box(1, 1, 2, 2), object_2=fields, object_3=one_box(3, 3, 4, 4)), "bbu")


def test_the_documented_example_is_strictly_valid() -> None:
    dump = parse_dump(EXAMPLE, "bbu")
    assert dump.objects == (box(40, 60, 180, 120), line(200, 300, 640, 910))
    assert (dump.valid, dump.readable, dump.truncated, dump.header, dump.header_match) == (True, True, False, ("BBU", "DETECTION"), True)


def test_a_cut_inside_the_third_object_keeps_the_first_two() -> None:
    dump = parse_dump(THREE[: THREE.index("[9") + 4], "bbu")
    assert corners(dump) == [(1, 2, 3, 4), (5, 6, 7, 8)]
    assert (dump.truncated, dump.valid, dump.problem) == (True, False, "the JSON is cut off")
    assert dump.dropped == ("object_3: it is cut off or not JSON",)


def test_a_cut_keeps_a_complete_object_that_holds_another_one() -> None:
    text = dumped(object_1={**one_box(1, 2, 3, 4), "extra": {"more": {"x": 1}}}, object_2=one_box(5, 6, 7, 8))
    dump = parse_dump(text[: text.index("[5")], "bbu")
    assert corners(dump) == [(1, 2, 3, 4)]
    assert (dump.truncated, dump.dropped) == (True, ("object_2: it is cut off or not JSON",))


def test_objects_come_in_the_order_of_their_numbers() -> None:
    dump = parse_dump(dumped(object_10=one_box(3, 3, 4, 4), object_2=one_box(2, 2, 3, 3), object_1=one_box(1, 1, 2, 2)), "bbu")
    assert corners(dump) == [(1, 1, 2, 2), (2, 2, 3, 3), (3, 3, 4, 4)]


def test_an_inverted_box_is_kept_and_flagged() -> None:
    dump = read_one(desc=LABEL, bbox_2d=[9, 8, 7, 10])
    assert [one.inverted for one in dump.objects] == [False, True, False]


@pytest.mark.parametrize("cut", [0, 30], ids=["whole", "cut off"])
def test_a_brace_in_a_description_leaves_its_object_intact(cut: int) -> None:
    text = dumped(object_1=one_box(1, 1, 2, 2, desc='类别=标签,文本=}{"]['), object_2=one_box(3, 3, 4, 4), object_3=one_box(5, 5, 6, 6))
    dump = parse_dump(text[: len(text) - cut], "bbu")
    assert dump.objects[:2] == (box(1, 1, 2, 2, desc='类别=标签,文本=}{"]['), box(3, 3, 4, 4))


def test_numbers_are_rounded_and_moved_onto_the_grid() -> None:
    dump = read_one(desc=LABEL, bbox_2d=[-3.6, 2.5, 3.5, 1200])
    assert dump.objects[1].points == (0, 2, 4, 1000)
    assert [item.out_of_range for item in dump.objects] == [False, True, False]


def test_of_identical_objects_one_is_kept_and_the_others_are_counted() -> None:
    dump = parse_dump(dumped(**{f"object_{number}": one_box(1, 2, 3, 4) for number in (1, 2, 3)}), "bbu")
    assert corners(dump) == [(1, 2, 3, 4)]
    assert (dump.num_duplicates, dump.valid) == (2, True)


@pytest.mark.parametrize(
    "points",
    [[[10, 20], [30, 40]], ["10", "20", "30", "40.0"], [10.2, 19.9, 30.0, 40], [["10", 20], [30.0, "40"]]],
    ids=["pairs", "texts", "floats", "mixed"],
)
def test_points_may_be_flat_or_paired_numbers_or_texts_of_numbers(points: list[Any]) -> None:
    dump = read_one(desc=LABEL, bbox_2d=points)
    assert dump.objects[1].points == (10, 20, 30, 40)
    assert not dump.valid


UNUSABLE: dict[str, tuple[dict[str, Any], str]] = {
    "none": ({}, "it has no geometry, exactly one of bbox_2d, poly, line is needed"),
    "two": ({"bbox_2d": [1, 2, 3, 4], "poly": [[1, 2], [3, 4], [5, 6]]}, "it has bbox_2d and poly, exactly one of"),
    "few": ({"poly": [[1, 2], [3, 4]]}, "poly has 2 points"),
    "half": ({"poly": [[1, 2], [3, 4], [5]]}, "poly must be numbers in pairs"),
    "odd": ({"poly": [1, 2, 3, 4, 5]}, "poly must be numbers in pairs"),
    "deep": ({"bbox_2d": [[[1, 2]], [3, 4]]}, "bbox_2d must be numbers in pairs"),
    "text": ({"bbox_2d": "1, 2, 3, 4"}, "bbox_2d must be numbers in pairs"),
    "bool": ({"bbox_2d": [True, 2, 3, 4]}, "bbox_2d must be numbers in pairs"),
    "null": ({"bbox_2d": [1, None, 3, 4]}, "bbox_2d must be numbers in pairs"),
    "no number": ({"bbox_2d": [1, "_2", 3, 4]}, "bbox_2d must be numbers in pairs"),
    "six numbers": ({"bbox_2d": [1, 2, 3, 4, 5, 6]}, "bbox_2d has 3 points"),
    "two numbers": ({"bbox_2d": [1, 2]}, "bbox_2d has 1 point"),
    "three numbers": ({"bbox_2d": [1, 2, 3]}, "bbox_2d must be numbers in pairs"),
    "point": ({"line_points": 1, "line": [[1, 2]]}, "line has 1 point"),
    **{
        f"line of {stated}": ({"line_points": stated, "line": [[1, 2], [3, 4]]}, f"line_points says {stated}, the line has 2 points")
        for stated in (3, None, "viele", 2.5)
    },
}


@pytest.mark.parametrize(("fields", "problem"), UNUSABLE.values(), ids=UNUSABLE)
def test_an_object_without_one_usable_geometry_is_dropped_alone(fields: dict[str, Any], problem: str) -> None:
    dump = read_one(desc=LABEL, **fields)
    assert (corners(dump), dump.valid) == ([(1, 1, 2, 2), (3, 3, 4, 4)], False)
    assert [reason.startswith(f"object_2: {problem}") for reason in dump.dropped] == [True]


@pytest.mark.parametrize("value", ["Infinity", "-Infinity", "NaN", "1e999", "9" * 5000], ids=["inf", "-inf", "nan", "1e999", "huge"])
def test_a_number_that_is_not_finite_costs_its_own_object_only(value: str) -> None:
    dump = parse_dump(EXAMPLE.replace("[40,", f"[{value},"), "bbu")
    assert line(200, 300, 640, 910) in dump.objects


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(EXAMPLE.replace("]}}", "],},}"), id="trailing commas"),
        pytest.param(EXAMPLE.replace('"', "'"), id="single quotes"),
        pytest.param(f"{HEADER}\n```json\n{EXAMPLE.splitlines()[1]}\n```", id="code fence"),
        pytest.param(EXAMPLE.splitlines()[1], id="no header"),
        pytest.param(EXAMPLE.replace("\n", " "), id="one line"),
        pytest.param(f"好的，见图[1]：\n{EXAMPLE}\n完毕", id="prose"),
        pytest.param(EXAMPLE.replace('{"object_1"', '{"图片_1": {"object_1"') + "}", id="legacy wrapper"),
        pytest.param(EXAMPLE.replace('{"object_1": ', "[").replace('"object_2": ', "").replace("]}}", "]}]"), id="list"),
        pytest.param(EXAMPLE.replace(', "object_2"', '}\n{"object_2"'), id="two roots"),
        pytest.param(EXAMPLE.replace("object_1", "标签一").replace("object_2", "电线二"), id="other names"),
    ],
)
def test_surrounding_text_and_slight_errors_cost_the_strict_form_only(broken: str) -> None:
    dump = parse_dump(broken, "bbu")
    assert dump.objects == (box(40, 60, 180, 120), line(200, 300, 640, 910))
    assert (dump.readable, dump.truncated, dump.valid) == (True, False, False)
    assert dump.problem


def test_a_lost_quote_costs_its_own_object_only() -> None:
    dump = parse_dump(THREE.replace(f'{LABEL}", "bbox_2d": [5', f'{LABEL}, "bbox_2d": [5'), "bbu")
    assert corners(dump) == [(1, 2, 3, 4), (9, 10, 11, 12)]


def test_a_list_that_is_cut_keeps_its_complete_objects() -> None:
    text = json.dumps([one_box(1, 2, 3, 4), one_box(5, 6, 7, 8, desc="a}{")])
    dump = parse_dump(text[:-3], "bbu")
    assert (corners(dump), dump.truncated) == ([(1, 2, 3, 4)], True)


def test_a_single_object_without_a_number_is_read() -> None:
    assert corners(parse_dump(json.dumps(one_box(1, 2, 3, 4)), "bbu")) == [(1, 2, 3, 4)]


@pytest.mark.parametrize("text", ["", "   ", "没有物体", "见[1]", "[1, 2]", "null", "3"], ids=repr)
def test_a_text_without_objects_is_not_readable(text: str) -> None:
    dump = parse_dump(text, "bbu")
    assert (dump.readable, dump.objects, dump.valid) == (False, (), False)


def test_no_objects_at_all_is_a_valid_answer() -> None:
    dump = parse_dump(f"{HEADER}\n{{}}", "bbu")
    assert (dump.valid, dump.readable, dump.objects) == (True, True, ())


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param(EXAMPLE.replace("BBU", "RRU"), "header says RRU, DETECTION", id="domain"),
        pytest.param(EXAMPLE.replace("DETECTION", "SUMMARY"), "header says BBU, SUMMARY", id="task"),
        pytest.param(f"见下\n{EXAMPLE}", "the header must be the whole first line", id="not first"),
        pytest.param(EXAMPLE.replace(", <TASK", ",<TASK"), "the header must be the whole first line", id="blank"),
        pytest.param(json.dumps(json.loads(EXAMPLE.splitlines()[1])), "the header line is missing", id="no header"),
        pytest.param(EXAMPLE.replace(', "object_2"', ',\n"object_2"'), "exactly 2 lines, got 3", id="lines"),
        pytest.param(EXAMPLE.replace("object_2", "object_1"), "key 'object_1' is written twice", id="key twice"),
        pytest.param(EXAMPLE.replace("object_2", "电线"), "key '电线' must be object_N", id="key"),
        pytest.param(EXAMPLE.replace(LABEL, " "), "object_1: desc must be a text that is not empty", id="no desc"),
        pytest.param(EXAMPLE.replace("[40, 60, 180, 120]", "[40, 60, 180]"), "bbox_2d must be [x1, y1, x2, y2]", id="three"),
        pytest.param(EXAMPLE.replace("[40, 60, 180, 120]", "[[40, 60], [180, 120]]"), "bbox_2d must be", id="paired box"),
        pytest.param(EXAMPLE.replace("40,", "40.5,"), "bbox_2d must be [x1, y1, x2, y2]", id="no whole number"),
        pytest.param(EXAMPLE.replace('_points": 2', '_points": 3'), "object_2: line_points says 3 of a line of 2", id="line_points"),
        pytest.param(EXAMPLE.replace('"bbox', '"line_points": 2, "bbox'), "line_points says 2 of a bbox_2d", id="not a line"),
        pytest.param(EXAMPLE.replace('"desc"', '"desc": "x", "desc"'), "key 'desc' is written twice", id="field twice"),
        pytest.param(EXAMPLE.replace('"desc"', '"group": 1, "desc"'), "key 'group' is not allowed", id="unknown field"),
    ],
)
def test_each_violation_of_the_strict_form_is_named(text: str, problem: str) -> None:
    assert problem in parse_dump(text, "bbu").problem


def test_the_strict_form_allows_gaps_in_numbers_lines_without_a_count_and_points_outside() -> None:
    text = dumped(object_2=one_box(1, 2, 3, 1400), object_7={"desc": WIRE, "line": [[1, 2], [3, 4]]})
    dump = parse_dump(text, "bbu")
    assert (dump.valid, dump.problem, dump.objects[0].out_of_range) == (True, "", True)
    assert corners(dump) == [(1, 2, 3, 1000)]  # the tolerant reader does ask for the count


def test_an_unknown_domain_is_refused_and_a_dump_has_a_short_repr() -> None:
    assert repr(parse_dump(THREE[:-1], "bbu")) == "Dump(3 objects, truncated)"
    with pytest.raises(ContractValueError, match="domain must be one of bbu, rru, got 'x'"):
        parse_dump("", "x")


@pytest.mark.parametrize("domain", ["BBU", "RRU"])
def test_without_a_domain_a_header_of_either_is_right(domain: str) -> None:
    assert parse_dump(EXAMPLE.replace("BBU", domain), None).valid
    assert not parse_dump(EXAMPLE.replace("BBU", "XYZ"), None).valid


@given(st.lists(objects(texts), max_size=6, unique=True), st.sampled_from(["bbu", "rru"]))
def test_reading_what_was_written_gives_the_same_objects(written: list[Any], domain: str) -> None:
    dump = parse_dump(render_dump(written, domain), domain)
    assert (list(dump.objects), dump.valid, dump.problem, dump.dropped) == (written, True, "", ())


@given(st.lists(objects(texts), min_size=1, max_size=5, unique=True), st.data())
def test_a_cut_never_costs_a_complete_object(written: list[Any], data: st.DataObject) -> None:
    text = render_dump(written, "bbu")
    cut = data.draw(st.integers(0, len(text) - 1))
    complete = [number for number in range(1, len(written) + 1) if len(render_dump(written[:number], "bbu")) - 1 <= cut]
    dump = parse_dump(text[:cut], "bbu")
    assert list(dump.objects) == written[: len(complete)]
    assert not dump.valid
    assert dump.truncated or cut <= text.index("{")


PIECES = st.sampled_from([*"{}[],\"'\\1:\n标", '{"object_1": ', '"object_2":', "-3.5", "null", '"desc"', '"bbox_2d"', HEADER])


@given(st.one_of(st.text(st.characters(exclude_categories=())), st.lists(PIECES, max_size=60).map("".join)))
def test_no_text_raises(text: str) -> None:
    dump = parse_dump(text, "bbu")
    assert dump.valid <= dump.readable
    assert bool(dump.problem) is not dump.valid


MEGABYTES = [*'{["', '{"object_1":', '{"object_1":[', '{"', '{\\"', '\\"', '[{"a":"', '{"object_1":{"desc":"', "'object_1':"]
MEGABYTES += ['{"a":[', "{},", "<DOMAIN="]


@pytest.mark.slow
@pytest.mark.parametrize("piece", MEGABYTES)
def test_a_megabyte_of_anything_takes_time_by_its_length(piece: str) -> None:
    assert_linear(lambda text: parse_dump(text, "bbu"), piece * (1_000_000 // len(piece)))


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


def test_points_outside_are_moved_onto_the_image_and_flagged() -> None:
    assert Space(640, 480).to_grid([-5, 240, 700, 480]) == ([0, 500, 1000, 1000], True)
    assert Space(640, 480).to_grid([0, 0, 640, 480]) == ([0, 0, 1000, 1000], False)
    assert to_pixels([-3, 500, 1200, 333], (641, 480)) == [0, 240, 641, 160]  # and back


@pytest.mark.parametrize("coordinates", ["norm100", "processed", "processed:0", "pixels:14", "", None], ids=repr)
def test_an_unknown_space_is_refused(coordinates: str) -> None:
    with pytest.raises(ConfigError, match="coordinates must be norm1000, unit, pixels or processed:PATCH_SIZE"):
        patch_size(coordinates)
    with pytest.raises(ConfigError, match="coordinates 'processed:14' need the patch grid of the image, .* ask with `verify=True`"):
        space_of("processed:14", (640, 480))


@given(st.tuples(st.integers(4, 1000), st.integers(4, 1000)), st.data())
def test_pixels_survive_the_way_to_the_grid_and_back_where_the_grid_is_finer(size: tuple[int, int], data: st.DataObject) -> None:
    points = [data.draw(st.integers(0, edge)) for edge in size * 2]
    assert to_pixels(Space(*size).to_grid(points)[0], size) == points
