"""BLEU, chrF and TER of whole sets of answers, by sacrebleu (https://github.com/mjpost/sacrebleu), with its defaults: 0 to 100.

These are no means over cases, so an eval reports them as aggregates: `aggregate=translation("bleu", "chrf")`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from evalharness.answers.bounded import BoundedFunction, OutOfBounds
from evalharness.api.checks import check_sequence
from evalharness.api.errors import ContractValueError, EvalHarnessError, MissingDependency, did_you_mean
from evalharness.api.installing import missing_package
from evalharness.scores.references import references_of

References = Sequence[str | Sequence[str]]
"""One for each prediction, or several; each may have another number of them."""
TER_LIMIT_S = 600.0
"""Processor time of a whole set: TER tries all shifts of words, which takes 7 s for an answer of 300 words and minutes for 3,000."""


def bleu(predictions: Sequence[str | None], references: References, *, tokenize: str = "13a", lowercase: bool = False) -> float:
    """Return the BLEU of a set, 0 to 100; nothing found is an empty text. `tokenize` is sacrebleu's, such as "zh"."""
    return _score(_metrics().BLEU(tokenize=tokenize, lowercase=lowercase), predictions, references)


def chrf(predictions: Sequence[str | None], references: References, *, word_order: int = 0) -> float:
    """Return the chrF of a set, 0 to 100; with `word_order=2` its chrF++."""
    return _score(_metrics().CHRF(word_order=word_order), predictions, references)


def ter(predictions: Sequence[str | None], references: References, *, normalized: bool = False) -> float:
    """Return the translation edit rate of a set: edits per word of the references in per cent, lower is better, and more than 100 if long.

    `EvalHarnessError` if it takes more than `TER_LIMIT_S`.
    """
    _metrics()
    try:
        return float(_ter(list(predictions), list(references), normalized))
    except OutOfBounds as bounds:
        longest = max(len((prediction or "").split()) for prediction in predictions)
        raise EvalHarnessError(f"TER was given up: it took {bounds}; the longest answer has {longest} words; report chrF instead") from None


def ter_here(predictions: Sequence[str | None], references: References, normalized: bool) -> float:
    """Return what `ter` does, in this process."""
    return _score(_metrics().TER(normalized=normalized), predictions, references)


_ter = BoundedFunction(f"{__name__}:ter_here", limit_s=TER_LIMIT_S)
_SCORES: dict[str, Callable[[Sequence[str | None], References], float]] = {
    "bleu": bleu,
    "chrf": chrf,
    "chrf_plus_plus": lambda predictions, references: chrf(predictions, references, word_order=2),
    "ter": ter,
}


def translation(*names: str) -> Callable[[Sequence[Mapping[str, Any]]], dict[str, float]]:
    """Return the `aggregate` of an eval that reports these of "bleu", "chrf", "chrf_plus_plus" and "ter".

    A row's prediction is `details["prediction"]` where the test recorded one, else the answer; its reference is the case's: a text, or a
    list of texts.
    """
    for name in names or ("",):
        if name not in _SCORES:
            hint = did_you_mean(name, _SCORES) or ";"
            raise ContractValueError(f"translation() takes names of scores, got {name!r}{hint} known: {', '.join(_SCORES)}")

    def aggregate(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        if not rows:
            return {}
        predictions = [_prediction(row) for row in rows]
        references: list[Any] = [row.get("reference") for row in rows]
        return {name: _SCORES[name](predictions, references) for name in names}

    return aggregate


def _prediction(row: Mapping[str, Any]) -> str | None:
    details, generation = row.get("details") or {}, row.get("generation") or {}
    if "prediction" in details:
        prediction: str | None = details["prediction"]
        return prediction
    return (generation.get("thinking") or {}).get("answer", generation.get("text"))


def _metrics() -> Any:
    try:
        from sacrebleu import metrics
    except ImportError as error:
        raise MissingDependency(missing_package("this score", error, "metrics")) from error
    return metrics


def _score(metric: Any, predictions: Sequence[str | None], references: References) -> float:
    for name, given in (("predictions", predictions), ("references", references)):
        check_sequence(name, given, "texts, one for each case")
    if not predictions or len(predictions) != len(references):
        raise ContractValueError(f"as many references as predictions, at least one: got {len(predictions)} and {len(references)}")
    lists = [references_of(reference) for reference in references]
    longest = max(map(len, lists))
    # sacrebleu wants the first references of all, then the second ones; None where there are fewer.
    streams = [[texts[place] if place < len(texts) else None for texts in lists] for place in range(longest)]
    return float(metric.corpus_score([prediction or "" for prediction in predictions], streams).score)
