"""What holds for every metric of every task. Run: pytest tests/tasks/test_properties.py

An answer equal to the reference scores best, one wrong fact lowers a metric that a gate may name, silence is no better than a wrong
answer, and no answer, whatever it contains, raises, stays out of the score or takes longer than its length.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings, strategies as st

from evalharness.api.errors import ContractTypeError, ContractValueError
from evalharness.api.requests import GenerationResult
from evalharness.api.tools import Tool
from evalharness.tasks import degeneration, dense, json_answers, stage_a, stage_b, tools
from evalharness.tasks.dense.metrics import judge_dump
from evalharness.tasks.stage_b import rule_proposals
from evalharness.tool_calls import FORMATS, parse_tool_calls
from tests.growth import assert_linear
from tests.tasks.dense_examples import boxes
from tests.tasks.stage_a_examples import summaries

Scores = dict[str, float]


@dataclass(frozen=True)
class Task:
    """A task as the properties see it. `judge`: answer and reference → row; `lower`: metrics that are better when lower."""

    judge: Callable[[str, Any], dict[str, Any]]
    answer: Callable[[Any], str]
    references: st.SearchStrategy[Any]
    wrong: Callable[[st.DataObject, Any], Any]
    """One fact of a reference changed, dropped or added."""
    summarise: Callable[[list[Any]], list[Any]] = lambda rows: []
    lower: frozenset[str] = frozenset()
    neither: tuple[str, ...] = ()


def _row(scores: Any, details: Any, **tags: str) -> dict[str, Any]:
    return {"case_id": "a", "tags": tags, "outcome": "pass", "scores": dict(scores), "details": dict(details)}


def _summary_row(domain: Any, text: str, reference: Any) -> dict[str, Any]:
    known = stage_a.parse_summary(stage_a.render_summary(reference, domain), domain)
    mission = {"bbu": "BBU接地线检查", "rru": "RRU安装检查"}[domain]
    place: dict[str, Any] = {"image": Path("x.jpg"), "mission": mission, "domain": domain, "label": "pass", "group_id": "g"}
    case = stage_a.StageACase(id="a", image_index=1, reference=known, **place)
    summary = stage_a.parse_summary(text, domain)
    return _row(stage_a.scores(summary, case), stage_a.details(summary, case), mission=mission, domain=domain, photo="site")


def _wrong_summary(domain: Any, data: st.DataObject, reference: Any) -> Any:
    changed = copy.deepcopy(reference)
    own = "备注" if domain == "bbu" else "分组统计"
    kinds = ["more", *(["own"] if changed.get(own) else [])]
    kinds += [name for name in ("item", "value", "count") if any(len(item) > 1 for item in changed["统计"])]
    kind = data.draw(st.sampled_from(kinds))
    if kind == "more":
        changed["统计"].append({"类别": "标签", "文本": {"别处": 1}})
    elif kind == "own":
        changed[own] = ["别的话"] if domain == "bbu" else {**changed[own], "别组": 1}
    else:
        item = data.draw(st.sampled_from([item for item in changed["统计"] if len(item) > 1]))
        key = data.draw(st.sampled_from([key for key in item if key != "类别"]))
        value = data.draw(st.sampled_from(list(item[key])))
        if kind == "item":
            changed["统计"].remove(item)
        elif kind == "value":
            item[key]["99" if key == "站点距离" else "别值"] = item[key].pop(value)
        else:
            item[key][value] += 1
    return changed


def _dump_row(text: str, reference: Any) -> dict[str, Any]:
    judged = judge_dump(dense.parse_dump(text, "bbu"), reference)
    return _row(judged.scores, judged.details, domain="bbu", mission="BBU接地线检查")


def _wrong_dump(data: st.DataObject, reference: Any) -> Any:
    place = data.draw(st.integers(0, len(reference) - 1))
    item = reference[place]
    x, y = item.points[0], item.points[1]
    moved = (0, 0, 1, 1) if x > 500 or y > 500 else (998, 998, 1000, 1000)
    changed = data.draw(
        st.sampled_from(
            [
                (),
                (dense.DenseObject("bbox_2d", moved, item.desc),),
                (dense.DenseObject(item.type, item.points, f"{item.desc},备注=没有"),),
                (dense.DenseObject(item.type, item.points, "类别=别的"),),
                (item, dense.DenseObject("bbox_2d", moved, item.desc)),
            ]
        )
    )
    return (*reference[:place], *changed, *reference[place + 1 :])


def _verdict_row(text: str, reference: Any) -> dict[str, Any]:
    ticket = stage_b.judge_votes([text], reference, "g::pass", 1)
    return _row(ticket.scores, ticket.details, label=reference, mission="m", domain="bbu")


def _json_row(text: str, reference: Any) -> dict[str, Any]:
    judged = json_answers.judge(text, {f"{key}": value for key, value in reference.items()})
    return _row(judged.scores, judged.details)


def _wrong_fields(data: st.DataObject, reference: Any) -> Any:
    key = data.draw(st.sampled_from(list(reference)))
    without = {name: value for name, value in reference.items() if name != key}
    return data.draw(st.sampled_from([without, {**without, key: [reference[key]]}, {**reference, "more": 1}]))


OFFERED = [Tool("get-it"), Tool("say")]


def _calls_row(text: str, reference: Any) -> dict[str, Any]:
    judged = tools.judge(parse_tool_calls(text, OFFERED), reference)
    return _row(judged.scores, judged.details)


def _calls(reference: Any) -> str:
    return "\n".join(f"<tool_call>{json.dumps(call)}</tool_call>" for call in reference) or "No."


def _wrong_calls(data: st.DataObject, reference: Any) -> Any:
    more = [*reference, {"name": "say", "arguments": {"more": 1}}]
    if not reference:
        return more
    place = data.draw(st.integers(0, len(reference) - 1))
    call = reference[place]
    other = {"name": "say" if call["name"] == "get-it" else "get-it", "arguments": call["arguments"]}
    changed = data.draw(st.sampled_from([[], [other], [{**call, "arguments": {**call["arguments"], "more": 1}}]]))
    return data.draw(st.sampled_from([more, [*reference[:place], *changed, *reference[place + 1 :]]]))


KEYS = st.text(st.sampled_from("abcdé中"), min_size=1, max_size=3)
VALUES = st.recursive(st.none() | st.booleans() | st.integers(-9, 9) | KEYS, lambda inner: st.lists(inner, max_size=2), max_leaves=3)
CALL = st.fixed_dictionaries({"name": st.sampled_from(["get-it", "say"]), "arguments": st.dictionaries(KEYS, VALUES, max_size=2)})
REASONS = {"pass": "Verdict: 通过\nReason: Image1: 有; 总结: 好", "fail": "Verdict: 不通过\nReason: Image1: 有; 总结: 坏"}

TASKS: dict[str, Task] = {
    **{
        f"stage_a {domain}": Task(
            partial(_summary_row, domain),
            partial(stage_a.render_summary, domain=domain),
            summaries(domain),
            partial(_wrong_summary, domain),
            lambda rows: [stage_a.aggregate(rows), stage_a.tables(rows)],
            neither=("irrelevant", "num_", "exact"),
        )
        for domain in ("bbu", "rru")
    },
    "dense": Task(
        _dump_row,
        partial(dense.render_dump, domain="bbu"),
        st.lists(
            boxes().filter(lambda item: item.points[0] < item.points[2] and item.points[1] < item.points[3]),
            min_size=1,
            max_size=4,
            unique_by=lambda item: item.points,
        ).map(tuple),
        _wrong_dump,
        lambda rows: [dense.aggregate(rows), dense.tables(rows), dense.offline_report(rows, "")],
        neither=("num_",),
    ),
    "stage_b": Task(
        _verdict_row,
        lambda label: REASONS[label],
        st.sampled_from(["pass", "fail"]),
        lambda data, label: {"pass": "fail", "fail": "pass"}[label],
        lambda rows: [stage_b.aggregate(rows), stage_b.tables(rows)],
        frozenset({"hard_wrong", "thinking", "third_state", "difficulty"}),
    ),
    "json": Task(
        _json_row,
        json.dumps,
        st.dictionaries(KEYS, VALUES, min_size=1, max_size=3),
        _wrong_fields,
        lambda rows: [json_answers.tables(rows)],
        frozenset({"num_missing", "num_extra"}),
    ),
    "tools": Task(_calls_row, _calls, st.lists(CALL, max_size=3), _wrong_calls, lambda rows: [tools.tables(rows)]),
}


def quality(task: Task, row: dict[str, Any]) -> Scores:
    """Return the scores for which more is better."""
    return {
        name: -value if name in task.lower else value
        for name, value in row["scores"].items()
        if not any(name.startswith(prefix) for prefix in task.neither)
    }


@pytest.mark.parametrize("name", TASKS)
@settings(max_examples=30, deadline=None)
@given(st.data())
def test_the_reference_scores_best_and_one_wrong_fact_lowers_a_metric(name: str, data: st.DataObject) -> None:
    task = TASKS[name]
    reference = data.draw(task.references)
    best = quality(task, task.judge(task.answer(reference), reference))
    wrong = task.wrong(data, reference)
    assume(wrong != reference)
    worse = quality(task, task.judge(task.answer(wrong), reference))
    assert {metric: value for metric, value in worse.items() if value > best.get(metric, value)} == {}
    assert any(value < best[metric] for metric, value in worse.items() if metric in best), (best, worse)


@pytest.mark.parametrize("name", TASKS)
@settings(max_examples=30, deadline=None)
@given(st.data())
def test_silence_is_no_better_than_a_wrong_answer(name: str, data: st.DataObject) -> None:
    task = TASKS[name]
    reference = data.draw(task.references)
    assume(reference != [])  # no call is what is asked for
    wrong, silent = (quality(task, task.judge(text, reference)) for text in (task.answer(task.wrong(data, reference)), ""))
    excused = {"hard_wrong"}  # the original's: the agreement of the votes, and there are none
    assert {metric for metric, value in silent.items() if value > wrong.get(metric, value)} <= excused


@pytest.mark.parametrize("name", ["stage_a bbu", "stage_a rru", "json", "tools"])
@settings(max_examples=30, deadline=None)
@given(st.data())
def test_the_order_of_an_answer_does_not_matter(name: str, data: st.DataObject) -> None:
    task = TASKS[name]
    reference = data.draw(task.references)

    def shuffled(value: Any, depth: int = 0) -> Any:
        if isinstance(value, dict):
            return {key: shuffled(value[key], depth + 1) for key in data.draw(st.permutations(list(value)))}
        if isinstance(value, list) and (name == "tools" and depth == 0):
            return data.draw(st.permutations([shuffled(inner, 1) for inner in value]))
        if isinstance(value, list) and name == "stage_a bbu" and depth == 1:
            return data.draw(st.permutations([shuffled(inner, 2) for inner in value]))
        return value

    first, second = (task.judge(task.answer(each), reference)["scores"] for each in (reference, shuffled(reference)))
    assert first == second


PIECES = [
    *"}{[]),(\"'\\\n\r\t ;:=,中é\x00\x85\u2028\u2029\x1c\x0b\ud800\udfff\ufffd\U0001f600",
    "\r\n",
    "```json\n",
    "```",
    "<think>",
    "</think>",
]
PIECES += [
    "<DOMAIN=BBU>, <TASK=SUMMARY>\n",
    "<DOMAIN=BBU>, <TASK=DETECTION>\n",
    '{"统计": [',
    '"类别": "电线"',
    '"捆扎": {"整齐": ',
    "统计=[",
    "无关图片",
]
PIECES += [
    '{"object_1": ',
    '"bbox_2d": [',
    '"line_points": ',
    '"desc": ',
    "1, 2, 3, 4",
    "Verdict: 通过",
    "Reason: ",
    "assistant\n",
    "Image1",
]
PIECES += [
    '{"operations": [',
    '{"op": "upsert", "text": "',
    '{"a": ',
    "null",
    "NaN",
    "-Infinity",
    "1e999",
    "-0",
    "1" * 400,
    "9" * 5000,
    "0x" + "f" * 5000,
]
PIECES += [
    "[" * 150,
    "{" * 150,
    '{"a":' * 120,
    "]" * 150,
    "}" * 150,
    "[" * 1500,
    "(" * 300,
    "-" * 2000,
    '"' * 3,
    "\\u",
    "\\ud83d",
    "%s{}" * 9,
]
PIECES += [
    "<tool_call>",
    "</tool_call>",
    '{"name": "say", "arguments": ',
    "<function=say>",
    "<parameter=a>",
    "</parameter>",
    "[say(a=",
    "say(",
    "a=1",
]
PIECES += ['<invoke name="say">', "[TOOL_CALLS]", "<|python_tag|>", "<|tool_call_start|>", "<invoke><tool_name>say</tool_name>"]
TEXTS = st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=25).map("".join)
NESTED = [
    f"{before}{'[' * depth}{']' * depth}{behind}"
    for depth in (90, 101, 300, 700, 990, 5000)
    for before, behind in (("", ""), ('{"a": ', "}"))
]


RULES = {"G0": "每个站点需同时见到RRU与紧固件", "G1": "若紧固件不合格则判定不通过"}


def references_of(name: str) -> list[Any]:
    wire = {"类别": "电线", "捆扎": {"整齐": 1}}
    box = dense.DenseObject("bbox_2d", (1, 2, 30, 40), "类别=标签,文本=A")
    known: dict[str, list[Any]] = {
        "stage_a bbu": [{"统计": [wire], "备注": ["x"]}],
        "stage_a rru": [{"统计": [wire], "分组统计": {"1": 1}}],
        "dense": [(box,), ()],
        "stage_b": ["pass", "fail"],
        "json": [{"a": 1, "b": {"$set": [{"$text": "x"}]}, "统计[*].捆扎": {"$type": "array"}}],
        "tools": [[{"name": "say", "arguments": {"a": 1}}], []],
    }
    return known[name]


def everything_of(name: str, text: str) -> list[Any]:
    """Return all that is made of an answer."""
    task = TASKS[name]
    rows = [task.judge(text, reference) for reference in references_of(name)]
    return [rows, task.summarise(rows)]


@pytest.mark.parametrize("name", TASKS)
@given(TEXTS | st.sampled_from(NESTED))
def test_any_text_is_judged_and_can_be_recorded(name: str, text: str) -> None:
    made = everything_of(name, text)
    assert json.loads(json.dumps(made, allow_nan=False, default=dict)) is not None
    assert len(repr(made[0])) < 400_000 + 200 * len(text)


@given(TEXTS | st.sampled_from(NESTED))
def test_any_text_is_read_by_every_other_reader(text: str) -> None:
    assert set(degeneration.find_signs(GenerationResult(text, text, "length", prompt_text=text[::-1]))) <= set(degeneration.SIGNS)
    assert rule_proposals.extract_object(text) is not None
    for format in FORMATS:
        calls = parse_tool_calls(text, OFFERED, format=format).calls
        assert json.dumps([call.to_json() for call in calls], allow_nan=False)
    for read in (partial(rule_proposals.read_proposal, text, RULES), partial(rule_proposals.read_reflection, text, RULES, ["g::pass"])):
        with suppress(ContractValueError, ContractTypeError):
            read()


LONG = ["[", '"', "'", ",", "<think>", "</think>", '{"a":1},', '[{"a":1},', '{"object_1": {"desc": "a,b"', '"a\\"', "say(a=1)\n"]
LONG += ["<function=say><parameter=a>", '<tool_call>{"name": "say", "arguments": {}}', "[say(a='", '```json\n{"a": "</think>"}\n```']


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_judging_takes_time_by_the_length_of_the_answer(name: str) -> None:
    for piece in LONG:
        assert_linear(partial(everything_of, name), piece * (100_000 // len(piece)))
