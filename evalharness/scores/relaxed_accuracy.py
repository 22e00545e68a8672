"""Relaxed accuracy, the score of ChartQA: a number within 5 % of the reference, any other answer equal but for case.

Definition: Masry et al. 2022, https://arxiv.org/abs/2203.10244, end of section 5.1; the scorer that all use is
https://github.com/google-research/pix2struct/blob/main/pix2struct/metrics.py, and lmms-eval's is the same.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal

from evalharness.answers.numbers import Number, parse_number
from evalharness.scores.references import texts_of

TOLERANCE = 0.05
_YEAR = re.compile(r"(?:19|20)\d\d|2100")


def relaxed_accuracy(prediction: str | None, reference: str | Sequence[str]) -> bool:
    """Return whether an answer is right for one reference, as the usual scorer has it; nothing found is not.

    It reads what Python's `float` does, percentages as fractions: "1,000" and "$5" are texts, a reference of 0 is compared as text,
    1.05 is not within 5 % of 1 in binary, and 2019 is right for the year 2010. `relaxed_accuracy_corrected` mends these.
    """
    prediction, references = texts_of(prediction, reference)
    return prediction is not None and any(_is_right(prediction, wanted) for wanted in references)


def _is_right(prediction: str, reference: str) -> bool:
    given, wanted = _float(prediction), _float(reference)
    if given is not None and wanted:
        return abs(given - wanted) / abs(wanted) <= TOLERANCE
    return prediction.lower() == reference.lower()


def _float(text: str) -> float | None:
    try:
        return float(text.rstrip("%")) / 100.0 if text.endswith("%") else float(text)
    except ValueError:
        return None


def relaxed_accuracy_corrected(prediction: str | None, reference: str | Sequence[str]) -> bool:
    """Return whether an answer is right: numbers as people write them within exactly 5 %, years and texts equal.

    Thousands separators, currency signs, white space around and a full stop at the end do not count. A percentage is compared with a
    number as it is written and as a fraction. A reference of 1900 to 2100, written as four digits, is a year.
    """
    prediction, references = texts_of(prediction, reference)
    return prediction is not None and any(_is_right_corrected(prediction, wanted) for wanted in references)


def _is_right_corrected(prediction: str, reference: str) -> bool:
    given, wanted = parse_number(prediction), parse_number(reference)
    if given is None or wanted is None:
        return _plain(prediction) == _plain(reference)
    if _YEAR.fullmatch(reference.strip()):
        return given == wanted
    pairs = {(given.value, wanted.value), (_fraction(given), _fraction(wanted))}
    return any(abs(one - other) <= Decimal("0.05") * abs(other) for one, other in pairs)


def _plain(text: str) -> str:
    return " ".join(text.casefold().split()).removesuffix(".")


def _fraction(number: Number) -> Decimal:
    return number.value / 100 if number.is_percent else number.value
