"""Ready scores of answers: pure functions of a prediction and its reference.

A function with an official scorer's name gives that scorer's number; where the scorer is known to be wrong, the function `…_corrected`
is right.
"""

from evalharness.scores.anls import anls, anls_corrected
from evalharness.scores.exact_match import exact_match
from evalharness.scores.ifeval import InstructionsFollowed, ifeval, ifeval_aggregate
from evalharness.scores.machine_translation import bleu, chrf, ter, translation
from evalharness.scores.mathematics import MathVerdict, math_equal, math_verify
from evalharness.scores.relaxed_accuracy import relaxed_accuracy, relaxed_accuracy_corrected

__all__ = [
    "InstructionsFollowed",
    "MathVerdict",
    "anls",
    "anls_corrected",
    "bleu",
    "chrf",
    "exact_match",
    "ifeval",
    "ifeval_aggregate",
    "math_equal",
    "math_verify",
    "relaxed_accuracy",
    "relaxed_accuracy_corrected",
    "ter",
    "translation",
]
