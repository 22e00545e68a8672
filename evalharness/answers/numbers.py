"""Numbers as people and models write them: `-1,234.5`, `$3`, `1.5e3`, `12 %`, with a decimal mark of "." or ","."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from functools import cache
from typing import NamedTuple

from evalharness.api.errors import ContractValueError

CURRENCIES = "$€£¥₹"
MAX_CHARS = 400
"""Of a number's text; beyond it a text is no number, so that no arithmetic is long."""


class Number(NamedTuple):
    """A number's exact value, and whether a percent sign follows: 50 % is neither 50 nor 0.5."""

    value: Decimal
    is_percent: bool


@cache
def _patterns(decimal_mark: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return the patterns of numbers within a text, and of a text that is one."""
    if decimal_mark not in (".", ","):
        raise ContractValueError(f'decimal_mark must be "." or ",", got {decimal_mark!r}')
    mark, separator = re.escape(decimal_mark), re.escape("," if decimal_mark == "." else ".")
    exponent = r"(?:[eE][+-]?\d{1,3}(?!\d))?"
    # A minus behind a letter, digit or bracket is one between two things; a digit behind a letter (x2) or a mark is part of something else.
    sign = rf"(?:(?<![\w.,)\]}}])(?P<sign>[-−])[{CURRENCIES}]?)?"
    whole = rf"(?:\d{{1,3}}(?:{separator}\d{{3}})+(?![\d])|\d+)"
    within = rf"{sign}(?<![\d{mark}])(?P<number>(?:{whole}(?:{mark}\d+)?|(?<!\w){mark}\d+){exponent})"
    # A full stop may end the sentence.
    alone = (
        rf"(?P<sign>[-−+]?)\s?[{CURRENCIES}]?\s?(?P<minus>[-−]?)(?P<number>(?:{whole}(?:{mark}\d*)?|{mark}\d+){exponent})\s?"
        rf"[{CURRENCIES}]?(?P<percent>%?)\.?"
    )
    return re.compile(within), re.compile(alone)


def find_numbers(text: str, decimal_mark: str = ".") -> Iterator[str]:
    """Yield the numbers of a text as written, without currency and percent signs."""
    return ((match["sign"] or "") + match["number"] for match in _patterns(decimal_mark)[0].finditer(text))


def parse_number(text: str, decimal_mark: str = ".") -> Number | None:
    """Return the number that a text is, None if it is anything else, also a number with a unit or within other words."""
    text = text.strip()
    match = _patterns(decimal_mark)[1].fullmatch(text) if len(text) <= MAX_CHARS else None
    if match is None or (match["sign"] and match["minus"]):
        return None
    digits = match["number"].replace("," if decimal_mark == "." else ".", "").replace(decimal_mark, ".")
    try:
        value = Decimal(digits)
    except InvalidOperation:  # digits of other scripts that are none to Decimal
        return None
    return Number(-value if match["sign"] in ("-", "−") or match["minus"] else value, bool(match["percent"]))
