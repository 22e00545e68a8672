"""No answer makes a schema raise or take forever: numbers, depth, repeated items, branches within branches, patterns."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from evalharness.api import json_schema
from evalharness.api.errors import ContractValueError
from evalharness.api.json_schema import MAX_DEPTH, AnswerDecoder, check_schema, is_match, problems_of
from evalharness.api.structured_output import StructuredOutput, fits
from evalharness.api.tools import Tool

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=12,
)


def nested(depth):
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "factor", "fits"),
    [(10**400, 0.5, True), (10**400 + 1, 3, False), (10**400, 0.03, False), (19.99, 0.01, True), (0.3, 0.1, True), (0.35, 0.1, False)],
    ids=str,
)
def test_a_multiple_is_told_exactly_for_numbers_of_any_length(value, factor, fits):
    assert (problems_of(value, {"multipleOf": factor}) == []) is fits


@pytest.mark.parametrize(
    ("items", "fits"),
    [([1, 1.0], False), ([1, True], True), ([0, False], True), ([{"a": 1, "b": 2}, {"b": 2, "a": 1}], False), ([[1], [[1]]], True)],
    ids=str,
)
def test_items_are_unique_by_their_json_value(items, fits):
    assert (problems_of(items, {"uniqueItems": True}) == []) is fits


@given(st.lists(JSON, max_size=6))
def test_unique_items_are_those_that_jsonschema_finds(items):
    from jsonschema import Draft202012Validator

    assert (problems_of(items, {"uniqueItems": True}) == []) is Draft202012Validator({"uniqueItems": True}).is_valid(items)


def test_telling_items_apart_takes_steps_by_their_number(monkeypatch):
    steps = []
    monkeypatch.setattr(json_schema, "_spend", lambda: steps.append(1))
    assert problems_of([{"a": number} for number in range(2000)], {"uniqueItems": True}) == []
    assert len(steps) < 10_000  # 2000 items compared in pairs are two million


def test_branches_within_branches_end_at_a_number_of_steps(monkeypatch):
    monkeypatch.setattr(json_schema, "MAX_STEPS", 20_000)  # ten times as many take three seconds
    part = {"type": "object", "properties": {"of": {"$ref": "#/$defs/part"}}}
    schema = {"$defs": {"part": {"oneOf": [{"type": "number"}, part, part]}}, "$ref": "#/$defs/part"}
    value: object = 1
    for _ in range(60):  # 2 ** 60 ways through
        value = {"of": value}
    assert problems_of(value, schema) == ["it cannot be checked: more than 20,000 steps"]


def test_a_pattern_that_takes_forever_on_an_answer_is_ended(monkeypatch):
    monkeypatch.setattr(json_schema, "MAX_PATTERN_S", 0.2)
    [problem] = problems_of("a" * 60 + "b", {"pattern": "^(a+)+$"})
    assert problem == "it cannot be checked: more than 0.2 seconds for a pattern"
    assert not is_match("(a+)+", "a" * 60 + "b")


@pytest.mark.parametrize("depth", [MAX_DEPTH - 1, MAX_DEPTH, MAX_DEPTH + 1, 400, 900, 100_000])
def test_json_is_read_to_a_fixed_depth_whatever_the_stack_is(depth):
    text = "[" * depth + "1" + "]" * depth
    if depth <= MAX_DEPTH:
        assert AnswerDecoder().decode(text) == nested(depth)
    else:
        with pytest.raises(ValueError, match="nested too deeply"):
            AnswerDecoder().decode(text)


def test_a_value_nested_in_the_schema_as_often_as_may_be_is_checked():
    schema = {"$defs": {"n": {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"$ref": "#/$defs/n"}}]}}, "$ref": "#/$defs/n"}
    assert problems_of(nested(30), schema) == []
    assert problems_of(nested(400), schema) == ["it is nested too deeply"]


def test_thousands_of_problems_are_a_few_and_their_number():
    problems = problems_of(["x"] * 500, {"items": {"type": "integer"}})
    assert len(problems) == 21
    assert problems[-1] == "and 480 more problems"


@pytest.mark.parametrize("reference", ["http://127.0.0.1:9/x", "#/$defs/none", "other.json", "#none"])
def test_a_reference_out_of_the_schema_is_refused_and_nothing_is_fetched(reference):
    schema = {"type": "object", "properties": {"a": {"$ref": reference}}}
    with pytest.raises(ContractValueError, match="which is not there; references must lead to parts of the schema itself"):
        Tool("f", parameters=schema)
    with pytest.raises(ContractValueError, match=r"structured\.json_schema refers to"):
        StructuredOutput(json_schema=schema)


def test_references_that_lead_somewhere_and_names_like_keywords_are_taken():
    check_schema({"$defs": {"a b": {"type": "integer"}}, "properties": {"$ref": {"$ref": "#/$defs/a%20b"}}}, "s")
    check_schema({"$id": "https://example.org/s", "$defs": {"a": {"$id": "a"}}, "properties": {"x": {"$ref": "a"}}}, "s")


def test_a_reference_to_nothing_behind_an_id_is_a_problem_of_the_answer_that_meets_it():
    schema = {"$id": "https://example.org/s", "properties": {"a": {"$ref": "#/$defs/none"}}}
    check_schema(schema, "it")
    assert problems_of({"b": 1}, schema) == []
    assert problems_of({"a": 1}, schema) == ["it cannot be checked: the schema refers to '/$defs/none', which is not there"]


def test_constrained_answers_that_no_engine_can_write_do_not_fit_and_do_not_raise():
    asked = StructuredOutput(json_schema={"properties": {"a": {"multipleOf": 0.1}}})
    assert [fits(text, asked) for text in ('{"a": 0.3}', '{"a": NaN}', '{"a": 1e999}', '{"a": 1' + "0" * 400 + "}", "[" * 5000)] == [
        True,
        False,
        False,
        True,
        False,
    ]


@given(JSON)
def test_every_value_is_held_against_every_keyword_without_raising(value):
    schema = {"type": ["object", "array"], "minItems": 1, "uniqueItems": True, "items": {"multipleOf": 0.1}, "contains": {"minimum": 0}}
    schema |= {"unevaluatedProperties": {"pattern": "a+"}, "propertyNames": {"maxLength": 1}, "not": {"const": {}}}
    assert all(json.dumps(problem) for problem in problems_of(value, schema))
