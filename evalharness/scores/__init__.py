"""Ready scores of answers: pure functions of a prediction and its reference."""

from evalharness.scores.exact_match import exact_match

__all__ = ["exact_match"]
