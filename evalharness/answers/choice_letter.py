"""The letter of the choice that an answer names, never a guess."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache

from evalharness.answers.extracting import Extractor, last_of
from evalharness.api.errors import ContractValueError

_OPENING, _CLOSING = r"[*_`\"'$(\[{<\s]", r"[*_`\"'$)\]}>]"
_STATES = r"""(?ix:
    (?P<boxed>\\boxed)
    | 答案(?:选项)?(?P<link1>(?:是|为)\s{0,3}[:：]?|\s{0,3}[:：])?
    | \b(?:answer|choice|option)\b(?:\s{1,3}(?:choice|option|letter)\b)?[*_`"']{0,3}
      (?P<link2>
        \s{1,3}(?:is|would\s+be|should\s+be|must\s+be)\b(?:\s{1,3}(?:therefore|thus|clearly|most|likely|probably|definitely)\b){0,2}
        (?:\s{1,3}(?:the\s+)?(?:option|choice|letter)\b)?\s{0,3}[:=]?
        | \s{0,3}[:=]
      )?
)"""
_WORD_ENDS = r"(?![0-9A-Za-zÀ-ɏ_])"
"""No letter of Latin script follows: in Chinese, what follows is no word."""


def choice_letter(letters: str = "ABCD", texts: Sequence[str] = ()) -> Extractor:
    r"""Return the extractor of a choice's letter, in upper case.

    In this order: the last statement ("the answer is (B)", "Answer: B", `\boxed{B}`); the only letter that is called an option ("I take
    option B"); the letter that the text is or begins with ("B", "B. Paris", "(B) Paris"), if no other line begins so; the only letter in
    brackets; with the choices' `texts`, the only one of them that stands in the answer. What names two letters ("A or B") names none.
    """
    letters = "".join(letters)  # also of a list
    if not letters.isalnum() or len(set(letters.upper())) != len(letters):
        raise ContractValueError(f"letters must be different letters or digits such as 'ABCD', got {letters!r}")
    if len(texts) > len(letters):
        raise ContractValueError(f"{len(texts)} texts of choices have {len(letters)} letters, {letters!r}; each needs one")
    find = _finder(letters)
    name = f"choice_letter({letters!r}{', texts' if texts else ''})"
    return Extractor(name, (lambda text: find(text, tuple(texts))) if texts else (lambda text: find(text, ())))


@cache
def _finder(letters: str) -> Callable[[str, Sequence[str]], str | None]:
    upper, lower = re.escape(letters.upper()), re.escape(letters.lower())
    # A small letter may be a word: only one that is marked, or ends its line, is a choice.
    letter = rf"(?P<letter>[{upper}]{_WORD_ENDS}(?!['’]\w)|[{lower}](?=[.:;,)\]}}*_`\"'$]|\s*$))"
    other = rf"(?:{_CLOSING}|\s){{0,6}}(?:,|\bor\b|\band\b|/|&){_OPENING}{{0,6}}[{upper}]{_WORD_ENDS}"
    macro = r"\\(?:text(?:bf|it|rm)?|math(?:bf|it|rm))\{"
    stated = re.compile(rf"{_STATES}(?:{_OPENING}|{macro}){{0,8}}{letter}(?P<also>{other})?", re.MULTILINE)
    begins = re.compile(rf"^[*_`\"'$(\[\s]{{0,8}}{letter}(?:{_CLOSING}{{0,4}}(?:[.:,)]|\s{{0,8}}$)|{_CLOSING}{{1,4}})", re.MULTILINE)
    bracketed = re.compile(rf"(?<!\w)[(\[]([{upper}])[)\]]")

    def find_letter(text: str, texts: Sequence[str]) -> str | None:
        text = text.strip()
        named = [(match, match["boxed"] or match["link1"] or match["link2"]) for match in stated.finditer(text)]
        statement = last_of(match for match, is_statement in named if is_statement)
        if statement is not None:
            return None if statement["also"] else statement["letter"].upper()
        options = {letter.upper() for match, _ in named for letter in (match["letter"], match["also"] or match["letter"])}
        if options:
            return options.pop() if len(options) == 1 else None
        in_brackets = set(bracketed.findall(text))
        start = begins.match(text)
        if start is not None:
            found = {match["letter"].upper() for match in begins.finditer(text)} | (in_brackets if "(" in start[0] else set())
        else:
            found = in_brackets or _named(text, letters.upper(), texts)
        return found.pop() if len(found) == 1 else None

    return find_letter


def _named(text: str, letters: str, texts: Sequence[str]) -> set[str]:
    """Return the letters of the choices that stand in a text as whole words; one within a longer one that stands there does not count."""
    text = text.casefold()
    found = set()
    for choice in sorted({choice.casefold().strip() for choice in texts} - {""}, key=len, reverse=True):
        whole = re.compile(rf"(?<!\w){re.escape(choice)}(?!\w)")
        if whole.search(text):
            found |= {letter for letter, other in zip(letters, texts, strict=False) if other.casefold().strip() == choice}
            text = whole.sub(" ", text)
    return found
