"""Multiple choice by likelihood: how a model decides between given responses, by the metrics that papers and lm-evaluation-harness report.

    def request(case):
        return (yield from choice_request([ScoringRequest(case.question, f" {choice}") for choice in case.choices], shown=case.gold))

    def test_choice(case, steps, score, details):
        judged = choice_scores(steps[0], case.choices, case.gold)
        score(**judged.scores)
        details(**judged.details)

The definitions are lm-evaluation-harness's: of equally likely choices the first is taken; lengths are those of the choice as it is in the
data, without what joins it to the prompt. Equal choices in one row stay two choices.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evalharness.api.checks import check_sequence, plain_number, shown
from evalharness.api.errors import ContractTypeError, ContractValueError
from evalharness.api.options import GenerationOptions
from evalharness.api.requests import GenerationResult
from evalharness.api.scoring import ScoringRequest

CHOICE_DIRECTIONS: Mapping[str, str] = {"brier_score": "lower", "tied": "none", "confidence": "none", "ece": "lower"}
"""For the marker's `directions`: the scores and aggregates of choices that are not better when higher."""
_NUM_BINS = 10
"""Of confidence, for the calibration error."""


@dataclass(frozen=True)
class ChoiceScores:
    """Scores of one question, plain data for its row, and what is wrong in words, "" if the right choice was taken."""

    scores: Mapping[str, float]
    details: Mapping[str, Any]
    problem: str = ""


def choice_request(
    requests: Sequence[ScoringRequest], *, shown: int = 0, unconditional: Sequence[ScoringRequest] = ()
) -> Generator[tuple[list[ScoringRequest], GenerationOptions], list[GenerationResult], ScoringRequest]:
    """Ask for all choices of a question at once, so that backends read their common prompt once; `steps[0]` has the results.

    `shown` is the choice whose result becomes the case's `generation`. `unconditional`: the same choices after a prompt without the
    question, for mutual information; their results follow those of the choices in `steps[0]`.
    """
    yield [*requests, *unconditional], GenerationOptions()
    return requests[shown]


