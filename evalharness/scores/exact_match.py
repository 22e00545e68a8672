"""Whether a prediction equals a reference, with what does not matter left out.

With the options of the same names it is lm-eval's `exact_match`, which is that of Hugging Face's `evaluate`:
https://github.com/huggingface/evaluate/blob/main/metrics/exact_match/exact_match.py
"""

from __future__ import annotations

import string
from collections.abc import Sequence

from evalharness.answers.numbers import parse_number
from evalharness.answers.patterns import pattern
from evalharness.api.checks import check_sequence
from evalharness.scores.references import texts_of

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_DIGITS = str.maketrans("", "", string.digits)


def exact_match(
    prediction: str | None,
    reference: str | Sequence[str],
    *,
    regexes_to_ignore: Sequence[str] = (),
    ignore_case: bool = False,
    ignore_punctuation: bool = False,
    ignore_numbers: bool = False,
    as_numbers: bool = False,
    decimal_mark: str = ".",
) -> bool:
    """Return whether a prediction equals the reference, or one of several; None, nothing found, equals none.

    From both sides are left out, in this order: what the patterns match, one pattern after the other; case; ASCII punctuation; ASCII
    digits. White space counts. `as_numbers`: two numbers are equal if their values are, however they are written ("$1,200.00" and
    "1200"); 50 % equals 50.0 % only. `decimal_mark=","` reads "1.200,00".
    """
    check_sequence("regexes_to_ignore", regexes_to_ignore, "patterns")
    prediction, references = texts_of(prediction, reference)
    if prediction is None:
        return False

    def reduced(text: str) -> str:
        for ignored in regexes_to_ignore:
            text = pattern(ignored).replace(text)
        text = text.lower() if ignore_case else text
        text = text.translate(_PUNCTUATION) if ignore_punctuation else text
        return text.translate(_DIGITS) if ignore_numbers else text

    given = reduced(prediction)
    number = parse_number(given, decimal_mark) if as_numbers else None
    for wanted in map(reduced, references):
        if given == wanted or (number is not None and number == parse_number(wanted, decimal_mark)):
            return True
    return False
