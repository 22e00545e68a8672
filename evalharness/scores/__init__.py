"""Scores of answers and of likelihoods: pure functions of an answer and what is right. Knows neither engines, files nor pytest."""

from __future__ import annotations

from evalharness.scores.choices import CHOICE_DIRECTIONS, ChoiceScores, choice_aggregates, choice_request, choice_scores
from evalharness.scores.exact_match import exact_match

__all__ = ["CHOICE_DIRECTIONS", "ChoiceScores", "choice_aggregates", "choice_request", "choice_scores", "exact_match"]
