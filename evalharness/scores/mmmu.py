"""MMMU's rules: the letter of a multiple-choice answer, and answers to open questions. They never guess.

MMMU's own script (eval/eval_utils.py, which lmms-eval follows) draws a letter at random where it finds none. It also takes the end of any
word for a letter ("because of the DNA" for A), and a list of right answers for one text.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from evalharness.answers import choice_letter

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class Judged:
    """What was read from an answer, None for nothing, and the scores `acc`, `acc_official` and `not_found`."""

    found: str | None
    scores: dict[str, float]


def judge(answer: str, reference: str, options: Sequence[str]) -> Judged:
    """Return the scores of an answer; without `options` the question is an open one.

    `acc_official` is what MMMU's script gives, and, where that would draw a letter, how often the letter is right.
    """
    if options:
        letter, official = letter_of(answer, options), official_letter(answer, options)
        by_script = 1 / len(options) if official is None else float(official == reference)
        return Judged(letter, {"acc": float(letter == reference), "acc_official": by_script, "not_found": float(letter is None)})
    found = answer.strip() or None
    right, by_script = open_is_right(answer, reference), float(open_is_right(answer, reference, official=True))
    return Judged(found, {"acc": float(right), "acc_official": by_script, "not_found": float(found is None)})


def official_letter(answer: str, options: Sequence[str]) -> str | None:
    """Return the letter that MMMU's script reads, None where it would draw one.

    Letters in brackets come first, then letters before a space, before a period, and in answers of more than five words the texts of
    options; of several, the one that is named last.
    """
    text = _padded(answer)
    letters = LETTERS[: len(options)]
    bracketed = [letter for letter in letters if f"({letter})" in text]
    if bracketed:
        return _last(bracketed, lambda letter: text.rfind(f"({letter})"))
    for end in (" ", "."):
        found = [letter for letter in letters if f"{letter}{end}" in text]
        if found:
            return _last(found, lambda letter: text.rfind(f" {letter} "))
    return _option_named(text, options)


def letter_of(answer: str, options: Sequence[str]) -> str | None:
    """Return the letter that an answer names, None where it names none.

    A statement such as "the answer is B" comes first (`answers.choice_letter`); then the same steps as MMMU's, with letters that are words.
    """
    letters = LETTERS[: len(options)]
    stated = choice_letter(letters)(answer).value
    if stated is not None:
        return stated
    found = re.findall(rf"(?<![\w'’-])([{letters}])(?![\w'’-])", answer)
    # "A" is an article, too, where a word follows.
    named = [letter for letter in found if letter != "A"] or (found if re.search(r"(?<![\w'’-])A(?![\w'’-])(?! +\w)", answer) else [])
    return named[-1] if named else _option_named(_padded(answer), options)


def _padded(answer: str) -> str:
    for mark in ",.!?;:'":
        answer = answer.strip(mark)
    return f" {answer} "


def _last(letters: Sequence[str], place: Callable[[str], int]) -> str:
    """Return the letter whose place is last; of equal ones the first."""
    return max(letters, key=place) if len(letters) > 1 else letters[0]


def _option_named(text: str, options: Sequence[str]) -> str | None:
    if len(text.split()) <= 5:
        return None
    lowered = text.lower()
    places = {letter: lowered.rfind(option.lower()) for letter, option in zip(LETTERS, options, strict=False)}
    found = [letter for letter, place in places.items() if place >= 0]
    return _last(found, lambda letter: places[letter]) if found else None


_INDICATORS = ("could be ", "so ", "is ", "thus ", "therefore ", "final ", "answer ", "result ")
_TRIVIAL = frozenset(":,.!?;'")
# A run of digits is read from its first digit: as its middle never fits where its start does not, that only saves time.
_NUMBERS = (
    re.compile(r"-?\b\d{1,3}(?:,\d{3})+\b"),
    re.compile(r"-?(?<!\d)\d+(?:\.\d+)?[eE][+-]?\d+"),
    re.compile(r"-?(?:(?<!\d)\d+\.\d+|\.\d+|(?<!\d)\d+\b)(?![eE][+-]?\d)(?![,\d])"),
)


def open_is_right(answer: str, reference: str, *, official: bool = False) -> bool:
    """Return whether an answer to an open question holds the reference, as a number rounded to two places or as a text.

    A reference such as "['1/2', '0.5']" lists several right ones; the script (`official`) takes the list itself for a text.
    """
    references = [reference] if official else _listed(reference)
    wanted = [form for one in references for form in _forms(one)]
    for given in _candidates(answer):
        if isinstance(given, str):
            if any(isinstance(form, str) and form in given for form in wanted):
                return True
        elif given in wanted:
            return True
    return False


def _listed(reference: str) -> list[str]:
    if reference.startswith("[") and reference.endswith("]"):
        try:
            values = ast.literal_eval(reference)
        except (ValueError, SyntaxError):
            return [reference]
        if isinstance(values, list) and values:
            return [str(value) for value in values]
    return [reference]


def _forms(text: str) -> list[str | float]:
    """Return a text as it is compared: a number, or lower case; a single character only beside a space."""
    text = text.strip()
    try:
        return [round(float(text.replace(",", "")), 2)]
    except ValueError:
        lowered = text.lower()
        return [f" {lowered}", f"{lowered} "] if len(lowered) == 1 else [lowered]


def _candidates(answer: str) -> list[str | float]:
    """Return what may be the answer: the shortest end of each line after a word such as "is ", and all numbers there."""
    answer = answer.strip().strip(".").lower()
    lines = answer.split("\n")
    ends = []
    for place, line in enumerate(lines):
        indicators = (*_INDICATORS, "=") if place == len(lines) - 1 else _INDICATORS
        tails = [line.rpartition(indicator)[2].strip() for indicator in indicators if indicator in line]
        # The script replaces an empty end by the next one it finds.
        best = ""
        for tail in tails:
            if not best or len(tail) < len(best):
                best = tail
        if best and best not in _TRIVIAL:
            ends.append(best)
    found = ends or [answer]
    numbers = [number for end in found for pattern in _NUMBERS for number in pattern.findall(end)]
    return [form for text in (*found, *numbers) for form in _forms(text)]
