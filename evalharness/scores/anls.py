"""ANLS, the score of DocVQA and InfographicVQA: the normalised Levenshtein similarity to the nearest reference, 0 where below one half.

Definition: Biten et al. 2019, https://arxiv.org/abs/1907.00490; the official script is that of https://rrc.cvc.uab.es/?ch=17&com=tasks,
and lmms-eval's is the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from evalharness.scores.references import texts_of

THRESHOLD = 0.5


def anls(prediction: str | None, references: str | Sequence[str]) -> float:
    """Return the score that the official script gives, 0 to 1; nothing found scores 0.

    Case and repeated white space do not count in the distance; but the script divides by the longer text as written, so that a wrong
    answer with 100 spaces behind it scores nearly 1: `anls_corrected`.
    """
    return _score(prediction, references, by_written_length=True)


def anls_corrected(prediction: str | None, references: str | Sequence[str]) -> float:
    """Return the score with the distance divided by the longer of the same texts that it is of."""
    return _score(prediction, references, by_written_length=False)


def _score(prediction: str | None, references: str | Sequence[str], *, by_written_length: bool) -> float:
    best = 0.0
    prediction, wanted_ones = texts_of(prediction, references)
    for reference in wanted_ones:
        if prediction is None:
            break
        given, wanted = (" ".join(text.lower().split()) for text in (prediction, reference))
        lengths = (len(prediction.upper()), len(reference.upper())) if by_written_length else (len(given), len(wanted))
        length = max(lengths)
        if length == 0:
            return 1.0
        if 1 - abs(len(given) - len(wanted)) / length < max(THRESHOLD, best):
            continue  # the distance is at least that; so long texts cost nothing
        best = max(best, 1 - edit_distance(given, wanted) / length)
    return best if best >= THRESHOLD else 0.0


def edit_distance(one: str, other: str) -> int:
    """Return the Levenshtein distance of two texts.

    A column of the table is two whole numbers, of the places where it rises by one and falls by one (Myers 1999; Hyyrö 2003).
    """
    if not one:
        return len(other)
    places: dict[str, int] = {}
    for place, letter in enumerate(one):
        places[letter] = places.get(letter, 0) | 1 << place
    all_places, last, distance = (1 << len(one)) - 1, 1 << (len(one) - 1), len(one)
    rises, falls = all_places, 0
    for letter in other:
        same = places.get(letter, 0)
        diagonal = (((same & rises) + rises) ^ rises) | same | falls
        rises_beside, falls_beside = falls | ~(diagonal | rises), diagonal & rises
        distance += bool(rises_beside & last) - bool(falls_beside & last)
        beside = rises_beside << 1 | 1
        rises = (falls_beside << 1 | ~(diagonal | beside)) & all_places
        falls = diagonal & beside & all_places
    return distance
