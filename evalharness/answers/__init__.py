"""From a model's text to its answer: extractors, chains of them, and several side by side."""

from evalharness.answers.choice_letter import choice_letter
from evalharness.answers.extracting import Extracted, Extractor, Filtered, by_filter, chain
from evalharness.answers.extractors import between, boxed, first_match, json_field, last_match, last_number, strip_thinking

__all__ = [
    "Extracted",
    "Extractor",
    "Filtered",
    "between",
    "boxed",
    "by_filter",
    "chain",
    "choice_letter",
    "first_match",
    "json_field",
    "last_match",
    "last_number",
    "strip_thinking",
]
