"""Exact match, ANLS and relaxed accuracy: as their official scorers have them, and corrected."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings, strategies as st

from evalharness.answers.numbers import parse_number
from evalharness.api.errors import ContractTypeError, ContractValueError
from evalharness.scores import (
    anls,
    anls_corrected,
    bleu,
    choice_scores,
    exact_match,
    ifeval,
    math_spelled_alike,
    ocr_contains,
    relaxed_accuracy,
    relaxed_accuracy_corrected,
    vqa_accuracy,
)
from evalharness.scores.anls import edit_distance


@pytest.mark.parametrize(
    ("prediction", "reference", "options", "is_equal"),
    [
        ("42", "42", {}, True),
        ("42 ", "42", {}, False),
        (None, "", {}, False),
        ("1,200", "so #### 1200", {"regexes_to_ignore": [",", r"\$", "(?s).*#### ", r"\.$"]}, True),
        ("YES!", "yes", {"ignore_case": True, "ignore_punctuation": True}, True),
        ("room 12", "room 13", {"ignore_numbers": True}, True),
        ("b", ["a", "b"], {}, True),
        ("$1,200.00", "1200", {"as_numbers": True}, True),
        ("1.200,50 €", "1200,5", {"as_numbers": True, "decimal_mark": ","}, True),
        ("−3", "-3.0", {"as_numbers": True}, True),
        ("1,2", "12", {"as_numbers": True}, False),
        ("50%", "50", {"as_numbers": True}, False),
        ("50 %", "50.0%", {"as_numbers": True}, True),
        ("1e3", "1000", {"as_numbers": True}, True),
        ("3 apples", "3", {"as_numbers": True}, False),
        ("9" * 5000, "9" * 5000 + ".0", {"as_numbers": True}, False),
    ],
)
def test_exact_match(prediction, reference, options, is_equal) -> None:
    assert exact_match(prediction, reference, **options) is is_equal


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(ContractTypeError, match=r"must be a text, or a list of texts, got 42; give str\(…\) of a number"):
        exact_match("42", 42)
    with pytest.raises(ContractTypeError, match=r"got \[1\]"):
        anls("1", [1])
    with pytest.raises(ContractTypeError, match="the prediction must be a str, got 5"):
        relaxed_accuracy(5, "5")
    with pytest.raises(ContractTypeError, match="regexes_to_ignore must be a sequence of patterns, got ','"):
        exact_match("1,0", "10", regexes_to_ignore=",")
    with pytest.raises(ContractValueError, match="there is no reference to compare with"):
        exact_match("1", [])
    with pytest.raises(ContractTypeError, match="the prediction must be a str, got 5"):
        ocr_contains(5, "5")
    with pytest.raises(ContractTypeError, match="references must be a sequence of answers that people gave, got 'yes'"):
        vqa_accuracy("yes", "yes")
    with pytest.raises(ContractTypeError, match="choices must be a sequence of texts, got 'ab'"):
        choice_scores([-1.0, -2.0], "ab", 0)
    with pytest.raises(ContractTypeError, match="predictions must be a sequence of texts, one for each case, got 'a'"):
        bleu("a", ["a"])


def test_one_reference_is_not_taken_for_its_letters() -> None:
    assert not ocr_contains("a banana", "apple")
    assert ocr_contains("an Apple", "apple")


def test_nothing_found_scores_0_everywhere() -> None:
    assert not math_spelled_alike(None, "5")
    assert not ocr_contains(None, "5")
    assert vqa_accuracy(None, ["yes"] * 10) == 0
    assert set(ifeval(None, ["punctuation:no_comma"], [{}]).scores.values()) == {0.0}


@pytest.mark.parametrize(
    ("prediction", "references", "official", "corrected"),
    [
        ("Paris", ["paris"], 1.0, 1.0),
        ("pari", "Paris", 0.8, 0.8),
        ("  new   york ", ["york", "New York"], 1.0, 1.0),
        ("ab", "ax", 0.5, 0.5),  # the script keeps what is exactly at the threshold
        ("London", "Paris", 0.0, 0.0),
        ("", "", 1.0, 1.0),
        ("", "x", 0.0, 0.0),
        (None, "x", 0.0, 0.0),
        ("xyz" + " " * 97, "abc", 0.97, 0.0),
    ],
)
def test_anls(prediction, references, official, corrected) -> None:
    assert anls(prediction, references) == pytest.approx(official)
    assert anls_corrected(prediction, references) == pytest.approx(corrected)


@settings(max_examples=60, deadline=None)
@given(st.text("ab ", max_size=6), st.text("ab ", max_size=6), st.text("ab ", max_size=6))
def test_the_edit_distance_is_a_distance(one: str, two: str, three: str) -> None:
    assert edit_distance(one, two) == edit_distance(two, one) <= max(len(one), len(two))
    assert (edit_distance(one, two) == 0) is (one == two)
    assert edit_distance(one, three) <= edit_distance(one, two) + edit_distance(two, three)


def test_long_answers_to_long_references_take_little_time() -> None:
    assert edit_distance("ab" * 5_000, "ba" * 5_000) == 2  # 100 million cells one by one


@pytest.mark.parametrize(
    ("prediction", "reference", "official", "corrected"),
    [
        ("104", "100", True, True),
        ("106", "100", False, False),
        ("Yes", "yes", True, True),
        ("0.5", "50%", True, True),
        ("50", "50%", False, True),
        ("1.05", "1", False, True),
        ("0.0", "0", False, True),
        ("0.01", "0", False, False),
        ("1,000", "1000", False, True),
        ("$5", "5", False, True),
        ("2019", "2010", True, False),
        ("2,019", "2,010", False, True),
        ("nan", "5", False, False),
        ("yes.", "Yes", False, True),
        (None, "5", False, False),
        ("5", ["4", "5"], True, True),
    ],
)
def test_relaxed_accuracy(prediction, reference, official, corrected) -> None:
    assert relaxed_accuracy(prediction, reference) is official
    assert relaxed_accuracy_corrected(prediction, reference) is corrected


def test_long_answers_cost_little() -> None:
    began = time.process_time()
    for text in ("a" * 100_000, "1" * 100_000, "1," * 50_000, " " * 100_000 + "b"):
        anls(text, ["b" * 20])
        anls_corrected(text, ["b" * 20])
        relaxed_accuracy(text, "1")
        relaxed_accuracy_corrected(text, "1")
        exact_match(text, "1", as_numbers=True, ignore_case=True, ignore_punctuation=True, regexes_to_ignore=[",", r"\.$"])
    assert time.process_time() - began < 1


@settings(max_examples=60, deadline=None)
@given(st.decimals(allow_nan=False, allow_infinity=False, places=2, min_value=-(10**9), max_value=10**9))
def test_a_number_is_read_as_it_was_written(value) -> None:
    assert parse_number(f"{value:,}").value == value
    assert parse_number(f"{value:,}".translate(str.maketrans(",.", ".,")), ",").value == value
