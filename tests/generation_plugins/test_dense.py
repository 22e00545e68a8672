"""The plugins for dense output, on scripts and on a table of logits. Run: pytest tests/generation_plugins/test_dense.py"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, strategies as st

from evalharness import GenerationOptions, GenerationResult, TextGenerationRequest
from evalharness.api.errors import CapabilityError, ContractTypeError, ContractValueError
from evalharness.backends.fake import FakeBackend, FakeTokenizer
from evalharness.engine.engine import Engine
from evalharness.generation_plugins import BalancedJsonStop, DuplicateObjectBan, DuplicateObjectStop, ObjectCap
from evalharness.generation_plugins.dense import _RepeatBan
from tests.growth import assert_linear

HEADER = "<DOMAIN=BBU>, <TASK=DETECTION>\n"
OPTIONS = GenerationOptions(max_new_tokens=4096)


def dump(num_objects: int, first: int = 1) -> str:
    """Return a dense dump of so many objects, all different."""
    objects = {f"object_{i}": {"desc": f"类别=标签,文本=N{i}", "bbox_2d": [i, 2, 30, 40]} for i in range(first, first + num_objects)}
    return HEADER + json.dumps(objects, ensure_ascii=False)


def answers(texts: Iterable[str], *plugins: Any, ends: bool = True) -> list[GenerationResult]:
    """Return what an engine that would say these texts gives with the plugins, all in one batch."""
    from evalharness.backends.fake import FakeAnswer

    said = [FakeAnswer(text, ends=ends) for text in texts]
    requests = [TextGenerationRequest([{"role": "user", "content": "list"}])] * len(said)
    return Engine(FakeBackend.from_answers(said)).generate_text_batch(requests, OPTIONS, plugins=plugins)


def test_each_row_of_a_batch_stops_where_its_own_json_ends() -> None:
    texts = [dump(1), HEADER + '{"object_1": {"desc": "文本=}{\\"", "bbox_2d": [1, 2, 3, 4]}}', dump(7), HEADER + "{}"]
    results = answers([text + ' and so on {"a": 1}' for text in texts], BalancedJsonStop())
    assert [result.text for result in results] == texts
    assert {(result.finish_reason, result.stop_reason) for result in results} == {("stop", "balanced-json-stop")}
    assert [result.num_completion_tokens for result in results] == [len(text) for text in texts]  # up to the closing bracket


def test_json_that_never_closes_runs_on() -> None:
    (result,) = answers([dump(2)[:-1]], BalancedJsonStop())
    assert result.text == dump(2)[:-1]
    assert (result.finish_reason, result.stop_reason) == ("stop", None)


def test_a_list_is_a_root_where_asked_for() -> None:
    (result,) = answers(['see [1, {"a": 2}] and more'], BalancedJsonStop(roots="["))
    assert result.text == 'see [1, {"a": 2}]'


def test_an_object_cap_lets_that_many_complete_objects_through_and_ends_the_row_early() -> None:
    (result,) = answers([dump(40)], ObjectCap(3))
    assert result.text == dump(3)[:-1]
    assert (result.finish_reason, result.stop_reason) == ("stop", "object-cap")
    assert result.num_completion_tokens == len(dump(3)), "one token more than three objects: the comma that begins a fourth"


def test_each_row_of_a_batch_has_a_cap_of_its_own() -> None:
    results = answers([dump(num) for num in (1, 2, 3, 4, 5, 30)], ObjectCap(3))
    assert [len(re.findall("object_", result.text)) for result in results] == [1, 2, 3, 3, 3, 3]
    assert [result.stop_reason for result in results] == [None, None, None, "object-cap", "object-cap", "object-cap"]


def test_an_answer_with_exactly_as_many_objects_is_left_alone() -> None:
    (result,) = answers([dump(3)], ObjectCap(3))
    assert result.text == dump(3)
    assert (result.finish_reason, result.stop_reason) == ("stop", None)


def test_a_second_root_counts_on() -> None:
    (result,) = answers([dump(2) + "\n" + dump(2, first=3)], ObjectCap(3))
    assert result.text == dump(2) + "\n" + dump(1, first=3)[:-1]


@given(st.integers(1, 6), st.integers(0, 9))
def test_at_most_that_many_objects_survive(cap: int, num_objects: int) -> None:
    kept = ObjectCap(cap).postprocess_text(dump(num_objects))
    assert len(re.findall(r'"object_\d+": \{[^{}]*\}', kept)) == min(cap, num_objects)
    assert dump(num_objects).startswith(kept)


@given(st.text())
def test_a_cap_takes_any_text_and_only_cuts(text: str) -> None:
    assert text.startswith(ObjectCap(1).postprocess_text(text))


@pytest.mark.parametrize(
    ("number", "error"), [(0, ContractValueError), (True, ContractTypeError), (2.0, ContractTypeError)], ids=["zero", "bool", "float"]
)
def test_a_cap_that_is_no_number_of_objects_is_refused(number: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="^num_objects must"):
        ObjectCap(number)


def test_unknown_roots_are_refused() -> None:
    with pytest.raises(ContractValueError, match=r"roots must be '\{', '\[' or '\{\[', got '<'"):
        BalancedJsonStop(roots="<")


def repeating(*numbers: int) -> str:
    """Return a dump whose objects are these, under ever new keys."""
    objects = [{"desc": f"类别=标签,文本=N{number}", "bbox_2d": [number, 2, 30, 40]} for number in numbers]
    return HEADER + json.dumps({f"object_{i}": value for i, value in enumerate(objects, start=1)}, ensure_ascii=False)


def test_each_row_ends_with_its_first_repeat() -> None:
    results = answers([repeating(1, 2, 1, 3), repeating(1, 2, 3, 4), repeating(5, 5, 5)], DuplicateObjectStop())
    assert [result.text.count("bbox_2d") for result in results] == [3, 4, 2]
    assert [result.stop_reason for result in results] == ["duplicate-object-stop", None, "duplicate-object-stop"]
    results = answers([repeating(1, 1, 1, 2), repeating(1, 2, 1, 2, 1)], DuplicateObjectStop(num_repeats=3))
    assert [result.text.count("bbox_2d") for result in results] == [4, 5]
    assert [result.stop_reason for result in results] == [None, "duplicate-object-stop"]


class Words:
    """A tokenizer whose tokens are these texts, and which knows nothing else."""

    def __init__(self, *texts: str) -> None:
        self.texts = texts

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return []

    def decode(self, token_ids: list[int], **_: Any) -> str:
        return "".join(self.texts[token_id] for token_id in token_ids)


def banned_after(said: list[str], *more: str) -> set[str]:
    """Return the texts of the tokens that are banned after a row has said these tokens; `more` are in the vocabulary too."""
    words = Words(*dict.fromkeys([*said, *more]))
    ban: _RepeatBan = DuplicateObjectBan().ban(words, len(words.texts))
    for text in said:
        ban.push(words.texts.index(text))
    return {words.texts[token_id] for token_id in ban.banned()}


FIRST = ['{"1": ', '{"desc": "a",', ' "box": [1,', " 12", "]}", ', "2": ']


def test_every_token_that_would_end_the_last_number_of_a_repeat_is_banned() -> None:
    said = [*FIRST, '{"desc": "a",', ' "box": [1,', " 1"]
    assert banned_after(said, "2", "2]", "2]}", "2]},", " 2", "3", "]", "2, 3", "25") == {"2", "2]", "2]}", "2]},", " 2", "2, 3", "25"}


def test_a_token_that_holds_the_rest_of_a_repeat_is_banned_before_it_begins() -> None:
    said = [*FIRST, '{"desc": "a",', ' "box": [1,']
    assert banned_after(said, " 12]}", "12]", " 1", "1", "13", "3]}") == {" 12", " 12]}", "12]"}


def test_blanks_between_values_do_not_make_an_object_another() -> None:
    said = [*FIRST, '{"desc":  "a" ,', '"box" :[ 1,', "1"]
    assert banned_after(said, "2", " 2", "3") == {"2", " 2"}


@pytest.mark.parametrize(
    "second",
    [
        pytest.param(['{"desc": "a",', ' "box": [1,', " 2"], id="another number"),
        pytest.param(['{"desc": "a ",', ' "box": [1,', " 1"], id="a blank in a string"),
        pytest.param(['{"box": [1,', " 1"], id="other keys"),
    ],
)
def test_an_object_that_differs_is_left_alone(second: list[str]) -> None:
    assert banned_after([*FIRST, *second], "2", "]", "]}") == set()


@pytest.mark.parametrize(
    ("said", "more", "banned"),
    [
        (['{"1": ', '{"desc": ', '"a b', '"}', ', "2": ', '{"desc": ', '"a b'], ['"', "'", '\\"', "}", "c"], {'"', '"}', '"a b'}),
        (['{"1": ', "{}", ', "2": ', "{"], ["}", "}}"], set()),
        (['{"1": ', '{"a": [', "]}", ', "2": ', '{"a": ['], ["1"], {"]}"}),
        (['{"1": ', '{"a": ', "true", "}", ', "2": ', '{"a": '], ["false", "t", "1"], {"true", "t"}),
        (FIRST, ["]", "]}"], set()),
    ],
    ids=["a text cannot close", "objects without values may repeat", "an empty list is a value", "a word", "between objects"],
)
def test_what_would_end_a_repeat_is_banned(said: list[str], more: list[str], banned: set[str]) -> None:
    assert banned_after(said, *more) == banned


@given(st.lists(st.tuples(st.sampled_from("ab"), st.lists(st.integers(0, 12), max_size=3)), max_size=6))
def test_whatever_a_row_wants_to_say_no_object_comes_twice(objects: list[tuple[str, list[int]]]) -> None:
    tokenizer = FakeTokenizer()
    wish = "{" + ", ".join(f'"object_{i}": {json.dumps({"desc": d, "box": b})}' for i, (d, b) in enumerate(objects)) + "}"
    ban = DuplicateObjectBan().ban(tokenizer, 200)
    said = ""
    for char in wish:
        (token,) = tokenizer.encode(char)
        while token in ban.banned():
            other = next(digit for digit in "98765432" if tokenizer.encode(digit)[0] not in ban.banned())
            ban.push(tokenizer.encode(other)[0])
            said += other
            if char.isdigit():
                break
        else:
            ban.push(token)
            said += char
    complete = [json.dumps(value) for value in json.loads(said).values()]
    assert len(set(complete)) == len(complete)


def test_a_ban_is_refused_where_tokens_cannot_be_banned() -> None:
    with pytest.raises(CapabilityError, match="plugin 'duplicate-object-ban' bans tokens while a row is written, which backend 'fake'"):
        answers(["{}"], DuplicateObjectBan())


@pytest.mark.slow
@pytest.mark.parametrize("plugin", [BalancedJsonStop(), ObjectCap(100_000)], ids=lambda plugin: plugin.name)
def test_watching_is_linear(plugin: Any) -> None:
    tokenizer = FakeTokenizer()

    def watch(ids: list[Any]) -> None:
        watcher = plugin.watch(tokenizer)
        assert not any(watcher.push(token_id) for token_id in ids)

    assert_linear(watch, tokenizer.encode(dump(2_000)[:-1]))
