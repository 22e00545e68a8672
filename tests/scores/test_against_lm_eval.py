"""Extractors and scores against lm-eval's own functions, case by case on random texts."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from evalharness.answers import first_match, last_match
from evalharness.scores import bleu, chrf, exact_match, ifeval, ter, translation

pytestmark = pytest.mark.slow  # lm-eval and the libraries of its tasks take seconds to import

PARTS = ["1,234", "-5", "$3.50", "#### ", " ", ".", "the answer is ", "(A)", "b", "\n", "[invalid]", "no", "é", "7", ",", "A"]


def texts(number: int, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    return ["".join(draw.choices(PARTS, k=draw.randint(0, 8))) for _ in range(number)]


@pytest.mark.parametrize(
    "pattern",
    [
        r"#### (\-?[0-9\.\,]+)",
        r"(-?[$0-9.,]{2,})|(-?[0-9]+)",
        r"(?:answer is )?\(?([A-D])\)?",
        r"\d+",
        r"(b)?(x)?",
        r"((?<=answer is )(.*)(?=.))",
    ],
)
def test_matches_are_those_of_the_regex_filter(pattern: str) -> None:
    from lm_eval.filters.extraction import RegexFilter

    for place, make in ((0, first_match), (-1, last_match)):
        extract, oracle = make(pattern), RegexFilter(pattern, group_select=place, fallback="[nothing]")
        for text in texts(200):
            [[wanted]] = oracle.apply([[text]], [{}])
            found = extract(text).value
            assert found == wanted or (found is None and wanted in ("[nothing]", "")), text


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"ignore_case": True},
        {"ignore_punctuation": True, "ignore_numbers": True},
        {"regexes_to_ignore": [",", r"\$", "(?s).*#### ", r"\.$"], "ignore_case": True},
    ],
    ids=str,
)
def test_exact_matches_are_those_of_lm_eval(options) -> None:
    from lm_eval.api.metrics import exact_match_hf_evaluate

    draw = random.Random(1)
    for prediction, other in zip(texts(300), texts(300, 2), strict=True):
        reference = draw.choice([prediction, prediction.upper(), prediction.replace(",", ""), prediction + ".", other])
        oracle = exact_match_hf_evaluate(predictions=[prediction], references=[reference], **options)
        assert exact_match(prediction, reference, **options) == oracle["exact_match"], (prediction, reference)


def test_bleu_chrf_and_ter_are_those_of_lm_eval() -> None:
    from lm_eval.api import metrics

    draw = random.Random(0)
    words = ["the", "a", "cat", "dog", "sat", "ran", "on", "mat", "home", ",", "."]
    references = [[" ".join(draw.choices(words, k=draw.randint(3, 12))) for _ in range(2)] for _ in range(30)]
    predictions = [" ".join(draw.sample(given.split(), k=draw.randint(0, len(given.split())))) for given, _ in references]
    items = list(zip(references, predictions, strict=True))
    rows = [{"reference": wanted, "generation": {"text": given}} for wanted, given in items]
    wanted = {"bleu": metrics.bleu(items), "chrf": metrics.chrf(items), "chrf_plus_plus": metrics.chrfpp(items), "ter": metrics.ter(items)}
    assert translation(*wanted)(rows) == wanted
    assert (bleu(predictions, references), chrf(predictions, references), ter(predictions, references)) == (
        wanted["bleu"], wanted["chrf"], wanted["ter"],
    )  # fmt: skip


INSTRUCTIONS: list[tuple[str, list[dict]]] = [
    ("keywords:existence", [{"keywords": ["cat", "the"]}, {"keywords": ["mat"]}]),
    ("keywords:frequency", [{"keyword": "cat", "frequency": 2, "relation": relation} for relation in ("at least", "less than")]),
    ("keywords:forbidden_words", [{"forbidden_words": ["cat"]}]),
    ("keywords:letter_frequency", [{"letter": "T", "let_frequency": 6, "let_relation": "less than"}]),
    ("language:response_language", [{"language": "en"}, {"language": "de"}]),
    ("length_constraints:number_sentences", [{"num_sentences": number, "relation": "at least"} for number in (1, 2, 3, 5)]),
    ("length_constraints:number_paragraphs", [{"num_paragraphs": 1}, {"num_paragraphs": 2}]),
    ("length_constraints:number_words", [{"num_words": 12, "relation": "at least"}]),
    ("length_constraints:nth_paragraph_first_word", [{"num_paragraphs": 2, "nth_paragraph": 1, "first_word": "the"}]),
    ("detectable_content:number_placeholders", [{"num_placeholders": 1}, {"num_placeholders": 2}]),
    ("detectable_content:postscript", [{"postscript_marker": "P.S."}, {"postscript_marker": "P.P.S"}]),
    ("detectable_format:number_bullet_lists", [{"num_bullets": 1}, {"num_bullets": 2}]),
    ("detectable_format:constrained_response", [{}]),
    ("detectable_format:number_highlighted_sections", [{"num_highlights": 1}, {"num_highlights": 2}]),
    ("detectable_format:multiple_sections", [{"section_spliter": "Section", "num_sections": 1}]),
    ("detectable_format:json_format", [{}]),
    ("detectable_format:title", [{}]),
    ("combination:two_responses", [{}]),
    ("combination:repeat_prompt", [{"prompt_to_repeat": "The cat"}]),
    ("startend:end_checker", [{"end_phrase": "the end."}]),
    ("startend:quotation", [{}]),
    ("change_case:capital_word_frequency", [{"capital_frequency": 2, "capital_relation": "at least"}]),
    ("change_case:english_capital", [{}]),
    ("change_case:english_lowercase", [{}]),
    ("punctuation:no_comma", [{}]),
]
WRITTEN = [
    "The cat sat on the mat. ", "Mr. Smith went home! ", "Is it the U.S. or not? ", "NASA and ESA ", "* bullet\n", "- one\n", "**bold** ",
    "*it* ", "[name] ", "[", "<<title>>", "<<", ">>", "\n\n", "\n", "***", "******", " ", "P.S. bye ", "P.P.S hi ", "Section 1\n",
    "My answer is yes.", '{"a": 1}', "```json\n", "```", '"', "the end.", "...", "Ph.D. ", "3.14 ", '"Hello." she said. ', "(See fig. 3.) ",
    "*\n", "das ist ein Tag ", "1234 ", "I.B.M. ", "Jan. 5 ", "etc. And ", "can't ", "x\u2028y",
]  # fmt: skip


@pytest.fixture
def punkt_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give nltk the model that lm-eval's checker would download, written out of the installed package."""
    import nltk
    import punkt

    folder = tmp_path / "tokenizers" / "punkt_tab" / "english"
    folder.mkdir(parents=True)
    model = punkt.load_model("english")
    (folder / "abbrev_types.txt").write_text("\n".join(model.abbrev_types))
    (folder / "sent_starters.txt").write_text("\n".join(model.sent_starters))
    (folder / "collocations.tab").write_text("\n".join("\t".join(pair) for pair in model.collocations))
    (folder / "ortho_context.tab").write_text("\n".join(f"{word}\t{number}" for word, number in model.ortho_context.items()))
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])


