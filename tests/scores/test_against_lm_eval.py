"""Extractors and scores against lm-eval's own functions, case by case on random texts."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from evalharness.answers import first_match, last_match
from evalharness.scores import bleu, chrf, exact_match, ifeval, ter, translation
from tests.scores.written import INSTRUCTIONS, write_sentence_model, written

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


@pytest.fixture
def sentence_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give nltk the model that lm-eval's checker would download."""
    import nltk

    write_sentence_model(tmp_path)
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])


@pytest.mark.usefixtures("sentence_model")
def test_instructions_are_followed_as_lm_eval_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import langdetect
    from lm_eval.tasks.ifeval import utils

    monkeypatch.setattr(langdetect.DetectorFactory, "seed", 0)  # lm-eval sets none, so that it may answer otherwise the next time
    seen = set()
    for text, names, values in written(150, seed=16):  # a seed whose texts follow each instruction at least once
        document = {"key": 0, "instruction_id_list": names, "prompt": "", "kwargs": [{**one, "unused": None} for one in values]}
        oracle, ours = utils.process_results(document, [text]), ifeval(text, names, values)
        assert list(ours.strict) == oracle["inst_level_strict_acc"], (text, values)
        assert list(ours.loose) == oracle["inst_level_loose_acc"], (text, values)
        assert ours.scores["prompt_level_strict_acc"] == oracle["prompt_level_strict_acc"]
        assert ours.scores["prompt_level_loose_acc"] == oracle["prompt_level_loose_acc"]
        seen |= set(zip(names, ours.strict, strict=True))
    assert {(name, is_followed) for name, _ in INSTRUCTIONS for is_followed in (True, False)} - seen == set()
