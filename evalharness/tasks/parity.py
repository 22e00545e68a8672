"""Whether engines of one checkpoint say the same: prompts, tokens, log-probabilities, and the settings in which they differ.

Every engine is measured against every other one; a metric is the worst of that.

same_prompt     share of cases with the same prompt (text and pictures) and the same number of prompt tokens
same_tokens     share of cases with the same token ids to the end
prefix_gap_mean mean gap of log-probabilities (natural log) over the tokens before the first difference, all cases together
prefix_gap_max  the largest of these gaps
split_gap_max   the largest gap that the engines must have at a first difference, taken that each chose its likeliest token:
                near 0 where the model wavered between both, so that rounding decided; 0 where no case differs
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evalharness.api.cases import EngineComparison

__all__ = ["CaseComparison", "compare_engines", "compare_generations", "differing_settings"]

MAX_SPLITS_SHOWN = 20
_SHOWN_CHARS = 24
_LEAST_LEFT = 1e-9
"""What at least is left to all other tokens, so that a gap is finite where an engine was certain."""
_SETTINGS = ("backend", "variant", "template_sha256")
"""What counts of an engine's entry besides its `settings`; the rest is names, times and counts."""
_NO_SETTINGS_WITHIN = frozenset({"num_batches_halved", "load_s", "max_rows_per_batch", "num_kv_blocks", "max_num_seqs", "environment"})
_ALWAYS = ("backend", "dtype", "attn_implementation", "torch", "transformers", "vllm", "template_sha256", "pixel_budget.max_pixels")


@dataclass(frozen=True)
class CaseComparison:
    """Two generations of one case. `split` is the first differing token's position, None where the ids are the same.

    `gaps`: of each token before the split, absolute; empty where one has no log-probabilities. `split_gap`: at the split,
    None too where one of both had ended already.
    """

    same_prompt: bool
    split: int | None
    gaps: tuple[float, ...]
    split_gap: float | None


def compare_generations(one: Mapping[str, Any], other: Mapping[str, Any]) -> CaseComparison:
    """Return how two generations, as rows hold them, compare."""
    same_prompt = all(one[key] == other[key] for key in ("prompt_sha256", "num_prompt_tokens"))
    ours, theirs = one["token_ids"], other["token_ids"]
    shared = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    split = None if len(ours) == len(theirs) == shared else shared
    mine, yours = one.get("logprobs"), other.get("logprobs")
    if not mine or not yours:
        return CaseComparison(same_prompt, split, (), None)
    gaps = tuple(abs(a - b) for a, b in zip(mine[:shared], yours[:shared], strict=True))
    both_go_on = split is not None and shared < min(len(ours), len(theirs))
    return CaseComparison(same_prompt, split, gaps, _split_gap(mine[shared], yours[shared]) if both_go_on else None)


def _split_gap(mine: float, yours: float) -> float:
    """Return by how much engines must differ that chose different tokens with these log-probabilities; 0 where they need not.

    What one leaves to all other tokens is the most it gives to the other's choice. So two that are each sure of another
    token are far apart, though both numbers are the same.
    """
    left, yours_left = (math.log(max(-math.expm1(chosen), _LEAST_LEFT)) for chosen in (mine, yours))
    return max(abs(mine - yours), yours - left, mine - yours_left)


def compare_engines(rows: Mapping[str, Sequence[Mapping[str, Any]]], engines: Mapping[str, Mapping[str, Any]]) -> EngineComparison:
    """Return each engine's metrics against the others, its first differences, and the settings that differ.

    `rows`: judged rows by engine; `engines`: what run.json says of each. Cases that one of two engines lacks are compared
    by neither; an engine without common cases has no metrics.
    """
    made = {engine: {row["case_id"]: row["generation"] for row in mine if row.get("generation")} for engine, mine in rows.items()}
    metrics: dict[str, dict[str, float]] = {}
    tables: dict[str, dict[str, list[dict[str, Any]]]] = {}
    remarks: dict[str, str] = {}
    for engine, mine in made.items():
        against = {other: {case: compare_generations(mine[case], theirs[case]) for case in mine if case in theirs}
                   for other, theirs in made.items() if other != engine}  # fmt: skip
        against = {other: compared for other, compared in against.items() if compared}
        if not against:
            continue
        metrics[engine] = _worst([_metrics(list(compared.values())) for compared in against.values()])
        settings = differing_settings(engines)
        tables[engine] = {"settings that differ": settings}
        splits = [line for other, compared in against.items() for line in _splits(mine, made[other], other, compared)]
        if splits:
            tables[engine]["first differences"] = splits[:MAX_SPLITS_SHOWN]
        remarks[engine] = _remark(settings)
    return EngineComparison(metrics, tables, remarks)