@pytest.mark.usefixtures("punkt_data")
def test_instructions_are_followed_as_lm_eval_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import langdetect
    from lm_eval.tasks.ifeval import utils

    monkeypatch.setattr(langdetect.DetectorFactory, "seed", 0)  # lm-eval sets none, so that it may answer otherwise the next time
    draw, seen = random.Random(16), set()  # a seed whose texts follow each instruction at least once
    for number in range(150):
        text = "".join(draw.choices(WRITTEN, k=draw.randint(0, 9)))
        text = [text, text, text.upper(), text.lower(), f"The cat{text}", f'"{text}"', '{"a": 1}', "* b\nSection 1"][number % 8]
        chosen = [INSTRUCTIONS[(number + step) % len(INSTRUCTIONS)] for step in range(0, 25, 5)]
        names, values = [name for name, _ in chosen], [draw.choice(ways) for _, ways in chosen]
        document = {"key": number, "instruction_id_list": names, "prompt": "", "kwargs": [{**one, "unused": None} for one in values]}
        oracle, ours = utils.process_results(document, [text]), ifeval(text, names, values)
        assert list(ours.strict) == oracle["inst_level_strict_acc"], (text, values)
        assert list(ours.loose) == oracle["inst_level_loose_acc"], (text, values)
        assert ours.scores["prompt_level_strict_acc"] == oracle["prompt_level_strict_acc"]
        assert ours.scores["prompt_level_loose_acc"] == oracle["prompt_level_loose_acc"]
        seen |= set(zip(names, ours.strict, strict=True))
    assert {(name, is_followed) for name, _ in INSTRUCTIONS for is_followed in (True, False)} - seen == set()
