"""Quantities of answers that gates may be on, such as their tokens, and statistics of single values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from evalharness.analysis.gate_grammar import percent_of
from evalharness.runs.schema import JUDGED, Generation, Row, generations_of, mapping


def _sum_of_tokens(answer: Generation) -> object:
    counts = [answer.get("num_prompt_tokens"), answer.get("num_completion_tokens")]
    return sum(count for count in counts if isinstance(count, int)) if all(isinstance(count, int) for count in counts) else None


_QUANTITIES: Mapping[str, Callable[[Generation], object]] = {
    "completion_tokens": lambda answer: answer.get("num_completion_tokens"),
    "prompt_tokens": lambda answer: answer.get("num_prompt_tokens"),
    "total_tokens": _sum_of_tokens,
    "thinking_tokens": lambda answer: mapping(answer.get("thinking")).get("num_tokens"),
}


def values_of(metric: str, rows: Iterable[Row]) -> list[tuple[Row, float]]:
    """Return each value of a score with its row, or else of a quantity, which each generated answer has; given responses have none."""
    rows = list(rows)
    scored = [(row, row["scores"][metric]) for row in rows if row["outcome"] in JUDGED and metric in row["scores"]]
    if scored or metric not in _QUANTITIES:
        return scored
    quantity = _QUANTITIES[metric]
    answers = ((row, answer) for row in rows for answer in generations_of(row) if answer.get("finish_reason") != "scored")
    values = ((row, quantity(answer)) for row, answer in answers)
    return [(row, float(value)) for row, value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]


def statistic_of(name: str, values: Sequence[float]) -> float | None:
    """Return a statistic of values, None if there are none; "" is the mean.

    p95 is the smallest value that at least 95 % of all do not exceed: it meets `<= x` exactly if 95 % of them do.
    """
    if not values:
        return None
    percent = percent_of(name)
    if percent is not None:
        rank = math.ceil(round(percent * len(values) / 100, 9))  # 29 * 100 / 100 must not become 30
        return sorted(values)[max(rank, 1) - 1]
    if name in ("min", "max"):
        return min(values) if name == "min" else max(values)
    return math.fsum(values) if name else math.fsum(values) / len(values)


def groups_of(values: Sequence[tuple[Row, float]]) -> list[str | None]:
    """Return the group of each value: that of its case, and answers of one case are a group of their own where it has none."""
    several = len({id(row) for row, _ in values}) < len(values)
    return [row.get("group") or (f"\0{row['nodeid']}" if several else None) for row, _ in values]