def choice_scores(
    results: Sequence[GenerationResult | float],
    choices: Sequence[str],
    gold: int | str | Sequence[int | str],
    *,
    unconditional: Sequence[GenerationResult | float] = (),
) -> ChoiceScores:
    """Return the scores of one question from the results of its choices, or from their sums of log-probabilities (nats).

    `gold`: the place of the right choice (from 0), its text, or those of several right ones. Twice as many results as choices:
    the second half is `unconditional`.

    - `acc`: the choice with the highest sum is right. `acc_norm`: the highest sum per character; `acc_bytes`: per UTF-8 byte.
      `acc_mutual_info`, with `unconditional`: the highest difference to it.
    - `p_right`: share of the right choices in the probability of all, TruthfulQA's mc2 if there are several. `confidence`: share of the
      choice that is taken. `brier_score`, where one choice is right: squared distance of the shares to the truth, 0…2.
    - `exact_match`, where requests had `greedy=True`: greedy decoding gives a right choice.
    - `tied`: whether a right and a wrong choice share the highest sum, so that their order decides `acc`.

    `ContractValueError` for a gold that is no choice, an empty choice, and a result without a value for each token, or NaN.
    """
    check_sequence("choices", choices, "texts")
    if len(results) == 2 * len(choices) and not unconditional:
        results, unconditional = results[: len(choices)], results[len(choices) :]
    for name, given in (("results", results), *((("unconditional", unconditional),) if unconditional else ())):
        if len(given) != len(choices) or not choices:
            raise ContractValueError(f"{len(choices)} choices need as many {name}, got {len(given)}")
    wrong = next((choice for choice in choices if not isinstance(choice, str)), None)
    if wrong is not None:
        raise ContractTypeError(f"choices must be texts, got {shown(wrong)}; give str(…) of a number")
    if "" in choices:
        raise ContractValueError(f"choice {list(choices).index('')} is empty: it has no likelihood to compare; leave it out")
    right = _right_places(gold, choices)
    sums = [_sum_of(result, choice) for result, choice in zip(results, choices, strict=True)]
    picked = _first_best(sums)
    shares = _shares(sums)
    per_character = [total / len(choice) for total, choice in zip(sums, choices, strict=True)]
    per_byte = [total / len(choice.encode("utf-8", "surrogatepass")) for total, choice in zip(sums, choices, strict=True)]
    scores = {
        "acc": float(picked in right),
        "acc_norm": float(_first_best(per_character) in right),
        "acc_bytes": float(_first_best(per_byte) in right),
        "p_right": sum(shares[place] for place in right),
        "confidence": shares[picked],
        "tied": float(len({place in right for place, total in enumerate(sums) if total == sums[picked]}) > 1),
    }
    if len(right) == 1:
        scores["brier_score"] = sum((share - (place in right)) ** 2 for place, share in enumerate(shares))
    told = [result.is_greedy for result in results if isinstance(result, GenerationResult)]
    if len(told) == len(choices) and None not in told:
        scores["exact_match"] = float(any(told[place] for place in right))
    if unconditional:
        without = [_sum_of(result, choice) for result, choice in zip(unconditional, choices, strict=True)]
        scores["acc_mutual_info"] = float(_first_best([total - alone for total, alone in zip(sums, without, strict=True)]) in right)
    details = {
        "choices": [{**choice, "share": share} for choice, share in zip(scored_choices(results, choices, sums), shares, strict=True)],
        "picked": picked,
        "gold": sorted(right),
    }
    meant = " or ".join(repr(choices[place][:80]) for place in sorted(right))
    return ChoiceScores(scores, details, "" if picked in right else f"{choices[picked][:80]!r} is taken for the right {meant}")


def scored_choices(results: Sequence[GenerationResult | float], choices: Sequence[str], sums: Sequence[float]) -> list[dict[str, Any]]:
    """Return choices for a row's `details["choices"]`: the text that was scored, its log-probability in nats, and what else is known.

    All writers of such lists share this form, and `export` reads it. "-inf" is an impossible choice, as JSON has no infinity. `context`,
    where choices stand behind different prompts: its own.
    """
    entries = []
    have_contexts = len({result.prompt_text for result in results if isinstance(result, GenerationResult)}) > 1
    for result, choice, total in zip(results, choices, sums, strict=True):
        entry: dict[str, Any] = {"text": choice, "logprob": "-inf" if math.isinf(total) else total}
        if isinstance(result, GenerationResult):
            entry["text"] = result.text or choice
            if result.is_greedy is not None:
                entry["is_greedy"] = result.is_greedy
            if have_contexts:
                entry["context"] = result.prompt_text
        entries.append(entry)
    return entries


def _right_places(gold: int | str | Sequence[int | str], choices: Sequence[str]) -> frozenset[int]:
    plain: Any = gold.tolist() if hasattr(gold, "tolist") else gold  # numpy's, out of a table
    places = []
    for each in [plain] if isinstance(plain, str) or not isinstance(plain, Iterable) else plain:
        if isinstance(each, str) and each not in choices:
            raise ContractValueError(f"gold {each!r} is none of the choices {list(choices)!r}")
        places.append(list(choices).index(each) if isinstance(each, str) else each)
    if not places or any(isinstance(place, bool) or not isinstance(place, int) or not 0 <= place < len(choices) for place in places):
        raise ContractValueError(f"gold must be places from 0 to {len(choices) - 1}, or texts of choices, got {gold!r}")
    return frozenset(places)


