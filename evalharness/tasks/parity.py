"""Whether engines of one checkpoint agree: prompts, tokens, log-probabilities, and the settings in which they differ.

Every engine is compared with every other one; its metrics are the worst of these comparisons.

same_prompt     share of cases with the same prompt (text and images) and the same number of prompt tokens
same_tokens     share of cases with the same token ids to the end
prefix_gap_mean mean gap of log-probabilities (natural log) over the tokens before the first difference, all cases together
prefix_gap_max  the largest of these gaps
split_gap_max   the largest gap that the engines must have at a first difference, if each chose its most likely token: near 0
                where both tokens were about equally likely, so that rounding decided; 0 where no case differs
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evalharness.api.cases import EngineComparison

MAX_SPLITS_SHOWN = 20
_SHOWN_CHARS = 24
_MIN_REMAINDER = 1e-9
"""Least probability of all other tokens, so that a gap is finite where an engine was certain."""
_SETTINGS = ("backend", "variant", "template_sha256")
"""Settings in an engine's entry besides its `settings`; the rest is names, times and counts."""
_NOT_COMPARED = frozenset(
    {
        "cuda_graphs",
        "environment",
        "load_s",
        "max_num_seqs",
        "max_rows_per_batch",
        "num_batches_halved",
        "num_kv_blocks",
        "rows_at_once",
        "warm_up_s",
    }
)
_ALWAYS = ("backend", "dtype", "attn_implementation", "torch", "transformers", "vllm", "template_sha256", "pixel_budget.max_pixels")


@dataclass(frozen=True)
class CaseComparison:
    """Two generations of one case. `split` is the position of the first differing token, None where the ids are the same.

    `gaps` are those of the tokens before the split, absolute; () without log-probabilities. `split_gap` is that at the split,
    None without log-probabilities or where one generation had ended.
    """

    same_prompt: bool
    split: int | None
    gaps: tuple[float, ...]
    split_gap: float | None


def compare_generations(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> CaseComparison:
    """Return the comparison of two generations as rows have them."""
    same_prompt = all(ours[key] == theirs[key] for key in ("prompt_sha256", "num_prompt_tokens"))
    lengths = len(ours["token_ids"]), len(theirs["token_ids"])
    shared = _first_difference(ours["token_ids"], theirs["token_ids"])
    split = None if lengths == (shared, shared) else shared
    our_logprobs, their_logprobs = ours.get("logprobs"), theirs.get("logprobs")
    if not our_logprobs or not their_logprobs:
        return CaseComparison(same_prompt, split, (), None)
    gaps = tuple(abs(a - b) for a, b in zip(our_logprobs[:shared], their_logprobs[:shared], strict=True))
    both_go_on = split is not None and shared < min(lengths)
    return CaseComparison(same_prompt, split, gaps, _split_gap(our_logprobs[shared], their_logprobs[shared]) if both_go_on else None)


def _first_difference(ours: Sequence[Any], theirs: Sequence[Any]) -> int:
    return next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))


def _split_gap(ours: float, theirs: float) -> float:
    """Return the least gap of engines that chose different tokens with these log-probabilities; 0 where they could agree.

    The other engine's token has at most the probability that remains beside the chosen one, so engines that are each sure of a
    different token are far apart, though both numbers are the same.
    """
    our_rest, their_rest = (math.log(max(-math.expm1(chosen), _MIN_REMAINDER)) for chosen in (ours, theirs))
    return max(abs(ours - theirs), theirs - our_rest, ours - their_rest)


