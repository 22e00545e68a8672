from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalharness.report.terminal import fit, fit_apart
from evalharness.report.text import display_width


@pytest.mark.parametrize(
    ("texts", "width", "shown"),
    [
        (["abc", "abd"], 8, ["abc", "abd"]),
        (["hf:early-checkpoint", "vllm:early"], 8, ["hf:earl~", "vllm:ea~"]),
        (["hf:middle+lora-helps", "hf:middle+lora-hurts"], 10, ["hf:m~helps", "hf:m~hurts"]),
        (["a" * 20 + "1" + "b" * 20, "a" * 20 + "2" + "b" * 20], 8, ["aaaaaa~1", "aaaaaa~2"]),
    ],
    ids=["short", "told-apart-by-the-start", "by-the-end", "by-numbers"],
)
def test_texts_are_cut_so_that_they_can_be_told_apart(texts: list[str], width: int, shown: list[str]) -> None:
    assert list(fit_apart(texts, width).values()) == shown


@given(st.lists(st.text(max_size=30), max_size=6, unique=True), st.integers(min_value=6, max_value=20))
def test_no_text_is_wider_than_asked(texts: list[str], width: int) -> None:
    for text, shown in fit_apart(texts, width).items():
        assert display_width(shown) <= width
        assert display_width(text) > width or len(texts) > 1 or shown == fit(text, width)
