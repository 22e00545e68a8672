"""Our dumps: `gt_vs_pred.jsonl` in the original's form, and the offline report that its evaluator makes of one.

A row has the original's keys, and says more: `pred_pixels`, the predictions in pixels; `parse_failed`, `truncated`,
`cap_hit`, `num_duplicates` and `dropped`, so that `"pred": []` can be told from an answer that could not be read, and
repetitions do not vanish; `text_space`, the rectangle in which the text's coordinates lie; `case_id`, `domain`,
`finish_reason`. The last row is the original's aggregate.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evalharness.tasks.dense.dense_coordinates import to_pixels
from evalharness.tasks.dense.dense_matching import MODES, PRIMARY_THRESHOLD, THRESHOLDS
from evalharness.tasks.dense.dense_totals import (
    ALL,
    Counts,
    attribute_totals,
    by_category,
    by_type,
    counted_scores,
    details_of,
    mean_count_error,
    totals,
)
from evalharness.tasks.dense.geometry import LINE_TOLERANCE
from evalharness.tasks.json_files import json_lines, write_whole
from evalharness.tasks.stage_a.schema import DISTANCE, NOTES_KEY, TEXT_KEY

__all__ = ["dump_rows", "offline_report", "write_dump", "write_json"]

MATCHING = "greedy one to one: IoU descending, then gt, then pred; geometry exact, not rastered"
MAX_CATEGORIES = 25

Row = Mapping[str, Any]


def dump_rows(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Yield the dump's rows of an eval's rows, the aggregate last; rows without details (not asked, not answered) are not in it."""
    found = [row for row in rows if row.get("details")]
    for row in found:
        yield _row_of_dump(row)
    counted = totals([row["details"] for row in found], "localization").at(PRIMARY_THRESHOLD, ALL)
    yield {
        "summary": True,
        "num_samples": len(found),
        "total_gt": counted.num_true,
        "total_pred": counted.num_said,
        "total_matched": counted.num_true_hit,
        "total_missing": counted.num_true - counted.num_true_hit,
    }


def _row_of_dump(row: Row) -> dict[str, Any]:
    details, generation = row["details"], row.get("generation") or {}
    image = details["image"]
    size = (image["width"], image["height"])
    predictions = [{"desc": one["desc"], "type": one["type"], "points": one["points"]} for one in details["predictions"]]
    return {
        "image_path": image["path"],
        "gt": [{"type": one["type"], "points": one["pixels"], "desc": one["desc"]} for one in details["truth"]],
        "gt_norm1000": [{"type": one["type"], "points": one["points"], "desc": one["desc"]} for one in details["truth"]],
        "pred": predictions,
        "width": image["width"],
        "height": image["height"],
        "raw_text": generation.get("raw_text") or "",
        "clean_text": generation.get("text") or "",
        "pred_pixels": [{**one, "points": to_pixels(one["points"], size)} for one in predictions],
        "case_id": row["case_id"],
        **({"domain": row["tags"]["domain"]} if "domain" in row["tags"] else {}),
        **(_about_answer(details, generation.get("finish_reason")) if "form" in details else {}),
    }


def _about_answer(details: Mapping[str, Any], finish_reason: str | None) -> dict[str, Any]:
    form = details["form"]
    return {
        "text_space": details["space"],
        "parse_failed": not form["readable"],
        "truncated": form["truncated"],
        "cap_hit": finish_reason == "length",
        "num_duplicates": form["num_duplicates"],
        "dropped": form["dropped"],
        "finish_reason": finish_reason,
    }


def write_dump(path: Path | str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows, one line each; the file appears whole or not at all."""
    write_whole(Path(path), json_lines(rows))


def write_json(path: Path | str, value: Mapping[str, Any]) -> None:
    """Write one JSON object, indented; the file appears whole or not at all."""
    write_whole(Path(path), f"{json.dumps(value, allow_nan=False, indent=2)}\n".encode())


def offline_report(rows: Sequence[Row], path: str) -> dict[str, Any]:
    """Return the report that the original's evaluator makes of the dump at `path`; pictures without any objects are not in it.

    A ratio that would divide by 0 is 0.0 here, as its readers expect numbers; the counts beside it tell.
    """
    found = details_of(rows)
    return {
        "path": path,
        "images": len(found),
        "params": {
            "primary_threshold": PRIMARY_THRESHOLD,
            "coco_thresholds": list(THRESHOLDS),
            "line_tol": LINE_TOLERANCE,
            "modes": list(MODES),
            "matching": MATCHING,
        },
        "count_diagnostics": _count_diagnostics(rows),
        "modes": {mode: _mode(found, mode) for mode in MODES},
        "category_breakdown_primary": _categories(found),
        "attribute_diagnostics_primary": _attributes(found),
    }


def _count_diagnostics(rows: Sequence[Row]) -> dict[str, Any]:
    scores = counted_scores(rows)
    shares = {"over_rate": "num_surplus", "under_rate": "num_lacking", "equal_rate": "equal"}
    return {
        "total_gt": int(sum(score["num_true"] for score in scores)),
        "total_pred": int(sum(score["num_said"] for score in scores)),
        "mae": mean_count_error(rows) or 0.0,
        **{name: sum(score[key] > 0 for score in scores) / len(scores) if scores else 0.0 for name, key in shares.items()},
        "duplicates": int(sum(score.get("num_duplicates", 0) for score in scores)),
        "inverted": int(sum(score["num_inverted"] for score in scores)),
        "out_of_range": int(sum(score["num_out_of_range"] for score in scores)),
        "parse_failures": sum(row["scores"].get("tolerant_valid") == 0 for row in rows),
        "cap_hits": sum(row["scores"].get("cap_hit") == 1 for row in rows),
    }


def _mode(found: Sequence[Mapping[str, Any]], mode: Any) -> dict[str, Any]:
    together, typed = totals(found, mode), totals(found, mode, by_type)
    return {
        "by_threshold": {f"{threshold:.2f}": _counts(together.at(threshold, ALL)) for threshold in THRESHOLDS},
        "by_threshold_by_type": {
            kind: {f"{threshold:.2f}": _counts(typed.at(threshold, kind)) for threshold in THRESHOLDS} for kind in sorted(typed.names)
        },
        "mean_f1": together.mean_f1(ALL) or 0.0,
    }


def _counts(counts: Counts) -> dict[str, Any]:
    return {
        "gt": counts.num_true,
        "pred": counts.num_said,
        "matched": counts.num_true_hit,
        "precision": counts.precision or 0.0,
        "recall": counts.recall or 0.0,
        "f1": counts.f1 or 0.0,
    }


def _categories(found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    counted = totals(found, "category", by_category)
    return [{"category": name, **_counts(counted.at(PRIMARY_THRESHOLD, name))} for name in counted.names[:MAX_CATEGORIES]]


def _attributes(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    counted = attribute_totals(found)
    return {
        "attribute_recall": counted.recall or 0.0,
        "text_accuracy": counted.accuracy(TEXT_KEY) or 0.0,
        "notes_accuracy": counted.accuracy(NOTES_KEY) or 0.0,
        "site_distance_accuracy": counted.accuracy(DISTANCE) or 0.0,
        "by_attribute": {
            key: {"compared": number, "right": counted.right[key], "weight": counted.weights[key]}
            for key, number in sorted(counted.compared.items())
        },
    }
