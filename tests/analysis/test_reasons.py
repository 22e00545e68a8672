"""What is one reason: equal but for ids, values, paths and numbers."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from evalharness.analysis.reasons import normalised, shared_reason

UUID = "123e4567-e89b-12d3-a456-426614174000"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("expected 'Lima', got 'I do not know'", "expected 'Quito', got \"it's Quito\""),
        ("assert 'Lima' in 'a' * 3", "assert '' in 'b' * 1"),
        ("photos/x0.jpg: 'a0' has 0 bytes", "photos/deep/x1.png: 'a1' has 17 bytes"),
        ("/data/a/1 is missing", "~/b/2 is missing"),
        ("http://127.0.0.1:8000/v1 refused the connection", "https://[::1]/v1?x=1 refused the connection"),
        ("0.85 is below 1", "1 is below 0.5"),
        ("assert [1, 2, 3] == []", "assert [1] == []"),
        ("<Model with 0x7f12> broke", "<Model with 0x1a> broke"),
        (f"job {UUID} broke", "job deadbeef00 broke"),
        ("the site “站点7” is gone", "the site “站点8号” is gone"),
        ("站点7有RRU", "站点12有RRU"),
        ("got 'an answer that was cut… (300 more characters)", "got 'another one'"),
        ("two\n  lines", "two lines"),
    ],
)
def test_what_differs_from_case_to_case_is_no_other_reason(first: str, second: str) -> None:
    assert normalised(first) == normalised(second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("it's red, isn't it", "it's blue, isn't it"),
        ("either/or", "and/or"),
        ("f1 is too low", "recall is too low"),
        ("KeyError: 'label'", "KeyError: 'text'"),
        ("setup: AttributeError: 'Case' object has no attribute 'a'", "setup: AttributeError: 'Case' object has no attribute 'b'"),
        ("不通过", "通过"),
        ("assert 'a' == 'b'", "assert 'a' != 'b'"),
    ],
)
def test_other_words_are_another_reason(first: str, second: str) -> None:
    assert normalised(first) != normalised(second)


def test_a_cases_own_ids_are_taken_out_and_words_that_hold_them_are_not() -> None:
    problems = [
        normalised(f"{case}::fail of {group} failed", [case, group]) for case, group in (("fa", "QC-x"), ("fail", "QC-y"), ("a(b", "c"))
    ]
    assert problems[0] == "…::fail of … failed"
    assert problems[1].endswith("of … failed")
    assert problems[2] == "…::fail of c failed", "one character may be anything"


_WORDS = st.lists(st.from_regex(r"[A-Za-zäß通过]{1,8}", fullmatch=True), max_size=8)
_TEXTS = st.text(st.sampled_from("ab1 '\"“”…/\\.:-_0x~,()%\n是"), max_size=60) | st.text(max_size=60)


@given(_TEXTS)
def test_normalising_twice_changes_nothing(text: str) -> None:
    once = normalised(text)
    assert normalised(once) == once


@given(_WORDS, _WORDS)
def test_different_words_are_never_merged(first: list[str], second: list[str]) -> None:
    assert (normalised(" ".join(first)) == normalised(" ".join(second))) == (first == second)


def test_a_long_hostile_text_takes_no_time() -> None:
    for text in (" 'a" * 100_000, "a/" * 100_000, "''" * 100_000, "1," * 100_000, "… " * 100_000):
        assert len(normalised(text)) <= 400


@pytest.mark.parametrize(
    ("problems", "shown"),
    [
        (["8 labels, not 9", "7 labels, not 9"], "… labels, not …; such as: 8 labels, not 9"),
        (["no team: 'Team: netz'", "no team: 'Team: verkauf'"], "no team: …; such as: no team: 'Team: netz'"),
        (["8 labels, not 9", "8 labels, not 9"], "8 labels, not 9"),
        (["no JSON", "no JSON"], "no JSON"),
    ],
)
def test_the_values_of_one_case_are_not_said_of_others(problems: list[str], shown: str) -> None:
    differ = len(set(problems)) > 1
    assert shared_reason(problems[0], normalised(problems[0]), differ) == shown


def test_pattern_and_example_are_both_cut() -> None:
    first = f"got {'a word ' * 50}3"
    text = shared_reason(first, normalised(first), differ=True, most=100)
    assert text.count("got a word") == 2
    assert len(text) < 120
