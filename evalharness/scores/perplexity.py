"""Perplexity of documents by word and by byte, as lm-evaluation-harness has it: comparable between tokenizers.

    def request(case):
        return document_request(case.text)

    def test_document(case, generation, score):
        score(**perplexity_scores(generation, case.text))

with `aggregate=perplexity_aggregates, directions=PERPLEXITY_DIRECTIONS` in the marker. A document longer than the context is scored in
windows, every token once; the first token stands behind the tokenizer's beginning-of-sequence token, or else its end-of-sequence token.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from evalharness.api.errors import ContractValueError
from evalharness.api.requests import GenerationResult
from evalharness.api.scoring import ScoringRequest


def document_request(text: str, *, window: int | None = None) -> ScoringRequest:
    """Return the request to score a whole text; `window`: how many tokens at a time, by default as many as the context has room for."""
    return ScoringRequest("", text, join="text", rolling=True if window is None else window)


PERPLEXITY_DIRECTIONS: Mapping[str, str] = {
    **dict.fromkeys(("word_perplexity", "byte_perplexity", "bits_per_byte", "num_nats", "impossible"), "lower"),
    **dict.fromkeys(("num_words", "num_bytes"), "none"),
}
"""For the marker's `directions`."""
LARGEST_EXPONENT = 700.0
"""Beyond it a float is infinite."""


def perplexity_scores(result: GenerationResult, text: str, *, num_words: int | None = None) -> dict[str, float | None]:
    """Return nats, words and bytes of one document; `num_nats` is None, and `impossible` 1, where the model rules a token out.

    Words are what white space separates, counted as lm-eval counts them: white space at an end counts one more. `num_words`: another count.
    `ContractValueError` where a token has no log-probability.
    """
    logprobs = result.logprobs or ()
    if not logprobs or None in logprobs:
        raise ContractValueError(f"{text[:80]!r} has tokens without a log-probability; ask with document_request(text)")
    num_nats = -math.fsum(value for value in logprobs if value is not None)
    return {
        "num_nats": num_nats if math.isfinite(num_nats) else None,
        "impossible": float(not math.isfinite(num_nats)),
        "num_words": float(len(re.split(r"\s+", text)) if num_words is None else num_words),
        "num_bytes": float(len(text.encode("utf-8", "surrogatepass"))),
    }


def perplexity_aggregates(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return `word_perplexity`, `byte_perplexity` and `bits_per_byte` over all documents together, for the marker's `aggregate`.

    None of them where a token was impossible: all are infinite then, and a gate without a number does not pass.
    """
    scores = [row["scores"] for row in rows if "num_words" in row["scores"]]
    if not scores or any(score.get("impossible") for score in scores):
        return {}
    nats, words, num_bytes = (sum(score[name] for score in scores) for name in ("num_nats", "num_words", "num_bytes"))
    metrics = {"bits_per_byte": nats / num_bytes / math.log(2)} if num_bytes else {}
    for name, size in (("word_perplexity", words), ("byte_perplexity", num_bytes)):
        if size:
            metrics[name] = math.exp(min(nats / size, LARGEST_EXPONENT))
    return metrics
