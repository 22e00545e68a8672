"""Multiple choice by likelihood: which of the given responses is the most likely one? Nothing is generated or parsed.

    {"id": "sky-1", "prompt": "What colour is a clear sky at noon?", "choices": ["Blue", "Green"], "answer": "Blue"}

One row per line in `<data folder>/choices.jsonl`; `answer` is the right choice. The other keys are those of `prompt_rows.py`
(`ends` is false by default). A choice that continues a bare text begins with its own space.

Choices of different lengths are weighed in three ways, known from lm-evaluation-harness: by the sum of the log-probabilities
(its `acc`), the mean per byte (its `acc_norm`) and the mean per token. Ties are wrong: a model without a preference knows nothing.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

from evalharness.api.errors import ConfigError
from evalharness.api.options import GenerationOptions
from evalharness.api.requests import GenerationResult
from evalharness.api.scoring import ScoringRequest
from evalharness.scores.choices import scored_choices
from evalharness.tasks import DataWarning
from evalharness.tasks.prompt_rows import Judgement, ScoredCase, known_logprobs, prompt_of, read_rows, scored_fields

FILE_NAME = "choices.jsonl"


@dataclass(frozen=True, kw_only=True)
class ChoiceCase(ScoredCase):
    """One row; `reference` is the right choice, `others` are the wrong ones."""

    others: tuple[str, ...]


def load_cases(data_dir: Path | str | None, *, name: str = FILE_NAME) -> list[ChoiceCase]:
    """Return one case per row of `<data_dir>/choices.jsonl`; `ConfigError` names the line that is wrong."""
    cases = []
    for row in read_rows(data_dir, name, ("text", "choices", "answer", "ends")):
        choices, answer = row.values.get("choices"), row.values.get("answer")
        if not isinstance(choices, list) or len(choices) < 2 or not all(isinstance(choice, str) and choice for choice in choices):
            raise ConfigError(f"{row.where}: choices must be a list of at least two texts, got {choices!r}")
        if len(set(choices)) < len(choices):
            warnings.warn(DataWarning(f"{row.where}: equal choices count once, got {choices!r}"), stacklevel=2)
        if answer not in choices:
            raise ConfigError(f"{row.where}: answer must be one of the choices, got {answer!r}")
        others = tuple(choice for choice in dict.fromkeys(choices) if choice != answer)
        fields = scored_fields(row, chat_ends=False)
        if not others:
            fields["invalid"] = f"{row.where}: all choices are equal, got {choices!r}"
        cases.append(ChoiceCase(reference=answer, others=others, **fields))
    return cases


def request(case: ChoiceCase) -> Generator[tuple[list[ScoringRequest], GenerationOptions], list[GenerationResult], ScoringRequest]:
    """Score all choices in a step, so that their prompt is read once; the right one, whose score is known then, is the final request."""
    prompt = prompt_of(case)
    requests = [ScoringRequest(prompt, choice, case.ends) for choice in (*case.others, case.reference)]
    yield requests, GenerationOptions()
    return requests[-1]


def judge(right: GenerationResult, others: Sequence[GenerationResult]) -> Judgement:
    """Return how a model decides between the right choice and the others.

    `acc`: the right choice has the highest sum of log-probabilities; `acc_per_byte`, `acc_per_token`: the highest mean. `p_right`:
    its share of the probability of all choices. The right choice may be
    among the others, too. `ConfigError` where a token has no log-probability: it would count as certain.
    """
    others = [other for other in others if other.text != right.text]
    asked = (right, *others)
    for result in asked:
        if not result.logprobs or None in result.logprobs:
            raise ConfigError(f"{result.text[:80]!r} cannot be weighed: nothing stands before its first token; give the text a beginning")
    sums = [sum(known_logprobs(result)) for result in asked]
    sizes = [(len(known_logprobs(result)), len(result.text.encode("utf-8", "surrogatepass"))) for result in asked]
    per_token = [total / max(tokens, 1) for total, (tokens, _) in zip(sums, sizes, strict=True)]
    per_byte = [total / max(num_bytes, 1) for total, (_, num_bytes) in zip(sums, sizes, strict=True)]
    acc, by_byte, by_token = (float(values[0] > max(values[1:])) for values in (sums, per_byte, per_token))
    best = max(sums)
    share = math.exp(sums[0] - best) / sum(math.exp(total - best) for total in sums) if best > -math.inf else 0.0
    scores = {"acc": acc, "acc_per_byte": by_byte, "acc_per_token": by_token, "p_right": share}
    scored = scored_choices(asked, [result.text for result in asked], sums)
    details = {"choices": [{**choice, "tokens": size[0]} for choice, size in zip(scored, sizes, strict=True)]}
    picked = others[max(range(len(others)), key=lambda place: sums[place + 1])].text
    return Judgement(scores, details, "" if acc else f"{picked[:80]!r} is at least as likely as the right {right.text[:80]!r}")