def _metrics(compared: Sequence[CaseComparison]) -> dict[str, float]:
    gaps = [gap for one in compared for gap in one.gaps]
    found = {
        "same_prompt": sum(one.same_prompt for one in compared) / len(compared),
        "same_tokens": sum(one.split is None for one in compared) / len(compared),
        "split_gap_max": max((one.split_gap for one in compared if one.split_gap is not None), default=0.0),
    }
    if gaps:
        found |= {"prefix_gap_mean": sum(gaps) / len(gaps), "prefix_gap_max": max(gaps)}
    return found


def _worst(each: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for metrics in each for name in metrics)
    return {name: (min if name.startswith("same") else max)(metrics[name] for metrics in each if name in metrics) for name in names}


def _splits(
    mine: Mapping[str, Mapping[str, Any]], theirs: Mapping[str, Mapping[str, Any]], other: str, compared: Mapping[str, CaseComparison]
) -> Iterator[dict[str, Any]]:
    for case, one in sorted(compared.items(), key=lambda item: -(item[1].split_gap or 0.0)):
        if one.split is None and one.same_prompt:
            continue
        here, there = mine[case]["text"], theirs[case]["text"]
        start = next((i for i, (a, b) in enumerate(zip(here, there, strict=False)) if a != b), min(len(here), len(there)))
        yield {
            "case": case,
            "against": other,
            "same prompt": "yes" if one.same_prompt else "no",
            "token": one.split,
            "gap": None if one.split_gap is None else round(one.split_gap, 6),
            "here": here[start : start + _SHOWN_CHARS],
            "there": there[start : start + _SHOWN_CHARS],
        }


def differing_settings(engines: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return `{"setting": name, engine id: value, …}` for every setting in which engines differ, the telling ones first.

    What only some engines have counts where it is known to change results (versions, attention, pixel budget).
    """
    known = {engine: dict(_flat(entry)) for engine, entry in engines.items()}
    names = dict.fromkeys([*_ALWAYS, *(name for facts in known.values() for name in facts)])
    lines = []
    for name in names:
        values = [facts.get(name) for facts in known.values()]
        everywhere = all(name in facts for facts in known.values())
        if (everywhere or name in _ALWAYS) and any(value != values[0] for value in values):
            lines.append({"setting": name, **{engine: _shown(facts.get(name)) for engine, facts in known.items()}})
    return lines


def _flat(entry: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in entry.items():
        if name == "settings":
            yield from _within("", value or {})
        elif name in _SETTINGS:
            yield name, value


def _within(prefix: str, settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if name in _NO_SETTINGS_WITHIN:
            continue
        if isinstance(value, Mapping):
            yield from _within(f"{prefix}{name}.", value)
        else:
            yield f"{prefix}{name}", value


def _shown(value: Any) -> str | int | float | None:
    if value is None or isinstance(value, (str, bool, int, float)):
        return value[:40] if isinstance(value, str) else value
    return str(value)[:80]


def _remark(settings: Sequence[Mapping[str, Any]]) -> str:
    if not settings:
        return "the engines differ in no setting that is known"
    shown = [
        "{} ({})".format(line["setting"], " / ".join(str(value) for key, value in line.items() if key != "setting"))
        for line in settings[:4]
    ]
    more = f", {len(settings) - 4} more" if len(settings) > 4 else ""
    return f"the engines differ in {', '.join(shown)}{more}"
