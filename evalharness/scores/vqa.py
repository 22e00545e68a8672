"""VQA accuracy: how many of ten people gave the model's answer, after both were normalised.

Antol et al., "VQA", ICCV 2015; with the normalisation of TextVQA's evaluation server (EvalAI), which lmms-eval uses as well.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence

from evalharness.api.checks import check_sequence
from evalharness.api.errors import ContractValueError
from evalharness.scores.references import texts_of

_ARTICLES = frozenset({"a", "an", "the"})
_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_DIGITS = {"none": "0", **{word: str(number) for number, word in enumerate(_NUMBERS)}}
_MARKS = ';/[]"{}()=+\\_-><@`!'
_PERIOD = re.compile(r"\.(?!\d)")

# Contractions that the server knows, with their apostrophes; people leave out one of them. "she's" and "let's" are not among them.
_CONTRACTIONS = """
ain't aren't can't could've couldn't couldn't've didn't doesn't don't hadn't hadn't've hasn't haven't he'd he'd've he's how'd how'll how's
isn't it'd it'd've it'll ma'am mightn't mightn't've might've mustn't must've needn't not've o'clock oughtn't shan't she'd've should've
shouldn't shouldn't've somebody'd've somebody'll somebody's someone'd someone'd've someone'll someone's something'd something'd've
something'll that's there'd there'd've there're there's they'd they'd've they'll they're they've 'twas wasn't we'd've we've weren't what'll
what're what's what've when's where'd where's where've who'd who'd've who'll who's who've why'll why're why's won't would've wouldn't
wouldn't've y'all y'all'd've you'd you'd've you'll you're you've
"""


def _without_one(text: str) -> list[str]:
    """Return the text without each of its apostrophes in turn."""
    return [text[:place] + text[place + 1 :] for place, character in enumerate(text) if character == "'"]


_FULL = {short: full for full in _CONTRACTIONS.split() for short in _without_one(full)}
_FULL |= {"'ows'at": "'ow's'at", "'ow'sat": "'ow's'at", "ow's'at": "'ow's'at", "y'allll": "y'all'll", "yall'll": "y'all'll"}
_FULL["somebody'd"] = "somebodyd"  # the wrong way round, as the server has it


def vqa_normalised(text: str) -> str:
    """Return a text as it is compared: lower case, without articles and punctuation, words up to ten as digits.

    The server removes no more than 32 periods of a text, by mistake; here all are.
    """
    text = text.lower().replace(",", "").replace("?", "").replace("'s", " 's").strip()
    text = text.replace("\n", " ").replace("\t", " ").strip()
    given = text
    for mark in _MARKS:
        text = text.replace(mark, "" if f"{mark} " in given or f" {mark}" in given else " ")
    words = (_DIGITS.get(word, word) for word in _PERIOD.sub("", text).split())
    return " ".join(_FULL.get(word, word) for word in words if word not in _ARTICLES)


def vqa_accuracy(answer: str | None, references: Sequence[str]) -> float:
    """Return the mean, over each person left out, of min(1, number of the others who gave this answer / 3); 0 to 1, 0 for None.

    `ContractValueError` without references: nothing can be said of the answer then.
    """
    if not references:
        raise ContractValueError("vqa_accuracy needs the answers that people gave, such as ten of them; got none")
    check_sequence("references", references, "answers that people gave")
    answer, references = texts_of(answer, references)
    if answer is None:
        return 0.0
    given = vqa_normalised(answer)
    same = [vqa_normalised(reference) == given for reference in references]
    return float(statistics.mean(min(1.0, (sum(same) - own) / 3) for own in same))