def _sum_of(result: GenerationResult | float, choice: str) -> float:
    if not isinstance(result, GenerationResult):
        total = plain_number(result)
        if isinstance(total, bool) or not isinstance(total, (int, float)) or not total < math.inf:
            raise ContractValueError(f"{choice[:80]!r} cannot be weighed: {shown(result)} is no sum of log-probabilities")
        return float(total)
    if not result.logprobs or None in result.logprobs:
        raise ContractValueError(f"{choice[:80]!r} cannot be weighed: nothing stands before its first token; give the prompt a beginning")
    return math.fsum(value for value in result.logprobs if value is not None)


def _first_best(values: Sequence[float]) -> int:
    """Return the place of the first of the highest values; what is no number (impossible with and without a question) is never best."""
    return max(range(len(values)), key=lambda place: (-math.inf if math.isnan(values[place]) else values[place], -place))


def _shares(sums: Sequence[float]) -> list[float]:
    """Return each choice's share of the probability of all; equal shares where all are impossible."""
    best = max(sums)
    weights = [math.exp(total - best) if best > -math.inf else 1.0 for total in sums]
    return [weight / math.fsum(weights) for weight in weights]


def choice_aggregates(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return what is no mean over questions, for the marker's `aggregate`, from rows with the scores and details of `choice_scores`.

    `ece`: how far confidence is from accuracy, expected over ten equal bins (Guo et al. 2017). `mcc`: Matthews correlation between the
    places taken and the right ones; `macro_f1`: mean F1 of the places; `f1`: that of place 1, where questions have two choices. The last
    three only where each question has one right choice. `ContractValueError` where a test did not record what they are made of.
    """
    judged = [row for row in rows if "confidence" in row["scores"]]
    if any("acc" not in row["scores"] or not row.get("details", {}).keys() >= {"gold", "picked", "choices"} for row in judged):
        raise ContractValueError(
            "choice_aggregates needs scores and details of choice_scores: record score(**judged.scores) and details(**judged.details)"
        )
    metrics = {} if not judged else {"ece": _calibration_error([(row["scores"]["confidence"], row["scores"]["acc"]) for row in judged])}
    details = [row["details"] for row in judged]
    if details and all(len(each["gold"]) == 1 for each in details):
        pairs = Counter((int(each["gold"][0]), int(each["picked"])) for each in details)
        metrics["mcc"] = _matthews(pairs)
        by_class = {place: _f1(pairs, place) for place in sorted({place for pair in pairs for place in pair})}
        metrics["macro_f1"] = sum(by_class.values()) / len(by_class)
        if all(len(each["choices"]) == 2 for each in details):
            metrics["f1"] = by_class.get(1, 0.0)
    return metrics


def _calibration_error(pairs: Sequence[tuple[float, float]]) -> float:
    bins: dict[int, list[float]] = {}
    for confidence, accuracy in pairs:
        # A bin ends with its upper edge, as in the paper; a confidence is never 0.
        bins.setdefault(math.ceil(confidence * _NUM_BINS), []).append(confidence - accuracy)
    return sum(abs(math.fsum(gaps)) for gaps in bins.values()) / len(pairs)


def _matthews(pairs: Mapping[tuple[int, int], int]) -> float:
    """Return the correlation of several classes (Gorodkin 2004); 0 where all pairs have one gold or one pick, as scikit-learn has it."""
    golds, picks, hits = Counter[int](), Counter[int](), 0
    for (gold, pick), count in pairs.items():
        golds[gold] += count
        picks[pick] += count
        hits += count if gold == pick else 0
    total = golds.total()
    spread = math.sqrt((total**2 - sum(n * n for n in picks.values())) * (total**2 - sum(n * n for n in golds.values())))
    return (hits * total - sum(count * picks[place] for place, count in golds.items())) / spread if spread else 0.0


def _f1(pairs: Mapping[tuple[int, int], int], place: int) -> float:
    sizes = sum(count * ((gold == place) + (pick == place)) for (gold, pick), count in pairs.items())
    return 2 * pairs.get((place, place), 0) / sizes if sizes else 0.0