def compare_engines(rows: Mapping[str, Sequence[Mapping[str, Any]]], engines: Mapping[str, Mapping[str, Any]]) -> EngineComparison:
    """Return each engine's metrics against the others, its first differences, and the settings that differ.

    `rows` are judged rows by engine, `engines` the entries of run.json. Cases that one of two engines lacks are not compared; an
    engine without common cases has no metrics.
    """
    made = {engine: {row["case_id"]: row["generation"] for row in own if row.get("generation")} for engine, own in rows.items()}
    metrics: dict[str, dict[str, float]] = {}
    tables: dict[str, dict[str, list[dict[str, Any]]]] = {}
    remarks: dict[str, str] = {}
    settings = differing_settings(engines)
    for engine, own in made.items():
        against = {
            other: {case: compare_generations(own[case], theirs[case]) for case in own if case in theirs}
            for other, theirs in made.items()
            if other != engine
        }
        against = {other: compared for other, compared in against.items() if compared}
        if not against:
            continue
        metrics[engine] = _worst([_metrics(list(compared.values())) for compared in against.values()])
        tables[engine] = {"settings that differ": settings}
        splits = [line for other, compared in against.items() for line in _splits(own, made[other], other, compared)]
        if splits:
            tables[engine]["first differences"] = splits[:MAX_SPLITS_SHOWN]
        remarks[engine] = _remark(settings)
    return EngineComparison(metrics, tables, remarks)


def _metrics(compared: Sequence[CaseComparison]) -> dict[str, float]:
    gaps = [gap for case in compared for gap in case.gaps]
    metrics = {
        "same_prompt": sum(case.same_prompt for case in compared) / len(compared),
        "same_tokens": sum(case.split is None for case in compared) / len(compared),
        "split_gap_max": max((case.split_gap for case in compared if case.split_gap is not None), default=0.0),
    }
    if gaps:
        metrics |= {"prefix_gap_mean": sum(gaps) / len(gaps), "prefix_gap_max": max(gaps)}
    return metrics


def _worst(each: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for metrics in each for name in metrics)
    return {name: (min if name.startswith("same") else max)(metrics[name] for metrics in each if name in metrics) for name in names}


def _splits(
    ours: Mapping[str, Mapping[str, Any]], theirs: Mapping[str, Mapping[str, Any]], other: str, compared: Mapping[str, CaseComparison]
) -> Iterator[dict[str, Any]]:
    for case, comparison in sorted(compared.items(), key=lambda item: -(item[1].split_gap or 0.0)):
        if comparison.split is None and comparison.same_prompt:
            continue
        here, there = ours[case]["text"], theirs[case]["text"]
        start = _first_difference(here, there)
        yield {
            "case": case,
            "against": other,
            "same prompt": "yes" if comparison.same_prompt else "no",
            "token": comparison.split,
            "gap": None if comparison.split_gap is None else round(comparison.split_gap, 6),
            "here": here[start : start + _SHOWN_CHARS],
            "there": there[start : start + _SHOWN_CHARS],
        }


def differing_settings(engines: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return `{"setting": name, engine id: value, …}` for every setting in which engines differ, the important ones first.

    A setting that only some engines have counts where it is known to change results (versions, attention, pixel budget).
    """
    known = {engine: dict(_flat(entry)) for engine, entry in engines.items()}
    names = dict.fromkeys([*_ALWAYS, *(name for facts in known.values() for name in facts)])
    lines = []
    for name in names:
        values = {engine: facts.get(name) for engine, facts in known.items()}
        everywhere = all(name in facts for facts in known.values())
        if (everywhere or name in _ALWAYS) and any(value != next(iter(values.values())) for value in values.values()):
            lines.append({"setting": name, **{engine: _cell(value) for engine, value in values.items()}})
    return lines


def _flat(entry: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in entry.items():
        if name == "settings":
            yield from _within("", value or {})
        elif name in _SETTINGS:
            yield name, value


def _within(prefix: str, settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if name in _NOT_COMPARED:
            continue
        if isinstance(value, Mapping):
            yield from _within(f"{prefix}{name}.", value)
        else:
            yield f"{prefix}{name}", value


def _cell(value: Any) -> str | int | float | None:
    if value is None or isinstance(value, (str, bool, int, float)):
        return value[:40] if isinstance(value, str) else value
    return str(value)[:80]


def _remark(settings: Sequence[Mapping[str, Any]]) -> str:
    if not settings:
        return "the engines differ in no setting that is known"
    shown = [f"{line['setting']} ({' / '.join(str(value) for key, value in line.items() if key != 'setting')})" for line in settings[:4]]
    more = f", {len(settings) - 4} more" if len(settings) > 4 else ""
    return f"the engines differ in {', '.join(shown)}{more}"
