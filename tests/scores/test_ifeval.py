"""IFEval's instructions: what the corrected checks say otherwise, what is refused, what hostile answers cost."""

from __future__ import annotations

import time

import pytest

from evalharness.api.errors import ConfigError
from evalharness.scores import ifeval, ifeval_aggregate
from evalharness.scores.ifeval_checks import INSTRUCTIONS


@pytest.mark.parametrize(
    ("name", "values", "text", "official", "corrected"),
    [
        ("language:response_language", {"language": "fr"}, "12345", True, False),
        ("change_case:english_lowercase", {}, "a cat sat on the mat with the other cat", True, True),
        ("change_case:english_capital", {}, "A CAT IS AN ANIMAL", False, True),
        ("detectable_format:number_bullet_lists", {"num_bullets": 1}, "* one\n---\ntwo", False, True),
        ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "*\n* two", False, True),
        (
            "length_constraints:nth_paragraph_first_word",
            {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "Then"},
            "First.\n\n \n\nThen.",
            False,
            True,
        ),
        ("keywords:letter_frequency", {"letter": "#", "let_frequency": 2, "let_relation": "at least"}, "# a #", True, True),
        ("detectable_content:number_placeholders", {"num_placeholders": 0}, "none", True, True),
    ],
)
def test_where_the_official_checker_is_wrong_both_are_told(name, values, text, official, corrected) -> None:
    judged = ifeval(text, [name], [values])
    assert (judged.strict, judged.corrected) == ((official,), (corrected,))


def test_the_scores_of_a_prompt_and_of_all_instructions() -> None:
    names = ["punctuation:no_comma", "startend:quotation"]
    rows = [{"details": ifeval(text, names, [{}, None]).details} for text in ('"So it is."', '*"So it is."*', "So, it is.", "")]
    assert ifeval('*"So it is."*', names, [{}, {}]).scores == {
        "prompt_level_strict_acc": 0.0, "prompt_level_loose_acc": 1.0, "prompt_level_strict_acc_corrected": 0.0,
    }  # fmt: skip
    assert rows[0]["details"]["instructions"][1] == {"name": "startend:quotation", "strict": True, "loose": True, "corrected": True}
    shares = {"inst_level_strict_acc": 3 / 8, "inst_level_loose_acc": 4 / 8, "inst_level_strict_acc_corrected": 3 / 8}
    assert ifeval_aggregate(rows) == shares
    assert ifeval_aggregate([{"details": {}}]) == {}


@pytest.mark.parametrize(
    ("names", "values", "message"),
    [
        (["punctuation:no_coma"], [{}], "IFEval has no instruction 'punctuation:no_coma'; did you mean 'punctuation:no_comma'?"),
        (["length_constraints:number_words"], [{"num_words": 3}], "needs num_words, relation; relation is missing in its kwargs"),
        (
            ["length_constraints:number_words"],
            [{"num_words": "3", "relation": "at least"}],
            "number_words cannot take {.*'3'.*}, its kwargs",
        ),
        (["length_constraints:number_words"], [{"num_words": 3, "relation": "over"}], "must be one of 'less than', 'at least', got 'over'"),
        (["punctuation:no_comma"], [], "1 instructions have 0 kwargs"),
    ],
)
def test_rows_that_are_wrong_are_refused(names, values, message) -> None:
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        ifeval("text", names, values)


VALUES = {
    "keywords": ["cat"], "keyword": "cat", "frequency": 1, "relation": "at least", "forbidden_words": ["cat"], "letter": "a",
    "let_frequency": 1, "let_relation": "at least", "language": "en", "num_paragraphs": 1, "num_words": 1, "nth_paragraph": 1,
    "first_word": "a", "num_placeholders": 1, "postscript_marker": "P.S.", "num_bullets": 1, "num_highlights": 1,
    "section_spliter": "Section", "num_sections": 1, "prompt_to_repeat": "a", "end_phrase": "a",
}  # fmt: skip


def test_hostile_answers_take_linear_time() -> None:
    names = [name for name in INSTRUCTIONS if name not in ("length_constraints:number_sentences", "change_case:capital_word_frequency")]
    ifeval("a", names, [VALUES] * len(names))  # reads langdetect's profiles
    for part in ("[", "*", "\n", " ", "<", "p.", "Section 1", "-\n", '"'):
        began = time.process_time()
        ifeval(part * 10_000, names, [VALUES] * len(names))
        assert time.process_time() - began < 3, part
