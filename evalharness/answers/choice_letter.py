"""The letter of the choice that an answer names, never a guess."""

from __future__ import annotations

import re

from evalharness.answers.extracting import Extractor, last_of
from evalharness.api.errors import ContractValueError

_OPENING, _CLOSING = r"[*_`\"'$(\[{<\s]", r"[*_`\"'$)\]}>]"
_STATES = r"""(?ix:
    \\boxed
    | \b(?:answer|choice|option)\b(?:\s{1,3}(?:choice|option|letter)\b)?[*_`"']{0,3}
      (?:\s{1,3}(?:is|would\s+be|should\s+be|must\s+be)\b(?:\s{1,3}(?:therefore|thus|clearly|most|likely|probably|definitely)\b){0,2}
         (?:\s{1,3}(?:the\s+)?(?:option|choice|letter)\b)?)?
      \s{0,3}[:=]?
)"""


def choice_letter(letters: str = "ABCD") -> Extractor:
    r"""Return the extractor of a choice's letter, in upper case.

    In this order: the last statement ("the answer is (B)", "Answer: B", `\boxed{B}`); the letter that the text is or begins with ("B",
    "B. Paris", "(B) Paris"), if no other line begins so; the only letter in brackets. What names two letters ("A or B") names none.
    """
    if not letters.isalnum() or len(set(letters.upper())) != len(letters):
        raise ContractValueError(f"letters must be different letters or digits such as 'ABCD', got {letters!r}")
    upper, lower = re.escape(letters.upper()), re.escape(letters.lower())
    # A small letter may be a word: only one that is marked, or ends its line, is a choice.
    letter = rf"(?P<letter>[{upper}](?![^\W_])(?!['’]\w)|[{lower}](?=[.:;,)\]}}*_`\"'$]|\s*$))"
    other = rf"(?:{_CLOSING}|\s){{0,6}}(?:,|\bor\b|\band\b|/|&){_OPENING}{{0,6}}[{upper}](?![^\W_])"
    stated = re.compile(rf"{_STATES}(?:{_OPENING}|\\(?:text|mathrm|mathbf)\{{){{0,8}}{letter}(?P<also>{other})?", re.MULTILINE)
    begins = re.compile(rf"^{_OPENING}{{0,8}}{letter}(?:{_CLOSING}{{0,4}}(?:[.:,)]|\s{{0,8}}$)|{_CLOSING}{{1,4}})", re.MULTILINE)
    bracketed = re.compile(rf"(?<!\w)[(\[]([{upper}])[)\]]")

    def find_letter(text: str) -> str | None:
        text = text.strip()
        statement = last_of(stated.finditer(text))
        if statement is not None:
            return None if statement["also"] else statement["letter"].upper()
        in_brackets = set(bracketed.findall(text))
        start = begins.match(text)
        if start is None:
            found = in_brackets
        else:
            found = {match["letter"].upper() for match in begins.finditer(text)} | (in_brackets if "(" in start[0] else set())
        return found.pop() if len(found) == 1 else None

    return Extractor(f"choice_letter({letters!r})", find_letter)
