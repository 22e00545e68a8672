"""Extractors: what each finds, and that it finds nothing rather than guess."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings, strategies as st

from evalharness.answers import (
    Extracted,
    between,
    boxed,
    by_filter,
    chain,
    choice_letter,
    first_match,
    json_field,
    last_match,
    last_number,
    strip_thinking,
)
from evalharness.api.errors import ConfigError, ContractTypeError, ContractValueError
from evalharness.scores import math_verify


@pytest.mark.parametrize(
    ("extract", "text", "value"),
    [
        (first_match(r"#### (-?[\d.,]+)"), "a #### 1,200 b #### 3", "1,200"),
        (last_match(r"#### (-?[\d.,]+)"), "a #### 1,200 b #### 3", "3"),
        (last_match(r"(-?[$0-9.,]{2,})|(-?[0-9]+)"), "5 apples, $12.50 or 7", "7"),
        (first_match("yes|no"), "Yes", None),
        (first_match("yes|no", ignore_case=True), "so, Yes", "Yes"),
        (first_match(r"a(b?)"), "a", None),
        (boxed(), r"\boxed{1} and $\boxed{\frac{1}{2}}$", r"\frac{1}{2}"),
        (boxed(), r"\fbox{a\}b}", r"a\}b"),
        (boxed(), r"\boxed{1} then \boxed{2", None),
        (boxed(), "boxed{1}", None),
        (between("<a>", "</a>"), "<a> 1 </a><a>2</a>", "1"),
        (between("<a>", "</a>", last=True), "<a> 1 </a><a>2</a>", "2"),
        (between("A:"), "Q: x A: y\nz", "y\nz"),
        (between("<a>", "</a>"), "<a> 1", None),
        (between("<a>", "</a>"), "<a>  </a>", None),
        (strip_thinking(), "<think>5</think> 6", "6"),
        (strip_thinking(), "<think>5", None),
        (json_field("a[0].b"), 'sure:\n```json\n{"a": [{"b": 4.50}]}\n```', "4.5"),
        (json_field("a"), '{"a": "x"}', "x"),
        (json_field("a"), '{"a": {"b": [true, null]}}', '{"b": [true, null]}'),
        (json_field("a"), '{"a": null}', None),
        (json_field("a"), "a: 4", None),
    ],
)
def test_an_extractor_finds(extract, text, value) -> None:
    assert extract(text).value == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("-5", "-5"), ("5-3", "3"), ("f(x)-4", "4"), ("-$3", "-3"), ("It is $1,234.50.", "1,234.50"), ("1,2,3", "3"), ("about .5", ".5"),
        ("1.5e3 kg", "1.5e3"), ("−7", "−7"), ("x = -7", "-7"), ("2024-05-01", "01"), ("no", None), ("3.", "3"), ("1234,567", "567"),
        ("50%", "50"),
    ],
)  # fmt: skip
def test_the_last_number_is_as_it_is_written(text: str, value: str | None) -> None:
    assert last_number()(text).value == value


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("B", "B"), ("b.", "B"), ("(C) Paris", "C"), ("**D** Paris", "D"), ("B: yes", "B"), ("C\nbecause it is", "C"), ("\\boxed{B}", "B"),
        ("A. no B. yes. The answer is (B).", "B"), ("Answer: C", "C"), ("The correct answer is option D, as", "D"),
        ("answer is **A**", "A"), ("so, answer: b", "B"), ("Option B is right, option A is wrong.", None),
        ("I take option B. It fits", "B"), (r"$\boxed{\textbf{(C)}}$", "C"),
        ("The answer is **Option B**", "B"), ("The correct answer is B, not A.", "B"), ("Option A or B", None),
        ("B. Because (A) is wrong", "B"), ("Option A", "A"),
        ("The answer is \\boxed{\\text{C}}", "C"), ("first answer: A. No, the answer is B", "B"), ("I choose (C) here", "C"),
        ("The correct choice would be (A)", "A"), ("Answer:\n\nB", "B"),
        ("A dog is here", None), ("I think so", None), ("Paris", None), ("", None), ("The answer is Bordeaux", None),
        ("The correct answer is A or B", None), ("Answer: A, B", None), ("(A) no, (B) yes", None), ("A. one\nB. two", None),
        ("The answer is a dog", None), ('{"a": 1}', None), ("Answer: E", None),
    ],
)  # fmt: skip
def test_a_choice_is_named_or_not_found(text: str, letter: str | None) -> None:
    assert choice_letter("ABCD")(text).value == letter


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("It is Lyon.", "B"),
        ("It is New York", "D"),
        ("york", "C"),
        ("Paris or Lyon", None),
        ("Parisian", None),
        ("The answer is A, not Lyon", "A"),
        ("答案是B选项", "B"),
    ],
)
def test_a_choice_may_be_named_by_its_text(text: str, letter: str | None) -> None:
    assert choice_letter("ABCD", ["Paris", "Lyon", "York", "New York"])(text).value == letter
    assert choice_letter("AB", ["same", "same"])("same").value is None


def test_a_chain_shows_each_step_and_stops_where_nothing_is_found() -> None:
    extract = chain(strip_thinking(), str.lower, between("answer:"), last_number())
    assert extract("<think>1</think>ANSWER: 42 km") == Extracted(
        "42",
        (("strip_thinking", "ANSWER: 42 km"), ("lower", "answer: 42 km"), ("between('answer:', None)", "42 km"), ("last_number", "42")),
    )
    assert extract("It is 42").steps == (("strip_thinking", "It is 42"), ("lower", "it is 42"), ("between('answer:', None)", None))
    assert chain(extract, str.strip)("Answer: 42").value == "42"


def test_details_hold_short_texts() -> None:
    found = strip_thinking()("x" * 5000).to_json()
    assert found["answer"].endswith("… (4,000 more characters)")
    assert len(found["steps"][0][1]) < 1100


def test_filters_stand_side_by_side_with_a_rate_of_nothing_found() -> None:
    filters = {"strict": first_match(r"#### (\d+)"), "flexible": last_number()}
    judged = by_filter("so 42", filters, exact_match=lambda answer: answer == "42", length=lambda answer: len(answer) / 10)
    assert judged.scores == {
        "exact_match_strict": 0.0, "length_strict": 0.0, "not_found_strict": 1.0,
        "exact_match_flexible": 1.0, "length_flexible": 0.2, "not_found_flexible": 0.0,
    }  # fmt: skip
    assert judged.details["filters"]["flexible"] == {"answer": "42", "steps": [["last_number", "42"]]}
    assert judged.details["filters"]["strict"]["answer"] is None
    assert judged.answers == {"strict": None, "flexible": "42"}


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: first_match("(a"), ContractValueError, r"'\(a' is not a regular expression: missing \)"),
        (lambda: json_field("a["), ConfigError, "is not a path"),
        (lambda: between("", "b"), ContractValueError, "marks that are not empty"),
        (lambda: choice_letter("AA"), ContractValueError, "must be different letters or digits such as 'ABCD', got 'AA'"),
        (lambda: choice_letter("AB", "xyz"), ContractValueError, "3 texts of choices have 2 letters, 'AB'; each needs one"),
        (lambda: last_number(decimal_mark=";"), ContractValueError, 'decimal_mark must be "." or ",", got \';\''),
        (lambda: chain(), ContractValueError, "at least one step"),
        (lambda: chain("x"), ContractTypeError, "an extractor, or a function of a text, is wanted, got 'x'"),
        (lambda: chain(strip_thinking), ContractTypeError, r"write strip_thinking\(…\), with parentheses"),
        (lambda: chain(boxed(), choice_letter), ContractTypeError, r"write choice_letter\(…\), with parentheses"),
        (lambda: by_filter("a", [boxed()]), ContractTypeError, "filters must be a mapping of names to extractors"),
        (
            lambda: by_filter("1", {"a": last_number()}, mv=lambda found: math_verify("", "")),  # type: ignore[return-value]
            ContractTypeError,
            r"'mv' must .*give its \.equal",
        ),
        (lambda: boxed()(None), ContractTypeError, r"the text of an extractor must be a str, got None \(NoneType\)"),
        (lambda: chain(len)("ab"), ContractTypeError, r"what len returns must be a str, got 2 \(int\)"),
    ],
)
def test_what_is_wrong_is_refused(make, error, message) -> None:
    with pytest.raises(error, match=message):
        make()


EXTRACTORS = [
    last_number(), last_number(decimal_mark=","), choice_letter("ABCD", ["a", "12", "answer is"]), boxed(), json_field("a"),
    between("<", ">"), strip_thinking(), first_match(r"#### (-?[\d.,]+)"),
]  # fmt: skip
PARTS = [
    "1",
    ",234",
    ".",
    "-",
    "$",
    "(A)",
    "A.",
    "answer is ",
    "answer",
    "*",
    " ",
    "\n",
    "\\boxed{",
    "{",
    "}",
    '"a":',
    "[",
    "<think>",
    "<",
    "#### ",
    "e9",
    "٣",
    "\\",
]


@pytest.mark.parametrize("place", range(len(EXTRACTORS)))
def test_hostile_texts_take_linear_time(place: int) -> None:
    extract = EXTRACTORS[place]
    texts = [part * (10_000 // len(part)) for part in PARTS] + [f"{one}{two}" * 2_000 for one in PARTS[:8] for two in PARTS[5:12:3]]
    slowest = 0.0
    for text in texts:
        began = time.process_time()
        extract(text)
        slowest = max(slowest, time.process_time() - began)
    assert slowest < 0.3  # quadratic time would be seconds


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(PARTS) | st.text(max_size=3), max_size=12).map("".join))
def test_what_is_found_stands_in_the_text(text: str) -> None:
    for extract in EXTRACTORS:
        found = extract(text)
        assert found == extract(text)
        assert found.value is None or found.value.strip()
    letter = choice_letter()(text).value
    assert letter is None or re.search(letter, text, re.IGNORECASE)
    number = last_number()(text).value
    assert number is None or number in text.replace("$", "")
