"""JSON in texts. Run: pytest tests/tasks/test_shared.py"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalharness.tasks.shared import balanced_end, balanced_spans, loads, tokens
from tests.growth import assert_linear

PIECES = st.lists(st.sampled_from(["{", "}", "[", "]", '"', "\\", "a", " ", "'", "\n"]), max_size=40).map("".join)


def reference_tokens(text: str) -> Iterator[tuple[int, int]]:
    """Yield what `tokens` yields, one character at a time."""
    place = 0
    while place < len(text):
        start = place
        if text[place] == '"':
            place += 1
            while place < len(text) and text[place] != '"':
                place += 2 if text[place] == "\\" else 1
            place = min(place + 1, len(text))
            yield start, place
        elif text[place] == "\\":
            place += 2
        else:
            place += 1
            if text[start] in "{}[]":
                yield start, place


@given(PIECES)
def test_strings_and_brackets_are_told_apart(text: str) -> None:
    assert list(tokens(text)) == list(reference_tokens(text))


@given(PIECES)
def test_balanced_parts_are_apart_in_order_and_balanced(text: str) -> None:
    spans = list(balanced_spans(text))
    assert all(first[1] <= second[0] for first, second in itertools.pairwise(spans))
    assert all(text[start] == "{" and balanced_end(text, start) == end for start, end in spans)


@given(st.dictionaries(st.text(), st.text(), max_size=3), st.text("ab [", max_size=5))
def test_an_object_is_found_within_other_text(value: dict[str, str], before: str) -> None:
    text = json.dumps(value)
    assert list(balanced_spans(f"{before}{text} after")) == [(len(before), len(before) + len(text))]


def test_a_bracket_that_never_closes_hides_nothing() -> None:
    assert list(balanced_spans("{ {a} {b}")) == [(2, 5), (6, 9)]
    assert balanced_end("{ {a} {b}", 0) is None


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", "1e999", "[" * 100_000, "", "{'a': 1}"], ids=lambda text: text[:10])
def test_what_is_no_json_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"not JSON|not a finite number|nested too deeply|Expecting"):
        loads(text)


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["{", "}", "[", '"', "\\", "{}", '{"a": "', "'"])
def test_a_megabyte_takes_time_by_its_length(unit: str) -> None:
    assert_linear(lambda text: list(balanced_spans(text)), unit * (1_000_000 // len(unit)))
