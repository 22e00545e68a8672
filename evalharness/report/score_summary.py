"""Means of scores with their intervals, cases of one group taken together, as pandas tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from evalharness.analysis.statistics.clusters import cluster_sums, cluster_variance, group_codes
from evalharness.analysis.statistics.intervals import mean_intervals

__all__ = ["SUMMARY", "summarise", "with_kinds"]

SUMMARY = ["mean", "stderr", "n", "low", "high", "interval", "is_rate"]
"""Mean; its standard error (groups as units); number of cases; 95 % interval and its kind (wilson, bootstrap, none); whether
the score is a rate: 0 or 1 in every case of the test, on whatever engine, and no count (`num_…`).
"""


def with_kinds(scored: pd.DataFrame) -> pd.DataFrame:
    """Return the scores (row, metric, score, eval, test, engine) with `is_rate` and `is_bounded` (within 0…1, no count)."""
    by = [scored[name] for name in ("eval", "test", "metric")]
    is_score = ~scored["metric"].astype(str).str.startswith("num_")
    kinds = {"is_rate": scored["score"].isin((0.0, 1.0)), "is_bounded": scored["score"].between(0.0, 1.0)}
    return scored.assign(**{name: fits.groupby(by, observed=True).transform("all") & is_score for name, fits in kinds.items()})


def summarise(scored: pd.DataFrame, groups: Sequence[str | None], by: list[str]) -> pd.DataFrame:
    """Return the columns `SUMMARY` by the keys `by` and metric; `groups` has one entry per row of samples.jsonl."""
    keys: list[tuple[Any, ...]] = []
    lines: list[list[Any]] = []
    for key, part in scored.groupby(by, observed=True):
        for metric, line in _lines(part, groups):
            keys.append((*key, metric))
            lines.append(line)
    levels = [scored[name].cat.categories if hasattr(scored[name], "cat") else None for name in (*by, "metric")]
    columns = list(zip(*keys, strict=True)) if keys else [()] * len(levels)
    index = pd.MultiIndex.from_arrays(
        [pd.Categorical(column, categories=level, ordered=True) for column, level in zip(columns, levels, strict=True)],
        names=[*by, "metric"],
    )
    table = pd.DataFrame(lines, columns=SUMMARY, index=index)
    return table.astype({"mean": float, "stderr": float, "n": "int64", "low": float, "high": float, "interval": object, "is_rate": bool})


def _lines(part: pd.DataFrame, groups: Sequence[str | None]) -> Iterator[tuple[Any, list[Any]]]:
    """Yield metric and summary of each metric of one line of a score table."""
    rows, positions = np.unique(part["row"].to_numpy(), return_inverse=True)
    codes = part["metric"].cat.codes.to_numpy()
    used, columns = np.unique(codes, return_inverse=True)
    values = np.full((len(rows), len(used)), np.nan)
    values[positions, columns] = part["score"].to_numpy()
    rates, bounded = (_all_by_column(part[name].to_numpy(), columns, len(used)) for name in ("is_rate", "is_bounded"))
    own = [groups[row] for row in rows]
    intervals = mean_intervals(values, own, is_rate=rates, is_bounded=bounded)
    clusters = cluster_sums(values, group_codes(own, len(rows)))
    errors = np.sqrt(cluster_variance(clusters))
    for column, code in enumerate(used):
        n = int(clusters.counts[:, column].sum())
        line = [float(clusters.means[column]), float(errors[column]), n, *intervals[column], rates[column]]
        yield part["metric"].cat.categories[code], line


def _all_by_column(holds: Any, columns: Any, num_columns: int) -> list[bool]:
    """Return, for each column, whether all its entries hold."""
    return [bool(count == 0) for count in np.bincount(columns, weights=~holds, minlength=num_columns)]
