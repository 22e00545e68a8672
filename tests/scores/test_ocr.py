"""OCRBench's rule, and what the authors' script (linked in the eval) gives by its code."""

from __future__ import annotations

import pytest

from evalharness.scores.ocr import ocr_contains


@pytest.mark.parametrize(
    ("answer", "references", "formula", "published", "folded"),
    [
        ("The word is Centre.", ["CENTRE"], False, True, True),
        ("B12 cafe", ["Ｂ１２ cafe"], False, False, True),
        ("a\nb", ["A b"], False, True, True),
        ("$x^{2}+1$", ["x ^ { 2 } + 1"], True, True, True),
        ("X^{2}+1", ["x ^ { 2 } + 1"], True, False, False),
        ("nothing", ["some", "thing"], False, True, True),
        ("", ["x"], False, False, False),
    ],
)
def test_an_answer_is_right_if_it_contains_a_reference(
    answer: str, references: list[str], formula: bool, published: bool, folded: bool
) -> None:
    assert ocr_contains(answer, references, formula=formula) == published
    assert ocr_contains(answer, references, formula=formula, fold_width=True) == folded
