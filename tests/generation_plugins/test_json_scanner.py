"""Where a text stands in its JSON. Run: pytest tests/generation_plugins/test_json_scanner.py"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from evalharness.generation_plugins.dense import JsonScanner, StringState, TokenTexts
from tests.growth import assert_linear

VALUES = st.recursive(
    st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8
)
OBJECTS = st.dictionaries(st.text(), VALUES, max_size=4)


def scanned(text: str, roots: str = "{") -> JsonScanner:
    scanner = JsonScanner(roots)
    for char in text:
        scanner.push(char)
    return scanner


@given(st.dictionaries(st.text(), OBJECTS, max_size=5), st.booleans(), st.sampled_from([None, 1]))
def test_every_object_directly_in_a_root_counts_once(objects: dict[str, Any], escaped: bool, indent: int | None) -> None:
    text = json.dumps(objects, ensure_ascii=escaped, indent=indent)
    scanner = scanned(text)
    assert (scanner.num_objects, scanner.num_roots, scanner.in_root) == (len(objects), 1, False)
    assert scanned(text[:-1]).num_roots == 0  # a root does not end before its last character


@pytest.mark.parametrize(
    ("text", "num_objects", "num_roots"),
    [
        pytest.param("<DOMAIN=BBU>, <TASK=DETECTION>\n{}", 0, 1, id="a header before is passed over"),
        pytest.param('{"a": {"desc": "}{\\"}"}}', 1, 1, id="brackets and quotes in strings"),
        pytest.param('{"a": {"desc": "x\\\\"}}', 1, 1, id="a backslash before the closing quote"),
        pytest.param('{"a": {"b": {"c": {}}}}', 1, 1, id="objects within objects do not count"),
        pytest.param('{"a": {}} {"b": {}, "c": {}}', 3, 2, id="two roots"),
        pytest.param('{"a": [[1, 2}', 0, 1, id="wrong brackets of the other kind"),
        pytest.param('say "{" first', 0, 0, id="a quote between roots opens no string"),
    ],
)
def test_objects_and_roots_are_counted(text: str, num_objects: int, num_roots: int) -> None:
    scanner = scanned(text)
    assert (scanner.num_objects, scanner.num_roots) == (num_objects, num_roots)


def test_lists_are_roots_where_asked_for() -> None:
    text = '[{"a": 1}, {"b": [2]}]'
    assert (scanned(text, "[").num_objects, scanned(text, "[").num_roots) == (2, 1)
    assert scanned(text).num_objects == 0, "each of them is a root"
    assert scanned(text).num_roots == 2


def test_blanks_count_inside_of_strings_only() -> None:
    strings = StringState()
    assert "".join(map(strings.push, '{ "a b" : "c\\" d" ,\n 1 }')) == '{"a b":"c\\" d",1}'


@pytest.mark.slow
@pytest.mark.parametrize("char", ["{", "["])
def test_a_megabyte_of_brackets_takes_time_by_its_length(char: str) -> None:
    assert_linear(lambda text: scanned(text, "{["), char * 1_000_000)


class ByteTokenizer:
    """Each token is one byte."""

    def __init__(self) -> None:
        self.num_decoded = 0

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return list(text.encode())

    def decode(self, token_ids: list[int], **_: Any) -> str:
        self.num_decoded += 1
        return bytes(token_ids).decode(errors="replace")


def test_parts_of_different_characters_never_look_alike() -> None:
    texts = TokenTexts(ByteTokenizer())
    first, second = ("".join(texts[token] for token in char.encode()) for char in "螺丝")
    assert len(first) == len(second) == 3
    assert first != second
    assert "".join(texts[token] for token in "螺".encode()) == first


def test_a_token_is_decoded_once() -> None:
    tokenizer = ByteTokenizer()
    texts = TokenTexts(tokenizer)
    before = tokenizer.num_decoded
    assert [texts[123] for _ in range(50)] == ["{"] * 50
    assert tokenizer.num_decoded == before + 1
