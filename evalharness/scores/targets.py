"""One given continuation by likelihood, such as the last word of a text (LAMBADA): lm-evaluation-harness's output type `loglikelihood`.

    ask = template("{{text.rpartition(' ')[0]}}", target="{{text.rpartition(' ')[2]}}")

    def test_last_word(generation, score):
        score(**target_scores(generation))

with `request=ask.ask_target, aggregate=target_aggregates, directions=TARGET_DIRECTIONS` in the marker. Without a template the request is
`ScoringRequest(text, " word", join="text", greedy=True)`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from evalharness.api.errors import ContractValueError
from evalharness.api.requests import GenerationResult
from evalharness.scores.perplexity import LARGEST_EXPONENT

TARGET_DIRECTIONS: Mapping[str, str] = dict.fromkeys(("perplexity", "num_nats", "impossible"), "lower")
"""For the marker's `directions`."""


def target_scores(result: GenerationResult) -> dict[str, float | None]:
    """Return `acc`, whether greedy decoding gives the target, and its `num_nats`; None and `impossible` 1 where the model rules it out.

    `ContractValueError` where a token has no log-probability, or where the request did not ask what is greedy.
    """
    logprobs = result.logprobs or ()
    if not logprobs or None in logprobs:
        raise ContractValueError(f"{result.text[:80]!r} has tokens without a log-probability; give the prompt a beginning")
    if result.is_greedy is None:
        raise ContractValueError("whether greedy decoding gives the target was not asked; ask with ScoringRequest(…, greedy=True)")
    num_nats = -math.fsum(value for value in logprobs if value is not None)
    is_possible = math.isfinite(num_nats)
    return {"acc": float(result.is_greedy), "num_nats": num_nats if is_possible else None, "impossible": float(not is_possible)}


def target_aggregates(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return `perplexity` by target, lm-eval's of this output type: e to the mean of the targets' nats, however many tokens these have.

    None where a target was impossible: it is infinite then, and a gate without a number does not pass.
    """
    scores = [row["scores"] for row in rows if "impossible" in row["scores"]]
    if not scores or any(score["impossible"] for score in scores):
        return {}
    return {"perplexity": math.exp(min(math.fsum(score["num_nats"] for score in scores) / len(scores), LARGEST_EXPONENT))}
