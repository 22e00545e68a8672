"""Signs of degeneration. Run: pytest tests/tasks/test_degeneration.py"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, strategies as st

from evalharness import GenerationResult
from evalharness.tasks import degeneration
from evalharness.tasks.degeneration import find_echo, find_repetition, find_signs
from evalharness.tasks.dense import DenseObject, read_dump, render_dump
from evalharness.tasks.dense.objects import GeometryType
from evalharness.tasks.stage_a import read_summaries
from tests.growth import assert_linear

SITE_PHOTOS = Path(__file__).parents[2] / "fixtures" / "site_photos"

PROMPT = "<|im_start|>system\n你是站点照片摘要助手。与站点无关的图片只输出：无关图片。<|im_end|>\n<|im_start|>user\n请写出摘要<|im_end|>\n"
SOUND = GenerationResult(
    text='<DOMAIN=RRU>, <TASK=SUMMARY>\n{"统计": [{"类别": "站点距离", "站点距离": {"7": 1}}]}',
    raw_text="",
    finish_reason="stop",
    num_completion_tokens=31,
    prompt_text=PROMPT,
)


def dump(boxes: list[tuple[int, ...]]) -> str:
    objects = {f"object_{i}": {"desc": "类别=紧固件,安装状态=不合格", "bbox_2d": list(box)} for i, box in enumerate(boxes, start=1)}
    return "<DOMAIN=RRU>, <TASK=DETECTION>\n" + json.dumps(objects, ensure_ascii=False)


def test_a_sound_answer_shows_no_sign_but_that_it_hit_the_cap() -> None:
    assert find_signs(SOUND) == {}
    assert set(degeneration.scores({}).values()) == {0.0}
    assert find_signs(replace(SOUND, finish_reason="length")) == {"cap_hit": "31 tokens"}


@pytest.mark.parametrize(
    ("text", "sign"),
    [
        pytest.param("合格" * 200, "repetition", id="loop"),
        pytest.param("<think>\n先看照片。\n</think>\n\n" + SOUND.text, "thinking", id="thoughts"),
        pytest.param("你是站点照片摘要助手。与站点无关的图片只输出：无关图片。<|im_end|>\n" + SOUND.text, "echo", id="echo"),
        pytest.param("The photo shows a radio unit with two fasteners in good order.", "drift", id="english"),
        pytest.param("统计\ufffd\ufffd\x00合格", "garbled", id="broken characters"),
        pytest.param(" \n", "empty", id="empty"),
    ],
)
def test_each_sign_is_found_alone(text: str, sign: str) -> None:
    signs = find_signs(replace(SOUND, text=text))
    assert list(signs) == [sign]
    assert degeneration.scores(signs) == {**dict.fromkeys(degeneration.SIGNS, 0.0), sign: 1.0, "degenerate": 1.0}


@pytest.mark.parametrize("period", [1, 2, 7, 40, 61, 150])
def test_the_period_of_a_loop_is_known(period: int) -> None:
    piece = "".join(chr(0x4E00 + i) for i in range(period))
    repetition = find_repetition("前言不同。" + piece * (600 // period + 5))
    assert repetition is not None
    assert repetition.period == period
    assert repetition.start == 5
    assert repetition.num_chars == period * (600 // period + 5)


def test_equal_counted_lines_and_objects_are_a_loop_and_different_ones_are_not() -> None:
    repetition = find_repetition(dump([(10, 890, 260, 980)] * 6))
    assert repetition is not None
    assert repetition.num_repeats == 6
    assert find_repetition(dump([(10, 890, 260, 980)] * 3)) is None
    assert find_repetition(dump([(i * 13 % 900, i * 7 % 800, 900 + i, 990 - i) for i in range(60)])) is None
    assert find_repetition("的" * 100) is not None
    assert find_repetition("的" * 40) is None
    said = "The bracket is mounted upright and all of its four screws are in place."
    assert find_repetition("".join(f"{i}. {said}\n" for i in range(1, 9))) is not None
    assert find_repetition("".join(f"Step {i}: {said}\n" for i in range(1, 9))) is not None
    assert find_repetition("".join(f"{i}. {said} It is {i * 37} mm wide and weighs {i * 11} kg.\n" for i in range(1, 9))) is None


@pytest.mark.parametrize("kind", ["bbox_2d", "poly", "line"])
@pytest.mark.parametrize("num_chars", [10, 37, 100, 400])
def test_equal_descriptions_at_different_places_are_a_list(kind: GeometryType, num_chars: int) -> None:
    random = Random(num_chars)
    desc = "类别=标签,文本=" + "".join(chr(0x4E00 + i) for i in range(num_chars))
    num_numbers = {"bbox_2d": 4, "poly": 8, "line": 6}[kind]
    for _ in range(20):
        objects = [DenseObject(kind, tuple(random.randrange(0, 1000) for _ in range(num_numbers)), desc) for _ in range(10)]
        assert find_repetition(render_dump(objects, "bbu")) is None


def test_equal_objects_in_a_row_and_labels_that_differ_in_a_number_are_lists() -> None:
    objects = [DenseObject("bbox_2d", (20 * i, 500, 20 * i + 16, 540), "类别=BBU端光纤插头,可见性=完整,符合性=符合") for i in range(40)]
    assert find_repetition(render_dump(objects, "bbu")) is None
    items = [{"类别": "标签", "文本": {f"DEMO-BASEBAND-UNIT-RACK-LEFT-ROW-{i}": 1}} for i in range(12)]
    assert find_repetition(json.dumps({"统计": items}, ensure_ascii=False)) is None


def test_reference_answers_of_the_benchmark_have_no_repetition() -> None:
    photos = read_dump(SITE_PHOTOS / "gt_vs_pred.jsonl")
    assert len(photos) == 182
    assert [row.image_path for row in photos if find_repetition(render_dump(row.truth, row.domain or "bbu")) is not None] == []
    cut_off = [find_repetition(render_dump(row.truth, "bbu")[:-40], cut_off=True) for row in photos]
    assert cut_off == [None] * 182
    summaries = [text for path in SITE_PHOTOS.glob("*_stage_a.jsonl") for text in read_summaries(path).values()]
    assert len(summaries) == 182
    assert [text for text in summaries if find_repetition(text) is not None] == []


def endless_answers() -> list[str]:
    """Return what the shipped checkpoint `endless` wrote on hf until it was cut off, 2048 tokens each."""
    lines = (Path(__file__).parent / "endless_answers.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line)["text"] for line in lines]


@pytest.mark.parametrize("text", endless_answers(), ids=str.__len__)
def test_answers_that_never_ended_are_loops(text: str) -> None:
    assert "repetition" in find_signs(replace(SOUND, text=text, finish_reason="length"))


@given(st.text())
def test_any_text_can_be_looked_at(text: str) -> None:
    find_signs(replace(SOUND, text=text, prompt_text=text))


@pytest.mark.slow
@pytest.mark.parametrize("text", ["{" * 1_000_000, '{"a": [1, 2]}, ' * 66_000, "".join(map(chr, range(0x4E00, 0x9C20))) * 50])
def test_a_megabyte_takes_time_by_its_length(text: str) -> None:
    assert_linear(lambda part: find_signs(replace(SOUND, text=part)), text)


def test_an_echo_takes_a_long_piece_of_the_prompt() -> None:
    prompt = "".join(chr(0x4E00 + i) for i in range(300))
    assert find_echo("答：" + prompt[50:110] + "。", prompt) == prompt[50:110]
    assert find_echo("答：" + prompt[50:109] + "。", prompt) is None
    assert find_echo("不通过\nassistant\n通过", "") == "assistant"


@pytest.mark.parametrize(
    ("text", "script", "drifts"),
    [
        pytest.param("Der Befund ist in Ordnung und vollständig.", "latin", False, id="latin"),
        pytest.param("Der Befund ist in Ordnung und vollständig.", "han", True, id="german for chinese"),
        pytest.param("Кронштейн закреплён правильно", "han", True, id="russian for chinese"),
        pytest.param("照片中的支架安装正确，标签清晰，没有发现任何问题。", "latin", True, id="chinese for english"),
        pytest.param("ok", "han", False, id="too short to tell"),
        pytest.param(dump([(1, 2, 3, 4)]), "han", False, id="latin keys and tags"),
        pytest.param(
            dump([(1, 2, 3, 4)]).replace("类别=紧固件,安装状态=不合格", "category=fastener,state=loose"), "han", True, id="latin values"
        ),
    ],
)
def test_drift_is_a_matter_of_scripts(text: str, script: str, drifts: bool) -> None:
    assert ("drift" in find_signs(replace(SOUND, text=text), script)) is drifts


@pytest.mark.parametrize(
    ("prompt", "script"),
    [(PROMPT, "han"), ("<|image_pad|>" * 300 + PROMPT, "han"), ("<|im_start|>user\nWhich capital?", "latin"), ("", "latin")],
    ids=["chinese", "with a picture", "english", "none"],
)
def test_the_prompt_says_what_script_to_expect(prompt: str, script: str) -> None:
    assert degeneration.expected_script(prompt) == script
