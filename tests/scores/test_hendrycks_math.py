"""MATH's comparison of spellings; tests/public holds it to lm-eval's on many texts."""

from __future__ import annotations

import pytest

from evalharness.scores import between_dollars, math_spelled_alike


@pytest.mark.parametrize(
    ("given", "wanted", "is_alike"),
    [
        (r"\tfrac12", r"\frac{1}{2}", True),
        ("0.5", r"\frac{1}{2}", True),
        ("1/2", r"\frac12", True),
        ("x=5", "5", True),
        (r"2\sqrt3", r"2\sqrt{3}", True),
        (r"10\text{ cm}", "10", True),
        (r"90^\circ", "90", True),
        ("0.25", r"\frac{1}{4}", False),
        (r"\sqrt{12}", r"2\sqrt{3}", False),
        ("a/b", "a/b", True),
        ("a/b ", "a/b", False),
        (r"\frac", r"\frac", True),
        (r"\sqrt", "1", False),
        ("", "", True),
    ],
)
def test_answers_that_are_spelled_alike(given: str, wanted: str, is_alike: bool) -> None:
    assert math_spelled_alike(given, wanted) is is_alike


@pytest.mark.parametrize(("text", "found"), [("it is $3$ or $4$.", "3$ or $4"), ("$5", "$5"), ("7", "7"), ("$$", None)])
def test_the_text_between_dollars(text: str, found: str | None) -> None:
    assert between_dollars()(text).value == found
