"""Dense dumps over a whole run: micro metrics for gates, tables, and the offline report of a dump."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from evalharness.analysis.statistics.overlap import Overlap, macro_and_min
from evalharness.runs.schema import Row
from evalharness.tasks.dense.metrics import (
    ALL,
    SHORT_NAMES,
    Totals,
    attribute_totals,
    by_category,
    counted_scores,
    details_of,
    mean_count_error,
    num_objects,
    totals,
)
from evalharness.tasks.dense.objects import LINE_TOLERANCE, MODES, PRIMARY_THRESHOLD, THRESHOLDS
from evalharness.tasks.stage_a.schema import DISTANCE, NOTES_KEY, TEXT_KEY

MATCHING = "greedy one to one: IoU descending, then gt, then pred; geometry exact, not rastered"
MAX_CATEGORIES = 25
SHARES = {
    "valid": "strictly valid",
    "tolerant_valid": "readable",
    "complete": "JSON complete",
    "cap_hit": "hit the token cap",
    "equal": "as many objects as in the reference",
}
SUMS = {
    "num_surplus": "objects too many",
    "num_lacking": "objects too few",
    "num_duplicates": "repeated objects, left out",
    "num_dropped": "unusable objects, left out",
    "num_inverted": "inverted boxes",
    "num_out_of_range": "objects with points outside the image",
}

Cell = str | int | float | None
Table = list[dict[str, Cell]]


def aggregate(rows: Sequence[Row]) -> dict[str, float]:
    """Return micro precision, recall and F1 per mode at IoU 0.5, their mean F1 over 0.50–0.95, and metrics that are not means.

    `category_macro_f1` and `category_min_f1` are over the categories of each domain, see `macro_and_min`. Ratios of nothing by
    nothing are left out. The mean scores that the harness makes of all rows are macro: per image.
    """
    images = details_of(rows)
    metrics: dict[str, float | None] = {}
    for mode in MODES:
        counted, name = totals(images, mode), SHORT_NAMES[mode]
        for ratio, value in counted.at(PRIMARY_THRESHOLD, ALL).ratios(None).items():
            metrics[f"{name}_micro_{ratio}"] = value
        metrics[f"{name}_mean_f1"] = counted.mean_f1(ALL)
    by_domain = _by_domain(rows)
    metrics |= macro_and_min(
        {(domain, name): each.at(PRIMARY_THRESHOLD, name) for domain, each in by_domain.items() for name in each.names}
    )
    attributes = attribute_totals(images)
    metrics["attribute_micro_recall"] = attributes.recall
    metrics["attribute_micro_recall_original"] = attribute_totals(images, "localization").recall
    metrics["text_micro_accuracy"] = attributes.accuracy(TEXT_KEY)
    metrics["notes_micro_accuracy"] = attributes.accuracy(NOTES_KEY)
    metrics["distance_micro_accuracy"] = attributes.accuracy(DISTANCE)
    parsed = [row for row in rows if "num_duplicates" in row["scores"]]  # not where a dump has objects without their text
    repeated = sum(row["scores"]["num_duplicates"] for row in parsed)
    predicted = repeated + sum(len(details["predictions"]) for details in details_of(parsed))
    metrics["duplicate_rate"] = repeated / predicted if predicted else None
    return {name: value for name, value in metrics.items() if value is not None}


def tables(rows: Sequence[Row]) -> dict[str, Table]:
    """Return tables by title: modes, thresholds, types, categories, missions and domains, counts and form, attributes."""
    images = details_of(rows)
    modes = {mode: totals(images, mode) for mode in MODES}
    attributes = attribute_totals(images)
    made: dict[str, Table] = {
        "Objects at IoU 0.5, and mean F1 over 0.50 to 0.95": [{"mode": mode, **_cells(counted, ALL)} for mode, counted in modes.items()],
        "F1 by IoU threshold": [
            {"IoU": f"{threshold:.2f}", **{mode: counted.at(threshold, ALL).f1(None) for mode, counted in modes.items()}}
            for threshold in THRESHOLDS
        ],
        "Objects by type, localization": _kinds("type", totals(images, "localization", itemgetter("type"))),
        "Objects by type, category": _kinds("type", totals(images, "category", itemgetter("type"))),
        "Objects by category": [
            {"domain": domain, **line} for domain, counted in _by_domain(rows).items() for line in _kinds("category", counted)
        ],
        **{f"Objects by {tag}": _by_tag(rows, tag) for tag in ("mission", "domain")},
        "Counts and form": _form(rows),
        "Attributes of matched objects": [
            {
                "attribute": key,
                "compared": number,
                "right": attributes.right[key],
                "share": attributes.accuracy(key),
                "weight in attribute_recall": attributes.weights[key],
            }
            for key, number in sorted(attributes.compared.items(), key=lambda entry: (-entry[1], entry[0]))
        ],
    }
    return {title: table for title, table in made.items() if table}


def _tagged(rows: Sequence[Row], tag: str, value: str) -> list[Row]:
    return [row for row in rows if row.get("tags", {}).get(tag, "") == value]


def _by_domain(rows: Sequence[Row]) -> dict[str, Totals]:
    """Return the counts of the category mode by category, domain by domain: 标签 of BBU is another category than 标签 of RRU."""
    domains = sorted({row.get("tags", {}).get("domain", "") for row in rows})
    return {domain: totals(details_of(_tagged(rows, "domain", domain)), "category", by_category) for domain in domains}


def _cells(counted: Totals, name: str) -> dict[str, Cell]:
    return {**counted.at(PRIMARY_THRESHOLD, name).cells("matched"), "mean F1": counted.mean_f1(name)}


def _kinds(title: str, counted: Totals) -> Table:
    return [{title: name or "(none)", **_cells(counted, name)} for name in counted.names]


def _by_tag(rows: Sequence[Row], tag: str) -> Table:
    made: Table = []
    for value in sorted({row["tags"][tag] for row in rows if tag in row.get("tags", {})}):
        tagged = _tagged(rows, tag, value)
        overlaps = {mode: totals(details_of(tagged), mode).at(PRIMARY_THRESHOLD, ALL) for mode in MODES}
        either = overlaps["localization"]
        f1s: dict[str, Cell] = {f"{mode} F1": overlap.f1(None) for mode, overlap in overlaps.items()}
        made.append({tag: value, "images": len(tagged), "reference": either.num_reference, "predicted": either.num_predicted, **f1s})
    return made


def _form(rows: Sequence[Row]) -> Table:
    """Return shares of images, sums of objects, and the mean error of the object count over the images with any objects."""
    values = {name: [row["scores"][name] for row in rows if name in row["scores"]] for name in (*SHARES, *SUMS)}
    made: Table = [
        {"what": words, "images": int(sum(values[name])), "of": len(values[name]), "value": sum(values[name]) / len(values[name])}
        for name, words in SHARES.items()
        if values[name]
    ]
    error = mean_count_error(rows)
    if error is not None:
        made.append(
            {"what": "mean absolute error of the number of objects", "images": None, "of": len(counted_scores(rows)), "value": error}
        )
    return made + [
        {"what": words, "images": sum(value > 0 for value in values[name]), "of": len(values[name]), "value": int(sum(values[name]))}
        for name, words in SUMS.items()
        if values[name]
    ]


def offline_report(rows: Sequence[Row], path: str) -> dict[str, Any]:
    """Return the report that the original's evaluator makes of the dump at `path`; images without any objects are left out.

    A ratio of nothing by nothing is 0.0 here, as its readers expect numbers; the counts beside it tell.
    """
    images = details_of(rows)
    categories, attributes = totals(images, "category", by_category), attribute_totals(images)
    return {
        "path": path,
        "images": len(images),
        "params": {
            "primary_threshold": PRIMARY_THRESHOLD,
            "coco_thresholds": list(THRESHOLDS),
            "line_tol": LINE_TOLERANCE,
            "modes": list(MODES),
            "matching": MATCHING,
        },
        "count_diagnostics": _count_diagnostics(rows),
        "modes": {mode: _mode(totals(images, mode), totals(images, mode, itemgetter("type"))) for mode in MODES},
        "category_breakdown_primary": [
            {"category": name, **_counts(categories.at(PRIMARY_THRESHOLD, name))} for name in categories.names[:MAX_CATEGORIES]
        ],
        "attribute_diagnostics_primary": {
            "attribute_recall": attributes.recall or 0.0,
            "attribute_recall_original": attribute_totals(images, "localization").recall or 0.0,
            "text_accuracy": attributes.accuracy(TEXT_KEY) or 0.0,
            "notes_accuracy": attributes.accuracy(NOTES_KEY) or 0.0,
            "site_distance_accuracy": attributes.accuracy(DISTANCE) or 0.0,
            "by_attribute": {
                key: {"compared": number, "right": attributes.right[key], "weight": attributes.weights[key]}
                for key, number in sorted(attributes.compared.items())
            },
        },
    }


def _count_diagnostics(rows: Sequence[Row]) -> dict[str, Any]:
    scores = counted_scores(rows)
    shares = {"over_rate": "num_surplus", "under_rate": "num_lacking", "equal_rate": "equal"}
    return {
        "total_gt": int(sum(num_objects(score)[0] for score in scores)),
        "total_pred": int(sum(num_objects(score)[1] for score in scores)),
        "mae": mean_count_error(rows) or 0.0,
        **{name: sum(score[key] > 0 for score in scores) / len(scores) if scores else 0.0 for name, key in shares.items()},
        "duplicates": int(sum(score.get("num_duplicates", 0) for score in scores)),
        "inverted": int(sum(score["num_inverted"] for score in scores)),
        "out_of_range": int(sum(score["num_out_of_range"] for score in scores)),
        "parse_failures": sum(row["scores"].get("tolerant_valid") == 0 for row in rows),
        "cap_hits": sum(row["scores"].get("cap_hit") == 1 for row in rows),
    }


def _mode(together: Totals, typed: Totals) -> dict[str, Any]:
    def by_threshold(counted: Totals, name: str) -> dict[str, Any]:
        return {f"{threshold:.2f}": _counts(counted.at(threshold, name)) for threshold in THRESHOLDS}

    return {
        "by_threshold": by_threshold(together, ALL),
        "by_threshold_by_type": {kind: by_threshold(typed, kind) for kind in sorted(typed.names)},
        "mean_f1": together.mean_f1(ALL) or 0.0,
    }


def _counts(overlap: Overlap) -> dict[str, Any]:
    counts = {"gt": overlap.num_reference, "pred": overlap.num_predicted, "matched": overlap.num_reference_hit}
    return {**counts, **overlap.ratios(0.0)}
