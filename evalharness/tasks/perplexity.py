"""Perplexity of references: how surprising are the right answers to a model? Nothing is generated or parsed.

    {"id": "photo-7", "prompt": "What is on this photo?", "images": ["7.jpg"], "response": "Two cables and a screw."}

One row per line in `<data folder>/perplexity.jsonl`; the other keys are those of `prompt_rows.py`. By default the end of an
answer to a chat counts, that of a bare text does not. `stage_a_cases` gives the photos of a Stage-A folder with their reference
summaries. Perplexity moves long before answers become right, and still tells models apart where all answers are right.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evalharness.api.errors import ConfigError, MissingData
from evalharness.api.requests import GenerationResult
from evalharness.api.scoring import ScoringRequest
from evalharness.tasks import stage_a
from evalharness.tasks.prompt_rows import Judgement, ScoredCase, known_logprobs, prompt_of, read_rows, scored_fields

FILE_NAME = "perplexity.jsonl"


def load_cases(data_dir: Path | str | None, *, name: str = FILE_NAME) -> list[ScoredCase]:
    """Return one case per row of `<data_dir>/perplexity.jsonl`; `ConfigError` names the line that is wrong."""
    cases = []
    for row in read_rows(data_dir, name, ("text", "response", "ends")):
        response = row.values.get("response")
        if not isinstance(response, str) or not response:
            raise ConfigError(f"{row.where}: response must be a text, got {response!r}")
        cases.append(ScoredCase(reference=response, **scored_fields(row, chat_ends=True)))
    return cases


def stage_a_cases(data_dir: Path | str | None) -> list[ScoredCase]:
    """Return the photos of a Stage-A folder that have a reference summary, with Stage-A's prompt and that summary as the response."""
    cases = []
    for case in stage_a.load_cases(data_dir):
        if case.reference is not None:
            messages = stage_a.messages(case.mission, None)
            del messages[1]["content"][0]["image"]  # the part takes the case's image
            text = stage_a.render_summary(None if case.reference.is_irrelevant else case.reference.data, case.domain)
            own = {name: getattr(case, name) for name in ("id", "group", "tags", "invalid")}
            cases.append(ScoredCase(reference=text, messages=messages, images=(str(case.image),), ends=True, **own))
    if not cases:
        raise MissingData(f"no photo of {data_dir} has a reference summary")
    return cases


def request(case: ScoredCase) -> ScoringRequest:
    """Return the request to score the reference."""
    return ScoringRequest(prompt_of(case), case.reference, case.ends)


def judge(result: GenerationResult) -> Judgement:
    """Return the cost of a scored response: nats in all, of a token and of the worst one, over its tokens and bytes that have a value.

    None for numbers that are infinite because the model rules a token out.
    """
    costs = [-value for value in known_logprobs(result)]
    num_nats = sum(costs)
    is_finite = math.isfinite(num_nats) and bool(costs)
    scores = {
        "nats_per_token": num_nats / len(costs) if is_finite else None,
        "worst_token": max(costs) if is_finite else None,
        "impossible": float(bool(costs) and not is_finite),
        "num_nats": num_nats if is_finite else None,
        "num_tokens": float(len(costs)),
        "num_bytes": float(
            len(result.text.encode("utf-8", "surrogatepass")) if result.num_bytes_scored is None else result.num_bytes_scored
        ),
    }
    return Judgement(scores, {})


def aggregate(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return `perplexity` of all tokens together and `bits_per_byte`, which is comparable between tokenizers.

    Neither where a model rules a token out: both are infinite then, and a gate without a number does not pass.
    """
    if any(row["scores"].get("impossible") for row in rows):
        return {}
    scores = [row["scores"] for row in rows if row["scores"].get("num_nats") is not None]
    nats, tokens, num_bytes = (sum(score[name] for score in scores) for name in ("num_nats", "num_tokens", "num_bytes"))
    metrics = {}
    if tokens:
        metrics["perplexity"] = math.exp(min(nats / tokens, 700.0))  # a float ends there
    if num_bytes:
        metrics["bits_per_byte"] = nats / math.log(2) / num_bytes
    return metrics
