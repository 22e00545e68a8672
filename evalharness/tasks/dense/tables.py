"""What the report of a dense eval says beside the mean scores: micro metrics for gates, and tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evalharness.runs.schema import Row
from evalharness.tasks.dense.geometry import MODES, PRIMARY_THRESHOLD, THRESHOLDS
from evalharness.tasks.dense.metrics import (
    ALL,
    SHORT_NAMES,
    AttributeTotals,
    Counts,
    Details,
    Totals,
    attribute_totals,
    by_category,
    by_type,
    counted_scores,
    details_of,
    mean_count_error,
    totals,
)
from evalharness.tasks.shared import macro_and_min
from evalharness.tasks.stage_a.schema import DISTANCE, NOTES_KEY, TEXT_KEY

__all__ = ["aggregate", "tables"]

SHARES = {
    "valid": "strictly valid",
    "tolerant_valid": "readable",
    "complete": "JSON complete",
    "cap_hit": "hit the token cap",
    "equal": "as many objects as there are",
}
SUMS = {
    "num_surplus": "objects too many",
    "num_lacking": "objects too few",
    "num_duplicates": "repeated objects, left out",
    "num_dropped": "unusable objects, left out",
    "num_inverted": "inverted boxes",
    "num_out_of_range": "objects with points outside the picture",
}

Cell = str | int | float | None
Table = list[dict[str, Cell]]


def aggregate(rows: Sequence[Row]) -> dict[str, float]:
    """Return micro precision, recall and F1 per mode at IoU 0.5, their mean F1 over 0.50–0.95, and what a mean score cannot say.

    `category_macro_f1` and `category_min_f1` are over the categories of each domain, see `category_f1`. What has nothing to
    divide by is left out. Means of scores, made elsewhere, are macro: per picture.
    """
    found = details_of(rows)
    metrics: dict[str, float | None] = {}
    for mode in MODES:
        counted, name = totals(found, mode), SHORT_NAMES[mode]
        counts = counted.at(PRIMARY_THRESHOLD, ALL)
        metrics |= {f"{name}_micro_precision": counts.precision, f"{name}_micro_recall": counts.recall, f"{name}_micro_f1": counts.f1}
        metrics[f"{name}_mean_f1"] = counted.mean_f1(ALL)
    each = {(domain, name): counts.at(PRIMARY_THRESHOLD, name) for domain, counts in _by_domain(rows).items() for name in counts.names}
    metrics |= macro_and_min(
        {category: counts.f1 or 0.0 for category, counts in each.items()},
        {category: counts.num_true for category, counts in each.items()},
    )
    attributes = attribute_totals(found)
    metrics["attribute_micro_recall"] = attributes.recall
    metrics["text_micro_accuracy"] = attributes.accuracy(TEXT_KEY)
    metrics["notes_micro_accuracy"] = attributes.accuracy(NOTES_KEY)
    metrics["distance_micro_accuracy"] = attributes.accuracy(DISTANCE)
    counted_rows = [row for row in rows if "num_duplicates" in row["scores"]]  # not where a dump has objects without their text
    repeated = sum(row["scores"]["num_duplicates"] for row in counted_rows)
    said = repeated + sum(len(details["predictions"]) for details in details_of(counted_rows))
    metrics["duplicate_rate"] = repeated / said if said else None
    return {name: value for name, value in metrics.items() if value is not None}


def tables(rows: Sequence[Row]) -> dict[str, Table]:
    """Return tables by title: modes, thresholds, types, categories, missions and domains, counts and form, attributes."""
    found = details_of(rows)
    made = {
        "Objects at IoU 0.5, and mean F1 over 0.50 to 0.95": _modes(found),
        "F1 by IoU threshold": _thresholds(found),
        "Objects by type, localization": _kinds("type", totals(found, "localization", by_type)),
        "Objects by type, category": _kinds("type", totals(found, "category", by_type)),
        "Objects by category": [
            {"domain": domain, **line} for domain, counts in _by_domain(rows).items() for line in _kinds("category", counts)
        ],
        **{f"Objects by {tag}": _by_tag(rows, tag) for tag in ("mission", "domain")},
        "Counts and form": _form(rows),
        "Attributes of matched objects": _attributes(attribute_totals(found)),
    }
    return {title: table for title, table in made.items() if table}


def _by_domain(rows: Sequence[Row]) -> dict[str, Totals]:
    """Return the counts of the category mode by category, domain by domain: 标签 of BBU is not 标签 of RRU."""
    domains = sorted({row.get("tags", {}).get("domain", "") for row in rows})
    mine = {domain: [row for row in rows if row.get("tags", {}).get("domain", "") == domain] for domain in domains}
    return {domain: totals(details_of(of_domain), "category", by_category) for domain, of_domain in mine.items()}


def _modes(found: Sequence[Details]) -> Table:
    made: Table = []
    for mode in MODES:
        counted = totals(found, mode)
        made.append({"mode": mode, **_cells(counted.at(PRIMARY_THRESHOLD, ALL)), "mean F1": counted.mean_f1(ALL)})
    return made


def _cells(counts: Counts) -> dict[str, Cell]:
    return {
        "true": counts.num_true,
        "predicted": counts.num_said,
        "matched": counts.num_true_hit,
        "precision": counts.precision,
        "recall": counts.recall,
        "F1": counts.f1,
    }


def _thresholds(found: Sequence[Details]) -> Table:
    counted = {mode: totals(found, mode) for mode in MODES}
    return [{"IoU": f"{threshold:.2f}", **{mode: counted[mode].at(threshold, ALL).f1 for mode in MODES}} for threshold in THRESHOLDS]


def _kinds(title: str, counted: Any) -> Table:
    return [
        {title: name or "(none)", **_cells(counted.at(PRIMARY_THRESHOLD, name)), "mean F1": counted.mean_f1(name)} for name in counted.names
    ]


def _by_tag(rows: Sequence[Row], tag: str) -> Table:
    made: Table = []
    for value in sorted({row["tags"][tag] for row in rows if tag in row.get("tags", {})}):
        mine = [row for row in rows if row.get("tags", {}).get(tag) == value]
        found = details_of(mine)
        counts = {mode: totals(found, mode).at(PRIMARY_THRESHOLD, ALL) for mode in MODES}
        both = counts["localization"]
        f1s: dict[str, Cell] = {f"{mode} F1": counts[mode].f1 for mode in MODES}
        made.append({tag: value, "pictures": len(mine), "true": both.num_true, "predicted": both.num_said, **f1s})
    return made


def _form(rows: Sequence[Row]) -> Table:
    """Return shares of pictures, sums of objects, and the mean error of the object count. Empty pictures have no count to compare."""
    made: Table = []
    for name, words in SHARES.items():
        values = [row["scores"][name] for row in rows if name in row["scores"]]
        if values:
            made.append({"what": words, "pictures": int(sum(values)), "of": len(values), "value": sum(values) / len(values)})
    error = mean_count_error(rows)
    if error is not None:
        made.append(
            {"what": "mean absolute error of the number of objects", "pictures": None, "of": len(counted_scores(rows)), "value": error}
        )
    for name, words in SUMS.items():
        values = [row["scores"][name] for row in rows if name in row["scores"]]
        if values:
            made.append({"what": words, "pictures": sum(value > 0 for value in values), "of": len(values), "value": int(sum(values))})
    return made


def _attributes(counted: AttributeTotals) -> Table:
    return [
        {
            "attribute": key,
            "compared": number,
            "right": counted.right[key],
            "share": counted.accuracy(key),
            "weight in attribute_recall": counted.weights[key],
        }
        for key, number in sorted(counted.compared.items(), key=lambda entry: (-entry[1], entry[0]))
    ]
