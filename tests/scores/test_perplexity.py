"""Perplexity by word and byte, and windows over long documents. That lm-eval gives the same is in test_as_lm_eval.py."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings, strategies as st

from evalharness.api.errors import ContractValueError
from evalharness.api.requests import GenerationResult
from evalharness.api.scoring import ScoringRequest
from evalharness.engine.rolling import windows_of
from evalharness.scores import document_request, perplexity_aggregates, perplexity_scores


def scored(*logprobs: float | None) -> GenerationResult:
    return GenerationResult("", "", "scored", logprobs=logprobs)


def test_words_and_bytes_of_all_documents_share_the_nats():
    rows = [{"scores": perplexity_scores(scored(-1.0, -3.0), "Zwei Wörter")}, {"scores": perplexity_scores(scored(-2.0), "one ")}]
    assert rows[0]["scores"] == {"num_nats": 4.0, "impossible": 0.0, "num_words": 2.0, "num_bytes": 12.0}
    assert rows[1]["scores"]["num_words"] == 2  # as lm-eval counts
    metrics = perplexity_aggregates(rows)
    assert metrics["word_perplexity"] == pytest.approx(math.exp(6 / 4))
    assert metrics["byte_perplexity"] == pytest.approx(math.exp(6 / 16))
    assert metrics["bits_per_byte"] == pytest.approx(6 / 16 / math.log(2))


def test_what_is_impossible_has_no_perplexity():
    row = {"scores": perplexity_scores(scored(-math.inf), "x")}
    assert row["scores"]["num_nats"] is None
    assert perplexity_aggregates([row]) == perplexity_aggregates([]) == {}
    with pytest.raises(ContractValueError, match="tokens without a log-probability"):
        perplexity_scores(scored(None, -1.0), "x y")


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.integers(1, 9))
def test_windows_score_each_token_once_and_fit(num_tokens, size):
    response = tuple(range(num_tokens))
    windows = windows_of((-1,), response, size)
    assert tuple(token for window in windows for token in window.scored) == response
    for window in windows:
        whole = (*window.before, *window.scored)
        assert whole == tuple(range(whole[0], whole[0] + len(whole)))  # what stands before it in the text
        assert len(window.before) >= 1
        assert len(whole) <= size + 1
    assert all(len((*window.before, *window.scored)) == size + 1 for window in windows[1:])


def test_a_window_is_for_a_text_alone():
    assert document_request("a", window=5).rolling == 5
    for request in ({"prompt": "a"}, {"join": "ids"}, {"rolling": -1}, {"rolling": 1.5}):
        with pytest.raises(ContractValueError, match=r"scoring\.rolling"):
            ScoringRequest(**{"prompt": "", "response": "b", "join": "text", "rolling": 3, **request})
