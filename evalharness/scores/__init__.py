"""Scores of answers and of likelihoods: pure functions of an answer and what is right. Knows neither engines, files nor pytest."""

from __future__ import annotations

from evalharness.scores.averages import all_of, macro_over
from evalharness.scores.choices import CHOICE_DIRECTIONS, ChoiceScores, choice_aggregates, choice_request, choice_scores
from evalharness.scores.perplexity import PERPLEXITY_DIRECTIONS, document_request, perplexity_aggregates, perplexity_scores

__all__ = [
    "CHOICE_DIRECTIONS",
    "PERPLEXITY_DIRECTIONS",
    "ChoiceScores",
    "all_of",
    "choice_aggregates",
    "choice_request",
    "choice_scores",
    "document_request",
    "macro_over",
    "perplexity_aggregates",
    "perplexity_scores",
]
