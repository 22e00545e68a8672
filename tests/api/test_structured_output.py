"""What an answer may be held to, checked without an engine. Run: pytest tests/api/test_structured_output.py"""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from evalharness import GenerationOptions, StructuredOutput
from evalharness.api.errors import ConfigError, ContractTypeError, ContractValueError, RequestsFailed
from evalharness.api.structured_output import fits, unheld_keywords
from evalharness.backends.fake import FakeBackend
from evalharness.engine.backend_contract import ask
from evalharness.engine.engine import Engine

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}

EACH = {
    "json_schema": StructuredOutput(json_schema=SCHEMA),
    "regex": StructuredOutput(regex=r"\d{2}-[a-z]+"),
    "choice": StructuredOutput(choice=("yes", "no")),
    "grammar": StructuredOutput(grammar='root ::= "a" | "b"'),
    "optional": StructuredOutput(json_schema=SCHEMA, optional=True),
}


@pytest.mark.parametrize("structured", EACH.values(), ids=EACH)
def test_it_comes_back_from_json_and_pickle_and_can_be_a_key(structured: StructuredOutput) -> None:
    options = GenerationOptions(structured=structured)
    assert GenerationOptions.from_mapping(options.to_json()) == options
    assert pickle.loads(pickle.dumps(options)) == options
    assert {structured: 1}[StructuredOutput.from_mapping(structured.to_json())] == 1


def test_a_choice_becomes_a_grammar_and_options_without_any_say_so() -> None:
    assert GenerationOptions().to_json()["structured"] is None
    assert StructuredOutput(choice=('a"b\\', "c\n\x01")).as_choice_grammar() == r'root ::= "a\"b\\" | "c\n\u0001"'


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "exactly one of json_schema, regex, choice, grammar, got none"),
        ({"regex": "a", "choice": ("a",)}, "exactly one of .*, got regex, choice"),
        ({"json_schema": {"type": "objct"}}, r"is not a JSON Schema: 'objct' is not valid .* \(at type\)"),
        ({"json_schema": {"properties": {"a": {"minimum": "1"}}}}, r"'1' is not of type 'number' \(at properties/a/minimum\)"),
        ({"json_schema": {"const": float("nan")}}, r"structured\.json_schema must be plain JSON data"),
        ({"regex": "a("}, r"regex 'a\(' is not a regular expression: missing \)"),
        ({"regex": ""}, "without NUL characters, got ''"),
        ({"choice": ()}, r"structured\.choice is empty"),
        ({"choice": ("a", "")}, r"structured\.choice\[1\] is empty"),
        ({"choice": ("a", "a")}, "holds a text twice"),
        ({"grammar": "rule ::= 'a'"}, "has no rule 'root ::= …'"),
    ],
    ids=["none", "two", "schema", "inside", "nan", "regex", "empty regex", "no choice", "empty choice", "twice", "root"],
)
def test_what_is_none_is_refused_when_it_is_made(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ContractValueError, match=problem):
        StructuredOutput(**given)


@pytest.mark.parametrize(
    "given", [{"json_schema": "{}"}, {"regex": 3}, {"choice": "yes"}, {"choice": (1,)}, {"grammar": b"root ::="}], ids=str
)
def test_what_has_the_wrong_type_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ContractTypeError, match=r"^structured\."):
        StructuredOutput(**given)


def test_a_schema_is_copied_and_not_nested_without_end() -> None:
    schema: dict[str, Any] = {}
    for _ in range(100):
        schema = {"items": schema}
    with pytest.raises(ContractValueError, match="nested more than 64 deep"):
        StructuredOutput(json_schema=schema)
    schema = {"properties": {}}
    structured = StructuredOutput(json_schema=schema)
    schema["properties"]["late"] = {}
    assert structured.json_schema == {"properties": {}}
    with pytest.raises(FrozenInstanceError):
        structured.regex = "a"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("kind", "text", "verdict"),
    [
        ("json_schema", '{"n": 1}', True),
        ("json_schema", '{"n": "1"}', False),
        ("json_schema", "{", False),
        ("regex", "12-ab", True),
        ("regex", "12-ab!", False),
        ("choice", "yes", True),
        ("choice", "Yes", False),
        ("grammar", "anything", True),
    ],
)
def test_whether_a_text_fits(kind: str, text: str, verdict: bool) -> None:
    assert fits(text, EACH[kind]) is verdict


@pytest.mark.parametrize(
    ("schema", "found"),
    [
        ({"type": "integer", "multipleOf": 3}, ["multipleOf at #"]),
        ({"properties": {"not": {"type": "string"}, "format": {}}}, []),
        ({"$defs": {"x": {"uniqueItems": True}}}, ["uniqueItems at #/$defs/x"]),
        ({"anyOf": [{}, {"not": {}}]}, ["not at #/anyOf/1"]),
        ({"allOf": [{}]}, []),
        ({"allOf": [{}, {}]}, ["allOf at #"]),
        ({"format": "date"}, []),
        ({"format": "phone"}, ["format 'phone' at #"]),
        ({"pattern": "a", "maxLength": 3}, ["pattern beside a length at #"]),
        ({"enum": [{"not": 1}], "default": {"if": 1}}, []),
    ],
    ids=["number", "names", "defs", "list", "one", "all", "format", "odd format", "length", "values"],
)
def test_what_xgrammar_would_pass_over_is_found(schema: dict[str, Any], found: list[str]) -> None:
    assert list(unheld_keywords(schema)) == found


def test_a_script_that_says_something_else_is_an_error_of_its_row() -> None:
    engine = Engine(FakeBackend.from_answers(["yes", "perhaps"]))
    (result,) = engine.generate_text_batch([ask("a")], GenerationOptions(structured=EACH["choice"]))
    assert result.text == "yes"
    with pytest.raises(RequestsFailed, match="the scripted answer is not what structured asks for: 'perhaps'"):
        engine.generate_text_batch([ask("a"), ask("b")], GenerationOptions(structured=EACH["choice"]))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"eos_token_id": ()}, r"options\.structured needs a token that ends the answer"),
        ({"extra_generation_kwargs": {"min_new_tokens": 3}}, r"options\.min_new_tokens would forbid"),
    ],
    ids=["no end", "min_new_tokens"],
)
def test_what_contradicts_it_is_refused_before_anything_runs(changes: dict[str, Any], problem: str) -> None:
    backend = FakeBackend.from_answers(["yes"])
    with pytest.raises(ConfigError, match=problem):
        Engine(backend).generate_text_batch([ask("a")], GenerationOptions(structured=EACH["choice"], **changes))
    assert backend.num_calls == 0
