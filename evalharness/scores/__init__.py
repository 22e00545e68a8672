"""Scores of answers and of likelihoods: pure functions of an answer and what is right. Knows neither engines, files nor pytest.

A function with an official scorer's name gives that scorer's number; where the scorer is known to be wrong, the function `…_corrected`
is right.
"""

from __future__ import annotations

from evalharness.scores.anls import anls, anls_corrected
from evalharness.scores.averages import all_of, macro_over, with_draws
from evalharness.scores.choices import CHOICE_DIRECTIONS, ChoiceScores, choice_aggregates, choice_request, choice_scores
from evalharness.scores.exact_match import exact_match
from evalharness.scores.grounding import boxes_in, iou
from evalharness.scores.hendrycks_math import between_dollars, math_spelled_alike
from evalharness.scores.ifeval import InstructionsFollowed, ifeval, ifeval_aggregate
from evalharness.scores.machine_translation import bleu, chrf, ter, translation
from evalharness.scores.mathematics import MathVerdict, math_equal, math_verify
from evalharness.scores.ocr import ocr_contains
from evalharness.scores.perplexity import PERPLEXITY_DIRECTIONS, document_request, perplexity_aggregates, perplexity_scores
from evalharness.scores.relaxed_accuracy import relaxed_accuracy, relaxed_accuracy_corrected
from evalharness.scores.targets import TARGET_DIRECTIONS, target_aggregates, target_scores
from evalharness.scores.vqa import vqa_accuracy

__all__ = [
    "CHOICE_DIRECTIONS",
    "PERPLEXITY_DIRECTIONS",
    "TARGET_DIRECTIONS",
    "ChoiceScores",
    "InstructionsFollowed",
    "MathVerdict",
    "all_of",
    "anls",
    "anls_corrected",
    "between_dollars",
    "bleu",
    "boxes_in",
    "choice_aggregates",
    "choice_request",
    "choice_scores",
    "chrf",
    "document_request",
    "exact_match",
    "ifeval",
    "ifeval_aggregate",
    "iou",
    "macro_over",
    "math_equal",
    "math_spelled_alike",
    "math_verify",
    "ocr_contains",
    "perplexity_aggregates",
    "perplexity_scores",
    "relaxed_accuracy",
    "relaxed_accuracy_corrected",
    "target_aggregates",
    "target_scores",
    "ter",
    "translation",
    "vqa_accuracy",
    "with_draws",
]
