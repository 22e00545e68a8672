"""Scores of translations: where predictions and references come from, and what is refused."""

from __future__ import annotations

import pytest

from evalharness.answers.bounded import BoundedFunction
from evalharness.api.errors import ContractValueError, EvalHarnessError
from evalharness.scores import bleu, chrf, translation


def test_a_prediction_is_what_the_test_recorded_else_the_answer() -> None:
    text = "the cat sat on the mat"
    rows = [
        {"reference": text, "generation": {"text": "x"}, "details": {"prediction": text}},
        {"reference": [text, "y"], "generation": {"text": f"<think>…</think>{text}", "thinking": {"answer": text}}},
        {"reference": text, "generation": {"text": text}, "details": {}},
    ]
    assert translation("bleu", "chrf")(rows) == pytest.approx({"bleu": 100, "chrf": 100})
    assert translation("bleu")([]) == {}
    assert chrf([None, text], [text, text]) < 100
    assert bleu([text], [["x", text, "z"]]) == pytest.approx(100)


def test_what_is_wrong_is_refused() -> None:
    with pytest.raises(ContractValueError, match=r"got 'blue'; did you mean 'bleu'\? known: bleu, chrf, chrf_plus_plus, ter"):
        translation("blue")
    with pytest.raises(ContractValueError, match="names of scores, got ''; known: bleu"):
        translation()
    with pytest.raises(ContractValueError, match="as many references as predictions, at least one: got 2 and 1"):
        bleu(["a", "b"], ["a"])


@pytest.mark.slow  # burns processor time on purpose
def test_ter_of_long_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    bounded = BoundedFunction("evalharness.scores.machine_translation:ter_here", limit_s=0.5)
    monkeypatch.setattr("evalharness.scores.machine_translation._ter", bounded)
    texts = [" ".join(f"w{place * step % 50}" for place in range(600)) for step in (1, 7)]
    with pytest.raises(EvalHarnessError, match=r"it took more than 0.5 s of processor time.*; the longest answer has 600 words"):
        translation("ter")([{"reference": texts[0], "generation": {"text": texts[1]}}])
