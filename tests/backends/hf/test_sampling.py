"""How a token is picked. Run: pytest tests/backends/hf/test_sampling.py"""

from __future__ import annotations

import collections
import math

import pytest

from evalharness.backends.hf.sampling import EXTRA_OPTIONS, NoRepeatNgrams, RawScores, RepetitionPenalty, TokenPicker
from tests.backends.hf_models import plan

pytestmark = pytest.mark.engine

SCORES = [2.0, 1.0, 0.0, -1.0, 0.5]
NUM_DRAWS = 4000


def draw(*, num_rows=NUM_DRAWS, **values):
    """Return how often each token was picked, one draw for each of many seeds."""
    import torch

    scores = torch.tensor([SCORES] * num_rows)
    raw = RawScores(num_rows, scores.device, plan())
    picked = TokenPicker(plan(**values), range(num_rows), raw)(torch.zeros(num_rows, 1, dtype=torch.long), scores)
    assert (picked > -math.inf).sum(dim=1).tolist() == [1] * num_rows
    return collections.Counter(picked.argmax(dim=1).tolist())


def softmax(scores, temperature):
    weights = [math.exp(score / temperature) for score in scores]
    return [weight / sum(weights) for weight in weights]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0], ids=str)
def test_tokens_are_drawn_with_the_probabilities_of_the_softmax(temperature):
    counts = draw(temperature=temperature)
    for token, expected in enumerate(softmax(SCORES, temperature)):
        # The seeds are fixed, so this cannot flicker; with new seeds 5 deviations would fail once in 10^5 runs.
        deviation = math.sqrt(expected * (1 - expected) / NUM_DRAWS)
        assert abs(counts[token] / NUM_DRAWS - expected) < 5 * deviation


ALLOWED = {
    "top_k": ({"extra": (("top_k", 2),)}, {0, 1}),
    "top_k off": ({"extra": (("top_k", 0),)}, {0, 1, 2, 3, 4}),
    "top_p": ({"top_p": 0.7}, {0, 1}),  # 0.553 + 0.203 is the first sum above 0.7
    "min_p": ({"extra": (("min_p", 0.2),)}, {0, 1, 4}),  # at least a fifth of the best one's probability
    "several": ({"top_p": 0.9, "extra": (("top_k", 3), ("min_p", 0.3))}, {0, 1}),
}


@pytest.mark.parametrize("values, allowed", ALLOWED.values(), ids=ALLOWED.keys())
def test_only_tokens_inside_the_cut_are_drawn(values, allowed):
    assert set(draw(temperature=1.0, **values)) == allowed


@pytest.mark.parametrize("temperature", [1e-6, 1e-300], ids=str)
def test_a_tiny_temperature_is_greedy_not_an_overflow(temperature):
    assert set(draw(num_rows=100, temperature=temperature)) == {0}


def test_a_token_without_probability_is_never_drawn(torch):
    scores = torch.tensor([[-math.inf, 0.0, -math.inf]] * 200)
    raw = RawScores(200, scores.device, plan())
    picked = TokenPicker(plan(temperature=1.0), range(200), raw)(torch.zeros(200, 1, dtype=torch.long), scores)
    assert set(picked.argmax(dim=1).tolist()) == {1}


def test_a_penalty_skips_the_padding(torch):
    scores = torch.tensor([[2.0, -2.0, 4.0], [2.0, -2.0, 4.0]])
    penalty = RepetitionPenalty(2.0, torch.tensor([[0, 1], [1, 1]]))
    first = penalty(torch.tensor([[2, 1], [2, 1]]), scores)
    assert first.tolist() == [[2.0, -4.0, 4.0], [2.0, -4.0, 2.0]]
    later = penalty(torch.tensor([[2, 1, 0], [2, 1, 2]]), scores)
    assert later.tolist() == [[1.0, -4.0, 4.0], [2.0, -4.0, 2.0]]


def test_ngrams_of_prompt_and_completion_are_not_repeated(torch):
    scores = torch.zeros(1, 4)
    ngrams = NoRepeatNgrams(2, [[1, 2, 3, 1]])
    assert ngrams(torch.tensor([[1, 2, 3, 1]]), scores).tolist() == [[0.0, 0.0, -math.inf, 0.0]]
    assert ngrams(torch.tensor([[1, 2, 3, 1, 3]]), scores).tolist() == [[0.0, -math.inf, 0.0, 0.0]]
    assert ngrams(torch.tensor([[1, 2, 3, 1, 3, 0]]), scores).tolist() == [[0.0, 0.0, 0.0, 0.0]]


def test_every_extra_is_documented():
    assert frozenset({"top_k", "min_p", "typical_p", "min_new_tokens", "bad_words_ids", "suppress_tokens"}) == EXTRA_OPTIONS
