"""The letter of the choice that an answer names, never a guess."""

from __future__ import annotations

import re

from evalharness.answers.extracting import Extractor, last_of
from evalharness.api.errors import ContractValueError


def choice_letter(letters: str = "ABCD") -> Extractor:
    """Return the extractor of a choice's letter, in upper case.

    In this order: the last statement of the form "the answer is (B)" or "Answer: B"; a text that is a letter, or begins with one and a
    mark ("B.", "(B) Paris"); the only letter in brackets. Where these name two letters, nothing is found.
    """
    if not letters.isalnum() or len(set(letters.upper())) != len(letters):
        raise ContractValueError(f"letters must be different letters or digits such as 'ABCD', got {letters!r}")
    kinds = re.escape(letters.upper()) + re.escape(letters.lower())
    upper = re.escape(letters.upper())
    letter = rf"(?:\\(?:text|boxed|mathrm|mathbf)\{{|[*_`\"'$(\[{{<\s]){{0,8}}(?P<letter>[{kinds}])(?![^\W_])(?!['’]\w)"
    stated = re.compile(
        rf"(?i:\b(?:answer|choice|option)\b(?:\s{{0,3}}(?:choice|option|letter))?[*_`\"']{{0,3}}(?:\s{{0,3}}(?:is|would\sbe|should\sbe)\b"
        rf"(?:\s(?:therefore|thus|clearly|most\slikely|likely|probably))?(?:\s(?:option|choice|letter))?)?\s{{0,3}}[:=]?){letter}"
        rf"(?P<also>[*_`\"')\]}}>$\s]{{0,6}}(?:,|or|and|/|&)[*_`\"'($\[{{<\s]{{0,6}}(?P<other>[{upper}])(?![^\W_]))?"
    )
    begins = re.compile(rf"\s*(?:\\boxed\{{|[*_`\"'$(\[{{<])*(?P<letter>[{kinds}])(?:\s*$|[*_`\"'$)\]}}>]*(?:[.):,\]}}*\n]|\s*$))")
    bracketed = re.compile(rf"[(\[](?P<letter>[{upper}])[)\]]")

    def find_letter(text: str) -> str | None:
        statement = last_of(stated.finditer(text))
        if statement is not None:
            return None if statement["also"] else statement["letter"].upper()
        start = begins.match(text)
        found = {start["letter"].upper()} if start else set()
        found = found or {match["letter"] for match in bracketed.finditer(text)}
        return found.pop() if len(found) == 1 else None

    return Extractor(f"choice_letter({letters!r})", find_letter)
